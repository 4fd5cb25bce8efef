"""Worker of a search: opens search nodes, here and in a second process.

A node is opened to the same, to the last bit, whoever opens it and when. So a search with two
processes gives each of them a part of the groups; each opens what of its part comes next in the
order of bounds before it is asked for it.

The second process is a fork, so it knows all that this process knows, and only nodes, plans and
answers are sent: a search says the same with a worker and without. Groups that differ in
recomputation alone belong to the same process, since one is priced with the other; so every second
family is the worker's.
"""

from __future__ import annotations

import gc
import heapq
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.parallel.op_pricer import FEW_GRAPHS
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.planner.bounds import HELD, TOTALS, totals
from ridgeline.study.planner.plan_class import FORWARD, Floats, GroupKey, Ints
from ridgeline.study.planner.result import SimulatedPlan
from ridgeline.study.planner.searcher import Placed, Searcher

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

FAMILY, LEAST, AGAIN, OPS, STAGES, ALL = range(6)
"""What is known of a family of groups: its arithmetic; of a group: its ops without recomputation,
those that are done again, too; of a plan: its ops, its stages, what moves between its replicas (all
but what the engine says)."""


class SearchNode(NamedTuple):
    """Some plans that are not played yet.

    Attributes
    ----------
    bound
        The least objective of any of them.
    known
        What the bound knows: FAMILY to ALL.
    number
        Of the family, of the group, or of the plan.
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

    A family of groups is bounded by its arithmetic until it is divided and priced. Recomputation
    adds ops and takes none away. So a group that recomputes is bounded by the one that does not
    and has the same ops otherwise; when it comes up, by these ops and those that it does again; it
    is divided and priced as a whole when it comes up once more.

    Attributes
    ----------
    keys
        Of every group.
    which
        [P] group of every plan.
    families, members
        Key of every family, and its groups of which some plan may fit.
    least
        [G, 17] of every group, as `totals`: its bytes, of seconds what is known so far.
    own
        Whether groups of a key are opened before they are asked for.
    ceiling
        What is bounded by this and more is not opened before it is asked for.
    """

    def __init__(self, one: Searcher, keys: list[GroupKey], which: Ints) -> None:
        self.one, self.keys, self.which = one, keys, which
        self.families: list[GroupKey] = []
        self.members: list[list[int]] = []
        self.least = np.zeros((len(keys), len(TOTALS)))
        self.own: Callable[[GroupKey], bool] = lambda key: False
        self.ceiling = float("inf")
        self.screened, self.screen_s = 0, 0.0
        self._next: list[SearchNode] = []
        self._begun: set[SearchNode] = set()
        self._done: dict[SearchNode, ExpandedNode] = {}
        self._leasts: dict[int, Floats | None] = {}  # of families
        self._order: list[int] = []  # of families that this process may price together

    def key(self, entry: SearchNode) -> GroupKey:
        """Return the group that an entry belongs to."""
        if entry.known == FAMILY:
            return self.families[entry.number]
        group = entry.number if entry.known in {LEAST, AGAIN} else self.which[entry.number]
        return self.keys[int(group)]

    def listed(self) -> list[SearchNode]:
        """Bound all groups by what needs no price, and return a node for each family.

        Groups of which no plan can fit belong to none; `ExpandedNode.dropped` counts their plans.
        """
        one, keys, which = self.one, self.keys, self.which
        self.least = np.array([one.may_fit(key) for key in keys]).reshape(-1, len(TOTALS))
        every, known = np.arange(len(one.space)), self.least.copy()
        of_time = len(TOTALS) - HELD
        placed = [one.groups.exchanged_at_least(key) for key in keys]
        for g, key in enumerate(keys):
            known[g, :of_time] = one.groups.least_at_peak(key)
            known[g, FORWARD] += sum(of.least_s for of in placed[g])
        bound = np.full(len(keys), np.inf)
        values = self.values(every, known, which, placed)
        np.minimum.at(bound, which, values)
        place: dict[GroupKey, int] = {}
        for g in np.flatnonzero(bound < np.inf).tolist():
            family = one.groups.family(keys[g])
            if family not in place:
                place[family] = len(self.families)
                self.families.append(family)
                self.members.append([])
            self.members[place[family]].append(g)
        self.n_dropped = int((values == np.inf).sum())
        return [
            SearchNode(min(float(bound[g]) for g in members), FAMILY, f)
            for f, members in enumerate(self.members)
        ]

    def begin(self, entries: Iterable[SearchNode]) -> None:
        """Begin with these families."""
        entries = sorted(entries)
        self._order = [entry.number for entry in entries]
        self._push(entries)

    def opened(self, entry: SearchNode) -> ExpandedNode:
        """Open an entry."""
        if entry not in self._done:
            self._begun.add(entry)
            how = {FAMILY: self._family, LEAST: self._group, AGAIN: self._group}
            found = how.get(entry.known, self._plan)(entry)
            self._push(found.entries)
            return found
        return self._done.pop(entry)

    def go_on(self) -> bool:
        """Open what comes next of what is its own; whether there was anything."""
        while self._next and self._next[0].bound < self.ceiling:
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

    def values(
        self, at: Ints, known: Floats, row: Ints | None = None, placed: Sequence[Placed] = ()
    ) -> Floats:
        """Screen plans: the least objective of each; infinite where it can not fit.

        Parameters
        ----------
        at
            [P] plans.
        known, row
            Sums of groups (`totals`), and which of them are of each plan; without `row`: of one
            group.
        placed
            As in `Searcher.screened`.
        """
        start = time.perf_counter()
        known = np.atleast_2d(known)
        row = np.zeros(len(at), np.int64) if row is None else row
        bounds = self.one.screened(at, row, known, placed)
        self.screen_s += time.perf_counter() - start
        self.screened += len(at)
        values = self.one.bound_values(bounds[:, 0], bounds[:, 1], at)
        return np.where(bounds[:, 2] <= self.one.runs.capacity_bytes, values, np.inf)

    def _push(self, entries: Iterable[SearchNode]) -> None:
        for entry in entries:
            if entry.known != ALL and self.own(self.key(entry)):
                heapq.heappush(self._next, entry)

    def _family(self, entry: SearchNode) -> ExpandedNode:
        """Divide and price a family, and others that come up next; list its groups."""
        if entry.number not in self._leasts:
            left = [f for f in self._order if f not in self._leasts and f != entry.number]
            some = [entry.number, *left[: FEW_GRAPHS - 1]]
            self._order = left[FEW_GRAPHS - 1 :]
            found = self.one.groups.leasts([self.families[f] for f in some])
            self._leasts.update(zip(some, found, strict=True))
        known = self._leasts[entry.number]
        if known is None:
            return ExpandedNode([])
        nodes, placed = [], [self.one.groups.placed(self.families[entry.number])]
        for g in self.members[entry.number]:
            least = self.least[g].copy()
            least[: len(known)] = known
            bound = float(self.values(np.flatnonzero(self.which == g), least, None, placed).min())
            nodes.append(SearchNode(max(entry.bound, bound), LEAST, g))
        return ExpandedNode(nodes)

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
            placed = [groups.placed(groups.family(key))]
            bound = max(entry.bound, float(self.values(at, least, None, placed).min()))
            return ExpandedNode([SearchNode(bound, AGAIN, entry.number)])
        group = groups.group(key)
        if group is None:
            return ExpandedNode([])
        values = self.values(at, totals(group), None, [group.placed])
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


T = TypeVar("T")
MANY = 10_000
"""Ops to divide and price from which on a second process is worth its start: about a second's."""


def can_fork() -> bool:
    """Whether this process can have a helper: one alone, on Linux, with a core to spare.

    A fork would copy the locks of other threads, as those of a notebook, and nobody opens them.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    from multiprocessing import current_process

    return len(os.sched_getaffinity(0)) > 1 and not current_process().daemon


class SearchWorker:
    """The other process, which ends with the search.

    Attributes
    ----------
    is_free
        Whether it answers at once: not while it plays a plan, nor when it was killed.
    """

    def __init__(self, opener: NodeExpander, families: Iterable[GroupKey]) -> None:
        import multiprocessing

        self.own = frozenset(list(families)[1::2])
        self._family = opener.one.groups.family
        self.is_free, self._lost = True, False
        fork = multiprocessing.get_context("fork")
        self._line, there = fork.Pipe()
        self._process = fork.Process(
            target=_work, args=(opener, self.own, there, self._line), daemon=True
        )
        with warnings.catch_warnings():  # of threads: only idle ones of numpy's products are left
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def owns(self, key: GroupKey) -> bool:
        """Whether it opens what belongs to a group."""
        return self._family(key) in self.own

    def begin(self, task: str, *given: object) -> None:
        """Let it do something; the answer is fetched later, if there is one."""
        try:
            self._line.send((task, given))
        except OSError:  # it was killed
            self._lost = True
        self.is_free = task != "play" and not self._lost

    def answer(self, instead: Callable[[], T]) -> T:
        """Return what it has found; where it could not find it, what this process does."""
        found, is_found = None, False
        if not self._lost:
            try:
                found, is_found = self._line.recv()
            except (EOFError, OSError):
                self._lost = True
        self.is_free = not self._lost
        return cast("T", found) if is_found else instead()

    def has_answer(self) -> bool:
        """Whether there is no need to wait for it."""
        return self._lost or self._line.poll()

    def close(self) -> None:
        """End it."""
        self.is_free = False
        self._process.terminate()
        self._process.join()
        self._line.close()


def play(one: Searcher, plan: Plan, bound_s: float) -> SimulatedPlan | None:
    """Play a plan; None where the engine cannot play its schedule for this cut."""
    try:
        return one.replay(plan, bound_s)
    except RidgelineError:
        return None


def _work(
    opener: NodeExpander, own: frozenset[GroupKey], line: Connection, other: Connection
) -> None:  # fmt: skip
    """Answer until the other process ends; go on with its own in between."""
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other one, which ends this
    gc.disable()  # next to nothing of a search is in circles
    one = opener.one
    opener.own = lambda key: one.groups.family(key) in own

    def opened(*entries: SearchNode) -> dict[SearchNode, ExpandedNode]:
        found = {entry: opener.opened(entry) for entry in entries}
        return found | opener.taken()

    tasks: dict[str, Callable[..., Any]] = {
        "open": opened,
        "play": lambda plan, bound_s: play(one, plan, bound_s),
    }
    while True:
        while not line.poll() and opener.go_on():
            pass
        try:
            task, given = line.recv()
        except EOFError:
            return
        if task == "ahead":
            opener.begin(*given)
            continue
        try:
            answer = tasks[task](*given), True
        except Exception:  # the other process will meet it, too, and say so
            answer = None, False
        line.send(answer)
