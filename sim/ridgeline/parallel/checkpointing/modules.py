"""Recomputation by modules, as Megatron-Core's ``--recompute-modules`` names parts of a layer.

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
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from ridgeline.errors import ConfigError, nearest
from ridgeline.parallel.checkpointing.blocks import Block, attention_cores, forward_ops
from ridgeline.parallel.checkpointing.ops import recompute_blocks
from ridgeline.workload.graph import Graph

JOINED = "+"


class _Module(NamedTuple):
    """Layers of a module: what their names begin and go on with; whether its outputs are kept."""

    layers: str
    kept: bool


_LATENT = (
    r"(.*\.attention)\.(?:query-norm|query-up|key-value-norm|key-value-up|rotary-query|rotary-key"
    r"|join-query|join-key)"
)
_MODULES = {
    "moe": _Module(r"(.*\.experts)\..*", True),
    "shared_experts": _Module(r"(.*\.experts\.shared)\..*", True),
    "mlp": _Module(r"(.*\.feed-forward)\.(?!add$).*", True),
    "core_attn": _Module("", True),
    "moe_act": _Module(r"(.*\.experts\.(?:swiglu|geglu|gelu|relu|silu|relu-squared))", False),
    "mla_up_proj": _Module(_LATENT, False),
    "layernorm": _Module(r"(.*\.norm\d*)", False),
}
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
        graph = recompute_blocks(graph, blocks, outputs=not _MODULES[name].kept, more=True)
    return graph


def module_blocks(graph: Graph, name: str) -> tuple[Block, ...]:
    """Return the forward ops of every copy of a module."""
    if name == "core_attn":
        return attention_cores(graph)
    pattern, found = re.compile(_MODULES[name].layers), defaultdict[str, list[int]](list)
    for i in forward_ops(graph):
        if match := pattern.fullmatch(graph.ops[i].layer):
            found[match[1]].append(i)
    return tuple(map(tuple, found.values()))
