"""Plans in the order of their bounds, until no bound is below the best found.

The queue holds whole groups of plans under their least bound, then plans under the bound of the
screen, then under the one that knows their stages, then with what moves between replicas, which
takes longest to find. The engine replays those that come up. What comes up after the bound has
passed the best replay cannot be better, so the answer is the engine's optimum.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.planner.found import Found, Replay
from ridgeline.study.planner.group import Floats, Ints
from ridgeline.study.planner.groups import Key
from ridgeline.study.planner.screen import HELD, TOTALS, Bound, totals
from ridgeline.study.planner.space import RECOMPUTE_NAMES

if TYPE_CHECKING:
    from ridgeline.study.planner.search import Searcher

# What is known of a group: its ops without recomputation, those that are done again, too; of a
# plan: its ops, its stages, what moves between its replicas (all but what the engine says).
_LEAST, _AGAIN, _OPS, _STAGES, _ALL = range(5)
_MOST_TRIED = 4  # plans for each one that may be replayed: some do not fit after all


class Queue:
    """The queue of a search. Entries: (bound, what is known, number of the group or of the plan).

    Recomputation adds ops and takes none away. So a group that recomputes is bounded by the one
    that does not and has the same ops otherwise; when it comes up, by these ops and those that it
    does again; it is divided and priced as a whole when it comes up once more.
    """

    def __init__(self, one: Searcher, limit: int | None, progress: Callable[[str], None]) -> None:
        self.one, self.limit, self.progress = one, limit, progress
        self.queue: list[tuple[float, int, int]] = []
        self.keys: list[Key] = []
        self.which = np.zeros(0, np.int64)  # [P] group of every plan
        self.least = np.zeros((0, len(TOTALS)))  # [G, 16] of every group, as `totals`
        self.bounds: dict[int, Bound] = {}
        self.played: list[Replay] = []
        self.dropped = self.too_full = self.unplayable = self.screened = 0
        self.screen_s = 0.0
        self.capacity = one.cluster.device.capacity_bytes

    def fill(self) -> None:
        """Screen all plans."""
        one, space = self.one, self.one.space
        if not len(space):
            return
        code = np.ravel_multi_index(
            (
                space.expert,
                space.context,
                space.ring,
                space.recompute,
                space.sequence,
                space.tensor,
                space.micro_batch,
            ),
            (
                int(space.expert.max()) + 1,
                int(space.context.max()) + 1,
                2,
                len(RECOMPUTE_NAMES),
                2,
                one.devices + 1,
                space.global_batch + 1,
            ),
        )
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        self.which = which.ravel()
        self.keys = [one.key(int(i)) for i in first]
        least = np.array([one.may_fit(key) for key in self.keys])
        every = np.arange(len(space))
        may = one.screened(every, self.which, least)[:, 2] <= self.capacity
        self.dropped += int((~may).sum())
        of_time = len(TOTALS) - HELD
        least[:, :of_time] = np.inf
        for g in np.unique(self.which[may]).tolist():
            known = one.groups.least(self.keys[g]._replace(recompute="none"))
            if known is not None:
                least[g, :of_time] = known
        at = every[may]
        values = self._values(at, self._screen(at, self.which, least))
        bound = np.full(len(self.keys), np.inf)
        np.minimum.at(bound, self.which[at], values)
        self.least = least
        self.queue = [(v, _LEAST, g) for g, v in enumerate(bound.tolist()) if v < np.inf]
        heapq.heapify(self.queue)

    def _screen(self, at: Ints, which: Ints, known: Floats) -> Floats:
        """Bound plans by the compiled closed form, and count how long it takes."""
        start = time.perf_counter()
        bounds = self.one.screened(at, which[at], known)
        self.screen_s += time.perf_counter() - start
        self.screened += len(at)
        return bounds

    def _values(self, at: Ints, bounds: Floats) -> Floats:
        """Return the least objective of plans; infinite where they can not fit."""
        values = self.one.bound_values(bounds[:, 0], bounds[:, 1], at)
        return np.where(bounds[:, 2] <= self.capacity, values, np.inf)

    def _open(self, g: int, value: float, known: int) -> None:
        """Price a group and queue its plans; first, only what it does again."""
        if known == _LEAST and self.keys[g].recompute != "none":
            again = self.one.groups.least_again(self.keys[g])
            if again is not None:
                at, least = np.flatnonzero(self.which == g), self.least[g].copy()
                least[: len(again)] = again
                values = self._values(at, self._screen(at, np.zeros_like(self.which), least[None]))
                heapq.heappush(self.queue, (max(value, float(values.min())), _AGAIN, g))
            return
        group = self.one.groups.group(self.keys[g])
        if group is None:
            return
        at = np.flatnonzero(self.which == g)
        values = self._values(at, self._screen(at, np.zeros_like(self.which), totals(group)[None]))
        self.dropped += int(np.isinf(values).sum())
        for bound, i in zip(values.tolist(), at.tolist(), strict=True):
            if bound < np.inf:
                heapq.heappush(self.queue, (bound, _OPS, i))

    def _sharpen(self, i: int, value: float, *, wired: bool) -> None:
        """Bound a plan by its stages, or by what moves between its replicas, too."""
        one = self.one
        group = one.groups.group(one.key(i))
        assert group is not None
        bound = one.sharpened(group, i, wired=wired)
        if bound.memory_bytes > self.capacity:
            self.dropped += 1
            return
        self.bounds[i] = bound
        (sharp,) = one.bound_values(
            np.array([bound.time_s]), np.array([bound.energy_j]), np.array([i])
        )
        heapq.heappush(self.queue, (max(value, float(sharp)), _ALL if wired else _STAGES, i))

    def found(self, began: float) -> Found:
        """Take groups and plans in order of their bounds."""
        self.fill()
        one = self.one
        while self.queue and not self._done():
            value, known, number = heapq.heappop(self.queue)
            if known in {_LEAST, _AGAIN}:
                self._open(number, value, known)
            elif known < _ALL:
                self._sharpen(number, value, wired=known == _STAGES)
            else:
                self._play(number)
        fitting = sorted((r for r in self.played if r.fits), key=lambda r: r.objective)
        return Found(
            model=one.model.name,
            cluster=one.cluster.name,
            devices=one.devices,
            objective=one.objective,
            replays=tuple(fitting),
            n_plans=len(one.space),
            n_dropped=self.dropped,
            n_too_full=self.too_full,
            n_unplayable=self.unplayable,
            open_bound=self.queue[0][0] if self.queue else float("inf"),
            screen_plans_per_s=self.screened / self.screen_s if self.screen_s else 0.0,
            seconds=time.perf_counter() - began,
        )

    def _done(self) -> bool:
        fitting = [r.objective for r in self.played if r.fits]
        if self.limit is not None:
            tried = len(self.played) + self.unplayable
            if len(fitting) >= self.limit or tried >= _MOST_TRIED * self.limit:
                return True
        return self.queue[0][0] >= min(fitting, default=float("inf"))

    def _play(self, i: int) -> None:
        plan = self.one.space.plan(i)
        self.progress(str(plan))
        try:
            replay = self.one.replay(plan, self.bounds[i].time_s)
        except RidgelineError:  # a schedule that the engine cannot play for this cut
            self.unplayable += 1
            return
        self.played.append(replay)
        self.too_full += not replay.fits
