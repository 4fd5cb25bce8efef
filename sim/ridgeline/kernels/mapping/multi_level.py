"""Multi-level mapping: each tile of a buffer level is a contraction for the next one.

What a nearer level holds is given up when the tile behind it changes: its pipeline runs empty, and
a tile takes the time of its own search there, first load and last store included. So the best
mapping of a tile does not depend on where the tile comes from, and choosing the best one for each
kind of tile gives the best of all joint choices. A level's candidates are played in the order of
their bounds; kinds of tiles that a candidate has are searched as long as it can still win.

The numbers that a candidate needs of a tile are the same that `pipeline.evaluate` finds, with the
words over every nearer border behind them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ridgeline.kernels.mapping.compute import TileEngine
from ridgeline.kernels.mapping.footprint import Floats, Ints
from ridgeline.kernels.mapping.pipeline import (
    BORDER_FIELDS,
    EDP,
    ENERGY,
    FASTEST,
    FOUND_FIELDS,
    TIME,
    BufferLevel,
    Goal,
    K,
    Shape,
    evaluate,
    key_of,
    weights_of,
)
from ridgeline.kernels.mapping.search import EXACT, ORDERS, best, candidates, innermost_of, seen
from ridgeline.kernels.mapping.selection import TIED, best_of
from ridgeline.kernels.mapping.subproblems import parts, represented
from ridgeline.kernels.mapping.tilings import BEGIN, END, FIRST, LAST, WEIGHT


class Solution(NamedTuple):
    """A searched contraction.

    Attributes
    ----------
    found
        As `pipeline.evaluate` gives it; found[TIME] is inf if nothing is below the cutoff.
    extents, order
        [4, 3] and [4] of this level.
    first
        Of its first tile, in the next nearer level; None on the nearest.
    """

    found: Floats
    extents: Ints
    order: Ints
    first: Solution | None


class TileKinds(NamedTuple):
    """Kinds of tiles along one axis, and which kind each representative is."""

    axes: list[Ints]
    begun: list[bool]
    ended: list[bool]
    weights: list[float]
    kind: Ints


@dataclass
class MultiLevelSearch:
    """Searches that remember the contractions that they have met.

    Attributes
    ----------
    levels
        From far to near.
    densities
        How many tilings are listed on the farther levels, and on the nearest; see `tilings`.
    """

    levels: tuple[BufferLevel, ...]
    engine: TileEngine
    densities: tuple[int, int]
    goal: Goal
    pruned: bool = True
    played: int = 0
    _known: dict[tuple[int, bytes, bool, bool], Solution] = field(default_factory=dict)
    _above: dict[tuple[int, bytes, bool, bool], float] = field(default_factory=dict)

    def solve(self, axes: Ints, shape: Shape, depth: int = 0, cutoff: float = np.inf) -> Solution:
        """Find the best mapping of a contraction on the levels from `depth` on.

        Parameters
        ----------
        cutoff
            A worse one need not be found.
        """
        name = _name(axes, shape, depth)
        if name in self._known:
            return self._known[name]
        if cutoff <= self._above.get(name, -np.inf):
            return _nothing(self, depth)
        found = (
            self._nearest(axes, shape, cutoff)
            if depth == len(self.levels) - 1
            else self._descend(axes, shape, depth, cutoff)
        )
        if key_of(found.found[TIME], found.found[ENERGY], self._goal(depth)) > cutoff:
            self._above[name] = cutoff
            return _nothing(self, depth)
        self._known[name] = found
        return found

    def _goal(self, depth: int) -> Goal:
        """Of a product of time and energy the tiles of nearer levels are searched for time."""
        return self.goal if depth == 0 or self.goal.of != EDP else FASTEST

    def _nearest(self, axes: Ints, shape: Shape, cutoff: float) -> Solution:
        goal = self._goal(len(self.levels) - 1)
        extents, order, found, played = best(
            axes, shape, self.levels[-1], self.engine, self.densities[1], goal, ORDERS,
            self.pruned, cutoff,
        )  # fmt: skip
        self.played += played
        return Solution(found, extents, order, None)

    def _descend(self, axes: Ints, shape: Shape, depth: int, cutoff: float) -> Solution:
        level, nearer = self.levels[depth], _nearer(self.levels[depth + 1 :])
        goal = self._goal(depth)
        weights = weights_of(goal)
        starts, table, bounds, names = candidates(
            axes, shape, level, self.engine, nearer, self.densities[0], goal
        )
        tiles = represented(axes, table, starts)
        along: dict[int, TileKinds] = {}
        nothing = _nothing(self, depth)
        kept: list[tuple[Solution, int, int]] = []  # what may be the best, and whose it is
        least, sizes = np.inf, [1 << int(n - 1).bit_length() for n in np.diff(starts)]
        for bound, name in zip(bounds.tolist(), names.tolist(), strict=True):
            limit = min(least, cutoff) * (1 + EXACT)
            if self.pruned and bound > limit:
                break
            combination, innermost = divmod(name, 4)
            chosen = starts[:4] + np.array(np.unravel_index(combination, sizes), np.int64)
            for axis, i in enumerate(chosen.tolist()):
                if i not in along:
                    along[i] = _along(axis, axes[axis], table[i], tiles, shape)
            kinds = [along[i] for i in chosen.tolist()]
            solved = self._kinds(kinds, shape, depth + 1, limit)
            if solved is None:
                continue
            inner, first = solved
            for i in range(len(ORDERS)):
                if innermost_of(ORDERS[i], chosen, table) != innermost + 1:
                    continue
                if self.pruned and seen(i, ORDERS, chosen, table):
                    continue
                found = np.empty_like(nothing.found)
                evaluate(
                    chosen, ORDERS[i], table, tiles, shape, level, self.engine, weights, inner,
                    found,
                )  # fmt: skip
                self.played += 1
                key = float(key_of(found[TIME], found[ENERGY], goal))
                if key <= least * (1 + TIED):
                    kept.append(
                        (Solution(found, table[chosen, :3], ORDERS[i], first), combination, i)
                    )
                    least = min(least, key)
        if not kept:
            return nothing
        top, *_ = kept[
            best_of(
                np.stack([solution.found for solution, *_ in kept]),
                np.array([whose for _, *whose in kept]), goal,
            )
        ]  # fmt: skip
        if goal.of != EDP:
            top.found[goal.of] = least
        return top

    def _kinds(
        self, kinds: list[TileKinds], shape: Shape, depth: int, limit: float
    ) -> tuple[Floats, Solution] | None:
        """Search all kinds of tiles of a candidate; None as soon as they are above the limit."""
        counts = [len(part.axes) for part in kinds]
        tiles = []
        for i, j, m, k in itertools.product(*map(range, counts)):
            tile = np.array(
                [kinds[0].axes[i], kinds[1].axes[j], kinds[2].axes[m], kinds[K].axes[k]]
            )
            inside = shape._replace(begun=kinds[K].begun[k], ended=kinds[K].ended[k])
            weight = kinds[0].weights[i] * kinds[1].weights[j] * kinds[2].weights[m]
            tiles.append((tile, inside, weight * kinds[K].weights[k]))
        # What is known of the tiles already counts before any of them is searched.
        least = [weight * self._least(tile, inside, depth) for tile, inside, weight in tiles]
        total, rows = math.fsum(least), dict[int, Solution]()
        for number in sorted(range(len(tiles)), key=lambda i: -tiles[i][2]):
            if self.pruned and total > limit * (1 + EXACT):
                return None
            tile, inside, weight = tiles[number]
            total -= least[number]
            cutoff = np.inf  # the energy that a tile adds is less than its own by that of its time
            if self.pruned and self.goal.of == TIME:
                cutoff = (limit - total + EXACT * limit) / weight
            found = self.solve(tile, inside, depth, cutoff)
            if not np.isfinite(found.found[TIME]):
                return None
            rows[number] = found
            total += weight * self._share(found)
        if self.pruned and total > limit * (1 + EXACT):
            return None
        found_ = np.array([rows[number].found for number in range(len(rows))])
        index = np.arange(len(rows)).reshape(counts)[np.ix_(*(part.kind for part in kinds))]
        return found_[index.ravel()], rows[int(index.flat[0])]

    def _least(self, axes: Ints, shape: Shape, depth: int) -> float:
        """Return what is known that a tile adds to the key at least."""
        name = _name(axes, shape, depth)
        if (solution := self._known.get(name)) is not None:
            return self._share(solution)
        return self._above.get(name, 0.0) if self.goal.of == TIME else 0.0

    def _share(self, tile: Solution) -> float:
        """Return what a tile adds to the key at least."""
        if self.goal.of == EDP:
            return 0.0
        if self.goal.of == ENERGY:  # its time may pass under transfers that are counted elsewhere
            return float(tile.found[ENERGY] - self.levels[0].idle_w * tile.found[TIME])
        return float(tile.found[TIME])


def _name(axes: Ints, shape: Shape, depth: int) -> tuple[int, bytes, bool, bool]:
    return depth, axes.tobytes(), shape.begun, shape.ended


def _nothing(search: MultiLevelSearch, depth: int) -> Solution:
    borders = len(search.levels) - 1 - depth
    found = np.full(FOUND_FIELDS + BORDER_FIELDS * borders, np.inf)
    return Solution(found, np.ones((4, 3), np.int64), ORDERS[0], None)


def _nearer(levels: tuple[BufferLevel, ...]) -> Floats:
    """Describe nearer levels to `search.nearer_s`."""
    return np.array(
        [
            (
                level.byte_s * (1.0 if level.shared_port else 0.5), level.capacity[3],
                float(level.double),
            )
            for level in levels
        ]
    )  # fmt: skip


def _along(number: int, axis: Ints, tiling: Ints, tiles: Floats, shape: Shape) -> TileKinds:
    """Find the kinds of tiles along an axis; along k they also differ in their partial sums."""
    mine = tiles[tiling[BEGIN] : tiling[END]]
    found = TileKinds([], [], [], [], np.empty(len(mine), np.int64))
    kinds: dict[tuple[bytes, bool, bool], int] = {}
    for i, part in enumerate(parts(axis, tiling, mine)):
        begun = shape.begun or (number == K and not mine[i, FIRST])
        ended = shape.ended and (number != K or bool(mine[i, LAST]))
        kind = kinds.setdefault((part.tobytes(), bool(begun), ended), len(kinds))
        if kind == len(found.axes):
            found.axes.append(part)
            found.begun.append(bool(begun))
            found.ended.append(ended)
            found.weights.append(0.0)
        found.weights[kind] += float(mine[i, WEIGHT])
        found.kind[i] = kind
    return found
