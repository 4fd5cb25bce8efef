"""Branching: the plans behind a search node, and closer bounds of one plan.

An entry is opened to the same, to the last bit, whoever opens it and when. So a search with two
processes gives each of them a part of the groups; each opens what of its part comes next in the
order of bounds before it is asked for it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.planner.cost_cache import GroupKey
from ridgeline.study.planner.lower_bounds import TOTALS, totals
from ridgeline.study.planner.plan_class import Floats, Ints
from ridgeline.study.planner.searcher import Searcher

LEAST, AGAIN, OPS, STAGES, ALL = range(5)
"""What is known of a group: its ops without recomputation, those that are done again, too; of a
plan: its ops, its stages, what moves between its replicas (all but what the engine says)."""


class SearchNode(NamedTuple):
    """Some plans that are not played yet.

    Attributes
    ----------
    bound
        The least objective of any of them.
    known
        What the bound knows: LEAST to ALL.
    number
        Of the group, or of the plan.
    """

    bound: float
    known: int
    number: int


class ExpandedNode(NamedTuple):
    """What takes the place of an entry.

    Attributes
    ----------
    dropped
        How many of its plans cannot fit.
    time_s
        Of a plan: least seconds of a step.
    """

    entries: list[SearchNode]
    dropped: int = 0
    time_s: float = 0.0


class NodeExpander:
    """Opens entries.

    Recomputation adds ops and takes none away. So a group that recomputes is bounded by the one
    that does not and has the same ops otherwise; when it comes up, by these ops and those that it
    does again; it is divided and priced as a whole when it comes up once more.

    Attributes
    ----------
    keys
        Of every group.
    which
        [P] group of every plan.
    least
        [G, 16] of every group, as `totals`.
    own
        Whether groups of a key are opened before they are asked for.
    """

    def __init__(self, one: Searcher, keys: list[GroupKey], which: Ints) -> None:
        self.one, self.keys, self.which = one, keys, which
        self.least = np.zeros((len(keys), len(TOTALS)))
        self.own: Callable[[GroupKey], bool] = lambda key: False
        self.screened, self.screen_s = 0, 0.0
        self._next: list[SearchNode] = []
        self._begun: set[SearchNode] = set()
        self._done: dict[SearchNode, ExpandedNode] = {}

    def key(self, entry: SearchNode) -> GroupKey:
        """Return the group that an entry belongs to."""
        group = entry.number if entry.known in {LEAST, AGAIN} else self.which[entry.number]
        return self.keys[int(group)]

    def begin(self, least: Floats, entries: Iterable[SearchNode]) -> None:
        """Begin with these groups."""
        self.least = least
        self._push(entries)

    def opened(self, entry: SearchNode) -> ExpandedNode:
        """Open an entry."""
        if entry not in self._done:
            self._begun.add(entry)
            found = self._group(entry) if entry.known in {LEAST, AGAIN} else self._plan(entry)
            self._push(found.entries)
            return found
        return self._done.pop(entry)

    def go_on(self) -> bool:
        """Open what comes next of what is its own; whether there was anything."""
        while self._next:
            entry = heapq.heappop(self._next)
            if entry not in self._begun:
                with suppress(RidgelineError):  # who asks for it will meet it, too
                    self._done[entry] = self.opened(entry)
                return True
        return False

    def taken(self) -> dict[SearchNode, ExpandedNode]:
        """Hand over what was opened and has not been asked for."""
        done, self._done = self._done, {}
        return done

    def values(self, at: Ints, known: Floats, row: Ints | None = None) -> Floats:
        """Screen plans: the least objective of each; infinite where it can not fit.

        Parameters
        ----------
        at
            [P] plans.
        known, row
            Sums of groups (`totals`), and which of them are of each plan; without `row`: of one
            group.
        """
        start = time.perf_counter()
        known = np.atleast_2d(known)
        row = np.zeros(len(at), np.int64) if row is None else row
        bounds = self.one.screened(at, row, known)
        self.screen_s += time.perf_counter() - start
        self.screened += len(at)
        values = self.one.bound_values(bounds[:, 0], bounds[:, 1], at)
        return np.where(bounds[:, 2] <= self.one.runs.capacity_bytes, values, np.inf)

    def _push(self, entries: Iterable[SearchNode]) -> None:
        for entry in entries:
            if entry.known != ALL and self.own(self.key(entry)):
                heapq.heappush(self._next, entry)

    def _group(self, entry: SearchNode) -> ExpandedNode:
        """Price a group and list its plans; at first, only what it does again."""
        key, groups = self.keys[entry.number], self.one.groups
        at = np.flatnonzero(self.which == entry.number)
        if entry.known == LEAST and groups.family(key) != key:
            again = groups.least_again(key)
            if again is None:
                return ExpandedNode([])
            least = self.least[entry.number].copy()
            least[: len(again)] = again
            bound = max(entry.bound, float(self.values(at, least).min()))
            return ExpandedNode([SearchNode(bound, AGAIN, entry.number)])
        group = groups.group(key)
        if group is None:
            return ExpandedNode([])
        values = self.values(at, totals(group))
        fits = values < np.inf
        plans = zip(values[fits].tolist(), at[fits].tolist(), strict=True)
        return ExpandedNode([SearchNode(bound, OPS, i) for bound, i in plans], int((~fits).sum()))

    def _plan(self, entry: SearchNode) -> ExpandedNode:
        """Bound a plan by its stages, or by what moves between its replicas, too."""
        one, (value, known, i) = self.one, entry
        group = one.groups.group(self.key(entry))
        assert group is not None
        if known == OPS and one.memory_bytes(group, i) > one.runs.capacity_bytes:
            return ExpandedNode([], 1)  # most do not fit: a schedule takes longer to play
        bound = one.tightened(group, i, wired=known == STAGES)
        time_s, energy_j = np.array([bound.time_s]), np.array([bound.energy_j])
        (sharp,) = one.bound_values(time_s, energy_j, np.array([i]))
        return ExpandedNode([SearchNode(max(value, float(sharp)), known + 1, i)], 0, bound.time_s)
