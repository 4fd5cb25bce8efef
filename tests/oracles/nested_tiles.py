"""Levels of buffers inside each other, played tile by tile and element by element.

A level's tile is a contraction of its own for the next nearer level, whose buffers are empty when
it begins and when it ends. Everything is played by `mapping_tiles.play`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from oracles.mapping_tiles import Extents, Within, play
from oracles.mapping_trace import Ranges
from ridgeline.kernels.mapping.machine import MappingMachine
from ridgeline.kernels.mapping.nest import ContractionNest

Groups = tuple[tuple[str, ...], ...]
Choice = tuple[Extents, tuple[int, ...]]
Choose = Callable[[int, Within], Choice]
"""From the level and the tile behind it: extents of tiles, and the order of the axes."""


def machine_at(machine: MappingMachine, depth: int) -> MappingMachine:
    """The machine whose buffers are those of a nearer level."""
    if depth == 0:
        return machine
    level = machine.nearer[depth - 1]
    return machine._replace(
        near=level.name, capacities=level.capacities, double=level.double,
        shared_port=level.shared_port, byte_s=level.byte_s, latency_s=level.latency_s,
        near_byte_s=level.own_byte_s,
    )  # fmt: skip


def play_levels(
    nest: ContractionNest, groups: Groups, machine: MappingMachine, choose: Choose, depth: int = 0,
    within: Within | None = None,
) -> tuple[float, float, list[list[int]]]:  # fmt: skip
    """Play given choices: seconds, those of the engine, words of every border.

    Words are loads of a, b, c, stores of c and results among them; seconds are inf where something
    does not fit.
    """
    if within is None:
        within = Within({dim: (0, size) for dim, size in nest.size.items()}, set(), set(), True)
    here = machine_at(machine, depth)
    borders = [[0] * 5 for _ in range(len(machine.nearer) + 1 - depth)]
    engine_s = 0.0

    def inside(tile: Ranges, last: bool, state: Within) -> float:
        nonlocal engine_s
        time_s, busy_s, words = play_levels(nest, groups, machine, choose, depth + 1, state)
        engine_s += busy_s
        for border, more in zip(borders[1:], words, strict=True):
            border[:] = [a + b for a, b in zip(border, more, strict=True)]
        return time_s

    nearest = depth == len(machine.nearer)
    played = play(nest, groups, *choose(depth, within), here, within, None if nearest else inside)
    borders[0] = [*played.words, played.results]
    fits = played.room <= here.capacities[3]
    return (
        played.time_s if fits else math.inf,
        played.compute_s if nearest else engine_s,
        borders,
    )


def best_of_all(
    nest: ContractionNest, groups: Groups, machine: MappingMachine,
    listed: Callable[[int, Within], Iterator[Choice]], depth: int = 0,
    within: Within | None = None, known: dict | None = None,
) -> float:  # fmt: skip
    """Least seconds of all choices on all levels, for every tile by itself: brute force."""
    if within is None:
        within = Within({dim: (0, size) for dim, size in nest.size.items()}, set(), set(), True)
    known = {} if known is None else known
    name = (
        depth, tuple(within.tile.values()), frozenset(within.touched), frozenset(within.earlier),
        within.ended,
    )  # fmt: skip
    if name in known:
        return known[name]

    def inside(tile: Ranges, last: bool, state: Within) -> float:
        return best_of_all(nest, groups, machine, listed, depth + 1, state, known)

    here, times = machine_at(machine, depth), [math.inf]
    for choice in listed(depth, within):
        nearest = depth == len(machine.nearer)
        played = play(nest, groups, *choice, here, within, None if nearest else inside)
        if played.room <= here.capacities[3]:
            times.append(played.time_s)
    known[name] = min(times)
    return known[name]


def combinations(tables: list[list[list[int]]], groups: Groups) -> Iterator[Extents]:
    """Extents by dimension of every combination of tilings."""
    for chosen in itertools.product(*tables):
        yield {
            dim: extent
            for dims, tile in zip(groups, chosen, strict=True)
            for dim, extent in zip(dims, tile, strict=False)
        }
