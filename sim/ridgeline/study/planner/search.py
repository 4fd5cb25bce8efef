"""The best plan: plans in the order of their bounds, until no bound is below the best found.

A queue holds whole groups of plans under their least bound (`screen`), then plans under the bound
that knows their stages (`sharpen`), and the engine replays those that come up. What comes up after
the bound has passed the best replay cannot be better, so the answer is the engine's optimum.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.lower import lower
from ridgeline.parallel.plan import Plan
from ridgeline.parallel.schedules import SCHEDULES
from ridgeline.report.account import energy_account, memory_account
from ridgeline.study.planner.found import Found, Objective, Replay
from ridgeline.study.planner.group import Floats, Group, Ints
from ridgeline.study.planner.groups import Groups, Key
from ridgeline.study.planner.screen import (
    ROUNDING,
    TOTALS,
    Bound,
    screen,
    totals,
)
from ridgeline.study.planner.space import (
    RECOMPUTE_NAMES,
    SCHEDULE_NAMES,
    Space,
    divisors,
    enumerate_plans,
)
from ridgeline.study.planner.staged import Shares, Staged, spread, staged
from ridgeline.workload.model import Model, load_model

_MOST_TRIED = 4  # plans for each one that may be replayed: some do not fit after all


@dataclass
class Searcher:
    """One search; see `search`."""

    model: Model
    cluster: Cluster
    devices: int
    objective: Objective
    space: Space
    groups: Groups
    cuts: dict[tuple[Key, int, int, int], Staged] = field(default_factory=dict)

    def replay(self, plan: Plan, bound_s: float = 0.0) -> Replay:
        """Play one plan on the engine."""
        precision = plan.precision or self.model.network.precision
        plan = plan.model_copy(update={"precision": precision})
        graph = self.model.training(plan.micro_batch_size, precision)
        lowered = lower(graph, plan, self.cluster, self.groups.topology)
        from ridgeline.engine.executor import run

        timeline = run(lowered.program)
        step_s = timeline.makespan_s
        energy = energy_account(timeline, self.cluster.device.idle_power.value, plan.devices)
        memory = memory_account(timeline)["total"]
        fits = memory <= self.cluster.device.capacity_bytes
        value = self._value(step_s, energy["total"])
        return Replay(plan, step_s, energy["total"], memory, fits, bound_s, value)

    def _value(self, time_s: float, energy_j: float) -> float:
        if self.objective == "energy":
            return energy_j
        if self.objective == "cost":
            return time_s * price_of(self.cluster) * self.devices
        return time_s

    def bound_values(self, time_s: Floats, energy_j: Floats, at: Ints) -> Floats:
        """Return the least objective of plans of which only bounds are known."""
        if self.objective == "energy":
            idle_w = self.cluster.device.idle_power.value * self.devices
            ranks = self.space.data[at] * self.space.tensor[at]
            least: Floats = energy_j * ranks + idle_w * time_s
            return least
        return np.array([self._value(t, 0.0) for t in time_s.tolist()])

    def key(self, i: int) -> Key:
        """Return the group of a plan."""
        s = self.space
        recompute = RECOMPUTE_NAMES[int(s.recompute[i])]
        return Key(
            int(s.micro_batch[i]), int(s.tensor[i]), bool(s.sequence[i]), recompute,
            int(s.expert[i]),
        )  # fmt: skip

    @cached_property
    def spread(self) -> Floats:
        """[P] how the micro-batches in flight are spread over the stages of every plan."""
        s = self.space
        rows = np.stack((s.schedule, s.pipeline, s.micro_batches, s.chunks), axis=1)
        unique, of = np.unique(rows, axis=0, return_inverse=True)
        each = [spread(SCHEDULE_NAMES[name], *more) for name, *more in unique.tolist()]
        return np.array(each)[of.ravel()]

    @cached_property
    def byte_s(self) -> Floats:
        """[P] what a byte between all replicas of a plan takes at least."""
        rows = np.stack((self.space.data, self.space.tensor), axis=1)
        unique, of = np.unique(rows, axis=0, return_inverse=True)
        each = [self.groups.crossing_byte_s(*row) for row in unique.tolist()]
        return np.array(each)[of.ravel()]

    def screened(self, at: Ints, which: Ints, known: Floats) -> Floats:
        """Bound plans by the compiled closed form: [P, 3].

        Parameters
        ----------
        at
            [P] plans.
        which
            [P] row of `known` of each.
        known
            [G, 16] sums of each group (`totals`).
        """
        s = self.space
        out = np.empty((len(at), 3))
        names = [SCHEDULES[name] for name in SCHEDULE_NAMES]
        drains = np.array([not (one.splits_backward or one.interleaves) for one in names])
        screen(
            which, known, s.micro_batches[at], s.pipeline[at], s.data[at], s.expert[at],
            s.sharding[at], drains[s.schedule[at]], self.spread[at], self.byte_s[at], out,
        )  # fmt: skip
        out[:, :2] *= 1 - ROUNDING
        return out

    def may_fit(self, key: Key) -> Floats:
        """Return the sums of a group as `totals` that bound its memory, without pricing it.

        No device of a group that divides the ops has less than its share of anything.
        """
        least = self.groups.held_undivided(key.micro_batch, key.recompute, key.expert)
        return np.concatenate((np.zeros(len(TOTALS) - len(least)), least / key.tensor))

    def sharpened(self, group: Group, i: int) -> Bound:
        """Bound one plan, its stages known."""
        s = self.space
        shares = Shares(int(s.data[i]), int(s.expert[i]), int(s.sharding[i]))
        tensor = int(s.tensor[i])
        cut = (self.key(i), int(s.schedule[i]), int(s.pipeline[i]), int(s.chunks[i]))
        if cut not in self.cuts:
            self.cuts[cut] = staged(group, SCHEDULE_NAMES[cut[1]], *cut[2:])
        most = group.largest + Plan.model_fields["bucket"].default

        def byte_s(op: str, along: str) -> float:
            apart = tensor if along == "data" else tensor * shares.expert
            return self.groups.byte_s(op, shares.data * tensor // apart, apart, most)

        return self.cuts[cut].bound(int(s.micro_batches[i]), shares, byte_s)


def price_of(cluster: Cluster) -> float:
    """Return the price of one device, or of its share of a node, in dollars.

    Raises
    ------
    ConfigError
        If neither file has a price.
    """
    if cluster.device.price is not None:
        return cluster.device.price.value
    if cluster.nodes.price is not None:
        return cluster.nodes.price.value / cluster.nodes.count
    raise ConfigError(
        f"objective cost needs a price, but neither the device {cluster.device.name} nor the node "
        f"{cluster.nodes.name} has one; add the field price with its source, or choose time or"
        " energy",
        field="--objective",
    )


def searcher(
    model: Model | str, cluster: Cluster | str, devices: int, global_batch: int, *,
    objective: Objective = "time", precision: str | None = None,
) -> Searcher:  # fmt: skip
    """Prepare a search: list the plans.

    Raises
    ------
    RidgelineError
        If the cluster has too few devices, or no price for the objective cost.
    """
    model = load_model(model) if isinstance(model, str) else model
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if not 1 <= devices <= cluster.max_devices:
        raise ConfigError(
            f"{cluster.name} has 1 to {cluster.max_devices} devices, found {devices}",
            field="--devices",
        )
    if objective == "cost":
        price_of(cluster)
    groups = Groups(model, cluster, devices, precision)
    space = enumerate_plans(
        devices,
        global_batch,
        tensors=[t for t in divisors(devices) if groups.divides(t)],
        max_stages=groups.max_stages,
        sequences=model.network.tokens_per_sample > 0,
        experts=groups.expert_degrees(),
        precision=groups.precision,
    )
    return Searcher(model, cluster, devices, objective, space, groups)


def search(
    model: Model | str, cluster: Cluster | str, devices: int, global_batch: int, *,
    objective: Objective = "time", precision: str | None = None, limit: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    alone: str | None = None,
) -> Found:  # fmt: skip
    """Find the plan of the least step time, energy or cost on exactly so many devices.

    Parameters
    ----------
    limit
        Replay at most so many plans that fit, and four times as many in all; None: until the best
        is proven.
    alone
        Consider only plans that divide the step by this dimension: data, tensor or pipeline.

    Raises
    ------
    RidgelineError
        As `searcher`; or if no plan fits.
    """
    began = time.perf_counter()
    one = searcher(model, cluster, devices, global_batch, objective=objective, precision=precision)
    if alone is not None:
        one.space = one.space.only(alone)
    return _Run(one, limit, progress).found(began)


class _Run:
    """The queue of a search. Entries: (bound, what is known, number of the group or of the plan).

    Recomputation adds ops and takes none away. So a group that recomputes is bounded by one that
    recomputes less and has the same ops otherwise, and priced when it comes up.
    """

    def __init__(self, one: Searcher, limit: int | None, progress: Callable[[str], None]) -> None:
        self.one, self.limit, self.progress = one, limit, progress
        self.queue: list[tuple[float, int, int]] = []
        self.keys: list[Key] = []
        self.which = np.zeros(0, np.int64)  # [P] group of every plan
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
            (space.expert, space.recompute, space.sequence, space.tensor, space.micro_batch),
            (
                int(space.expert.max()) + 1,
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
        base: dict[Key, int] = {}  # of equal ops otherwise, the group that recomputes least
        for g in np.unique(self.which[may]).tolist():
            alike = self.keys[g]._replace(recompute="none")
            again = RECOMPUTE_NAMES.index(self.keys[g].recompute)
            if alike not in base or again < RECOMPUTE_NAMES.index(self.keys[base[alike]].recompute):
                base[alike] = g
        of_time = len(TOTALS) - len(one.groups.held_undivided(1, "none", 1))
        for g, key in enumerate(self.keys):
            known = base.get(key._replace(recompute="none"))
            priced = None if known is None else one.groups.group(self.keys[known])
            least[g, :of_time] = np.inf if priced is None else totals(priced)[:of_time]
        at = every[may]
        values = self._values(at, self._screen(at, self.which, least))
        bound = np.full(len(self.keys), np.inf)
        np.minimum.at(bound, self.which[at], values)
        self.queue = [(v, 0, g) for g, v in enumerate(bound.tolist()) if v < np.inf]
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

    def _open(self, g: int) -> None:
        """Price a group, and queue its plans."""
        group = self.one.groups.group(self.keys[g])
        if group is None:
            return
        at = np.flatnonzero(self.which == g)
        values = self._values(at, self._screen(at, np.zeros_like(self.which), totals(group)[None]))
        self.dropped += int(np.isinf(values).sum())
        for value, i in zip(values.tolist(), at.tolist(), strict=True):
            if value < np.inf:
                heapq.heappush(self.queue, (value, 1, i))

    def _sharpen(self, i: int, value: float) -> None:
        """Bound a plan by its stages."""
        one = self.one
        group = one.groups.group(one.key(i))
        assert group is not None
        bound = one.sharpened(group, i)
        if bound.memory_bytes > self.capacity:
            self.dropped += 1
            return
        self.bounds[i] = bound
        (sharp,) = one.bound_values(
            np.array([bound.time_s]), np.array([bound.energy_j]), np.array([i])
        )
        heapq.heappush(self.queue, (max(value, float(sharp)), 2, i))

    def found(self, began: float) -> Found:
        """Take groups and plans in order of their bounds."""
        self.fill()
        one = self.one
        while self.queue and not self._done():
            value, known, number = heapq.heappop(self.queue)
            if known == 0:
                self._open(number)
            elif known == 1:
                self._sharpen(number, value)
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
