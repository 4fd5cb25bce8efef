"""Weak and strong scaling of a step by each strategy alone and by the best hybrid.

Of every strategy the fastest plan is taken that uses no other dimension of the plan
(`ridgeline.study.planner`), so that curves compare strategies and not choices of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ridgeline import views
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.emit.rank_group import COLLECTIVE
from ridgeline.report.manifest import digest
from ridgeline.report.result import Result
from ridgeline.simulation import matrix_peak, simulate
from ridgeline.software.stack import Stack
from ridgeline.study.ceilings import UNCONTENDED, Ceilings, ceilings
from ridgeline.study.link_loads import FullestLink, network_levels
from ridgeline.study.planner.frontier import SearchLimits, found_by
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.study.recalled import without_step
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mode = Literal["strong", "weak"]
STRATEGIES = ("data", "tensor", "pipeline", "hybrid")
SPATIAL = "spatial"
OTHERS = (SPATIAL,)
"""Strategies of some networks only, which are not asked for by default, nor in the best hybrid."""


@dataclass(frozen=True)
class ScalingPoint:
    """One strategy on so many devices: a result, or why there is none.

    Attributes
    ----------
    speed_up, efficiency
        Against the least number of devices on which the same strategy runs.
    gap
        How much better a plan that was not played could be at most.
    """

    strategy: str
    devices: int
    batch: int
    result: Result | None
    reason: str = ""
    gap: float = 0.0
    speed_up: float = float("nan")
    efficiency: float = float("nan")
    ideal_samples_per_s: float = float("nan")

    @cached_property
    def levels(self) -> tuple[FullestLink, ...]:
        """Load of each kind of link."""
        return () if self.result is None else network_levels(self.result)

    @cached_property
    def fixed_s(self) -> float:
        """Fixed times of the messages on the stream that has the longest."""
        assert self.result is not None
        program = self.result.details.lowered.program
        if COLLECTIVE not in program.kind_names:
            return 0.0
        phase_s = np.concatenate(([0.0], np.cumsum(program.latency_s * program.repeat)))
        row_s = phase_s[program.phase_ptr[1:]] - phase_s[program.phase_ptr[:-1]]
        sends = program.kind == program.kind_names.index(COLLECTIVE)
        streams, rows = program.stream[sends].clip(0), program.cost[sends]
        return float(np.bincount(streams, weights=row_s[rows], minlength=1).max())

    @cached_property
    def peak_flop_per_s(self) -> float:
        """Dense peak of one device in the format that the products run in."""
        assert self.result is not None
        return matrix_peak(self.result.details.lowered, self.result.details.cluster.device)

    @cached_property
    def less_arithmetic(self) -> float:
        """FLOPs of the direct products over those that take the time of the kernels' arithmetic.

        Above 1 where kernels do less than is counted, as Winograd's filtering does. No step takes
        less than this arithmetic at the peak, so that none is above so many times the peak.
        """
        assert self.result is not None
        lowered = self.result.details.lowered
        costs = [lowered.op_costs[i] for i, _ in lowered.graph.contractions]
        counted = sum(sum(cost.flops.values()) for cost in costs)
        least = sum(min(*map(sum, (c.flops.values(), c.engine_work.values()))) for c in costs)
        return counted / least

    @property
    def binding(self) -> FullestLink | None:
        """The kind of link that takes longest, if anything is sent."""
        return max(self.levels, key=lambda level: level.busy_s, default=None)

    @property
    def flop_per_s(self) -> float:
        """Useful FLOP/s of one device."""
        assert self.result is not None
        return self.result.flops_per_step / self.devices / self.result.step_time_s

    @property
    def flop_per_byte(self) -> float:
        """Useful FLOPs for each byte that a device sends on its binding level; inf: none."""
        assert self.result is not None
        level = self.binding
        useful = self.result.flops_per_step / self.devices
        return useful / level.bytes_per_device if level else float("inf")

    @cached_property
    def ceilings(self) -> Ceilings:
        """Least times of the step by its work alone, and by its messages alone."""
        assert self.result is not None
        return ceilings(self.result.details.timeline)

    @property
    def local_flop_per_s(self) -> float:
        """Useful FLOP/s of a device if messages took no time: its ceiling without any network."""
        assert self.result is not None
        return self.result.flops_per_step / self.devices / self.ceilings.work_s

    @property
    def least_s(self) -> float:
        """Least time of the step: of its work, its messages, and the bytes of each kind of link."""
        busy_s = max((level.busy_s for level in self.levels), default=0.0)
        return max(self.ceilings.work_s, self.ceilings.messages_s, busy_s)

    @property
    def envelope_flop_per_s(self) -> float:
        """What the device, the plan and the network allow at most, if all overlaps."""
        assert self.result is not None
        return self.result.flops_per_step / self.devices / self.least_s

    @property
    def is_uncontended(self) -> bool:
        """Whether work and messages in turn would still reach `UNCONTENDED` of the envelope.

        So no message waits long for others on its links, and one ceiling is well below the other.
        """
        return self.least_s >= UNCONTENDED * self.ceilings.in_turn_s

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        same = {"strategy": self.strategy, "devices": self.devices, "batch": self.batch}
        if self.result is None:
            return {**same, "reason": self.reason}
        step, level = self.result.step_time_s, self.binding
        return {
            **same,
            "plan": str(self.result.details.plan),
            "step_time_s": step,
            "samples_per_s": self.result.samples_per_s,
            "ideal_samples_per_s": self.ideal_samples_per_s,
            "speed_up": self.speed_up,
            "efficiency": self.efficiency,
            "exposed_communication": self.result.time_s["exposed_communication"] / step,
            "bubble": self.result.time_s["bubble"] / step,
            "energy_per_sample_j": self.result.energy_j["total"] / self.batch,
            "manifest_hash": self.result.manifest["hash"],
            "flop_per_s_per_device": self.flop_per_s,
            "flop_per_sent_byte": self.flop_per_byte if level else None,
            "binding_link": level.name if level else None,
            "ceiling_without_network_flop_per_s": self.local_flop_per_s,
            "envelope_flop_per_s": self.envelope_flop_per_s,
            "share_of_envelope": self.flop_per_s / self.envelope_flop_per_s,
            "uncontended": self.is_uncontended,
            "gap": self.gap,
        }


@dataclass(frozen=True)
class Scaling:
    """Curves of one model on one cluster."""

    model: Model
    cluster: Cluster
    mode: Mode
    points: tuple[ScalingPoint, ...]

    def curve(self, strategy: str) -> tuple[ScalingPoint, ...]:
        """Return the points of one strategy that ran, by devices."""
        return tuple(p for p in self.points if p.strategy == strategy and p.result is not None)

    @property
    def peak_flop_per_s(self) -> float:
        """Dense peak of one device in the format that the products run in."""
        return next(p.peak_flop_per_s for p in self.points if p.result is not None)

    @property
    def ran(self) -> tuple[Result, ...]:
        """Results of all points that ran."""
        return tuple(p.result for p in self.points if p.result is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; the figures are drawn of them alone."""
        return {
            "model": self.model.name,
            "title": self.model.title,
            "cluster": self.cluster.name,
            "scaling": self.mode,
            "accuracy_statement": "accuracy unmodelled",
            "precision": self.ran[0].details.plan.precision,
            "software": self.ran[0].details.plan.stack.name,
            "software_chosen_by": self.ran[0].details.chosen_by,
            "ridgeline": self.ran[0].manifest["ridgeline"],
            "hash": digest([result.manifest["hash"] for result in self.ran]),
            "points": [point.to_dict() for point in self.points],
            "roof": views.view("scaling_roof")(self),
        }

    def plot(
        self, kind: str = "scaling", ax: Axes | None = None, *, theme: str | None = None
    ) -> Axes:
        """Draw "scaling" curves or the "distributed-roofline"; see `Result.plot`."""
        from ridgeline.report.figures.themes import theme as themed

        with themed(theme):
            return views.view("scaling_figure")(kind, self.to_dict(), ax)  # type: ignore[no-any-return]


def scaling(
    model: Model | str, cluster: Cluster | str, devices: Sequence[int], *,
    strategies: Sequence[str] = STRATEGIES, batch: int, mode: Mode = "strong",
    precision: str | None = None, limit: int = 8, software: Stack | str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Scaling:  # fmt: skip
    """Scale a step over devices.

    Parameters
    ----------
    batch
        Samples of one step: over all devices ("strong"), or for each of them ("weak").
    limit
        Plans that are played for each point.
    software
        The program that runs the steps, as in `simulate`.

    Raises
    ------
    RidgelineError
        If a strategy is unknown, or nothing runs at all.
    """
    model = load_network(model) if isinstance(model, str) else model
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    for name in strategies:
        if name not in (known := (*STRATEGIES, *OTHERS)):
            raise ConfigError(
                f"unknown strategy {name!r}{nearest(name, known)} (known: {', '.join(known)})",
                field="--strategies",
            )
    found: dict[tuple[str, int], ScalingPoint] = {}
    bases: dict[str, ScalingPoint] = {}  # of every strategy the smallest run
    counts = sorted(set(devices))
    like: Searcher | None = None
    for n in counts:
        size = batch * n if mode == "weak" else batch
        try:
            like = searcher(
                model, cluster, n, size,
                precision=precision, like=like, spatial=SPATIAL in strategies, software=software,
            )  # fmt: skip
            one: Searcher | str = like
        except RidgelineError as error:
            one = str(error)
        for name in dict.fromkeys(strategies):
            progress(f"{name} on {n}")
            point = _point(name, n, size, one, limit)
            if point.result is not None:
                point = _light(_against(point, bases.get(name, point)))
                bases.setdefault(name, point)
            found[name, n] = point
    points = [found[name, n] for name in strategies for n in counts]
    if all(point.result is None for point in points):
        raise RidgelineError(f"nothing runs: {points[0].reason if points else 'no devices'}")
    return Scaling(model, cluster, mode, tuple(points))


def _point(
    strategy: str, devices: int, batch: int, one: Searcher | str, limit: int
) -> ScalingPoint:
    """Find the fastest plan of a strategy and simulate it; `one`: its search, or why there is none.

    The strategies on so many devices have one search, so that each prices only what is new.
    """
    if isinstance(one, str):
        return ScalingPoint(strategy, devices, batch, None, one)
    try:
        found = found_by(one if strategy == "hybrid" else one.only(strategy), SearchLimits(limit))
        if not found.n_plans:
            reason = (
                f"no plan divides the network and a batch of {batch} over {devices} devices by"
                f" {strategy} alone"
                if strategy == "hybrid" or one.runs.able(strategy)
                else f"the software {found.software} has no {strategy} parallelism"
            )
            return ScalingPoint(strategy, devices, batch, None, reason)
        stack = one.runs.stack
        result = simulate(one.model, one.cluster, found.best.plan, software=stack)
        result = replace(result, details=replace(result.details, chosen_by=found.chosen_by))
    except RidgelineError as error:
        return ScalingPoint(strategy, devices, batch, None, str(error))
    return ScalingPoint(strategy, devices, batch, result, gap=found.gap)


def _against(point: ScalingPoint, base: ScalingPoint) -> ScalingPoint:
    """Say speed-up and efficiency against the smallest run: of throughput, in both modes."""
    assert point.result is not None
    assert base.result is not None
    more = point.devices / base.devices
    speed_up = point.result.samples_per_s / base.result.samples_per_s
    return replace(
        point,
        speed_up=speed_up,
        efficiency=speed_up / more,
        ideal_samples_per_s=base.result.samples_per_s * more,
    )


_MEASURED = ("levels", "ceilings", "fixed_s", "peak_flop_per_s", "less_arithmetic")


def _light(point: ScalingPoint) -> ScalingPoint:
    """Return a point that has all its numbers, but no longer the step that they are of.

    Steps of long pipelines have millions of tasks, and a study has dozens of points.
    """
    assert point.result is not None
    known = {name: getattr(point, name) for name in _MEASURED}
    light = replace(point, result=without_step(point.result))
    vars(light).update(known)
    return light
