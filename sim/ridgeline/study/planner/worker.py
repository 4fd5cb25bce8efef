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
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.planner.bounds import TOTALS, totals
from ridgeline.study.planner.plan_class import Floats, GroupKey, Ints
from ridgeline.study.planner.result import SimulatedPlan
from ridgeline.study.planner.searcher import Searcher

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
        "leasts": one.groups.leasts,
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
