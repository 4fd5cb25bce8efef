"""The network that arguments of Megatron-LM describe.

Defaults are Megatron-LM's (megatron/training/arguments.py, transformer_config.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.study.launch import shape
from ridgeline.study.launch.megatron.arguments import Arguments
from ridgeline.study.launch.megatron.layout import layers_in
from ridgeline.study.launch.megatron.vocabulary import vocabulary


def network(args: Arguments, like: str = "") -> None:
    """Work out the network: one of the catalogue, with what the file says otherwise.

    Parameters
    ----------
    like
        Catalogue name that the file gives, whose fields hold unless arguments say otherwise.
    """
    start = dict(read_yaml(catalog.find("models", like)).data) if like else {}
    if start.get("family", "decoder") != "decoder":
        raise args.draft.error(f"arguments cannot change the network {like!r}, which is no decoder")
    described = _described(args, start)
    tokens = vocabulary(args)
    if tokens is not None:
        described["vocabulary"] = tokens
    try:
        found = shape.match(described, like)
    except LookupError as error:
        raise args.draft.error(
            "the file does not say how many tokens the vocabulary has, and no network of the"
            " catalogue has these widths; give it: --set vocab_size=...",
            args.draft.placed(map(args.name, ("tokenizer_model", "tokenizer_type"))),
        ) from error
    args.draft.model, args.draft.model_fields = found.model, dict(found.fields)
    if found.exact and tokens is None and not like:
        args.draft.note(
            f"the file gives no number of tokens in the vocabulary: that of {found.model}"
        )
    for note in found.notes:
        args.draft.note(note)


def _described(args: Arguments, start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a decoder, those of `start` where the file says nothing."""
    d: dict[str, Any] = {key: value for key, value in start.items() if key != "published"}
    fresh = not start
    for canonical, key in (("num_layers", "layers"), ("hidden_size", "hidden")):
        value = args.integer(canonical, f"model.{key}={{}}")
        if value is not None:
            d[key] = value
        elif fresh and not (key == "layers" and _layout_or_pattern(args)):
            raise args.draft.error(f"the file does not give {canonical.replace('_', '-')}")
    sequence = args.integer(args.first("seq_length", "encoder_seq_length"), "model.sequence={}")
    if sequence is not None:
        d["sequence"] = sequence
    elif fresh:
        raise args.draft.error("the file does not give seq-length")
    args.ignore("decoder_seq_length", "encoder_seq_length", became="model.sequence")
    _positions(args, d, fresh)
    norms = {"layernorm": "layer-norm", "rmsnorm": "rms-norm", "layernorm1p": "layer-norm"}
    kind = args.text("normalization", "model.norm={}")
    if kind is not None:
        if kind.lower() not in norms:
            raise args.error(f"no norm of a network is {kind!r}", "normalization")
        d["norm"] = norms[kind.lower()]
    elif fresh:
        d["norm"] = "layer-norm"
    untied = args.flag("untie_embeddings_and_output_weights", "model.tied=false")
    if "share_embeddings_and_output_weights" in args:
        untied = not args.flag("share_embeddings_and_output_weights", "model.tied={}", default=True)
        d["tied"] = not untied
    elif fresh or "untie_embeddings_and_output_weights" in args:
        d["tied"] = not untied
    if args.flag("embed_layernorm", "model.embedding_norm=true"):
        d["embedding_norm"] = True
    dropout = args.number("hidden_dropout", "model.dropout={}")
    d["dropout"] = dropout if dropout is not None else d.get("dropout", 0.1 if fresh else 0.0)
    hybrid = _hybrid(args, d)
    _attention(args, d, fresh)
    _feed_forward(args, d, fresh)
    _mixture(args, d, hybrid)
    _more_tokens(args, d, hybrid)
    if "layers" not in d:
        said = args.draft.said.get(args.name("pipeline_model_parallel_layout"))
        layers = layers_in(str(said.value)) if said is not None else None
        if not layers:
            raise args.draft.error("the file does not give num-layers")
        d["layers"] = layers
    return d


def _layout_or_pattern(args: Arguments) -> bool:
    return any(
        name in args
        for name in (
            "hybrid_layer_pattern",
            "hybrid_override_pattern",
            "pipeline_model_parallel_layout",
            "encoder_num_layers",
        )
    )


def _positions(args: Arguments, d: dict[str, Any], fresh: bool) -> None:
    kinds = {
        "learned_absolute": "learned", "learned": "learned", "absolute": "learned",
        "rope": "rotary", "yarn": "rotary", "rotary": "rotary", "mrope": "rotary",
        "none": "none", "alibi": "none", "nope": "none", "no_position_embedding": "none",
    }  # fmt: skip
    name = args.name("position_embedding_type")
    kind = args.draft.text(name, "model.positions={}")
    if args.flag("use_rotary_position_embeddings", "model.positions=rotary"):
        kind = "rope"
    if kind is not None:
        word = kind.lower().replace("positionembeddingtype.", "")
        if word not in kinds:
            raise args.error(
                f"positions of kind {kind!r} are not described", "position_embedding_type"
            )
        d["positions"] = kinds[word]
    elif fresh:
        d["positions"] = "learned"
    rows = args.integer("max_position_embeddings", "model.max_positions, where they are learned")
    if d.get("positions") == "learned" and rows is not None and rows != d.get("sequence"):
        if rows < d.get("sequence", 1):
            raise args.error(
                f"a sequence of {d['sequence']} tokens has over {rows} positions",
                "max_position_embeddings",
            )
        d["max_positions"] = rows
    part = args.number(args.first("rotary_percent", "rotary_percentage"), "model.positions=rotary")
    if part is not None and part < 1 and d.get("positions") == "rotary":
        args.draft.note(f"rotary positions of {part:.0%} of a head's features: all of them here")
    if args.flag("no_position_embedding", "model.positions") and kind is None and fresh:
        d["positions"] = "none"
    if args.flag("use_position_embedding", "model.positions", default=True) is False and fresh:
        d["positions"] = "none"


def _attention(args: Arguments, d: dict[str, Any], fresh: bool) -> None:
    heads = args.integer("num_attention_heads", "model.attention.heads={}")
    bias = not args.flag("disable_bias_linear", "model: no biases")
    if "add_bias_linear" in args:
        bias = args.flag("add_bias_linear", "model: biases={}", default=True)
    said_bias = fresh or "disable_bias_linear" in args or "add_bias_linear" in args
    qkv = args.flag("add_qkv_bias", "model.attention.bias=true")
    drop = args.number("attention_dropout", "model.attention.dropout={}")
    norm = args.flag(args.first("qk_layernorm", "qk_norm"), "model.attention.head_norm={}")
    latent = args.flag("multi_latent_attention", "model.latent_attention={}")
    if "multi_latent_attention" in args and not latent and "latent_attention" in d:
        old = d.pop("latent_attention")
        heads, size = heads or old["heads"], old["plain_size"]
        args.draft.note(
            f"the file turns latent attention off: {heads} plain heads of {size} features"
        )
        d["attention"] = {
            "heads": heads, "head_size": size, "bias": False, "output_bias": False,
        }  # fmt: skip
    if latent or "latent_attention" in d:
        _latent(args, d, heads)
        return
    a = dict(d.get("attention") or {})
    if heads is None and not a:
        raise args.draft.error("the file does not give num-attention-heads")
    a["heads"] = heads or a["heads"]
    groups = args.integer("num_query_groups", "model.attention.kv_heads={}")
    groups = args.integer("num_key_value_heads", "model.attention.kv_heads={}") or groups
    switch = args.flag(
        "group_query_attention",
        "model.attention.kv_heads",
        default="group_query_attention" not in args,
    )
    if groups is not None and switch:
        if a["heads"] % groups:
            raise args.error(
                f"{groups} query groups do not divide {a['heads']} heads", "num_query_groups"
            )
        a["kv_heads"] = groups
    elif "group_query_attention" in args and switch and fresh:
        a["kv_heads"] = 1
    size = args.integer("kv_channels", "model.attention.head_size={}")
    if size is not None:
        a["head_size"] = size
    if "head_size" not in a and d["hidden"] % a["heads"]:
        raise args.error(
            f"{a['heads']} heads do not divide {d['hidden']} features", "num_attention_heads"
        )
    if said_bias:
        a["bias"], a["output_bias"] = bias or qkv, bias
    elif "add_qkv_bias" in args:
        a["bias"] = qkv
    if drop is not None or fresh:
        a["dropout"] = 0.1 if drop is None else drop
    if norm or args.first("qk_layernorm", "qk_norm") in args:
        a["head_norm"] = norm
    _windows(args)
    d["attention"] = a


def _windows(args: Arguments) -> None:
    if args.text("window_size", "all attention is dense here") is not None:
        args.draft.note("attention to a window of positions is dense here")
        args.ignore("window_attn_skip_freq", became="all attention is dense here")
    if args.text("softmax_type", "left out") is not None:
        args.draft.note("learned sinks of the softmax of attention are left out")


def _latent(args: Arguments, d: dict[str, Any], heads: int | None) -> None:
    old = dict(d.pop("latent_attention", None) or {})
    d.pop("attention", None)
    heads = heads or old.get("heads")
    if heads is None:
        raise args.draft.error("the file does not give num-attention-heads")
    part = "model.latent_attention"
    rank = args.integer("q_lora_rank", f"{part}.query_rank={{}}")
    new = {
        "heads": heads,
        "query_rank": rank if "q_lora_rank" in args else old.get("query_rank"),
        "rank": args.integer("kv_lora_rank", f"{part}.rank={{}}") or old.get("rank", 32),
        "plain_size": args.integer(
            args.first("qk_head_dim", "qk_nope_head_dim"), f"{part}.plain_size={{}}"
        )
        or old.get("plain_size", 128),
        "rotary_size": args.integer(
            args.first("qk_pos_emb_head_dim", "qk_rope_head_dim"), f"{part}.rotary_size={{}}"
        )
        or old.get("rotary_size", 64),
        "value_size": args.integer("v_head_dim", f"{part}.value_size={{}}")
        or old.get("value_size", 128),
    }
    args.ignore(
        "kv_channels",
        "num_query_groups",
        "group_query_attention",
        became="of no use with latent attention",
    )
    d["latent_attention"] = {key: value for key, value in new.items() if value is not None}
    d["positions"] = "rotary"


def _feed_forward(args: Arguments, d: dict[str, Any], fresh: bool) -> None:
    f = dict(d.get("feed_forward") or {})
    bias = not args.flag("disable_bias_linear", "model: no biases")
    if "add_bias_linear" in args:
        bias = args.flag("add_bias_linear", "model: biases={}", default=True)
    if args.flag("swiglu", "model.feed_forward.activation=swiglu"):
        f["activation"] = "swiglu"
    elif args.flag("gated_linear_unit", "model.feed_forward.activation: a gate"):
        function = args.text("activation_func", "model.feed_forward.activation: {}") or "silu"
        f["activation"] = "geglu" if "gelu" in function else "swiglu"
    elif args.flag("squared_relu", "model.feed_forward.activation=relu-squared"):
        f["activation"] = "relu-squared"
    elif args.flag("quick_geglu", "model.feed_forward.activation=swiglu (gate by a sigmoid)"):
        f["activation"] = "swiglu"
    elif (gate := args.text("glu_activation", "model.feed_forward.activation={}")) is not None:
        if gate not in {"swiglu", "geglu"}:
            raise args.error(f"gates of kind {gate!r} are not described", "glu_activation")
        f["activation"] = gate
    elif (named := args.text("activation", "model.feed_forward.activation={}")) is not None:
        f["activation"] = _function(args, named)
    elif fresh:
        f["activation"] = "gelu"
    width = args.integer("ffn_hidden_size", "model.feed_forward.width={}")
    if width is not None:
        f["width"] = width
    elif fresh:
        gated = f["activation"] in {"swiglu", "geglu"}
        f["width"] = 4 * d["hidden"] * 2 // 3 // 64 * 64 if gated else 4 * d["hidden"]
    if fresh or "disable_bias_linear" in args or "add_bias_linear" in args:
        f["bias"] = bias
    if f["activation"] in {"swiglu", "geglu"} and f.get("bias") and fresh and "num_experts" in args:
        f["bias"] = bias
    d["feed_forward"] = f


def _function(args: Arguments, function: str) -> str:
    word = function.lower().replace("fast-", "").replace("_", "-")
    known = {
        "swiglu": "swiglu", "geglu": "geglu", "gelu": "gelu", "squared-relu": "relu-squared",
        "relu": "relu", "silu": "silu", "openai-gelu": "gelu", "quick-gelu": "gelu",
    }  # fmt: skip
    if word not in known:
        raise args.error(f"the activation {function!r} is not described", "activation")
    return known[word]


def _mixture(args: Arguments, d: dict[str, Any], hybrid: bool) -> None:
    experts = args.integer(args.first("num_experts", "num_moe_experts"), "model.mixture.experts={}")
    if experts is not None and experts <= 1 and "mixture" not in d:
        experts = None
    old = dict(d.get("mixture") or {})
    if experts is None and not old:
        for name in (
            "moe_ffn_hidden_size",
            "moe_router_topk",
            "moe_shared_expert_intermediate_size",
        ):
            args.ignore(name, became="of no use without experts")
        return
    m = dict(old)
    part = "model.mixture"
    if experts is not None:
        m["experts"] = experts
    top = args.integer(args.first("moe_router_topk", "topk"), f"{part}.top_k={{}}")
    m["top_k"] = top or old.get("top_k", 2)
    width = args.integer("moe_ffn_hidden_size", f"{part}.width={{}}")
    m["width"] = width or old.get("width") or d["feed_forward"]["width"]
    shared = args.integer("moe_shared_expert_intermediate_size", f"{part}.shared_width={{}}")
    if shared:
        m["shared"], m["shared_width"] = 1, shared
    elif "moe_shared_expert_intermediate_size" in args:
        m["shared"] = 0
        m.pop("shared_width", None)
    activation = d["feed_forward"]["activation"]
    if activation != "swiglu" or "activation" in m:
        m["activation"] = activation
    latent = args.integer("moe_latent_size", f"{part}.latent={{}}")
    if latent:
        m["latent"] = latent
    _router(args, m, bool(old))
    if not hybrid:
        _sparse_layers(args, d, m, bool(old))
    d["mixture"] = m


def _router(args: Arguments, m: dict[str, Any], known: bool) -> None:
    score = args.text("moe_router_score_function", "model.mixture.scores={}")
    before = args.flag("moe_router_pre_softmax", "model.mixture.scores")
    if score == "sigmoid":
        m["scores"] = "shared-sigmoid"
    elif score is not None or not known:
        m["scores"] = "softmax" if before else "softmax-of-chosen"
    scale = args.number("moe_router_topk_scaling_factor", "model.mixture.scale={}")
    if scale:
        m["scale"] = scale
    factor = args.number("moe_expert_capacity_factor", "model.mixture.capacity_factor={}")
    padded = args.flag("moe_pad_expert_input_to_capacity", "model.mixture.capacity_factor")
    if factor and factor > 0 and padded:
        m["capacity_factor"] = max(factor, 1.0)


def _sparse_layers(args: Arguments, d: dict[str, Any], m: dict[str, Any], known: bool) -> None:
    """Read which layers have experts: all, or all behind the first few."""
    text = args.text("moe_layer_freq", "model.mixture.first_dense: {}")
    interval = args.integer("expert_interval", "model.mixture: every layer")
    if interval is not None and interval > 1:
        raise args.error(
            "experts in every other layer are not described: all layers, or all behind the first"
            " few, can have experts", "expert_interval",
        )  # fmt: skip
    if text is None:
        return
    layers = _list(args, text)
    if isinstance(layers, int):
        if layers != 1:
            raise args.error(
                f"experts in every {layers}th layer are not described: all layers, or all behind"
                " the first few, can have experts", "moe_layer_freq",
            )  # fmt: skip
        m["first_dense"] = 0
        return
    first = layers.index(1) if 1 in layers else len(layers)
    if "layers" not in d:
        d["layers"] = len(layers)
    if len(layers) != d["layers"]:
        if "num_layers" in args or not known:
            raise args.error(
                f"{text} is of {len(layers)} layers, and there are {d['layers']}", "moe_layer_freq"
            )
        d["layers"] = len(layers)
    if 0 in layers[first:]:
        raise args.error(
            f"{text}: dense layers between those with experts are not described", "moe_layer_freq"
        )
    m["first_dense"] = first


def _list(args: Arguments, text: str) -> int | list[int]:
    """Read ``1`` or ``[0]*3+[1]*58``."""
    text = re.sub(r"[\s()\"']", "", text)
    if text.isdigit():
        return int(text)
    if re.fullmatch(r"\[[01](,[01])*\](\*\d+)?(\+\[[01](,[01])*\](\*\d+)?)*", text) is None:
        raise args.error(
            f"expected a number or a list such as [0]*3+[1]*58, found {text!r}", "moe_layer_freq"
        )
    layers: list[int] = []
    for part in re.findall(r"\[([01,]+)\](?:\*(\d+))?", text):
        layers += [int(each) for each in part[0].split(",")] * min(int(part[1] or 1), 1000)
    return layers


def _hybrid(args: Arguments, d: dict[str, Any]) -> bool:
    name = args.first("hybrid_layer_pattern", "hybrid_override_pattern")
    text = args.text(name, "model.pattern")
    args.ignore("is_hybrid_model", "spec", became="model.pattern")
    if text is None:
        if "hybrid_attention_ratio" in args or args.flag("is_hybrid_model", "model.pattern"):
            raise args.draft.error("a hybrid of Mamba and attention needs its pattern of layers")
        return bool(d.get("pattern"))
    main, *further = text.strip("\"'").replace("|", "").split("/")
    if not re.fullmatch(r"[M*E-]+", main):
        letters = "".join(sorted(set(main) - set("M*E-")))
        raise args.error(f"layers of kind {letters!r} in a pattern are not described", name)
    if d.setdefault("layers", len(main)) != len(main):
        raise args.error(f"the pattern is of {len(main)} layers, num-layers of {d['layers']}", name)
    d["pattern"] = main
    if further:
        d["further_pattern"], d["further_tokens"] = further[0], len(further)
    elif "further_pattern" in d:
        del d["further_pattern"]
    if "M" in main:
        heads = args.integer("mamba_num_heads", "model.state_space.heads={}")
        size = args.integer("mamba_head_dim", "model.state_space.head_size={}") or 64
        d["state_space"] = {
            "heads": heads or 2 * d["hidden"] // size,
            "head_size": size,
            "groups": args.integer("mamba_num_groups", "model.state_space.groups={}") or 8,
            "state": args.integer("mamba_state_dim", "model.state_space.state={}") or 128,
        }
    return True


def _more_tokens(args: Arguments, d: dict[str, Any], hybrid: bool) -> None:
    count = args.integer("mtp_num_layers", "model.further_tokens={}")
    if count is not None or "mtp_num_layers" in args:
        if hybrid and count and not d.get("further_pattern"):
            args.draft.note("modules for further tokens without a pattern are left out")
            return
        d["further_tokens"] = count or 0
