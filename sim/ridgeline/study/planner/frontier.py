"""Frontier of the branch and bound: plans in the order of their bounds, until none can win.

The queue holds whole groups of plans under their least bound, then plans under the bound of the
screen, then under the one that knows their stages, then with what moves between replicas, which
takes longest to find. The engine replays those that come up. What comes up after the bound has
passed the best replay cannot be better, so the answer is the engine's optimum.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.software.stack import Stack
from ridgeline.study.planner.bounds import HELD, TOTALS
from ridgeline.study.planner.memory import feasibility_gap
from ridgeline.study.planner.plan_class import Floats, GroupKey, Ints
from ridgeline.study.planner.result import Objective, SearchResult, SimulatedPlan
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.study.planner.space import GRID_MODES, RECOMPUTE_NAMES
from ridgeline.study.planner.worker import (
    ALL,
    LEAST,
    MANY,
    ExpandedNode,
    NodeExpander,
    SearchNode,
    SearchWorker,
    can_fork,
    play,
)
from ridgeline.workload.model import Model

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


class Frontier:
    """The queue of a search, of which entries are opened by an `NodeExpander`.

    `processes` as in `search`; see `helper`.
    """

    def __init__(
        self, one: Searcher, limit: int | None, progress: Callable[[str], None],
        processes: int | None,
    ) -> None:  # fmt: skip
        self.one, self.limit, self.progress, self.processes = one, limit, progress, processes
        self.helper: SearchWorker | None = None
        self.opener = NodeExpander(one, *_groups_of(one))
        self.queue: list[SearchNode] = []
        self.sent: dict[SearchNode, ExpandedNode] = {}  # what the helper has opened
        self.bound_s: dict[int, float] = {}  # of plans
        self.played: list[SimulatedPlan | None] = []  # None: the engine cannot, or has not yet
        self.waiting: tuple[int, Plan, float] | None = None  # what the helper plays, and its place
        self.dropped = 0

    def fill(self) -> None:
        """Screen all plans."""
        one, keys, which = self.one, self.opener.keys, self.opener.which
        least = np.array([one.may_fit(key) for key in keys]).reshape(-1, len(TOTALS))
        every = np.arange(len(one.space))
        may = one.screened(every, which, least)[:, 2] <= one.runs.capacity_bytes
        self.dropped += int((~may).sum())
        of_time = len(TOTALS) - HELD
        least[:, :of_time] = np.inf
        open_ = np.unique(which[may]).tolist()
        family = one.groups.family
        of_family = self._least(list(dict.fromkeys(family(keys[g]) for g in open_)))
        for g in open_:
            known = of_family[family(keys[g])]
            if known is not None:
                least[g, :of_time] = known
        at = every[may]
        bound = np.full(len(keys), np.inf)
        np.minimum.at(bound, which[at], self.opener.values(at, least, which[at]))
        self.queue = [SearchNode(v, LEAST, g) for g, v in enumerate(bound.tolist()) if v < np.inf]
        heapq.heapify(self.queue)
        if self.helper is not None:
            owns, key = self.helper.owns, self.opener.key
            self.helper.begin("ahead", least, [e for e in self.queue if owns(key(e))])
            self.opener.own = lambda key: not owns(key)
        self.opener.begin(least, self.queue)

    def _least(self, families: list[GroupKey]) -> dict[GroupKey, Floats | None]:
        """Return the sums of every family of groups (`PlanPricer.least`)."""
        leasts = self.one.groups.leasts
        processes = self.processes
        if processes is None:
            processes = 2 if len(families) * self.one.groups.limits.n_ops >= MANY else 1
        if processes > 1 and can_fork():
            self.helper = SearchWorker(self.opener, families)
            others = [key for key in families if self.helper.owns(key)]
            self.helper.begin("leasts", others)
            mine = [key for key in families if not self.helper.owns(key)]
            found = dict(zip(mine, leasts(mine), strict=True))
            theirs = self.helper.answer(lambda: leasts(others))
            return found | dict(zip(others, theirs, strict=True))
        return dict(zip(families, leasts(families), strict=True))

    def _open(self, entry: SearchNode) -> None:
        """Put what is behind an entry in its place."""
        found = self._opened(entry)
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
        """Take groups and plans in order of their bounds."""
        try:
            self.fill()
            end = self._search()
        finally:
            if self.helper is not None:
                self.helper.close()
        one, opener = self.one, self.opener
        played = [play for play in self.played[: end.played] if play is not None]
        fitting = sorted((r for r in played if r.fits), key=lambda r: r.objective)
        return SearchResult(
            model=one.model.name,
            cluster=one.cluster.name,
            software=one.runs.stack.name,
            chosen_by=one.runs.chosen_by,
            notes=one.runs.notes(),
            devices=one.devices,
            objective=one.objective,
            replays=tuple(fitting),
            n_plans=len(one.space),
            n_dropped=end.dropped,
            n_too_full=len(played) - len(fitting),
            n_unplayable=end.played - len(played),
            open_bound=end.bound,
            screen_plans_per_s=opener.screened / opener.screen_s if opener.screen_s else 0.0,
            seconds=time.perf_counter() - began,
        )

    def _search(self) -> State:
        """Work until nothing better is left; return the state of that moment.

        While the helper plays a plan this process goes on as if that one did not fit. So it may go
        too far, and the end is the first moment at which, as is known then, it need not have.
        """
        passed = [self._state()]
        while self.queue and not self._done(passed[-1]):
            entry = heapq.heappop(self.queue)
            if entry.known == ALL:
                self._play(entry.number)
            else:
                self._open(entry)
            passed.append(self._state())
        self._settle()
        return next((state for state in passed if self._done(state)), passed[-1])

    def _state(self) -> State:
        bound = self.queue[0][0] if self.queue else float("inf")
        return State(bound, self.dropped, len(self.played))

    def _done(self, state: State) -> bool:
        """Whether nothing that is open then can be better, or enough was played."""
        if self.helper is not None and (
            len(self._fitting(state)) + 1 == self.limit or self.helper.has_answer()
        ):
            self._settle()
        fitting = self._fitting(state)
        most = float("inf") if self.limit is None else self.limit
        if len(fitting) >= most or state.played >= _MOST_TRIED * most:
            return True
        return state.bound >= min(fitting, default=float("inf"))

    def _play(self, i: int) -> None:
        """Play a plan, in the helper if it is free."""
        plan, bound_s = self.one.space.plan(i), self.bound_s[i]
        self.progress(str(plan))
        if self.helper is not None and self.helper.is_free:
            self._fetch()
            self.helper.begin("play", plan, bound_s)
            self.waiting = len(self.played), plan, bound_s
            self.played.append(None)
        else:
            self.played.append(play(self.one, plan, bound_s))

    def _settle(self) -> None:
        """Wait for the plan that the helper plays."""
        if self.helper is not None and self.waiting is not None:
            at, plan, bound_s = self.waiting
            self.played[at] = self.helper.answer(lambda: play(self.one, plan, bound_s))
            self.waiting = None

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
            len(RECOMPUTE_NAMES),
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
    progress: Callable[[str], None] = lambda text: None,
    alone: str | None = None, advise: bool = True, context: bool | None = None,
    processes: int | None = None, grids: bool = False, spatial: bool = False,
    software: Stack | str | None = None,
) -> SearchResult:  # fmt: skip
    """Find the plan of the least step time, energy or cost on exactly so many devices.

    Parameters
    ----------
    limit
        Replay at most so many plans that fit, and four times as many in all; None: until the best
        is proven.
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

    Raises
    ------
    RidgelineError
        As `searcher`. Where no plan fits, `SearchResult.best` raises.
    """
    began = time.perf_counter()
    one = searcher(
        model, cluster, devices, global_batch,
        objective=objective, precision=precision, context=context, grids=grids, spatial=spatial,
        software=software,
    )  # fmt: skip
    one_alone = one if alone is None else one.only(alone)
    found = found_by(one_alone, limit, progress, began=began, processes=processes)
    if advise and not found.replays and not np.isfinite(found.open_bound):
        found = replace(found, needs=feasibility_gap(one), seconds=time.perf_counter() - began)
    return found


def found_by(
    one: Searcher, limit: int | None, progress: Callable[[str], None] = lambda text: None, *,
    began: float | None = None, processes: int | None = None,
) -> SearchResult:  # fmt: skip
    """Search the plans of a searcher, which keeps what it has priced; others as in `search`."""
    began = time.perf_counter() if began is None else began
    return Frontier(one, limit, progress, processes).found(began)
