"""Parts that many model types share: attention, feed-forward networks, and layers of several kinds.

Every function gives fields of a family's part as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.workload.trace.huggingface.configuration import FUNCTIONS, GATES, Config
from ridgeline.workload.trace.huggingface.registry import Fields

_LETTERS = "ABCDFGHIJKLNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def attention(
    c: Config, *, bias: bool | str = False, output_bias: bool = False, **more: Any
) -> Fields:
    """Read grouped-query attention as most decoders name its fields."""
    heads = c.whole("num_attention_heads")
    fields: Fields = {
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", heads),
        "bias": bias,
        "output_bias": output_bias,
        "fused": False,
        "dropout": c.share("attention_dropout"),
        **more,
    }
    if c.found("head_dim") is not None and "head_size" not in more:
        fields["head_size"] = c.whole("head_dim")
    return fields


def gated(
    c: Config, *, width: int | None = None, bias: bool = False, act: str = "hidden_act"
) -> Fields:
    """Read a feed-forward network with a gate."""
    return {
        "width": width or c.whole("intermediate_size"),
        "activation": c.one_of(act, GATES, "silu"),
        "bias": bias,
        "fused": False,
    }


def plain(
    c: Config, *, width: int | None = None, bias: bool = True, act: str = "hidden_act"
) -> Fields:
    """Read a feed-forward network without a gate."""
    return {
        "width": width or c.whole("intermediate_size"),
        "activation": c.one_of(act, FUNCTIONS, "gelu"),
        "bias": bias,
        "fused": False,
    }


def decoder(c: Config, layers: Sequence[Fields], **more: Any) -> Fields:
    """Describe a decoder of some layers, with the fields that most share."""
    fields: Fields = {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": more.get("sequence") or c.whole("max_position_embeddings"),
        "hidden": c.whole("hidden_size"),
        "norm": "rms-norm",
        "positions": "rotary",
        "tied": c.flag("tie_word_embeddings"),
    }
    return {**fields, **more, **of_layers(layers)}


def of_layers(layers: Sequence[Fields]) -> Fields:
    """Say layers as one block that repeats, or as a pattern of variants.

    Each is given as the fields of a variant without its letter.
    """
    first, last, count = layers[0], layers[-1], len(layers)
    dense = sum("mixture" not in layer for layer in layers)
    mixed = {"mixture", *({"attention", "latent_attention"} & last.keys())}
    if all(layer == first for layer in layers) and first.keys() in (
        {"attention", "feed_forward"},
        {"attention", "mixture"},
        {"latent_attention", "feed_forward"},
        {"latent_attention", "mixture"},
    ):
        return {"layers": count, **first}
    if (
        last.keys() == mixed
        and 0 < dense < count
        and first.keys() == (mixed - {"mixture"}) | {"feed_forward"}
        and all(layer == first for layer in layers[:dense])
        and all(layer == last for layer in layers[dense:])
        and {k: v for k, v in first.items() if k != "feed_forward"}
        == {k: v for k, v in last.items() if k != "mixture"}
    ):
        mixture = {**last["mixture"], "first_dense": dense}
        return {"layers": count, **first, "mixture": mixture}
    kinds: list[Fields] = []
    pattern = ""
    for layer in layers:
        if layer not in kinds:
            kinds.append(layer)
        pattern += _LETTERS[kinds.index(layer)]
    variants = [{"letter": _LETTERS[i], **kind} for i, kind in enumerate(kinds)]
    return {"layers": count, "pattern": pattern, "variants": variants}


def blocks(
    c: Config,
    mixers: Sequence[Fields],
    feed_forward: Fields | Sequence[Fields],
) -> list[Fields]:
    """Join mixers of positions, one a layer, with what follows them."""
    follow = feed_forward if isinstance(feed_forward, Sequence) else [feed_forward] * len(mixers)
    return [
        {**mixer, **({"feed_forward": of} if "width" in of else of)}
        for mixer, of in zip(mixers, follow, strict=True)
    ]


_SLIDING = {"sliding_attention", "chunked_attention", "local_attention", "local", "sliding"}


def is_local(c: Config, count: int, usual: Callable[[int], bool]) -> list[bool]:
    """Tell of every layer whether it attends to a part of the keys before it."""
    said = c.entries("layer_types", count)
    if said is None:
        return [usual(i) for i in range(count)]
    return [kind in _SLIDING for kind in said]


def windowed(
    c: Config, usual: Callable[[int], bool], *, local: Fields | None = None, **more: Any
) -> list[Fields]:
    """Attention of every layer, some of which have the configuration's window.

    Parameters
    ----------
    usual
        Which layers have it, where the configuration does not say.
    local
        Other fields of these.
    more
        Fields of all.
    """
    count, window = c.layers(), c.found("sliding_window")
    whole = attention(c, **more)
    if not window:
        return [{"attention": whole}] * count
    part = {**whole, "window": c.whole("sliding_window"), **(local or {})}
    kinds = is_local(c, count, usual)
    longest = c.whole("max_position_embeddings", 131072)
    if window >= longest and not local:
        return [{"attention": whole}] * count
    return [{"attention": part if narrow else whole} for narrow in kinds]


def every(n: int) -> Callable[[int], bool]:
    """Return what tells that a layer is none of every n-th."""
    return lambda i: (i + 1) % n != 0
