"""Constants of collectives by kind of node: a group pays what the slowest of its own nodes needs.

A job may run on nodes of several kinds (two generations, two vendors). Where a collective starts,
what protocols take, and how fast copies are in memory, is the program's and the devices' of each
node. A group of ranks on nodes of one kind has that kind's constants; one that lies on several
waits in every round for the slower of two ends, so that each constant is the slowest of its own
kinds, and not of all that the job has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ridgeline.network.library import LinkLibrary, OneShotFigures, PairFigures, ProtocolFigures
from ridgeline.network.topology import NodeConstants, Topology

Value = TypeVar("Value")

_GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
"""Of one vendor's devices, the oldest first."""


def of_ranks(topology: Topology, ranks: Sequence[int] | npt.NDArray[np.integer]) -> Topology:
    """Return a topology with the constants of the nodes that some ranks are on.

    The same object for the same kinds of nodes: routes and rings of it are kept.
    """
    key = kinds_of_ranks(topology, ranks)
    if len(key) in {0, len(topology.node_constants)}:
        return topology
    if key not in topology.of_node_kinds:
        own = slowest([topology.node_constants[kind] for kind in key])
        found = replace(topology, **own._asdict())
        found.of_node_kinds[key] = found
        topology.of_node_kinds[key] = found
    return topology.of_node_kinds[key]


def kinds_of_ranks(
    topology: Topology, ranks: Sequence[int] | npt.NDArray[np.integer]
) -> tuple[int, ...]:
    """Return the kinds of nodes that some ranks are on; () where all nodes are of one."""
    if not topology.node_constants:
        return ()
    node = topology.node_of[topology.devices[np.asarray(ranks, np.int64).ravel()]]
    kinds = np.unique(np.array(topology.kind_of_node)[node[node >= 0]])
    return tuple(kinds.tolist())


def slowest(each: Sequence[NodeConstants]) -> NodeConstants:
    """Return the constants of a group on nodes of these kinds."""
    first, *others = each
    for other in others:
        first = NodeConstants(
            collective_latency_s=max(first.collective_latency_s, other.collective_latency_s),
            memory_bytes_per_s=min(first.memory_bytes_per_s, other.memory_bytes_per_s),
            in_switch=_joined(first.in_switch, other.in_switch, min),
            exchanged=_joined(first.exchanged, other.exchanged, min),
            library=_joined(first.library, other.library, slower_library),
            host_issue=max(first.host_issue, other.host_issue),
        )
    return first


def slower_library(a: LinkLibrary, b: LinkLibrary) -> LinkLibrary:
    """Return what a library takes between links of two nodes: of each constant the slower."""
    generation = a.generation
    if {a.generation, b.generation} <= set(_GENERATIONS):
        generation = min(a.generation, b.generation, key=_GENERATIONS.index)
    return LinkLibrary(
        name=a.name,
        generation=generation,
        transport=a.transport,
        channels=_known(a.channels, b.channels, min),
        protocols=tuple(map(_slower_protocol, a.protocols, b.protocols)),
        pairs=_known(a.pairs, b.pairs, slower_pairs),
        one_shot=_known(a.one_shot, b.one_shot, _slower_one_shot),
        of_payload=max(a.of_payload, b.of_payload),
    )


def _slower_protocol(a: ProtocolFigures, b: ProtocolFigures) -> ProtocolFigures:
    return ProtocolFigures(
        start_s=_known(a.start_s, b.start_s, max),
        hop=_known(a.hop, b.hop, max),
        spread_s=max(a.spread_s, b.spread_s),
        share=_known(a.share, b.share, min),
        copy_bytes_per_s=min(a.copy_bytes_per_s, b.copy_bytes_per_s),
        byte_sum=min(a.byte_sum, b.byte_sum),
        slice_bytes=max(a.slice_bytes, b.slice_bytes),
    )


def slower_pairs(a: PairFigures, b: PairFigures) -> PairFigures:
    """Return what sends and receives take between two nodes: of each figure the slower."""
    return PairFigures(
        small_start_s=max(a.small_start_s, b.small_start_s),
        start_s=max(a.start_s, b.start_s),
        one_start_s=max(a.one_start_s, b.one_start_s),
        each_s=max(a.each_s, b.each_s),
        kernel_bytes_per_s=min(a.kernel_bytes_per_s, b.kernel_bytes_per_s),
    )


def _slower_one_shot(a: OneShotFigures, b: OneShotFigures) -> OneShotFigures:
    return OneShotFigures(*map(max, a, b))


def _known(
    a: Value | None, b: Value | None, slower: Callable[[Value, Value], Value]
) -> Value | None:
    """Return the slower of two constants, or the one that is known."""
    if a is None or b is None:
        return b if a is None else a
    return slower(a, b)


def _joined(
    a: Mapping[str, Value], b: Mapping[str, Value], slower: Callable[[Value, Value], Value]
) -> dict[str, Value]:
    """Return constants by link class; of a class that both kinds have, the slower."""
    return {**b, **{name: slower(of, b[name]) if name in b else of for name, of in a.items()}}


NO_CONSTANTS = NodeConstants(0.0, math.inf, {}, {}, {}, 1.0)
"""Of a topology that is no nodes' own."""
