"""Machines for a job: the cheapest that ends in time, or the fastest within a budget.

A job is so many tokens (or samples) through a model with one batch. On every machine, and on
several numbers of its devices, the plan is sought that takes least time, or least of what the job
wants least of; rent and energy of all steps are its cost. Only steps are counted: no failures,
restarts, checkpoints, evaluation, queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.resolve import load_cluster
from ridgeline.software.stack import Stack
from ridgeline.study.planner.frontier import SearchLimits, found_by
from ridgeline.study.planner.objectives import (
    JOULES_A_KWH,
    SECONDS_AN_HOUR,
    Objective,
    Prices,
    check_prices,
)
from ridgeline.study.planner.result import SearchProgress, SimulatedPlan
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.study.planner.steering import fixed_fields
from ridgeline.units import show
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model

_LEAST: dict[Objective, Literal["time", "energy", "cost"]] = {
    "time": "time",
    "energy": "energy",
    "tokens-per-joule": "energy",
    "cost": "cost",
    "cost-per-token": "cost",
}
DAY_S = 24 * SECONDS_AN_HOUR
ONLY_STEPS = "steps alone: no failures, restarts, checkpoints, evaluation or queues"


@dataclass(frozen=True)
class Job:
    """What has to be trained.

    Attributes
    ----------
    global_batch
        Samples of one step.
    tokens
        Of the whole run; of a model whose samples are no sequences: samples.
    deadline_s, budget_usd
        Most time and money; None: as much as it takes.
    objective
        What is least within these: time, energy, or cost (that of a token is the same of a job).
        None: cost, or time where there is a budget alone.
    """

    global_batch: int
    tokens: float
    deadline_s: float | None = None
    budget_usd: float | None = None
    objective: Objective | None = None

    @property
    def least(self) -> Literal["time", "energy", "cost"]:
        """What machines are ordered by."""
        if self.objective is None:
            return "time" if self.deadline_s is None and self.budget_usd is not None else "cost"
        return _LEAST[self.objective]

    @property
    def of_plans(self) -> Objective:
        """The objective of the search on one machine, where time is rent."""
        if self.objective is None:
            return "time"
        return "cost-per-token" if self.least == "cost" else self.least

    def steps(self, model: Model) -> int:
        """Return how many steps the run has."""
        return math.ceil(
            self.tokens / (self.global_batch * max(model.network.tokens_per_sample, 1))
        )


@dataclass(frozen=True)
class MachineOffer:
    """A machine, some of its devices, and what the job takes there; or why it is left out.

    Attributes
    ----------
    least_s
        No plan ends earlier, by the arithmetic alone.
    seconds, usd, joules
        Of all steps.
    gap
        How much better, as a share, a plan that was not played could be at most.
    """

    cluster: str
    devices: int
    plan: SimulatedPlan | None = None
    seconds: float = math.inf
    usd: float = math.inf
    joules: float = math.inf
    gap: float = 0.0
    least_s: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.devices} devices of {self.cluster}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        ran = self.plan is not None
        return {
            "cluster": self.cluster,
            "devices": self.devices,
            "plan": self.plan.to_dict() if self.plan is not None else None,
            "seconds": self.seconds if ran else None,
            "usd": self.usd if ran else None,
            "energy_j": self.joules if ran else None,
            "gap": self.gap if ran else None,
            "least_s": self.least_s,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class MachineChoice:
    """The answer: all offers, those that meet the job's limits first, the best first."""

    model: str
    job: Job
    steps: int
    offers: tuple[MachineOffer, ...]
    notes: tuple[str, ...] = field(default=(ONLY_STEPS,))

    @property
    def best(self) -> MachineOffer:
        """The offer of which the job has least within its limits.

        Raises
        ------
        RidgelineError
            If none meets the limits: what comes nearest.
        """
        first = self.offers[0]
        if first.plan is None:
            reasons = "; ".join(f"{one}: {one.reason}" for one in self.offers)
            raise RidgelineError(f"{self.model} runs on none of these machines: {reasons}")
        missed = self._missed(first)
        if missed:
            raise RidgelineError(f"no machine {missed}")
        return first

    def _missed(self, offer: MachineOffer) -> str:
        """Say which limit the best offer misses; "": none."""
        job, ran = self.job, [one for one in self.offers if one.plan is not None]
        if job.deadline_s is not None and offer.seconds > job.deadline_s:
            one = min(ran, key=lambda other: other.seconds)
            return (
                f"ends within {job.deadline_s / DAY_S:.4g} days: the fastest, {one}, takes"
                f" {one.seconds / DAY_S:.4g} days and ${one.usd:,.0f}"
            )
        if job.budget_usd is not None and offer.usd > job.budget_usd:
            one = min(ran, key=lambda other: other.usd)
            beside = " in time" if job.deadline_s is not None else ""
            return (
                f"costs ${job.budget_usd:,.0f} or less{beside}: the cheapest, {one}, takes"
                f" ${one.usd:,.0f} and {one.seconds / DAY_S:.4g} days"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "model": self.model,
            "steps": self.steps,
            "tokens": self.job.tokens,
            "deadline_s": self.job.deadline_s,
            "budget_usd": self.job.budget_usd,
            "best": self.best.to_dict(),
            "offers": [one.to_dict() for one in self.offers],
            "notes": list(self.notes),
        }


def choose_machine(
    model: Model | str, clusters: Sequence[Cluster | str], job: Job, *,
    devices: Sequence[int] = (), prices: Prices | None = None, precision: str | None = None,
    software: Stack | str | None = None, fix: Mapping[str, Any] | None = None,
    memory_margin: float = 0.0, limits: SearchLimits | None = None,
    context: bool | None = None, grids: bool = False, spatial: bool = False,
    progress: Callable[[str, SearchProgress], None] = lambda where, told: None,
) -> MachineChoice:  # fmt: skip
    """Find the best plan on every machine and number of devices, and order them by the job.

    Parameters
    ----------
    devices
        Numbers of devices that are tried on each machine; none: its nodes, doubled up to all.
    limits
        Of each search; None: a plan within 5 % of the best, and at most 60 s.
    context, grids, spatial
        As in `search`.

    Raises
    ------
    ConfigError
        If a price is missing, or is of no device of these machines.
    """
    model = load_network(model) if isinstance(model, str) else model
    found = tuple(load_cluster(one) if isinstance(one, str) else one for one in clusters)
    prices = prices or Prices()
    check_prices(prices.own, found)
    if not (job.tokens > 0 and math.isfinite(job.tokens)):
        raise ConfigError(f"a job has more than 0 tokens, found {job.tokens:g}", field="--tokens")
    limits = limits or SearchLimits(plays=4, gap=0.05, seconds=60.0)
    steps, offers = job.steps(model), []
    for cluster in found:
        prices.usd_per_hour(cluster, 1)
        able = device_counts(cluster, devices)
        if not able:
            few = f"it has 1 to {cluster.max_devices} devices"
            offers.append(MachineOffer(cluster.name, min(devices), reason=few))
        for n in able:

            def sought(
                objective: Objective, like: Searcher | None = None, cluster: Cluster = cluster,
                n: int = n,
            ) -> Searcher:  # fmt: skip
                return searcher(
                    model, cluster, n, job.global_batch, objective=objective, precision=precision,
                    software=software, fix=fixed_fields(fix or {}), memory_margin=memory_margin,
                    prices=prices, context=context, grids=grids, spatial=spatial, like=like,
                )  # fmt: skip

            try:
                one = sought(job.of_plans)
            except RidgelineError as error:
                offers.append(MachineOffer(cluster.name, n, reason=str(error)))
                continue
            offer = _offer(one, job, steps, prices, limits, progress)
            if job.of_plans != "time" and _misses(offer, job):  # a faster plan may keep the limits
                offer = _offer(sought("time", one), job, steps, prices, limits, progress)
            offers.append(offer)
    return MachineChoice(model.name, job, steps, tuple(sorted(offers, key=lambda o: _rank(o, job))))


def device_counts(cluster: Cluster, asked: Sequence[int] = ()) -> list[int]:
    """Return the numbers of devices that are tried: a node, twice as many, up to all there are."""
    most = cluster.max_devices
    if asked:
        return sorted({n for n in asked if 1 <= n <= most})
    n = min(max(cluster.nodes.count, 1), most)
    found = [n]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def _offer(
    one: Searcher, job: Job, steps: int, prices: Prices, limits: SearchLimits,
    progress: Callable[[str, SearchProgress], None],
) -> MachineOffer:  # fmt: skip
    """Search the plans of a machine, unless no plan can end in time, or is cheap enough."""
    cluster, n = one.cluster, one.devices
    rent = prices.usd_per_hour(cluster, n) / SECONDS_AN_HOUR
    least_s = steps * one.least_step_s()
    offer = MachineOffer(cluster.name, n, least_s=least_s)
    if job.deadline_s is not None and least_s > job.deadline_s:
        reason = f"its arithmetic alone takes {least_s / DAY_S:.4g} days"
        return MachineOffer(cluster.name, n, least_s=least_s, reason=reason)
    if job.budget_usd is not None and least_s * rent > job.budget_usd:
        reason = f"its arithmetic alone costs ${least_s * rent:,.0f}"
        return MachineOffer(cluster.name, n, least_s=least_s, reason=reason)
    result = found_by(one, limits, lambda told: progress(str(offer), told))
    if not result.replays:
        capacity = show(float(one.runs.capacity_bytes), "B", 4)
        reason = f"no plan was found that fits into {capacity} a device"
        if result.stopped:
            reason = f"the search ended by {result.stopped} before a plan was found"
        return MachineOffer(cluster.name, n, least_s=least_s, reason=reason)
    best = result.best
    seconds = steps * best.step_time_s
    joules = steps * best.energy_j
    usd = seconds * rent + joules / JOULES_A_KWH * prices.usd_per_kwh
    return MachineOffer(cluster.name, n, best, seconds, usd, joules, result.gap, least_s)


def _is_late(offer: MachineOffer, job: Job) -> bool:
    return job.deadline_s is not None and offer.seconds > job.deadline_s


def _is_dear(offer: MachineOffer, job: Job) -> bool:
    return job.budget_usd is not None and offer.usd > job.budget_usd


def _misses(offer: MachineOffer, job: Job) -> bool:
    return offer.plan is not None and (_is_late(offer, job) or _is_dear(offer, job))


def _rank(offer: MachineOffer, job: Job) -> tuple[object, ...]:
    """Return by what offers are ordered: those within the limits first, then by the objective."""
    value = {"time": offer.seconds, "cost": offer.usd, "energy": offer.joules}[job.least]
    limits = _is_late(offer, job), _is_dear(offer, job)
    return offer.plan is None, *limits, value, offer.usd, offer.seconds
