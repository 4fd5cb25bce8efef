"""Modules of a layer, as Megatron-Core's ``--recompute-modules`` names them, in any network.

=================  ==============================================================  ================
module             forward ops                                                     outputs
=================  ==============================================================  ================
core_attn          scores and probabilities of attention (`blocks.attention_cores`)  kept
mla_up_proj        norms, up-projections and rotations of latent attention         formed again
layernorm          norms at the beginning of a branch                              formed again
moe_act            activation functions of experts                                 formed again
mlp                dense feed-forward networks                                     kept
moe                mixtures: router, dispatch, experts, combine                    kept
shared_experts     experts that all tokens go through                              kept
=================  ==============================================================  ================

Where outputs are kept, the inside of a module is formed again from its inputs (a checkpoint). Where
they are formed again, too, what reads them in the forward pass was done before they are freed
(Megatron-Core, core/tensor_parallel/random.py, CheckpointWithoutOutput; which modules:
core/transformer/transformer_config.py, recompute_modules).

A module is found by the parts of its layers' names: those of this package, of Megatron-Core, and
of transformers' networks, as traces have them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.errors import ConfigError, nearest
from ridgeline.parallel.checkpointing.blocks import Block, attention_cores, forward_ops
from ridgeline.parallel.checkpointing.ops import recompute_blocks
from ridgeline.workload.builder import QUANTISE
from ridgeline.workload.graph import Graph

JOINED = "+"

_FEED_FORWARD = frozenset(
    {"feed-forward", "feed_forward", "mlp", "ffn", "ff", "DenseReluDense", "fc_block"}
)
_MIXTURE = frozenset({"experts", "moe", "block_sparse_moe", "local_experts"})
_SHARED = frozenset({"shared", "shared_expert", "shared_experts", "shared_mlp"})
_ATTENTION = re.compile(r"(?i)(?:.*[._-])?(?:self[_-]?|cross[_-]?)?(?:attention|attn)")
_NORMS = frozenset({"layer-norm", "rms-norm", "normalize"})
_OF_HEADS = re.compile(r"(?i)(?:q|k|kv|query|key|key-value|q_a|kv_a)[_-]?(?:layer_?)?norm\d*")
_ACTIVATIONS = frozenset({"swiglu", "geglu", "gelu", "relu", "silu", "relu-squared", "tanh"})
_LATENT = frozenset({"key-value-up", "kv_b_proj", "linear_kv_up_proj"})
_NOT_UP = re.compile(
    r"(?:query-down|key-value-down|q_a_proj|kv_a_proj\w*|linear_\w*down_proj|output|o_proj"
    r"|linear_proj|attention|core_attention|scores|softmax|context|flash|dropout|add)(?:\..*)?"
)
"""Layers of latent attention that are no part of its up-projections."""


class OpPlace(NamedTuple):
    """Where an op is: the parts of its layer's name, and its kind."""

    parts: tuple[str, ...]
    kind: str


def _feed_forward(place: OpPlace) -> str:
    """Name the feed-forward network, dense or a mixture, that an op is in; "": it is in none."""
    parts, _ = place
    for n, part in enumerate(parts):
        if part in _FEED_FORWARD or part in _MIXTURE:
            sum_ = len(parts) == n + 2 and parts[-1].split(".")[0] == "add"
            return "" if sum_ and part == "feed-forward" else ".".join(parts[: n + 1])
    return ""


def _shared(place: OpPlace) -> str:
    parts, _ = place
    at = next((n for n, part in enumerate(parts) if part in _SHARED), None)
    beside = None if at is None else parts[at - 1] in _FEED_FORWARD | _MIXTURE
    return ".".join(parts[: at + 1]) if at is not None and beside else ""


def _attention(place: OpPlace) -> str:
    """Name the attention that an op is in, but for its down-projections, core and output."""
    parts, _ = place
    for n, part in enumerate(parts[:-1]):
        if _ATTENTION.fullmatch(part):
            return "" if _NOT_UP.fullmatch(".".join(parts[n + 1 :])) else ".".join(parts[: n + 1])
    return ""


def attention_of(parts: tuple[str, ...]) -> str:
    """Name the attention that a layer is in; "": it is in none."""
    for n, part in enumerate(parts[:-1]):
        if _ATTENTION.fullmatch(part):
            return ".".join(parts[: n + 1])
    return ""


def _norm(place: OpPlace) -> str:
    """Name a norm of a block; those of heads, and of the whole network, are none."""
    numbered = any(any(map(str.isdigit, part)) for part in place.parts[:-1])
    of_branch = place.kind in _NORMS and numbered and not _OF_HEADS.fullmatch(place.parts[-1])
    return ".".join(place.parts) if of_branch else ""


def _expert_activation(place: OpPlace) -> str:
    mixed = _MIXTURE.intersection(place.parts) and not _SHARED.intersection(place.parts)
    return ".".join(place.parts) if mixed and place.kind in _ACTIVATIONS else ""


class _Module(NamedTuple):
    """How a module is found: what names the copy that an op is in; whether its outputs are kept."""

    copy_of: Callable[[OpPlace], str]
    kept: bool


_MODULES: Mapping[str, _Module] = MappingProxyType(
    {
        "moe": _Module(_feed_forward, True),
        "shared_experts": _Module(_shared, True),
        "mlp": _Module(_feed_forward, True),
        "core_attn": _Module(lambda place: "", True),
        "moe_act": _Module(_expert_activation, False),
        "mla_up_proj": _Module(_attention, False),
        "layernorm": _Module(_norm, False),
    }
)
"""In the order in which they are done: what keeps its outputs first, since it may read others."""
MODULES = tuple(_MODULES)


def parse_modules(text: str) -> tuple[str, ...]:
    """Read ``"mla_up_proj+moe_act"`` into the names of modules.

    Raises
    ------
    ValueError
        If a name is unknown, with the nearest.
    """
    names = tuple(part.strip() for part in text.split(JOINED))
    for name in names:
        if name not in MODULES:
            raise ValueError(
                f"unknown module {name!r}{nearest(name, MODULES)} (allowed: {', '.join(MODULES)},"
                f" joined by {JOINED})"
            )
    return tuple(name for name in MODULES if name in names)


def recompute_modules(graph: Graph, names: tuple[str, ...]) -> Graph:
    """Return the graph in which modules of every layer are formed again in the backward pass.

    Raises
    ------
    ConfigError
        If a network has none of them.
    """
    if not any(module_blocks(graph, name) for name in names) and names != ("core_attn",):
        raise ConfigError(f"{graph.name} has no {' or '.join(names)}", field="plan.recompute")
    if {"moe", "shared_experts"} <= set(names):
        names = tuple(name for name in names if name != "shared_experts")  # a part of the other
    for name in names:
        blocks = module_blocks(graph, name)
        if not _MODULES[name].kept:
            blocks = _with_narrow_copies(graph, blocks)
        graph = recompute_blocks(graph, blocks, outputs=not _MODULES[name].kept, more=True)
    return graph


def _with_narrow_copies(graph: Graph, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Add to modules whose outputs are formed again what quantises these outputs alone.

    Products behind such a module save the output itself, which is freed, and not its copy in a
    narrow format (Megatron-Core, core/transformer/moe/experts.py and transformer_layer.py:
    set_save_original_input).
    """
    home = {t: n for n, block in enumerate(blocks) for i in block for t in graph.ops[i].outputs}
    found: list[list[int]] = [list(block) for block in blocks]
    own = {i for block in blocks for i in block}
    for i in forward_ops(graph):
        op = graph.ops[i]
        if op.kind == QUANTISE.name and i not in own and op.inputs[0] in home:
            found[home[op.inputs[0]]].append(i)
    return tuple(tuple(sorted(block)) for block in found)


def module_blocks(graph: Graph, name: str) -> tuple[Block, ...]:
    """Return the forward ops of every copy of a module."""
    if name == "core_attn":
        return attention_cores(graph)
    found = defaultdict[str, list[int]](list)
    for i in forward_ops(graph):
        if copy := _MODULES[name].copy_of(OpPlace(parts_of(graph.ops[i].layer), graph.ops[i].kind)):
            found[copy].append(i)
    ends = _ends_of_branches(graph) if name == "layernorm" else frozenset()
    return tuple(tuple(ops) for ops in found.values() if _is_of(graph, ops, name, ends))


def _is_of(graph: Graph, ops: list[int], name: str, ends: frozenset[int]) -> bool:
    """Whether what is named like a module is one: with experts, without, with up-projections."""
    if name == "layernorm":
        return ends.isdisjoint(ops)
    parts = {part for i in ops for part in parts_of(graph.ops[i].layer)}
    if name in {"moe", "mlp"}:
        return bool(parts & _MIXTURE) is (name == "moe")
    return name != "mla_up_proj" or bool(parts & _LATENT)


def _ends_of_branches(graph: Graph) -> frozenset[int]:
    """Forward ops whose results are only added to others."""
    forward = [graph.ops[i] for i in forward_ops(graph)]
    read = {name for op in forward if op.kind != "add" for name in op.inputs}
    return frozenset(i for i in forward_ops(graph) if read.isdisjoint(graph.ops[i].outputs))


@cache
def parts_of(layer: str) -> tuple[str, ...]:
    """Return the parts of a layer's name."""
    return tuple(layer.split("."))
