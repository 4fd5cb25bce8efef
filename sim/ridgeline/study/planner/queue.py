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
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ridgeline.parallel.plan import Plan
from ridgeline.study.planner.found import Found, Replay
from ridgeline.study.planner.group import Floats, Group, Ints
from ridgeline.study.planner.helper import MANY, Helper, can_fork, family, play
from ridgeline.study.planner.made import Key
from ridgeline.study.planner.screen import HELD, TOTALS, Bound, totals
from ridgeline.study.planner.space import GRID_MODES, RECOMPUTE_NAMES

if TYPE_CHECKING:
    from ridgeline.study.planner.search import Searcher

T = TypeVar("T")
# What is known of a group: its ops without recomputation, those that are done again, too; of a
# plan: its ops, its stages, what moves between its replicas (all but what the engine says).
_LEAST, _AGAIN, _OPS, _STAGES, _ALL = range(5)
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


class Queue:
    """The queue of a search. Entries: (bound, what is known, number of the group or of the plan).

    Recomputation adds ops and takes none away. So a group that recomputes is bounded by the one
    that does not and has the same ops otherwise; when it comes up, by these ops and those that it
    does again; it is divided and priced as a whole when it comes up once more.

    `processes` as in `search`; see `helper`.
    """

    def __init__(
        self, one: Searcher, limit: int | None, progress: Callable[[str], None],
        processes: int | None,
    ) -> None:  # fmt: skip
        self.one, self.limit, self.progress, self.processes = one, limit, progress, processes
        self.helper: Helper | None = None
        self.queue: list[tuple[float, int, int]] = []
        self.keys: list[Key] = []
        self.which = np.zeros(0, np.int64)  # [P] group of every plan
        self.least = np.zeros((0, len(TOTALS)))  # [G, 16] of every group, as `totals`
        self.bounds: dict[int, Bound] = {}
        self.groups: dict[Key, Group | None] = {}  # those that have been opened
        self.played: list[Replay | None] = []  # None: the engine cannot, or has not yet
        self.waiting: tuple[int, Plan, float] | None = None  # what the helper plays, and its place
        self.dropped = self.screened = 0
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
        self.which = which.ravel()
        self.keys = [one.key(int(i)) for i in first]
        least = np.array([one.may_fit(key) for key in self.keys])
        every = np.arange(len(space))
        may = one.screened(every, self.which, least)[:, 2] <= self.capacity
        self.dropped += int((~may).sum())
        of_time = len(TOTALS) - HELD
        least[:, :of_time] = np.inf
        open_ = np.unique(self.which[may]).tolist()
        of_family = self._least(list(dict.fromkeys(family(self.keys[g]) for g in open_)))
        for g in open_:
            known = of_family[family(self.keys[g])]
            if known is not None:
                least[g, :of_time] = known
        at = every[may]
        values = self._values(at, self._screen(at, self.which, least))
        bound = np.full(len(self.keys), np.inf)
        np.minimum.at(bound, self.which[at], values)
        self.least = least
        self.queue = [(v, _LEAST, g) for g, v in enumerate(bound.tolist()) if v < np.inf]
        heapq.heapify(self.queue)
        if self.helper is not None:
            mine = (self.keys[g] for _, _, g in sorted(self.queue))
            self.helper.begin("ahead", [key for key in mine if self.helper.owns(key)])

    def _least(self, families: list[Key]) -> dict[Key, Floats | None]:
        """Return the sums of every family of groups (`Groups.least`)."""
        least = self.one.groups.least
        processes = self.processes
        if processes is None:
            processes = 2 if len(families) * self.one.groups.n_ops >= MANY else 1
        if processes > 1 and can_fork():
            self.helper = Helper(self.one, families)
            others = [key for key in families if self.helper.owns(key)]
            self.helper.begin("least", others)
            found = {key: least(key) for key in families if not self.helper.owns(key)}
            theirs = self.helper.answer(lambda: [least(key) for key in others])
            return found | dict(zip(others, theirs, strict=True))
        return {key: least(key) for key in families}

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
            again = self._priced(self.one.groups.least_again, self.keys[g])
            if again is not None:
                at, least = np.flatnonzero(self.which == g), self.least[g].copy()
                least[: len(again)] = again
                values = self._values(at, self._screen(at, np.zeros_like(self.which), least[None]))
                heapq.heappush(self.queue, (max(value, float(values.min())), _AGAIN, g))
            return
        group = self._priced(self.one.groups.group, self.keys[g])
        self.groups[self.keys[g]] = group
        if group is None:
            return
        at = np.flatnonzero(self.which == g)
        values = self._values(at, self._screen(at, np.zeros_like(self.which), totals(group)[None]))
        self.dropped += int(np.isinf(values).sum())
        for bound, i in zip(values.tolist(), at.tolist(), strict=True):
            if bound < np.inf:
                heapq.heappush(self.queue, (bound, _OPS, i))

    def _priced(self, price: Callable[[Key], T], key: Key) -> T:
        """Price a group by a method of `Groups`, here or in the helper."""
        if self.helper is None or not self.helper.owns(key):
            return price(key)
        self.helper.begin(price.__name__, key)
        return self.helper.answer(lambda: price(key))

    def _sharpen(self, i: int, value: float, *, wired: bool) -> None:
        """Bound a plan by its stages, or by what moves between its replicas, too."""
        one = self.one
        group = self.groups[one.key(i)]
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
        try:
            self.fill()
            end = self._search()
        finally:
            if self.helper is not None:
                self.helper.close()
        one, played = self.one, [play for play in self.played[: end.played] if play is not None]
        fitting = sorted((r for r in played if r.fits), key=lambda r: r.objective)
        return Found(
            model=one.model.name,
            cluster=one.cluster.name,
            devices=one.devices,
            objective=one.objective,
            replays=tuple(fitting),
            n_plans=len(one.space),
            n_dropped=end.dropped,
            n_too_full=len(played) - len(fitting),
            n_unplayable=end.played - len(played),
            open_bound=end.bound,
            screen_plans_per_s=self.screened / self.screen_s if self.screen_s else 0.0,
            seconds=time.perf_counter() - began,
        )

    def _search(self) -> State:
        """Work until nothing better is left; return the state of that moment.

        While the helper plays a plan this process goes on as if that one did not fit. So it may go
        too far, and the end is the first moment at which, as is known then, it need not have.
        """
        passed = [self._state()]
        while self.queue and not self._done(passed[-1]):
            value, known, number = heapq.heappop(self.queue)
            if known in {_LEAST, _AGAIN}:
                self._open(number, value, known)
            elif known < _ALL:
                self._sharpen(number, value, wired=known == _STAGES)
            else:
                self._play(number)
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
        plan, bound_s = self.one.space.plan(i), self.bounds[i].time_s
        self.progress(str(plan))
        if self.helper is not None and self.helper.is_free:
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
