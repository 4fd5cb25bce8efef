"""Adapters of low rank beside products whose weights are not trained (LoRA, QLoRA).

E. Hu et al., LoRA: Low-rank adaptation of large language models, 2021, arXiv:2106.09685: a product
of weights [features, k] that stay as they are gets another beside it, through `rank` features. Only
its weights are trained; all others of the network are frozen: kept in the format that they are
computed with, or in few bits (`base_format`), without gradients, updates and optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from ridgeline.config import Strict
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload import formats
from ridgeline.workload.graph import Graph, Role

ALL_LINEAR = "all-linear"
"""Pattern of every linear layer but those whose results are the network's outputs. Of a product of
several parts (queries, keys and values at once) every part has an adapter of its own."""

PROJECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "q_proj": ("*.attention.query",),
        "k_proj": ("*.attention.key",),
        "v_proj": ("*.attention.value",),
        "o_proj": ("*.attention.output",),
        "q_a_proj": ("*.attention.query-down",),
        "q_b_proj": ("*.attention.query-up",),
        "kv_a_proj_with_mqa": ("*.attention.key-value-down",),
        "kv_b_proj": ("*.attention.key-value-up",),
        "gate_proj": ("*.feed-forward.gate", "*.experts.gate", "*.experts.shared.gate"),
        "up_proj": ("*.feed-forward.up", "*.experts.up", "*.experts.shared.up"),
        "down_proj": ("*.feed-forward.down", "*.experts.down", "*.experts.shared.down"),
        "linear_qkv": ("*.attention.query*", "*.attention.key", "*.attention.value"),
        "linear_proj": ("*.attention.output",),
        "linear_fc1": ("*.feed-forward.gate*", "*.feed-forward.up"),
        "linear_fc2": ("*.feed-forward.down",),
    }
)
"""Layers of the families here by the names of transformers and, below, of Megatron-Core."""

BASE_FORMATS = (
    "nf4", "mxfp4", "nvfp4", "int8", "int8-block", "fp8-e4m3", "fp8-block", "mxfp8",
)  # fmt: skip
"""Formats of few bits that frozen weights may be kept in."""


class Adapters(Strict):
    """Which products have one, and how narrow it is; a number alone is the rank."""

    rank: Annotated[int, Field(ge=1, le=2**16)]
    """Features between its two products."""
    layers: Annotated[tuple[str, ...], Field(min_length=1, max_length=256, strict=False)] = (
        "*.attention.query*",
        "*.attention.value",
    )
    """Which linear layers and convolutions have one: patterns of their names, ends of their names
    (q_proj), or all-linear; by default the products of queries and values, as in the paper
    (Section 4.2), or the one that forms them together with keys."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what it reads."""
    base_format: str | None = None
    """Format of few bits in which frozen matrices wait, unpacked for every product (QLoRA): nf4,
    int8 ...; by default the one that they are computed with."""

    @model_validator(mode="before")
    @classmethod
    def _from_rank(cls, value: object) -> object:
        return {"rank": value} if isinstance(value, int) else value

    @field_validator("base_format")
    @classmethod
    def _few_bits(cls, name: str | None) -> str | None:
        full = formats.ALIASES.get(name, name) if name is not None else None
        if full is not None and full not in BASE_FORMATS:
            raise ValueError(
                f"allowed: {', '.join(BASE_FORMATS)}; found {full!r}{nearest(full, BASE_FORMATS)}"
            )
        return full


def adapters_of(text: str) -> dict[str, Any]:
    """Read adapters as a command line writes them: rank=16,layers=q_proj+v_proj,base_format=nf4.

    Raises
    ------
    ConfigError
        If a word is no field, stands twice, or no rank is given; values are checked with the model.
    """
    fields: dict[str, Any] = {}
    words = [word.strip() for word in text.split(",")]
    if words[0].isdecimal():
        words[0] = f"rank={words[0]}"
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        known = list(Adapters.model_fields)
        if name not in known or not equals or not value:
            raise ConfigError(
                f"expected rank=16,layers=q_proj+v_proj, of the fields {', '.join(known)}, found"
                f" {word!r}{nearest(name, known)}",
                field="--adapters",
            )
        if name in fields:
            raise ConfigError(f"the field {name!r} is given twice", field="--adapters")
        fields[name] = _value(name, value)
    if "rank" not in fields:
        raise ConfigError("the rank is missing: rank=16", field="--adapters")
    return fields


def _value(name: str, text: str) -> Any:
    if name == "layers":
        return [part.strip() for part in text.split("+")]
    try:
        return {"rank": int, "dropout": float}.get(name, str)(text)
    except ValueError:
        raise ConfigError(f"{name} is a number, found {text!r}", field="--adapters") from None


@dataclass(frozen=True)
class AdaptedLayers:
    """The layers of one network that have adapters.

    Attributes
    ----------
    adapters
        What was asked for.
    parts
        By layer that has some: of a product of several parts, which of them have one each; none
        are named where one serves the whole product.
    outputs
        Layers whose results are the network's outputs: these are not kept in few bits.
    notes
        What was asked for and is not there.
    """

    adapters: Adapters
    parts: Mapping[str, tuple[int, ...]]
    outputs: frozenset[str]
    notes: tuple[str, ...] = ()

    def stored_as(self, layer: str) -> str | None:
        """Format of few bits in which the frozen matrix of a layer waits; None: it has none."""
        return None if layer in self.outputs else self.adapters.base_format


def part_names(layer: str, count: int) -> tuple[str, ...]:
    """Names that the parts of a product would have alone: a.query-key of two is a.query, a.key."""
    head, dot, last = layer.rpartition(".")
    words = last.split("-")
    return tuple(f"{head}{dot}{word}" for word in words) if len(words) == count > 1 else ()


def adapted_layers(
    name: str, adapters: Adapters, layers: Mapping[str, int], graph: Graph
) -> AdaptedLayers:
    """Find the layers of a network that patterns of adapters name.

    Parameters
    ----------
    layers
        Number of parts of every product that may have an adapter, by layer; 0: a convolution.
    graph
        Forward graph of the network without adapters.

    Raises
    ------
    RidgelineError
        If none fits.
    """
    outputs = _outputs(graph)
    whole: set[str] = set()
    parts: dict[str, set[int]] = {}
    unused = []
    for pattern in adapters.layers:
        found = _found(pattern, layers, outputs)
        if not any(found) and pattern in PROJECTIONS:
            alternatives = [_found(one, layers, outputs) for one in PROJECTIONS[pattern]]
            found = (
                {layer for one, _ in alternatives for layer in one},
                {part for _, one in alternatives for part in one},
            )
        if not any(found):
            unused.append(pattern)
        whole |= found[0]
        for layer, part in found[1]:
            parts.setdefault(layer, set()).add(part)

    def near(pattern: str) -> str:
        return nearest(pattern, (*_kinds(layers), *PROJECTIONS, ALL_LINEAR))

    if not whole and not parts:
        raise RidgelineError(
            f"{name}: no linear layer fits the patterns of its adapters"
            f" ({', '.join(adapters.layers)}){near(unused[0])}; layers are"
            f" {_some(_kinds(layers))}"
        )
    stated = unused if "layers" in adapters.model_fields_set else []
    notes = [
        f"adapters: no linear layer is called {pattern!r}{near(pattern)}" for pattern in stated
    ]
    chosen: dict[str, tuple[int, ...]] = dict.fromkeys(whole, ())
    chosen |= {layer: tuple(sorted(of)) for layer, of in parts.items() if layer not in whole}
    return AdaptedLayers(adapters, chosen, outputs, tuple(notes))


def _found(
    pattern: str, layers: Mapping[str, int], outputs: frozenset[str]
) -> tuple[set[str], set[tuple[str, int]]]:
    """Return the layers that a pattern names, and the parts of layers that it names alone."""
    if pattern == ALL_LINEAR:
        wanted = {layer: count for layer, count in layers.items() if layer not in outputs}
        named = {layer: part_names(layer, count) for layer, count in wanted.items()}
        alone = {layer for layer, count in wanted.items() if count and not named[layer]}
        return alone, {(layer, i) for layer in named for i, _ in enumerate(named[layer])}
    whole = {layer for layer in layers if _fits(layer, pattern)}
    parts = {
        (layer, i)
        for layer, count in layers.items()
        if layer not in whole
        for i, part in enumerate(part_names(layer, count))
        if _fits(part, pattern)
    }
    return whole, parts


def _fits(layer: str, pattern: str) -> bool:
    return fnmatchcase(layer, pattern) or layer.endswith(f".{pattern}")


def _outputs(graph: Graph) -> frozenset[str]:
    """Layers whose product reaches the loss by no other product of weights."""
    maker = {name: op for op in graph.ops for name in op.outputs}
    of_weights = {t.name for t in graph.tensors.values() if t.role in {Role.WEIGHT, Role.BUFFER}}
    for op in graph.ops:
        if op.loops is None and of_weights.issuperset(op.inputs):
            of_weights.update(op.outputs)  # casts and other functions of weights alone
    seen, open_, found = {graph.loss}, [graph.loss], set()
    while open_:
        made_by = maker.get(open_.pop())
        if made_by is None:
            continue
        if made_by.loops is not None and not of_weights.isdisjoint(made_by.inputs):
            found.add(made_by.layer)
            continue
        fresh = [name for name in made_by.inputs if name not in seen]
        seen.update(fresh)
        open_ += fresh
    return frozenset(found)


def _kinds(layers: Iterable[str]) -> list[str]:
    """Return the ends of the names of layers, each once."""
    return list(dict.fromkeys(layer.rpartition(".")[2] for layer in layers))


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "") if names else "none"
