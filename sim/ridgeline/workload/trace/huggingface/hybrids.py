"""Decoders with layers whose cost grows with the sequence's length: states, filters."""

from __future__ import annotations

import math

from ridgeline.workload.trace.huggingface.attention_decoders import latent
from ridgeline.workload.trace.huggingface.configuration import Config
from ridgeline.workload.trace.huggingface.parts import (
    attention,
    blocks,
    decoder,
    every,
    gated,
    of_layers,
    plain,
)
from ridgeline.workload.trace.huggingface.registry import Fields, model_type


def _attends(c: Config, count: int) -> list[bool]:
    """Tell which layers attend, where the others are linear."""
    kinds = c.entries("layer_types", count)
    if kinds:
        return [kind in {"full_attention", "attention"} for kind in kinds]
    linear = every(c.whole("full_attention_interval", 4))
    return [not linear(i) for i in range(count)]


@model_type("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
def qwen3_next(c: Config) -> Fields:
    """Qwen3-Next and Qwen3.5: three gated delta networks, then attention behind a gate."""
    count, bias = c.layers(), c.flag("attention_bias")
    c.only("use_sliding_window", False, None)
    if further := c.count("mtp_num_hidden_layers"):
        c.note(f"its {further} modules for further tokens are left out (mtp_num_hidden_layers)")
    full = attention(c, bias=bias, output_bias=bias, head_norm=True, gate="features")
    linear = {
        "rule": "gated-delta",
        "heads": c.whole("linear_num_value_heads"),
        "head_size": c.whole("linear_value_head_dim"),
        "key_heads": c.whole("linear_num_key_heads"),
        "key_size": c.whole("linear_key_head_dim"),
        "taps": c.whole("linear_conv_kernel_dim"),
    }
    mixers: list[Fields] = [
        {"attention": full} if one else {"linear_attention": linear} for one in _attends(c, count)
    ]
    if c.kind == "qwen3_5_text":
        return decoder(c, blocks(c, mixers, gated(c)))
    sparse = {
        "mixture": {
            "experts": c.whole("num_experts"),
            "top_k": c.whole("num_experts_per_tok"),
            "width": c.whole("moe_intermediate_size"),
            "shared": 1,
            "shared_width": c.whole("shared_expert_intermediate_size"),
            "shared_gate": True,
            "scores": "softmax-of-chosen" if c.flag("norm_topk_prob", True) else "softmax",
        }
    }
    step, dense = c.whole("decoder_sparse_step", 1), set(c.numbers("mlp_only_layers"))
    follow = [gated(c) if i in dense or (i + 1) % step else sparse for i in range(count)]
    return decoder(c, blocks(c, mixers, follow))


@model_type("kimi_linear")
def kimi_linear(c: Config) -> Fields:
    """Kimi Linear: Kimi delta attention, and latent attention that does not rotate."""
    count = c.layers()
    inner = c.found("linear_attn_config")
    of = Config(inner, c.file, "", f"{c.prefix}linear_attn_config.") if inner else c
    sizes = ("head_dim", "num_heads", "short_conv_kernel_size") if inner else (
        "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim",
    )  # fmt: skip
    linear = {
        "rule": "kimi-delta",
        "head_size": of.whole(sizes[0]),
        "heads": of.whole(sizes[1]),
        "taps": of.whole(sizes[2], 4),
    }
    if inner:
        full = {i - 1 for i in of.numbers("full_attn_layers")}
        attends = [i in full for i in range(count)]
    else:
        attends = _attends(c, count)
        if not c.entries("layer_types", count):
            attends[-1] = True
    turned = {"latent_attention": latent(c, rotary=False)}
    mixers: list[Fields] = [turned if one else {"linear_attention": linear} for one in attends]
    first = c.count("first_k_dense_replace", 1)
    sparse = {
        "mixture": {
            "experts": c.whole("num_experts"),
            "top_k": c.first("num_experts_per_token", "num_experts_per_tok"),
            "width": c.whole("moe_intermediate_size"),
            "shared": c.count("num_shared_experts"),
            "scores": "shared-sigmoid",
            "scale": c.number("routed_scaling_factor", 1.0),
        }
    }
    follow = [gated(c) if i < first else sparse for i in range(count)]
    sequence = c.first("model_max_length", "max_position_embeddings")
    return decoder(c, blocks(c, mixers, follow), sequence=sequence)


@model_type("minimax", "minimax_text_01")
def minimax(c: Config) -> Fields:
    """MiniMax-01: Lightning attention, and attention now and then."""
    count = c.layers()
    kinds = c.entries("layer_types", count)
    said = c.entries("attn_type_list", count)
    if kinds:
        attends = [kind == "full_attention" for kind in kinds]
    elif said:
        attends = [bool(one) for one in said]
    else:
        attends = [bool((i + 1) % 2) for i in range(count)]
        attends = [not one for one in attends]
    heads = c.whole("num_attention_heads")
    size = c.whole("head_dim", c.whole("hidden_size") // heads)
    linear = {
        "rule": "lightning",
        "heads": heads,
        "head_size": size,
        "chunk": c.whole("block_size", 256),
    }
    mixers: list[Fields] = [
        {"attention": attention(c)} if one else {"linear_attention": linear} for one in attends
    ]
    sparse = {
        "mixture": {
            "experts": c.whole("num_local_experts"),
            "top_k": c.whole("num_experts_per_tok"),
            "width": c.whole("intermediate_size"),
        }
    }
    return decoder(c, blocks(c, mixers, sparse))


def _mamba2(c: Config, prefix: str = "mamba_") -> Fields:
    """Read a layer of Mamba-2 as Bamba and those after it name its fields."""
    heads = c.whole(f"{prefix}n_heads")
    size = c.found(f"{prefix}d_head")
    expand = c.whole(f"{prefix}expand", 2)
    inner = expand * c.whole("hidden_size")
    return {
        "heads": heads,
        "head_size": size if type(size) is int else inner // heads,
        "groups": c.whole(f"{prefix}n_groups", 1),
        "state": c.whole(f"{prefix}d_state"),
        "taps": c.whole(f"{prefix}d_conv"),
        "chunk": c.whole(f"{prefix}chunk_size", 256),
        "filter_bias": c.flag(f"{prefix}conv_bias", True),
        "bias": c.flag(f"{prefix}proj_bias"),
    }


@model_type("mamba2")
def mamba2(c: Config) -> Fields:
    """Mamba-2: states alone."""
    heads = c.whole("num_heads")
    states = {
        "heads": heads,
        "head_size": c.whole("head_dim"),
        "groups": c.whole("n_groups"),
        "state": c.whole("state_size"),
        "taps": c.whole("conv_kernel"),
        "chunk": c.whole("chunk_size", 256),
        "filter_bias": c.flag("use_conv_bias", True),
        "bias": c.flag("use_bias"),
    }
    return _states_alone(c, {"state_space": states})


def _states_alone(c: Config, layer: Fields) -> Fields:
    """Stack one kind of layer; its sequence is not in the configuration."""
    c.note("its configuration has no longest sequence; 8192 tokens are taken (set sequence)")
    return decoder(c, [layer] * c.layers(), sequence=8192, positions="none")


@model_type("mamba", "falcon_mamba")
def mamba(c: Config) -> Fields:
    """Mamba."""
    hidden = c.whole("hidden_size")
    inner = c.whole("expand", 2) * hidden
    if c.given.get("intermediate_size"):
        inner = c.whole("intermediate_size")
    rank = c.found("time_step_rank")
    scan = {
        "inner": inner,
        "state": c.whole("state_size"),
        "step_rank": rank if type(rank) is int else math.ceil(hidden / 16),
        "taps": c.whole("conv_kernel"),
        "bias": c.flag("use_bias"),
        "filter_bias": c.flag("use_conv_bias", True),
    }
    return {
        **_states_alone(c, {"selective_scan": scan}),
        "tied": c.flag("tie_word_embeddings", True),
    }


@model_type("jamba")
def jamba(c: Config) -> Fields:
    """Jamba: Mamba, attention now and then, mixtures in every other layer."""
    count, hidden = c.layers(), c.whole("hidden_size")
    rank = c.found("mamba_dt_rank")
    scan = {
        "inner": c.whole("mamba_expand") * hidden,
        "state": c.whole("mamba_d_state"),
        "step_rank": rank if type(rank) is int else math.ceil(hidden / 16),
        "taps": c.whole("mamba_d_conv"),
        "bias": c.flag("mamba_proj_bias"),
        "filter_bias": c.flag("mamba_conv_bias", True),
        "norms": True,
    }
    sparse = {
        "mixture": {
            "experts": c.whole("num_experts"),
            "top_k": c.whole("num_experts_per_tok"),
            "width": c.whole("intermediate_size"),
            "scores": "softmax",
        }
    }
    kinds = c.entries("layers_block_type", count)
    period, offset = c.whole("attn_layer_period"), c.count("attn_layer_offset")
    of_experts, shift = c.whole("expert_layer_period"), c.count("expert_layer_offset")
    mixers, follow = [], []
    for i in range(count):
        attends = kinds[i] == "attention" if kinds else i % period == offset
        mixers.append({"attention": attention(c)} if attends else {"selective_scan": scan})
        mixed = c.whole("num_experts") > 1 and i % of_experts == shift
        follow.append(sparse if mixed else gated(c))
    return decoder(c, blocks(c, mixers, follow), positions="none")


@model_type("bamba")
def bamba(c: Config) -> Fields:
    """Bamba: Mamba-2, and attention in the layers that are named."""
    count, full = c.layers(), set(c.numbers("attn_layer_indices"))
    bias = c.flag("attention_bias")
    mixer = {"attention": attention(c, bias=bias, output_bias=bias)}
    kinds = c.entries("layers_block_type", count)
    attends = (
        [kind == "attention" for kind in kinds] if kinds else [i in full for i in range(count)]
    )
    states = {"state_space": _mamba2(c)}
    mixers = [mixer if one else states for one in attends]
    return decoder(c, blocks(c, mixers, gated(c, bias=c.flag("mlp_bias"))))


@model_type("granitemoehybrid")
def granite_hybrid(c: Config) -> Fields:
    """Granite 4: Mamba-2 and attention, with mixtures and a shared expert, or that alone."""
    count, bias = c.layers(), c.flag("attention_bias")
    kinds = c.entries("layers_block_type", count) or c.entries("layer_types", count)
    mixer = {"attention": attention(c, bias=bias, output_bias=bias)}
    states = {"state_space": _mamba2(c)}
    mixers = [
        mixer if kinds and kinds[i] in {"attention", "full_attention"} else states
        for i in range(count)
    ]
    width = c.whole("shared_intermediate_size")
    follow: Fields = {**gated(c, width=width), "fused": True}
    if experts := c.count("num_local_experts"):
        follow = {
            "mixture": {
                "experts": experts,
                "top_k": c.whole("num_experts_per_tok"),
                "width": c.whole("intermediate_size"),
                "shared": 1,
                "shared_width": width,
            }
        }
    positions = "rotary" if c.found("position_embedding_type") == "rope" else "none"
    return decoder(c, blocks(c, mixers, follow), positions=positions)


@model_type("falcon_h1")
def falcon_h1(c: Config) -> Fields:
    """Falcon-H1: attention and Mamba-2 beside each other."""
    c.only("mamba_use_mlp", True)
    bias = c.flag("attention_bias")
    states = _mamba2(c)
    heads = c.whole("mamba_n_heads")
    if inner := c.count("mamba_d_ssm"):
        states["head_size"] = inner // heads
    states["norm"] = c.flag("mamba_rms_norm")
    block = {
        "attention": attention(c, bias=bias, output_bias=bias),
        "state_space": states,
        "feed_forward": gated(c, bias=c.flag("mlp_bias")),
    }
    return decoder(c, [block] * c.layers())


@model_type("lfm2", "lfm2_moe")
def lfm2(c: Config) -> Fields:
    """LFM2: short filters, and attention with norms of heads."""
    count = c.layers()
    kinds = c.entries("layer_types", count)
    full = set(c.numbers("full_attn_idxs"))
    attends = [
        kinds[i] == "full_attention" if kinds else not full or i in full for i in range(count)
    ]
    short = {"taps": c.whole("conv_L_cache"), "bias": c.flag("conv_bias")}
    mixer = {"attention": attention(c, head_norm=True)}
    mixers: list[Fields] = [mixer if one else {"short_filter": short} for one in attends]
    width = c.first("intermediate_size", "block_ff_dim")
    if c.kind == "lfm2" and c.flag("block_auto_adjust_ff_dim", True):
        multiple = c.whole("block_multiple_of", 256)
        width = int(c.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width += -width % multiple
    dense = {"width": width, "activation": "swiglu", "bias": False, "fused": False}
    follow: list[Fields] = [dense] * count
    if c.kind == "lfm2_moe":
        sparse = {
            "mixture": {
                "experts": c.whole("num_experts"),
                "top_k": c.whole("num_experts_per_tok"),
                "width": c.whole("moe_intermediate_size"),
                "scores": "shared-sigmoid",
            }
        }
        first = c.count("num_dense_layers")
        follow = [dense if i < first else sparse for i in range(count)]
    return decoder(c, blocks(c, mixers, follow), tied=c.flag("tie_word_embeddings", True))


@model_type("nemotron_h", "nemotron_h_puzzle")
def nemotron_h(c: Config) -> Fields:
    """Nemotron-H and Nemotron 3: one branch a layer."""
    kinds = c.found("layers_block_type")
    pattern = c.found("hybrid_override_pattern") or ""
    if not pattern and isinstance(kinds, list):
        letters = {
            "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*",
            "mlp": "-", "moe": "E",
        }  # fmt: skip
        if unknown := set(kinds) - letters.keys():
            raise c.fail("layers_block_type", f"{unknown} is not modelled")
        pattern = "".join(letters[kind] for kind in kinds)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*-E"):
        raise c.fail("hybrid_override_pattern", f"expected letters of M*-E, found {pattern!r:.60}")
    bias = c.flag("attention_bias")
    states: Fields = {
        "heads": c.whole("mamba_num_heads"),
        "head_size": c.whole("mamba_head_dim"),
        "groups": c.whole("n_groups"),
        "state": c.whole("ssm_state_size"),
        "taps": c.whole("conv_kernel"),
        "chunk": c.whole("chunk_size", 128),
        "filter_bias": c.flag("use_conv_bias", True),
        "bias": c.flag("mamba_proj_bias") or c.flag("use_bias"),
    }
    layers: dict[str, Fields] = {"M": {"state_space": states}}
    mixer = attention(c, bias=bias, output_bias=bias)
    if c.found("attention_head_dim") is not None:
        mixer["head_size"] = c.whole("attention_head_dim")
    layers["*"] = {"attention": mixer}
    layers["-"] = {"feed_forward": plain(c, bias=c.flag("mlp_bias"), act="mlp_hidden_act")}
    if "E" in pattern:
        layers["E"] = {
            "mixture": {
                "experts": c.whole("n_routed_experts"),
                "top_k": c.whole("num_experts_per_tok"),
                "width": c.whole("moe_intermediate_size"),
                "shared": c.count("n_shared_experts"),
                "shared_width": c.whole("moe_shared_expert_intermediate_size"),
                "activation": layers["-"]["feed_forward"]["activation"],
                "scores": "shared-sigmoid",
                "scale": c.number("routed_scaling_factor", 1.0),
                **({"latent": c.whole("moe_latent_size")} if c.found("moe_latent_size") else {}),
            }
        }
    if further := c.count("num_nextn_predict_layers"):
        c.note(f"its {further} modules for further tokens are left out")
    made = [layers[letter] for letter in pattern]
    return {**decoder(c, made[:1], positions="none"), **of_layers(made)}
