"""Networks that are no decoders, from arguments of Megatron-LM: BERT and T5."""

from __future__ import annotations

from typing import Any

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.study.launch.megatron.arguments import Arguments
from ridgeline.study.launch.megatron.vocabulary import vocabulary

_BASES = {
    "bert": ("bert", ("bert-base", "bert-large")),
    "t5": ("encoder-decoder", ("t5-base", "t5-large", "t5-small", "t5-3b", "t5-11b")),
}
_DEFAULTS = {"bias": True}


def encoder_network(args: Arguments, kind: str) -> None:
    """Work out the network: the one of the catalogue with these widths, or one that takes them."""
    _, bases = _BASES[kind]
    wanted = _bert(args) if kind == "bert" else _t5(args)
    sizes = ("layers", "encoder_layers", "decoder_layers", "hidden")
    best, fewest = bases[0], -1
    for name in bases:
        data = read_yaml(catalog.find("models", name)).data
        same = sum(wanted.get(key) == data.get(key) for key in sizes if key in wanted)
        same += wanted["attention"]["heads"] == data["attention"]["heads"]
        if same > fewest:
            best, fewest = name, same
    data = read_yaml(catalog.find("models", best)).data
    draft = args.draft
    draft.model = best
    if wanted.get("sequence") == data.get("sequence"):
        wanted.pop("masked", None)
    for key, value in wanted.items():
        if isinstance(value, dict):
            for inner, each in value.items():
                if data[key].get(inner, _DEFAULTS.get(inner)) != each:
                    draft.model_fields[f"{key}.{inner}"] = each
        elif data.get(key) != value:
            draft.model_fields[key] = value
    if any(key in draft.model_fields for key in sizes):
        draft.note(f"no network of the catalogue has these widths: {best} takes them")


def _common(args: Arguments) -> dict[str, Any]:
    hidden = args.integer("hidden_size", "model.hidden={}")
    heads = args.integer("num_attention_heads", "model.attention.heads={}")
    if hidden is None or heads is None:
        raise args.draft.error("the file does not give hidden-size and num-attention-heads")
    width = args.integer("ffn_hidden_size", "model.feed_forward.width={}") or 4 * hidden
    dropout = args.number("hidden_dropout", "model.dropout={}")
    attention = args.number("attention_dropout", "model.attention.dropout={}")
    function = args.text("activation", "model.feed_forward.activation={}")
    gate = next((name for name in ("swiglu", "geglu") if args.flag(name, "model: {}")), None)
    bias = args.flag(args.first("add_bias_linear", "bias"), "model: biases={}", default=True)
    fields: dict[str, Any] = {
        "hidden": hidden,
        "attention": {"heads": heads, "dropout": 0.1 if attention is None else attention},
        "feed_forward": {"width": width, "activation": gate or function or "gelu", "bias": bias},
        "dropout": 0.1 if dropout is None else dropout,
    }
    size = args.integer("kv_channels", "model.attention.head_size={}")
    if size is not None and size * heads != hidden:
        fields["attention"]["head_size"] = size
    if (tokens := vocabulary(args)) is not None:
        fields["vocabulary"] = tokens
    return fields


def _bert(args: Arguments) -> dict[str, Any]:
    fields = _common(args)
    layers = args.integer(args.first("num_layers", "encoder_num_layers"), "model.layers={}")
    sequence = args.integer(args.first("seq_length", "encoder_seq_length"), "model.sequence={}")
    if layers is None or sequence is None:
        raise args.draft.error("the file does not give num-layers and seq-length")
    rows = args.integer("max_position_embeddings", "model.max_positions={}") or sequence
    fields |= {"layers": layers, "sequence": sequence, "max_positions": rows}
    fields["masked"] = max(1, round(0.15 * sequence))
    if args.flag("bert_no_binary_head", "model.next_sentence=false"):
        fields["next_sentence"] = False
    args.draft.note("15% of the tokens are to be filled in")
    return fields


def _t5(args: Arguments) -> dict[str, Any]:
    fields = _common(args)
    both = args.integer("num_layers", "model.encoder_layers={}, model.decoder_layers")
    encoder = args.integer("encoder_num_layers", "model.encoder_layers={}") or both
    decoder = args.integer("decoder_num_layers", "model.decoder_layers={}") or both
    source = args.integer(args.first("encoder_seq_length", "seq_length"), "model.source={}")
    target = args.integer("decoder_seq_length", "model.target={}")
    if None in (encoder, decoder, source, target):
        raise args.draft.error("the file does not give layers and sequences of encoder and decoder")
    rows = args.integer("max_position_embeddings", "model.max_positions={}")
    fields |= {
        "encoder_layers": encoder, "decoder_layers": decoder, "source": source, "target": target,
        "norm": "layer-norm", "positions": "learned", "max_positions": rows or source,
    }  # fmt: skip
    norms = {"layernorm": "layer-norm", "rmsnorm": "rms-norm"}
    kinds = {"learned_absolute": "learned", "relative": "relative"}
    for canonical, key, words in (
        ("normalization", "norm", norms), ("position_embedding_type", "positions", kinds),
    ):  # fmt: skip
        word = args.text(canonical, f"model.{key}={{}}")
        if word is not None and word.lower() not in words:
            raise args.error(f"no network of this kind has {word!r}", canonical)
        if word is not None:
            fields[key] = words[word.lower()]
    if fields["positions"] == "relative":
        del fields["max_positions"]
    return fields
