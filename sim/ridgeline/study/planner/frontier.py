"""Frontier of the branch and bound: plans in the order of their bounds, until none can win.

The queue holds whole groups of plans under their least bound, then plans under the bound of the
screen, then under the one that knows their stages, then with what moves between replicas, which
takes longest to find. The engine replays those that come up. What comes up after the bound has
passed the best replay cannot be better, so the answer is the engine's optimum.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.software.stack import Stack
from ridgeline.study.planner.incumbent import IncumbentSearch
from ridgeline.study.planner.memory import feasibility_gap
from ridgeline.study.planner.objectives import Objective, Prices
from ridgeline.study.planner.plan_class import GroupKey, Ints
from ridgeline.study.planner.result import SearchProgress, SearchResult, SimulatedPlan, shape_of
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.study.planner.space import GRID_MODES
from ridgeline.study.planner.steering import fixed_fields
from ridgeline.study.planner.worker import (
    ALL,
    FAMILY,
    MANY,
    OPS,
    ExpandedNode,
    NodeExpander,
    SearchNode,
    SearchWorker,
    can_fork,
    play,
)
from ridgeline.workload.model import Model

_MOST_BESIDE = 400  # nodes that are opened for alternatives
_MOST_TRIED = 4  # plans for each one that may be replayed: some do not fit after all


class State(NamedTuple):
    """A moment of a search.

    Attributes
    ----------
    bound
        The least bound of what is open.
    dropped, played
        How many plans cannot fit, and how many the engine had to play.
    """

    bound: float
    dropped: int
    played: int


class SearchLimits(NamedTuple):
    """When a search ends before its answer is proven.

    Attributes
    ----------
    plays
        So many plans that fit were played, or four times as many in all; None: never so.
    gap
        No other plan can be better by a greater share.
    seconds
        So much time has passed; None: never so.
    alternatives
        So many plans of other shapes are played when the search has ended by itself.
    """

    plays: int | None = None
    gap: float = 0.0
    seconds: float | None = None
    alternatives: int = 0


NO_LIMITS = SearchLimits()


class Frontier:
    """The queue of a search, of which entries are opened by an `NodeExpander`.

    `processes` as in `search`; see `helper`.
    """

    def __init__(
        self, one: Searcher, limits: SearchLimits, progress: Callable[[SearchProgress], None],
        processes: int | None,
    ) -> None:  # fmt: skip
        self.one, self.limits, self.progress, self.processes = one, limits, progress, processes
        self.helper: SearchWorker | None = None
        self.opener = NodeExpander(one, *_groups_of(one))
        self.queue: list[SearchNode] = []
        self.sent: dict[SearchNode, ExpandedNode] = {}  # what the helper has opened
        self.bound_s: dict[int, float] = {}  # of plans
        self.first: dict[int, SimulatedPlan] = {}  # played before the search
        self.played: list[SimulatedPlan | None] = []  # None: the engine cannot, or has not yet
        self.waiting: tuple[SearchNode, int] | None = None  # what the helper plays, and its place
        self.open: SearchNode | None = None  # what is being opened, or played, here
        self.dropped = 0
        self.n_families = self.n_priced = 0
        self.began = time.perf_counter()
        self.stopped = ""

    def fill(self) -> None:
        """List all families; of a large space, look for a good plan first."""
        opener, groups = self.opener, self.one.groups
        n_ops = groups.limits.n_ops if len(self.one.space) else 0
        if len(opener.keys) * n_ops >= MANY:
            self._look_first()
        self.queue = opener.listed()
        self.dropped, self.n_families = opener.n_dropped, len(self.queue)
        heapq.heapify(self.queue)
        processes = self.processes
        if processes is None:
            processes = 2 if len(self.queue) * n_ops >= MANY else 1
        opener.ceiling = min((r.objective for r in self.first.values()), default=float("inf"))
        if processes > 1 and can_fork():
            self.helper = SearchWorker(opener, opener.families)
            owns, key = self.helper.owns, opener.key
            theirs = [entry for entry in self.queue if owns(key(entry))]
            self.helper.begin("ahead", theirs)
            opener.own = lambda key: not owns(key)
            opener.begin([entry for entry in self.queue if not owns(key(entry))])
        else:
            opener.begin(self.queue)

    def _look_first(self) -> None:
        """Play good plans of a few families (`IncumbentSearch`)."""
        for i, bound_s in IncumbentSearch(self.one, self.opener).plans(self._best_objective):
            if self._is_late():
                return
            self._tell("playing", self.one.space.plan(i))
            found = play(self.one, self.one.space.plan(i), bound_s)
            if found is not None and found.fits:
                self.first[i] = found
                self._tell("searching")

    def _best_objective(self) -> float:
        return min((r.objective for r in self._fits()), default=float("inf"))

    def _fits(self) -> list[SimulatedPlan]:
        """Return the plans that have been played and fit."""
        return [r for r in (*self.first.values(), *self.played) if r is not None and r.fits]

    def _tell(self, doing: str, plan: Plan | None = None) -> None:
        """Say how far the search is."""
        best = min(self._fits(), key=lambda r: r.objective, default=None)
        self.progress(
            SearchProgress(
                time.perf_counter() - self.began, doing, "" if plan is None else str(plan), best,
                self._open_bound(), self.n_priced, self.n_families,
                len(self.first) + len(self.played),
            )
        )  # fmt: skip

    def _open_bound(self) -> float:
        """Return the least bound of all that is not known yet; 0 before anything is."""
        nodes = [self.open, self.waiting[0] if self.waiting else None, *self.queue[:1]]
        if not self.n_families:
            return 0.0
        return min((node.bound for node in nodes if node is not None), default=float("inf"))

    def _is_late(self) -> bool:
        seconds = self.limits.seconds
        if seconds is not None and time.perf_counter() - self.began > seconds:
            self.stopped = "time limit"
        return bool(self.stopped)

    def _open(self, entry: SearchNode) -> None:
        """Put what is behind an entry in its place."""
        found = self._opened(entry)
        self.n_priced += entry.known == FAMILY
        self.dropped += found.dropped
        for one in found.entries:
            heapq.heappush(self.queue, one)
        if found.time_s:
            self.bound_s[entry.number] = found.time_s

    def _opened(self, entry: SearchNode) -> ExpandedNode:
        """Open an entry here or, if it is one of the helper's, there."""
        if entry in self.sent:
            return self.sent.pop(entry)
        helper = self.helper
        if helper is None or not helper.is_free or not helper.owns(self.opener.key(entry)):
            return self.opener.opened(entry)
        self._fetch(entry)
        return self.sent.pop(entry)

    def _fetch(self, *entries: SearchNode) -> None:
        """Fetch what the helper has opened, these at least, and go on while it does."""
        assert self.helper is not None
        self.helper.begin("open", *entries)
        while not self.helper.has_answer() and self.opener.go_on():
            pass
        self.sent |= self.helper.answer(lambda: {e: self.opener.opened(e) for e in entries})

    def found(self, began: float) -> SearchResult:
        """Take families, groups and plans in order of their bounds.

        Where it is interrupted, or late, the answer is the best so far, and what is open bounds it.

        Raises
        ------
        KeyboardInterrupt
            If it is interrupted before any plan is known to fit.
        """
        self.began = began
        try:
            self.fill()
            end = self._search()
        except KeyboardInterrupt:
            if not self._fits():
                raise
            self.stopped = "interrupted"
        finally:
            if self.helper is not None:
                self.helper.close()
        if self.stopped:
            end = State(self._open_bound(), self.dropped, len(self.played))
        beside = [] if self.stopped else self._look_beside()
        one, opener = self.one, self.opener
        played = [play for play in self.played[: end.played] if play is not None]
        fitting = [r for r in played if r.fits]
        known = {str(r.plan) for r in fitting}
        others = (r for r in (*self.first.values(), *beside) if str(r.plan) not in known)
        fitting += {str(r.plan): r for r in others}.values()
        return SearchResult(
            model=one.model.name,
            cluster=one.cluster.name,
            software=one.runs.stack.name,
            chosen_by=one.runs.chosen_by,
            notes=one.runs.notes(),
            devices=one.devices,
            objective=one.objective,
            replays=tuple(sorted(fitting, key=lambda r: r.objective)),
            n_plans=len(one.space),
            n_dropped=end.dropped,
            n_too_full=sum(not r.fits for r in played),
            n_unplayable=end.played - len(played) - (self.waiting is not None),
            open_bound=end.bound,
            screen_plans_per_s=opener.screened / opener.screen_s if opener.screen_s else 0.0,
            seconds=time.perf_counter() - began,
            stopped=self.stopped,
        )

    def _search(self) -> State:
        """Work until nothing better is left; return the state of that moment.

        While the helper plays a plan this process goes on as if that one did not fit. So it may go
        too far, and the end is the first moment at which, as is known then, it need not have.
        """
        passed = [self._state()]
        while self.queue and not self._done(passed[-1]) and not self._is_late():
            self.open = entry = heapq.heappop(self.queue)
            if entry.known == ALL:
                self._play(entry)
            else:
                self._open(entry)
                self._tell("searching")
            self.open = None
            passed.append(self._state())
        if self.stopped:
            return passed[-1]
        self._settle()
        return next((state for state in passed if self._done(state)), passed[-1])

    def _look_beside(self) -> list[SimulatedPlan]:
        """Play the next plans of other shapes than those known, in the order of bounds."""
        found: list[SimulatedPlan] = []
        shapes = {r.shape for r in self._fits()}
        opened = 0
        while len(found) < self.limits.alternatives and self.queue and opened < _MOST_BESIDE:
            entry = heapq.heappop(self.queue)
            if entry.known >= OPS and shape_of(self.one.space.plan(entry.number)) in shapes:
                continue
            opened += 1
            if entry.known < ALL:
                self._open(entry)
                continue
            plan = self.one.space.plan(entry.number)
            self._tell("playing", plan)
            played = play(self.one, plan, self.bound_s[entry.number])
            if played is not None and played.fits:
                shapes.add(played.shape)
                found.append(played)
        return found

    def _state(self) -> State:
        bound = self.queue[0][0] if self.queue else float("inf")
        return State(bound, self.dropped, len(self.played))

    def _done(self, state: State) -> bool:
        """Whether nothing that is open then can be better, or enough was played."""
        if self.helper is not None and (
            len(self._fitting(state)) + 1 == self.limits.plays or self.helper.has_answer()
        ):
            self._settle()
        fitting = self._fitting(state)
        most = float("inf") if self.limits.plays is None else self.limits.plays
        if len(fitting) >= most or state.played >= _MOST_TRIED * most:
            return True
        known = [*fitting, *(r.objective for r in self.first.values())]
        return state.bound >= min(known, default=float("inf")) * (1 - self.limits.gap)

    def _play(self, entry: SearchNode) -> None:
        """Play a plan, in the helper if it is free."""
        i = entry.number
        if i in self.first:
            self.played.append(self.first[i])
            return
        plan, bound_s = self.one.space.plan(i), self.bound_s[i]
        self._tell("playing", plan)
        if self.helper is not None and self.helper.is_free:
            self._fetch()
            self.helper.begin("play", plan, bound_s)
            self.waiting = entry, len(self.played)
            self.played.append(None)
        else:
            self.played.append(play(self.one, plan, bound_s))

    def _settle(self) -> None:
        """Wait for the plan that the helper plays."""
        if self.helper is not None and self.waiting is not None:
            entry, at = self.waiting
            plan, bound_s = self.one.space.plan(entry.number), self.bound_s[entry.number]
            self.played[at] = self.helper.answer(lambda: play(self.one, plan, bound_s))
            self.waiting = None
            self._tell("searching")

    def _fitting(self, state: State) -> list[float]:
        """Return the objectives of the plans that had been played and fit."""
        return [r.objective for r in self.played[: state.played] if r is not None and r.fits]


def _groups_of(one: Searcher) -> tuple[list[GroupKey], Ints]:
    """Return the keys of all groups, and [P] the group of every plan."""
    space = one.space
    if not len(space):
        return [], np.zeros(0, np.int64)
    code = np.ravel_multi_index(
        (
            space.expert,
            space.context,
            space.ring,
            space.recompute,
            space.sequence,
            space.tensor_rows,
            space.tensor_mode,
            space.image_rows,
            space.image_columns,
            space.tensor,
            space.micro_batch,
        ),
        (
            int(space.expert.max()) + 1,
            int(space.context.max()) + 1,
            2,
            len(space.modes),
            2,
            int(space.tensor_rows.max()) + 1,
            len(GRID_MODES),
            int(space.image_rows.max()) + 1,
            int(space.image_columns.max()) + 1,
            one.devices + 1,
            space.global_batch + 1,
        ),
    )
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return [one.key(int(i)) for i in first], which.ravel()


def search(
    model: Model | str, cluster: Cluster | str, devices: int, global_batch: int, *,
    objective: Objective = "time", precision: str | None = None, limit: int | None = None,
    gap: float = 0.0, time_limit_s: float | None = None, alternatives: int = 0,
    progress: Callable[[SearchProgress], None] = lambda told: None,
    alone: str | None = None, advise: bool = True, context: bool | None = None,
    processes: int | None = None, grids: bool = False, spatial: bool = False,
    software: Stack | str | None = None, fix: Mapping[str, Any] | None = None,
    memory_margin: float = 0.0, prices: Prices | None = None,
) -> SearchResult:  # fmt: skip
    """Find the plan of the least step time, energy or cost on exactly so many devices.

    Parameters
    ----------
    limit
        Replay at most so many plans that fit, and four times as many in all; None: until the best
        is proven.
    gap
        End when no other plan can be better by a greater share.
    time_limit_s
        End after so many seconds, with the best so far and what is open.
    alternatives
        Play so many plans of other shapes, too, where the search has ended by itself.
    progress
        Called with how far the search is.
    alone
        Consider only plans that divide the step by this dimension (`PlanSpace.only`).
    advise
        Where no plan fits, look for what it would take.
    context
        Whether devices may share the positions of a sequence. None: of long ones (`LONG`).
    processes
        2: a second process prices and plays, too, where one can be forked. 1: none does. None:
        where there is much to price. The answer is the same.
    grids, spatial
        Whether tensor-parallel devices may stand in rows and columns, and whether devices may share
        the rows and columns of images. What their replicas send is not in the bounds.
    software
        The program that runs the plans, as in `simulate`. Only plans that it supports are listed;
        fields that are not searched are as it has them.
    fix
        Fields of a plan that must have a value, one of some, or one of a range: ``{"tensor": 8,
        "pipeline": "4..16"}`` (`steering`).
    memory_margin
        Share of each device's memory that a plan leaves free.
    prices
        Of devices and energy, for the objective cost-per-token.

    Raises
    ------
    RidgelineError
        As `searcher`. Where no plan fits, `SearchResult.best` raises.
    """
    began = time.perf_counter()
    one = searcher(
        model, cluster, devices, global_batch,
        objective=objective, precision=precision, context=context, grids=grids, spatial=spatial,
        software=software, fix=fixed_fields(fix or {}), memory_margin=memory_margin, prices=prices,
    )  # fmt: skip
    one_alone = one if alone is None else one.only(alone)
    limits = SearchLimits(limit, gap, time_limit_s, alternatives)
    found = found_by(one_alone, limits, progress, began=began, processes=processes)
    if advise and not found.replays and not np.isfinite(found.open_bound):
        found = replace(found, needs=feasibility_gap(one), seconds=time.perf_counter() - began)
    return found


def found_by(
    one: Searcher, limits: SearchLimits = NO_LIMITS,
    progress: Callable[[SearchProgress], None] = lambda told: None, *,
    began: float | None = None, processes: int | None = None,
) -> SearchResult:  # fmt: skip
    """Search the plans of a searcher, which keeps what it has priced; others as in `search`."""
    began = time.perf_counter() if began is None else began
    return Frontier(one, limits, progress, processes).found(began)
