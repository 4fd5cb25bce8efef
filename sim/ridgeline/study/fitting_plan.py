"""Fitting plan: the smallest changes that make a plan fit into memory, each simulated.

A plan is changed along axes: a smaller micro-batch, recomputation, sharding of state, offload, and
more devices for each model (`tensor`, `pipeline`), on as many devices in all as before, or on more.
Of every axis the smallest step that fits is told; several are taken together where none is enough
by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.resolved import ResolvedPlan, pipeline_defaults
from ridgeline.report.result import Result
from ridgeline.report.summary import binary_size
from ridgeline.simulation import simulate
from ridgeline.units import show
from ridgeline.workload.model import Model

Changes = Mapping[str, str | int]
_AGAIN = ("none", "selective", "full", "sqrt")
_MOST_TOGETHER = 3  # axes
_MOST_WIDER = 5  # times that a model is put on twice as many devices


@dataclass(frozen=True)
class Remedy:
    """A change of a plan, and what the plan then holds and takes.

    Attributes
    ----------
    changes
        Fields of the plan with their new values.
    devices
        That the plan then uses.
    memory_bytes
        Of the fullest device; of several kinds, of that with the least room left.
    fits
        Whether every device has room.
    """

    changes: Changes
    devices: int
    memory_bytes: int
    step_time_s: float
    fits: bool

    def __str__(self) -> str:
        fields = ",".join(f"{name}={value}" for name, value in self.changes.items())
        held, step = binary_size(self.memory_bytes), show(self.step_time_s, "s", 4)
        return f"{fields} ({held}, {step} a step on {self.devices} devices)"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "changes": dict(self.changes),
            "devices": self.devices,
            "memory_bytes": self.memory_bytes,
            "step_time_s": self.step_time_s,
        }


@dataclass(frozen=True)
class Advice:
    """What would make a plan fit.

    Attributes
    ----------
    remedies
        Changes that do, the nearest first: few fields, few devices, a short step.
    least
        Of all that was tried, what needs the least memory; None: nothing could be tried.
    capacity_bytes
        Of a device.
    """

    remedies: tuple[Remedy, ...]
    least: Remedy | None
    capacity_bytes: int

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        for remedy in self.remedies:
            yield f"would fit: the same plan with {remedy}"
        if not self.remedies and self.least is not None:
            yield (
                f"nothing that was tried fits: the least is needed with {self.least}, so it takes"
                f" devices with {binary_size(self.least.memory_bytes)} instead of"
                f" {binary_size(self.capacity_bytes)}"
            )
        elif not self.remedies:
            yield "there is nothing to change that would need less memory"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        least = None if self.least is None else self.least.to_dict()
        return {"would_fit": [one.to_dict() for one in self.remedies], "least_memory": least}


def what_would_fit(result: Result) -> Advice:
    """Look for the smallest changes with which a step fits that does not.

    Parameters
    ----------
    result
        Of the plan that does not fit; fed by no data set.
    """
    details = result.details
    return _Trial(details.model, details.cluster, details.plan).advice()


@dataclass
class _Trial:
    """Tries changes of one plan; each is simulated once."""

    model: Model
    cluster: Cluster
    plan: ResolvedPlan
    known: dict[tuple[tuple[str, str | int], ...], Remedy | None] = field(default_factory=dict)

    def advice(self) -> Advice:
        """Try few changes before many, and as many devices before more."""
        same = [self._micro_batches(), self._again(), self._shardings(), self._offloads()]
        wider = [self._wider("tensor"), self._wider("pipeline")]
        same, wider = ([a for a in axes if a and self._tried(a[-1:])] for axes in (same, wider))
        hardest, found = [axis[-1] for axis in same], []
        if any(self._fits([*hardest, *axis[-1:]]) for axis in ([], *wider)):
            found = self._together([*same, *wider])
        found = found or self._on_more_devices(hardest)
        tried = [remedy for remedy in self.known.values() if remedy is not None]
        least = min(tried, key=lambda one: (one.memory_bytes, one.devices), default=None)
        ordered = sorted(found, key=lambda one: (len(one.changes), one.devices, one.step_time_s))
        return Advice(tuple(ordered), least, int(self.cluster.device.capacity_bytes))

    def _together(self, axes: list[list[Changes]]) -> list[Remedy]:
        """Return what fits of single changes; if nothing does, of two at a time, and so on."""
        for n in range(1, min(_MOST_TOGETHER, len(axes)) + 1):
            found = []
            for some in combinations(axes, n):
                steps = [axis[-1] for axis in some]
                if sum("data" in step for step in steps) > 1 or not self._fits(steps):
                    continue  # replicas are given up for one dimension at a time
                for k, axis in enumerate(some):
                    steps[k] = self._smallest(axis, steps[:k] + steps[k + 1 :])
                found.append(self._tried(steps))
            if found:
                return [one for one in found if one is not None]
        return []

    def _smallest(self, axis: list[Changes], others: list[Changes]) -> Changes:
        """Return the first step of an axis that fits beside others; the last one does."""
        low, high = 0, len(axis) - 1
        while low < high:
            middle = (low + high) // 2
            if self._fits([axis[middle], *others]):
                high = middle
            else:
                low = middle + 1
        return axis[high]

    def _on_more_devices(self, hardest: list[Changes]) -> list[Remedy]:
        """Put each model on as many more devices as it takes, by itself or with all else."""
        for k in range(_MOST_WIDER + 1):
            if self.plan.devices * 2**k > self.cluster.max_devices:
                break
            found = []
            for name in ("tensor", "pipeline") if k else ("tensor",):
                wider: Changes = {name: getattr(self.plan, name) * 2**k}
                if self._fits([wider]):
                    found.append([wider])
                elif self._fits([wider, *hardest]):
                    found.append([wider, *self._without_needless(hardest, wider)])
            if found:
                return [one for one in map(self._tried, found) if one is not None]
        return []

    def _without_needless(self, changes: list[Changes], wider: Changes) -> list[Changes]:
        """Leave out one change after the other without which it fits, too; the last one first."""
        for one in reversed(changes):
            others = [change for change in changes if change is not one]
            if self._fits([wider, *others]):
                changes = others
        return changes

    # Axes: steps that need less and less memory

    def _micro_batches(self) -> list[Changes]:
        whole, now = self.plan.rank_batch, self.plan.micro_batch_size
        return [{"micro_batch": m} for m in range(now - 1, 0, -1) if whole % m == 0]

    def _again(self) -> list[Changes]:
        if self.plan.recompute not in _AGAIN:
            return []
        return [{"recompute": mode} for mode in _AGAIN[_AGAIN.index(self.plan.recompute) + 1 :]]

    def _shardings(self) -> list[Changes]:
        if self.plan.data == 1:
            return []
        return [{"zero_stage": stage} for stage in range(self.plan.zero_stage + 1, 4)]

    def _offloads(self) -> list[Changes]:
        return [{"offload": "all"}] if self.plan.offload != "all" else []

    def _wider(self, dimension: str) -> list[Changes]:
        """Return more devices for each model, as many fewer replicas."""
        now, data = getattr(self.plan, dimension), self.plan.data
        return [
            {dimension: now * k, "data": data // k}
            for k in (2**n for n in range(1, _MOST_WIDER + 1))
            if data % k == 0
        ]

    # Trials

    def _fits(self, steps: Iterable[Changes]) -> bool:
        remedy = self._tried(steps)
        return remedy is not None and remedy.fits

    def _tried(self, steps: Iterable[Changes]) -> Remedy | None:
        """Simulate the plan with changes; None: there is no such plan."""
        changes = {name: value for step in steps for name, value in step.items()}
        changes = {k: v for k, v in changes.items() if v != getattr(self.plan, k)}
        key = tuple(sorted(changes.items()))
        if key not in self.known:
            try:
                self.known[key] = self._simulated(changes)
            except RidgelineError:
                self.known[key] = None
        return self.known[key]

    def _simulated(self, changes: dict[str, str | int]) -> Remedy:
        now = {name: getattr(self.plan, name) for name in ResolvedPlan.model_fields}
        changes.setdefault("micro_batch", self.plan.micro_batch_size)
        if self.plan.sequence > 1 and "tensor" in changes:
            changes["sequence"] = changes["tensor"]
        if self.plan.tensor_grid is not None and "tensor" in changes:
            rows = self.plan.tensor_rows
            changes["tensor"] = f"{rows}x{int(changes['tensor']) // rows}"
        plan = ResolvedPlan(**{**now, **changes})
        if self.plan.pipeline == 1:
            now |= pipeline_defaults(plan, self.model)
            plan = ResolvedPlan(**{**now, **changes})
        unsaid = ResolvedPlan(**{**now, **changes, "micro_batch": self.plan.micro_batch})
        if unsaid.micro_batch_size == plan.micro_batch_size:
            del changes["micro_batch"]
        result = simulate(self.model, self.cluster, plan)
        total = result.memory_bytes["total"]
        return Remedy(changes, plan.devices, total, result.step_time_s, result.fits)
