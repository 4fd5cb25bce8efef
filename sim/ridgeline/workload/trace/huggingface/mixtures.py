"""Decoders with mixtures of experts."""

from __future__ import annotations

from typing import Any

from ridgeline.workload.trace.huggingface.attention_decoders import latent, qwen_attention
from ridgeline.workload.trace.huggingface.configuration import Config
from ridgeline.workload.trace.huggingface.parts import (
    attention,
    blocks,
    decoder,
    every,
    gated,
    is_local,
    windowed,
)
from ridgeline.workload.trace.huggingface.registry import Fields, model_type


def _mixture(
    c: Config,
    experts: str,
    top_k: str,
    width: str,
    *,
    scores: str = "softmax-of-chosen",
    **more: Any,
) -> Fields:
    """Read a mixture: how many experts, how many for each token, and how wide."""
    return {
        "mixture": {
            "experts": c.whole(experts),
            "top_k": c.whole(top_k),
            "width": c.whole(width),
            "scores": scores,
            **more,
        }
    }


def _renormalised(c: Config, default: bool) -> str:
    """Tell how weights are made: divided by the sum of the chosen, they are a softmax of these."""
    return "softmax-of-chosen" if c.flag("norm_topk_prob", default) else "softmax"


def _further(c: Config) -> None:
    """Say that modules for further tokens are left out, as the library leaves them out."""
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
        if count := c.count(name):
            c.note(f"its {count} modules for further tokens are left out ({name})")


@model_type("mixtral")
def mixtral(c: Config) -> Fields:
    """Mixtral."""
    follow = _mixture(c, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    return decoder(c, blocks(c, windowed(c, lambda i: True), follow))


@model_type("phimoe")
def phimoe(c: Config) -> Fields:
    """Phi-3.5-MoE: layer norms, biases."""
    bias = c.flag("attention_bias")
    mixers = windowed(c, lambda i: True, bias=bias, output_bias=bias)
    follow = _mixture(c, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    return decoder(
        c, blocks(c, mixers, follow), norm="layer-norm", head_bias=c.flag("lm_head_bias")
    )


@model_type("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text")
def qwen_moe(c: Config) -> Fields:
    """Qwen's mixtures; the second generation has a shared expert behind a gate."""
    count = c.layers()
    if c.kind == "qwen2_moe":
        more: Fields = {"bias": c.flag("qkv_bias", True)}
        shared: Fields = {
            "shared": 1,
            "shared_width": c.whole("shared_expert_intermediate_size"),
            "shared_gate": True,
        }
    else:
        bias = c.flag("attention_bias")
        more, shared = {"bias": bias, "output_bias": bias, "head_norm": True}, {}
    experts = "num_experts" if c.given.get("num_experts") else "num_local_experts"
    experts = experts if c.found(experts) else "num_experts"
    scores = _renormalised(c, c.kind != "qwen2_moe")
    sparse = _mixture(
        c, experts, "num_experts_per_tok", "moe_intermediate_size", scores=scores, **shared
    )
    step, dense = c.whole("decoder_sparse_step", 1), set(c.numbers("mlp_only_layers"))
    follow = [gated(c) if i in dense or (i + 1) % step else sparse for i in range(count)]
    return decoder(c, blocks(c, qwen_attention(c, **more), follow))


@model_type("gpt_oss")
def gpt_oss(c: Config) -> Fields:
    """GPT-OSS: sinks, biases everywhere, a window in every other layer."""
    mixers = windowed(c, lambda i: i % 2 == 0, bias=True, output_bias=True, sinks=True)
    follow = _mixture(
        c,
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size",
        router_bias=True,
        expert_bias=True,
    )
    return decoder(c, blocks(c, mixers, follow))


@model_type("llama4_text")
def llama4(c: Config) -> Fields:
    """Llama 4: chunks in layers that rotate, all keys in those that do not; a shared expert."""
    count, bias = c.layers(), c.flag("attention_bias")
    mixer = attention(c, bias=bias, output_bias=bias)  # its norms of heads have no weights
    step = c.whole("no_rope_layer_interval", 4)
    rotated = c.entries("no_rope_layers", count) or [(i + 1) % step for i in range(count)]
    chunk = c.count("attention_chunk_size")
    near = {**mixer, "chunk": chunk} if chunk else mixer
    local = is_local(c, count, lambda i: bool(rotated[i]))
    mixers: list[Fields] = [
        {"attention": {**(near if local[i] else mixer), "rotary": bool(rotated[i])}}
        for i in range(count)
    ]
    sparse = _mixture(
        c,
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size",
        scores="sigmoid",
        shared=1,
    )
    interval = c.whole("interleave_moe_layer_step", 1)
    said = c.numbers("moe_layers")
    experts = set(said or range(interval - 1, count, interval))
    dense = gated(c, width=c.whole("intermediate_size_mlp"))
    return decoder(c, blocks(c, mixers, [sparse if i in experts else dense for i in range(count)]))


def _deepseek_follow(c: Config, scores: str, **more: Any) -> list[Fields]:
    """Dense layers first, then mixtures with shared experts."""
    count, first = c.layers(), c.count("first_k_dense_replace")
    frequency = c.found("moe_layer_freq")
    dense = [i < first for i in range(count)]
    if isinstance(frequency, list):
        dense = [not one for one in c.entries("moe_layer_freq", count) or []]
    else:
        c.only("moe_layer_freq", 1, None)
    if kinds := c.entries("mlp_layer_types", count):
        dense = [kind == "dense" for kind in kinds]
    if not c.count("n_routed_experts"):
        dense = [True] * count
    if all(dense):
        return [gated(c)] * count
    sparse = _mixture(
        c,
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        scores=scores,
        shared=c.count("n_shared_experts"),
        scale=c.number("routed_scaling_factor", 1.0),
        **more,
    )
    plain = gated(c) if any(dense) else {}
    return [plain if of else sparse for of in dense]


@model_type("deepseek", "deepseek_v2")
def deepseek_v2(c: Config) -> Fields:
    """DeepSeek-MoE and -V2; small ones have no latent attention."""
    scores = _renormalised(c, False)
    mixer: Fields = {"latent_attention": latent(c)} if _is_latent(c) else {}
    if not mixer:
        bias = c.flag("attention_bias")
        mixer = {"attention": attention(c, bias=bias, output_bias=bias)}
    return decoder(c, blocks(c, [mixer] * c.layers(), _deepseek_follow(c, scores)))


def _is_latent(c: Config) -> bool:
    return c.kind != "deepseek" and c.flag("use_mla", True) and bool(c.found("kv_lora_rank"))


@model_type("deepseek_v3", "kimi_k2", "glm4_moe_lite")
def deepseek_v3(c: Config) -> Fields:
    """DeepSeek-V3, Kimi K2 and GLM-4.7-Flash: latent attention, sigmoids as scores."""
    _further(c)
    if c.kind == "glm4_moe_lite" and not c.found("mlp_layer_types"):
        first = c.count("first_k_dense_replace", 1)
        c = Config({**c.given, "first_k_dense_replace": first}, c.file, c.kind, c.prefix, c.notes)
    follow = _deepseek_follow(c, "shared-sigmoid")
    return decoder(c, blocks(c, [{"latent_attention": latent(c)}] * c.layers(), follow))


@model_type("deepseek_v32", "glm_moe_dsa")
def deepseek_sparse(c: Config) -> Fields:
    """DeepSeek-V3.2 and GLM-5: an indexer chooses the keys that latent attention meets."""
    _further(c)
    count = c.layers()
    indexer = {
        "heads": c.whole("index_n_heads"),
        "size": c.whole("index_head_dim"),
        "top_k": c.whole("index_topk"),
    }
    whole, bare = latent(c, indexer=indexer), latent(c, indexer={**indexer, "shared": True})
    kinds = c.entries("indexer_types", count)
    mixers = [
        {"latent_attention": bare if kinds and kinds[i] == "shared" else whole}
        for i in range(count)
    ]
    return decoder(c, blocks(c, mixers, _deepseek_follow(c, "shared-sigmoid")))


@model_type("glm4_moe", "glm4v_moe_text", "dots1", "solar_open")
def glm4_moe(c: Config) -> Fields:
    """GLM-4.5 and dots.llm1: DeepSeek's mixture behind grouped-query attention."""
    _further(c)
    bias, count = c.flag("attention_bias"), c.layers()
    dots = c.kind == "dots1"
    more: Fields = {"bias": bias, "output_bias": bias and dots}
    more["head_norm"] = dots or c.flag("use_qk_norm")
    if c.found("head_dim") is None:
        more["head_size"] = c.whole("hidden_size") // c.whole("num_attention_heads")
    if dots:
        mixers = windowed(c, lambda i: False, **more)
    else:
        mixers = [{"attention": attention(c, **more)}] * count
    return decoder(c, blocks(c, mixers, _deepseek_follow(c, "shared-sigmoid")))


@model_type("exaone_moe", "hy_v3")
def shared_experts(c: Config) -> Fields:
    """EXAONE MoE and Hunyuan 3: norms of heads, shared experts, the first layer dense."""
    _further(c)
    count = c.layers()
    if c.kind == "exaone_moe":
        mixers = windowed(c, every(c.whole("sliding_window_pattern", 4)), head_norm=True)
        first, factor = c.whole("first_k_dense_replace", 1), "routed_scaling_factor"
    else:
        bias = c.flag("attention_bias")
        mixers = [{"attention": attention(c, bias=bias, output_bias=bias, head_norm=True)}] * count
        first, factor = 1, "router_scaling_factor"
    kinds = c.entries("mlp_layer_types", count) or ["dense"] * first
    sparse = _mixture(
        c,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        scores="shared-sigmoid",
        shared=c.count("num_shared_experts"),
        scale=c.number(factor, 1.0),
    )
    follow = [gated(c) if kinds[i : i + 1] == ["dense"] else sparse for i in range(count)]
    return decoder(c, blocks(c, mixers, follow))


@model_type("afmoe")
def afmoe(c: Config) -> Fields:
    """AFMoE: gates of attention, norms around branches, windows."""
    count = c.layers()
    mixers = windowed(
        c, every(c.whole("global_attn_every_n_layers", 4)), head_norm=True, gate="features"
    )
    mixers = [
        m if "window" in m["attention"] else {"attention": {**m["attention"], "rotary": False}}
        for m in mixers
    ]
    sparse = _mixture(
        c,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        scores="shared-sigmoid",
        shared=c.count("num_shared_experts"),
        score_bias=True,
        scale=c.number("route_scale", 1.0),
    )
    dense = c.count("num_dense_layers")
    follow = [gated(c) if i < dense else sparse for i in range(count)]
    return decoder(c, blocks(c, mixers, follow), norms="around")


@model_type("mimo_v2_flash")
def mimo_v2(c: Config) -> Fields:
    """MiMo-V2-Flash: windows with sinks, values smaller than keys."""
    _further(c)
    count = c.layers()
    hybrid = c.entries("hybrid_layer_pattern", count)
    usual = every(6)
    local = (
        [bool(one) for one in hybrid]
        if hybrid
        else is_local(c, count, lambda i: usual(i - 1) and i < count - 1)
    )
    full = attention(c, value_size=c.whole("v_head_dim"))
    heads = c.first("swa_num_attention_heads", "num_attention_heads")
    near = {
        **full,
        "heads": heads,
        "kv_heads": c.whole("swa_num_key_value_heads", 8),
        "head_size": c.whole("swa_head_dim", full["head_size"]),
        "value_size": c.whole("swa_v_head_dim", full["value_size"]),
        "window": c.whole("sliding_window"),
        "sinks": c.flag("add_swa_attention_sink_bias", True),
    }
    mixers: list[Fields] = [{"attention": near if one else full} for one in local]
    if c.found("first_k_dense_replace") is None and c.found("moe_layer_freq") is None:
        c = Config({**c.given, "first_k_dense_replace": 1}, c.file, c.kind, c.prefix, c.notes)
    return decoder(c, blocks(c, mixers, _deepseek_follow(c, "shared-sigmoid")))


@model_type("minimax_m3_vl_text")
def minimax_m3(c: Config) -> Fields:
    """MiniMax-M3: blocks of keys that scores choose, norms of heads, shared experts."""
    _further(c)
    c.only("attention_output_gate", False)
    count = c.layers()
    full = attention(c, head_norm=True)
    near, sparse = dict(full), [False] * count
    if c.found("sparse_attention_config"):
        of = c.part("sparse_attention_config")
        near["window"] = of.whole("sparse_topk_blocks") * of.whole("sparse_block_size")
        chosen = of.entries("sparse_attention_freq", count) or [1] * count
        sparse = [bool(one) for one in chosen]
        c.note("the scores by which it chooses blocks of keys are left out")
    mixers = [{"attention": near if one else full} for one in sparse]
    mixed = c.entries("moe_layer_freq", count) or [1] * count
    follow = _mixture(
        c,
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size",
        scores="shared-sigmoid",
        shared=c.count("n_shared_experts"),
        scale=c.number("routed_scaling_factor", 1.0),
    )
    dense = {
        "width": c.whole("dense_intermediate_size", c.whole("intermediate_size")),
        "activation": "swiglu",  # clamped, which is not counted
        "bias": False,
    }
    return decoder(c, blocks(c, mixers, [follow if one else dense for one in mixed]))


@model_type("minimax_m2")
def minimax_m2(c: Config) -> Fields:
    """MiniMax-M2: norms of queries and keys as a whole."""
    _further(c)
    norm = "whole" if c.flag("use_qk_norm", True) else False
    mixer = {"attention": attention(c, head_norm=norm)}
    follow = _mixture(
        c,
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size",
        scores="shared-sigmoid",
    )
    return decoder(c, blocks(c, [mixer] * c.layers(), follow))


@model_type("olmoe", "flex_olmo")
def olmoe(c: Config) -> Fields:
    """OLMoE and FlexOlmo."""
    bias = c.flag("attention_bias")
    mixer = {"attention": attention(c, bias=bias, output_bias=bias, head_norm="whole")}
    follow = _mixture(
        c,
        "num_experts",
        "num_experts_per_tok",
        "intermediate_size",
        scores=_renormalised(c, False),
    )
    norms = "before" if c.kind == "olmoe" else "after"
    return decoder(c, blocks(c, [mixer] * c.layers(), follow), norms=norms)


@model_type("granitemoe", "granitemoeshared")
def granitemoe(c: Config) -> Fields:
    """Granite's mixtures."""
    bias = c.flag("attention_bias")
    mixer = {"attention": attention(c, bias=bias, output_bias=bias)}
    more: Fields = {}
    if width := c.count("shared_intermediate_size"):
        more = {"shared": 1, "shared_width": width}
    names = ("num_local_experts", "num_experts_per_tok", "intermediate_size")
    follow = _mixture(c, *names, **more)
    return decoder(c, blocks(c, [mixer] * c.layers(), follow))


@model_type("dbrx")
def dbrx(c: Config) -> Fields:
    """DBRX: one product for queries, keys and values; norms without biases."""
    inner, of_attention = c.part("ffn_config", "dbrx_ffn"), c.part("attn_config", "dbrx_attn")
    mixer = {
        "heads": c.whole("n_heads"),
        "kv_heads": of_attention.whole("kv_n_heads", 1),
        "bias": False,
        "output_bias": False,
        "dropout": of_attention.share("attn_pdrop"),
    }
    follow = {
        "experts": inner.whole("moe_num_experts", 4),
        "top_k": inner.whole("moe_top_k", 1),
        "width": inner.whole("ffn_hidden_size", 3584),
    }
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": c.whole("max_seq_len"),
        "layers": c.layers("n_layers"),
        "hidden": c.whole("d_model"),
        "attention": mixer,
        "mixture": follow,
        "norm": "unbiased-layer-norm",
        "positions": "rotary",
        "tied": c.flag("tie_word_embeddings"),
        "dropout": c.share("resid_pdrop"),
    }


@model_type("hunyuan_v1_moe")
def hunyuan_moe(c: Config) -> Fields:
    """Hunyuan's mixtures: a shared expert as wide as the others."""
    bias = c.flag("attention_bias")
    mixer = {"attention": attention(c, bias=bias, output_bias=bias, head_norm=True)}
    for name in ("num_experts", "moe_topk"):
        value = c.found(name)
        if isinstance(value, list) and len(set(value)) == 1:
            c = Config({**c.given, name: value[0]}, c.file, c.kind, c.prefix, c.notes)
    follow = _mixture(c, "num_experts", "moe_topk", "intermediate_size", shared=1)
    return decoder(c, blocks(c, [mixer] * c.layers(), follow))


@model_type("ernie4_5_moe")
def ernie_moe(c: Config) -> Fields:
    """ERNIE 4.5's mixtures: biases that choose, shared experts."""
    bias, count = c.flag("use_bias"), c.layers()
    mixer = {"attention": attention(c, bias=bias, output_bias=bias)}
    sparse = _mixture(
        c,
        "moe_num_experts",
        "moe_k",
        "moe_intermediate_size",
        shared=c.count("moe_num_shared_experts"),
        score_bias=True,
    )
    start, step = c.count("moe_layer_start_index"), c.whole("moe_layer_interval", 1)
    end = c.found("moe_layer_end_index")
    end = count - 1 if end in (None, -1) else end
    follow = [
        sparse if start <= i <= end and (i + 1) % step == 0 else gated(c, bias=bias)
        for i in range(count)
    ]
    tied = c.flag("tie_word_embeddings", True)
    return decoder(c, blocks(c, [mixer] * count, follow), tied=tied)


@model_type("step3p7_text", "step3p5")
def step(c: Config) -> Fields:
    """Step-3.5 and -3.7: gates of heads, windows with more heads."""
    _further(c)
    count = c.layers()
    groups = c.first("num_attention_groups", "num_key_value_heads")
    full = {**attention(c, head_norm=True, gate="heads"), "kv_heads": groups}
    near = {**full, "window": c.whole("sliding_window")}
    other = c.found("attention_other_setting")
    if isinstance(other, dict):
        of_near = Config(other, c.file, "", f"{c.prefix}attention_other_setting.")
        near["heads"] = of_near.whole("num_attention_heads")
        near["kv_heads"] = of_near.first("num_attention_groups", "num_key_value_heads")
    elif "sliding_num_attention_heads" in c.data:
        near["heads"] = c.whole("sliding_num_attention_heads")
    local = is_local(c, count, lambda i: bool(i % 4))
    mixers: list[Fields] = [{"attention": near if one else full} for one in local]
    first = c.count("first_k_dense_replace", 3)
    sparse = _mixture(
        c,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        scores="shared-sigmoid",
        shared=1,
        shared_width=c.whole("share_expert_dim", c.whole("moe_intermediate_size")),
    )
    follow = [gated(c) if i < first else sparse for i in range(count)]
    return decoder(c, blocks(c, mixers, follow))
