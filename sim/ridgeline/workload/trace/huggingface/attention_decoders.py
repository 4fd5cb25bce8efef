"""Decoders whose layers are attention and a feed-forward network."""

from __future__ import annotations

from typing import Any

from ridgeline.workload.trace.huggingface.configuration import FUNCTIONS, Config
from ridgeline.workload.trace.huggingface.parts import (
    attention,
    blocks,
    decoder,
    every,
    gated,
    is_local,
    plain,
    windowed,
)
from ridgeline.workload.trace.huggingface.registry import Fields, model_type


@model_type("llama", "exaone", "mimo", "internlm2", "internlm3", "aquila", "yi", "skywork")
def llama(c: Config) -> Fields:
    """Llama, and what has its layers under other names."""
    c.only("pretraining_tp", 1, 2, 4, 8, None)  # the same products, cut for inference
    bias = c.flag("attention_bias") or c.flag("bias")
    layers = c.layers("num_hidden_layers", "num_layers")
    mixer = attention(c, bias=c.flag("qkv_bias", bias), output_bias=bias)
    act = "activation_function" if c.found("activation_function") else "hidden_act"
    block = {"attention": mixer, "feed_forward": gated(c, bias=c.flag("mlp_bias"), act=act)}
    further = c.count("num_nextn_predict_layers")
    if further:
        c.note(f"its {further} modules for further tokens are left out")
    if c.kind == "mimo":
        block["attention"]["bias"] = c.flag("attention_bias", True)
        block["attention"]["output_bias"] = False
    return decoder(c, [block] * layers)


@model_type("baichuan", "internlm")
def of_one_product(c: Config) -> Fields:
    """Baichuan and InternLM: Llama with one product for queries, keys and values."""
    bias = c.flag("bias", c.kind == "internlm")
    mixer = attention(c, bias=bias, output_bias=bias, fused=True)
    more: Fields = {}
    if c.found("max_position_embeddings") is None:
        more["sequence"] = c.whole("model_max_length", 4096)
        c = Config({**c.data, "max_position_embeddings": more["sequence"]}, c.file, c.kind)
    block = {"attention": mixer, "feed_forward": gated(c)}
    return decoder(c, [block] * c.layers(), **more)


@model_type("mistral", "ministral", "ministral3")
def mistral(c: Config) -> Fields:
    """Mistral: Llama with a window, or with it in some layers."""
    return decoder(c, blocks(c, windowed(c, lambda i: True), gated(c)))


@model_type("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text")
def qwen2(c: Config) -> Fields:
    """Qwen2: biases of queries, keys and values."""
    return decoder(c, blocks(c, qwen_attention(c, bias=True), gated(c)))


@model_type("qwen3", "qwen3_vl_text", "qwen3_asr_text")
def qwen3(c: Config) -> Fields:
    """Qwen3: norms of heads."""
    bias = c.flag("attention_bias")
    mixers = qwen_attention(c, bias=bias, output_bias=bias, head_norm=True)
    return decoder(c, blocks(c, mixers, gated(c)))


def qwen_attention(c: Config, **more: Any) -> list[Fields]:
    """Attention of Qwen's layers: the last ones have a window, if windows are used at all."""
    if not c.flag("use_sliding_window"):
        return [{"attention": attention(c, **more)}] * c.layers()
    first = c.count("max_window_layers")
    return windowed(c, lambda i: i >= first, **more)


@model_type("seed_oss")
def seed_oss(c: Config) -> Fields:
    """Seed-OSS: biases of queries, keys and values."""
    mixer = attention(
        c, bias=c.flag("attention_bias", True), output_bias=c.flag("attention_out_bias")
    )
    block = {"attention": mixer, "feed_forward": gated(c, bias=c.flag("mlp_bias"))}
    return decoder(c, [block] * c.layers(), dropout=c.share("residual_dropout"))


@model_type("gemma")
def gemma(c: Config) -> Fields:
    """Gemma: Llama with geglu and tied embeddings."""
    mixer = attention(c, bias=c.flag("attention_bias"), output_bias=c.flag("attention_bias"))
    block = {"attention": mixer, "feed_forward": gemma_feed_forward(c)}
    return decoder(c, [block] * c.layers(), tied=c.flag("tie_word_embeddings", True))


def gemma_feed_forward(c: Config, width: int | None = None) -> Fields:
    """Read a gated network; its function has two names, and wrong ones were published."""
    act = "hidden_activation" if c.found("hidden_activation") else "hidden_act"
    return {**gated(c, width=width, act=act), "activation": "geglu"}


@model_type("gemma2", "vaultgemma")
def gemma2(c: Config) -> Fields:
    """Gemma 2: norms around branches, and a window in every other layer."""
    bias = c.flag("attention_bias")
    mixers = windowed(c, lambda i: i % 2 == 0, bias=bias, output_bias=bias)
    return decoder(
        c,
        blocks(c, mixers, gemma_feed_forward(c)),
        norms="before" if c.kind == "vaultgemma" else "around",
        tied=c.flag("tie_word_embeddings", True),
    )


@model_type("gemma3_text")
def gemma3(c: Config) -> Fields:
    """Gemma 3: norms of heads, too, and a window in five of six layers."""
    bias = c.flag("attention_bias")
    pattern = c.whole("sliding_window_pattern", c.whole("_sliding_window_pattern", 6))
    mixers = windowed(c, every(pattern), bias=bias, output_bias=bias, head_norm=True)
    return decoder(
        c,
        blocks(c, mixers, gemma_feed_forward(c)),
        norms="around",
        tied=c.flag("tie_word_embeddings", True),
    )


@model_type("gemma4_text")
def gemma4(c: Config) -> Fields:
    """Gemma 4: larger heads in full layers, shared keys, features of every layer, mixtures."""
    count = c.layers()
    local = is_local(c, count, every(6))
    local[-1] = local[-1] and c.found("layer_types") is not None
    shared = c.count("num_kv_shared_layers")
    first_shared = count - shared
    window = c.whole("sliding_window")
    experts = c.flag("enable_moe_block")
    layers = []
    for i in range(count):
        own: Fields = {"bias": False, "output_bias": False, "head_norm": True}
        if local[i]:
            own |= {"head_size": c.whole("head_dim"), "window": window}
        else:
            own["head_size"] = c.whole("global_head_dim", 512)
        mixer = {**attention(c), **own}
        if not local[i] and c.flag("attention_k_eq_v"):
            mixer["keys"] = "values-too"
            mixer["kv_heads"] = c.whole("num_global_key_value_heads", mixer["kv_heads"])
        wide = c.whole("intermediate_size")
        if shared and i >= first_shared:
            mixer["keys"] = "earlier"
            wide *= 1 + c.flag("use_double_wide_mlp")
        layer: Fields = {"attention": mixer, "feed_forward": gemma_feed_forward(c, wide)}
        if experts:
            layer["mixture"] = {
                "experts": c.whole("num_experts"),
                "top_k": c.whole("top_k_experts"),
                "width": c.whole("moe_intermediate_size"),
                "activation": "geglu",
                "input_scale": True,
                "expert_scale": True,
            }
            layer["branch_norms"] = True
        layers.append(layer)
    features = c.count("hidden_size_per_layer_input")
    more: Fields = {}
    if features:
        more["layer_features"] = features
        more["layer_vocabulary"] = c.whole("vocab_size_per_layer_input", c.whole("vocab_size"))
    tied = c.flag("tie_word_embeddings", True)
    return decoder(c, layers, norms="around", tied=tied, **more)


@model_type("phi3")
def phi3(c: Config) -> Fields:
    """Phi-3: one product for queries, keys and values, one for gate and up."""
    mixers = windowed(c, lambda i: True, fused=True)
    return decoder(c, blocks(c, mixers, {**gated(c), "fused": True}))


@model_type("phi")
def phi(c: Config) -> Fields:
    """Phi-1 and Phi-2: both branches read one layer norm; biases everywhere."""
    c.only("qk_layernorm", False)
    block = {"attention": attention(c, bias=True, output_bias=True), "feed_forward": plain(c)}
    return decoder(
        c,
        [block] * c.layers(),
        norm="layer-norm",
        parallel="one-norm",
        head_bias=True,
        dropout=c.share("resid_pdrop"),
    )


@model_type("starcoder2")
def starcoder2(c: Config) -> Fields:
    """StarCoder2: layer norms, biases, a plain feed-forward network."""
    bias = c.flag("use_bias", True)
    mixers = windowed(c, lambda i: True, bias=bias, output_bias=bias)
    return decoder(
        c,
        blocks(c, mixers, plain(c, bias=bias)),
        norm="layer-norm",
        dropout=c.share("residual_dropout"),
        tied=c.flag("tie_word_embeddings", True),
    )


@model_type("glm", "glm4", "glm4v_text")
def glm(c: Config) -> Fields:
    """GLM-4: one product for gate and up; from 2025 on norms around branches."""
    mixer = attention(c, bias=c.flag("attention_bias", True))
    block = {"attention": mixer, "feed_forward": {**gated(c), "fused": True}}
    norms = "before" if c.kind == "glm" else "around"
    return decoder(c, [block] * c.layers(), norms=norms)


@model_type("chatglm")
def chatglm(c: Config) -> Fields:
    """ChatGLM and GLM-4 in the names of their own code."""
    heads = c.whole("num_attention_heads")
    c.only("rmsnorm", True)
    c.only("apply_residual_connection_post_layernorm", False)
    groups = c.whole("multi_query_group_num", 2) if c.flag("multi_query_attention") else heads
    mixer: Fields = {
        "heads": heads,
        "kv_heads": groups,
        "head_size": c.whole("kv_channels", c.whole("hidden_size") // heads),
        "bias": c.flag("add_bias_linear") or c.flag("add_qkv_bias"),
        "output_bias": c.flag("add_bias_linear"),
        "dropout": c.share("attention_dropout"),
    }
    forward = {
        "width": c.whole("ffn_hidden_size"),
        "activation": "swiglu",
        "bias": c.flag("add_bias_linear"),
    }
    c = Config(
        {
            **c.data,
            "max_position_embeddings": c.whole("seq_length"),
            "vocab_size": c.first("padded_vocab_size", "vocab_size"),
        },
        c.file,
        c.kind,
        notes=c.notes,
    )
    layers = [{"attention": mixer, "feed_forward": forward}] * c.layers("num_layers")
    return decoder(c, layers, last_norm=c.flag("post_layer_norm", True))


@model_type("olmo")
def olmo(c: Config) -> Fields:
    """OLMo: layer norms without weights."""
    bias = c.flag("attention_bias")
    block = {"attention": attention(c, bias=bias, output_bias=bias), "feed_forward": gated(c)}
    return decoder(c, [block] * c.layers(), norm="plain-norm")


@model_type("olmo2", "olmo3")
def olmo2(c: Config) -> Fields:
    """OLMo 2 and 3: norms behind branches, and of queries and keys as a whole; 3 has windows."""
    bias = c.flag("attention_bias")
    more: Fields = {"bias": bias, "output_bias": bias, "head_norm": "whole"}
    if c.kind == "olmo2":
        mixers = [{"attention": attention(c, **more)}] * c.layers()
    else:
        mixers = windowed(c, every(4), **more)
    return decoder(c, blocks(c, mixers, gated(c)), norms="after")


@model_type("exaone4")
def exaone4(c: Config) -> Fields:
    """EXAONE 4: norms behind branches and of heads; beside windows, full layers do not rotate."""
    pattern = c.found("sliding_window_pattern")
    count = len(pattern) if isinstance(pattern, str) else pattern or 4
    letters = pattern if isinstance(pattern, str) else ""

    def local(i: int) -> bool:
        if i == c.layers() - 1:
            return False
        return letters[i % count] == "L" if letters else (i + 1) % count != 0

    mixers = windowed(c, local, head_norm=True)
    if c.found("sliding_window"):
        mixers = [
            m if "window" in m["attention"] else {"attention": {**m["attention"], "rotary": False}}
            for m in mixers
        ]
    return decoder(c, blocks(c, mixers, gated(c)), norms="after")


@model_type("smollm3")
def smollm3(c: Config) -> Fields:
    """SmolLM3: every fourth layer does not rotate."""
    count = c.layers()
    rotated = c.entries("no_rope_layers", count)
    step = c.whole("no_rope_layer_interval", 4)
    bias = c.flag("attention_bias")
    mixer = attention(c, bias=bias, output_bias=bias)
    c.only("use_sliding_window", False)
    mixers = [
        {"attention": {**mixer, "rotary": bool(rotated[i] if rotated else (i + 1) % step)}}
        for i in range(count)
    ]
    tied = c.flag("tie_word_embeddings", True)
    return decoder(c, blocks(c, mixers, gated(c, bias=c.flag("mlp_bias"))), tied=tied)


@model_type("arcee")
def arcee(c: Config) -> Fields:
    """AFM: a plain feed-forward network with squared relu."""
    bias = c.flag("attention_bias")
    block = {
        "attention": attention(c, bias=bias, output_bias=bias),
        "feed_forward": plain(c, bias=c.flag("mlp_bias")),
    }
    return decoder(c, [block] * c.layers())


@model_type("nemotron")
def nemotron(c: Config) -> Fields:
    """Nemotron-4 and Minitron: layer norms, squared relu."""
    bias = c.flag("attention_bias")
    block = {
        "attention": attention(c, bias=bias, output_bias=bias),
        "feed_forward": plain(c, bias=c.flag("mlp_bias")),
    }
    return decoder(c, [block] * c.layers(), norm="layer-norm")


@model_type("nemotron-nas", "deci")
def nemotron_nas(c: Config) -> Fields:
    """Llama-Nemotron: Llama whose layers a search has thinned out, each in its own way."""
    heads = c.whole("num_attention_heads")
    hidden, mixer = c.whole("hidden_size"), attention(c)
    layers: list[Fields] = []
    for i, block in enumerate(c.entries("block_configs", c.layers(), dict) or []):
        of = Config(block, c.file, "", f"block_configs[{i}].")
        attends, follows = of.part("attention"), of.part("ffn")
        layer: Fields = {}
        if attends.flag("replace_with_linear") or follows.flag("replace_with_linear"):
            raise of.fail("replace_with_linear", "a linear layer in place of one is not modelled")
        if not attends.flag("no_op"):
            groups = attends.whole("n_heads_in_group", 1)
            layer["attention"] = {**mixer, "kv_heads": heads // groups}
        if not follows.flag("no_op"):
            wide = int(2 * follows.number("ffn_mult", 1.0) * hidden / 3)
            layer["feed_forward"] = gated(c, width=wide + -wide % 256)
        if layer:
            layers.append(layer)
    if not layers:
        raise c.fail("block_configs", "the field 'block_configs' is missing")
    return decoder(c, layers)


@model_type("cohere", "cohere2")
def cohere(c: Config) -> Fields:
    """Command R: both branches read one norm that has no bias; its second version has windows."""
    bias = c.flag("attention_bias")
    c.only("use_qk_norm", False)
    more: Fields = {"bias": bias, "output_bias": bias}
    if c.kind == "cohere":
        mixers = [{"attention": attention(c, **more)}] * c.layers()
    else:
        mixers = windowed(c, every(c.whole("sliding_window_pattern", 4)), **more)
        mixers = [
            m if "window" in m["attention"] else {"attention": {**m["attention"], "rotary": False}}
            for m in mixers
        ]
    return decoder(
        c,
        blocks(c, mixers, gated(c)),
        norm="unbiased-layer-norm",
        parallel="one-norm",
        tied=c.flag("tie_word_embeddings", True),
    )


@model_type("stablelm")
def stablelm(c: Config) -> Fields:
    """StableLM: layer norms."""
    c.only("qk_layernorm", False)
    mixer = attention(c, bias=c.flag("use_qkv_bias"))
    block = {"attention": mixer, "feed_forward": gated(c)}
    parallel = "one-norm" if c.flag("use_parallel_residual") else "no"
    drop = c.share("hidden_dropout")
    return decoder(c, [block] * c.layers(), norm="layer-norm", parallel=parallel, dropout=drop)


@model_type("falcon", "RefinedWeb", "RefinedWebModel")
def falcon(c: Config) -> Fields:
    """Falcon: branches beside each other."""
    heads, hidden = c.whole("num_attention_heads"), c.whole("hidden_size")
    bias, new = c.flag("bias"), c.flag("new_decoder_architecture")
    kv_heads = c.whole("num_kv_heads", heads) if new else heads
    if not new and c.flag("multi_query", True):
        kv_heads = 1
    norms = c.whole("num_ln_in_parallel_attn", 2) if new else 1
    together = c.flag("parallel_attn", True) or new
    mixer = {
        "heads": heads,
        "kv_heads": kv_heads,
        "bias": bias,
        "output_bias": bias,
        "dropout": c.share("attention_dropout"),
    }
    width = c.count("ffn_hidden_size", 4 * hidden)
    forward = plain(c, width=width, bias=bias, act="activation")
    block = {"attention": mixer, "feed_forward": forward}
    parallel = ("two-norms" if norms == 2 else "one-norm") if together else "no"
    return decoder(
        c,
        [block] * c.layers(),
        sequence=c.whole("max_position_embeddings", 2048),
        norm="layer-norm",
        parallel=parallel,
        positions="none" if c.flag("alibi") else "rotary",
        tied=c.flag("tie_word_embeddings", True),
        dropout=c.share("hidden_dropout"),
    )


@model_type("gpt_neox")
def gpt_neox(c: Config) -> Fields:
    """GPT-NeoX and Pythia: branches beside each other, each with its norm."""
    bias = c.flag("attention_bias", True)
    mixer = attention(c, bias=bias, output_bias=bias, fused=True)
    block = {"attention": mixer, "feed_forward": plain(c)}
    parallel = "two-norms" if c.flag("use_parallel_residual", True) else "no"
    drop = c.share("hidden_dropout")
    return decoder(c, [block] * c.layers(), norm="layer-norm", parallel=parallel, dropout=drop)


@model_type("gptj")
def gptj(c: Config) -> Fields:
    """GPT-J: branches beside each other that read one norm."""
    hidden = c.whole("n_embd")
    forward = plain(c, width=c.count("n_inner", 4 * hidden), act="activation_function")
    mixer = {
        "heads": c.whole("n_head"),
        "bias": False,
        "output_bias": False,
        "fused": False,
        "dropout": c.share("attn_pdrop"),
    }
    block = {"attention": mixer, "feed_forward": forward}
    return {
        **_gpt(c, [block] * c.layers("n_layer")),
        "positions": "rotary",
        "parallel": "one-norm",
        "head_bias": True,
        "tied": c.flag("tie_word_embeddings"),
    }


def _gpt(c: Config, layers: list[Fields]) -> Fields:
    """Fields of a decoder in the names of GPT-2."""
    named = {
        "vocab_size": c.whole("vocab_size"),
        "max_position_embeddings": c.whole("n_positions"),
        "hidden_size": c.whole("n_embd"),
    }
    return decoder(
        Config(named, c.file, "", c.prefix, c.notes),
        layers,
        norm="layer-norm",
        positions="learned",
        tied=c.flag("tie_word_embeddings", True),
        dropout=c.share("resid_pdrop", 0.1),
    )


@model_type("gpt2", "gpt_bigcode")
def gpt2(c: Config) -> Fields:
    """GPT-2, and StarCoder, whose heads share keys and values."""
    c.only("add_cross_attention", False)
    hidden = c.whole("n_embd")
    mixer: Fields = {"heads": c.whole("n_head"), "dropout": c.share("attn_pdrop", 0.1)}
    if c.kind == "gpt_bigcode" and c.flag("multi_query", True):
        mixer["kv_heads"] = 1
    forward = {
        "width": c.count("n_inner", 4 * hidden),
        "activation": c.one_of("activation_function", FUNCTIONS, "gelu_new"),
    }
    return _gpt(c, [{"attention": mixer, "feed_forward": forward}] * c.layers("n_layer"))


_GLOBAL_LOCAL: list[Any] = [[["global", "local"], 12]]


@model_type("gpt_neo")
def gpt_neo(c: Config) -> Fields:
    """GPT-Neo: a window in every other layer; no biases of queries, keys and values."""
    count, window = c.layers("num_layers"), c.whole("window_size", 256)
    mixer: Fields = {
        "heads": c.first("num_heads"),
        "bias": False,
        "fused": False,
        "scaled": False,
        "dropout": c.share("attention_dropout"),
    }
    hidden = c.whole("hidden_size")
    width = c.count("intermediate_size", 4 * hidden)
    forward = plain(c, width=width, act="activation_function")
    pattern = [
        kind
        for kinds, times in c.found("attention_types") or _GLOBAL_LOCAL
        for kind in kinds * times
    ]
    mixers = [
        {"attention": {**mixer, "window": window} if kind == "local" else mixer}
        for kind in pattern[:count]
    ]
    return decoder(
        c,
        blocks(c, mixers, forward),
        norm="layer-norm",
        positions="learned",
        tied=c.flag("tie_word_embeddings", True),
        dropout=c.share("resid_dropout"),
    )


@model_type("bloom")
def bloom(c: Config) -> Fields:
    """BLOOM: a norm of the embedding; positions by biases of scores (ALiBi)."""
    c.only("apply_residual_connection_post_layernorm", False)
    mixer = {"heads": c.whole("n_head"), "dropout": c.share("attention_dropout")}
    hidden = c.whole("hidden_size")
    forward = {"width": 4 * hidden, "activation": "gelu"}
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": c.whole("seq_length", 2048),
        "layers": c.layers("n_layer"),
        "hidden": hidden,
        "attention": mixer,
        "feed_forward": forward,
        "embedding_norm": True,
        "positions": "none",
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.share("hidden_dropout"),
    }


@model_type("mpt")
def mpt(c: Config) -> Fields:
    """MPT: norms and products without biases; ALiBi."""
    c.only("no_bias", True)
    c.only("norm_type", "low_precision_layernorm")
    inner = c.part("attn_config", "mpt_attn")
    inner.only("qk_ln", False)
    inner.only("attn_type", "multihead_attention")
    inner.only("alibi", True)
    hidden = c.whole("d_model")
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": c.whole("max_seq_len"),
        "layers": c.layers("n_layers"),
        "hidden": hidden,
        "attention": {"heads": c.whole("n_heads"), "bias": False, "output_bias": False},
        "feed_forward": {
            "width": c.whole("expansion_ratio", 4) * hidden,
            "activation": "gelu",
            "bias": False,
        },
        "norm": "unbiased-layer-norm",
        "positions": "none",
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.share("resid_pdrop"),
    }


@model_type("opt")
def opt(c: Config) -> Fields:
    """OPT."""
    c.only("do_layer_norm_before", True)
    c.only("enable_bias", True)
    hidden = c.whole("hidden_size")
    c.only("word_embed_proj_dim", hidden)
    positions = c.whole("max_position_embeddings")
    return decoder(
        c,
        [
            {
                "attention": {
                    "heads": c.whole("num_attention_heads"),
                    "fused": False,
                    "dropout": c.share("attention_dropout"),
                },
                "feed_forward": {
                    "width": c.whole("ffn_dim"),
                    "activation": c.one_of("activation_function", FUNCTIONS, "relu"),
                },
            }
        ]
        * c.layers(),
        norm="layer-norm",
        positions="learned",
        max_positions=positions + 2,  # its table begins with two rows for padding
        tied=c.flag("tie_word_embeddings", True),
        dropout=c.share("dropout", 0.1),
    )


@model_type("granite")
def granite(c: Config) -> Fields:
    """Granite: Llama with factors."""
    bias = c.flag("attention_bias")
    block = {
        "attention": attention(c, bias=bias, output_bias=bias),
        "feed_forward": gated(c, bias=c.flag("mlp_bias")),
    }
    return decoder(c, [block] * c.layers())


@model_type("minicpm")
def minicpm(c: Config) -> Fields:
    """MiniCPM: Llama with factors and tied embeddings."""
    if c.found("sparse_config"):
        c.note("its sparse attention is taken as dense")
    block = {"attention": attention(c), "feed_forward": gated(c)}
    return decoder(c, [block] * c.layers(), tied=c.flag("tie_word_embeddings", True))


@model_type("minicpm3")
def minicpm3(c: Config) -> Fields:
    """MiniCPM3: latent attention and a feed-forward network."""
    block = {"latent_attention": latent(c), "feed_forward": gated(c, bias=c.flag("mlp_bias"))}
    return decoder(c, [block] * c.layers(), tied=c.flag("tie_word_embeddings", True))


def latent(c: Config, **more: object) -> Fields:
    """Multi-head latent attention as DeepSeek names its fields."""
    c.only("attention_bias", False)
    fields: Fields = {
        "heads": c.whole("num_attention_heads"),
        "rank": c.whole("kv_lora_rank"),
        "plain_size": c.whole("qk_nope_head_dim"),
        "rotary_size": c.whole("qk_rope_head_dim"),
        "value_size": c.whole("v_head_dim"),
        **more,
    }
    if c.found("q_lora_rank") is not None:
        fields["query_rank"] = c.whole("q_lora_rank")
    return fields


@model_type("hunyuan_v1_dense")
def hunyuan(c: Config) -> Fields:
    """Hunyuan: norms of heads, behind the rotation."""
    bias = c.flag("attention_bias")
    mixer = attention(c, bias=bias, output_bias=bias, head_norm=c.flag("use_qk_norm", True))
    tied = c.flag("tie_word_embeddings")
    return decoder(c, [{"attention": mixer, "feed_forward": gated(c)}] * c.layers(), tied=tied)


@model_type("ernie4_5")
def ernie(c: Config) -> Fields:
    """ERNIE 4.5."""
    bias = c.flag("use_bias")
    block = {
        "attention": attention(c, bias=bias, output_bias=bias),
        "feed_forward": gated(c, bias=bias),
    }
    return decoder(c, [block] * c.layers(), tied=c.flag("tie_word_embeddings", True))


@model_type("helium")
def helium(c: Config) -> Fields:
    """Helium."""
    block = {"attention": attention(c, bias=c.flag("attention_bias")), "feed_forward": gated(c)}
    return decoder(c, [block] * c.layers())


@model_type("phi3_v")
def phi3_v(c: Config) -> Fields:
    """Phi-3 Vision: the text, whose encoder of images its configuration does not describe."""
    c.note(
        "its encoder of images (CLIP) and projector are left out: the file does not describe them"
    )
    return phi3(Config(c.given, c.file, "phi3", c.prefix, c.notes))
