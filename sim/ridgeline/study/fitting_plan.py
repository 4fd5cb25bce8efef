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
from ridgeline.study.planner.space import divisors
from ridgeline.units import show
from ridgeline.workload.model import Model

Changes = Mapping[str, str | int]
_AGAIN = ("none", "selective", "full", "sqrt")
_MOST_TOGETHER = 3  # axes
_MOST_WIDER = 5  # times that a model is put on twice as many devices
_MOST_PLAYED = 32  # micro-batches of a trial; each further one takes as long as the last ones
_MOST_TASKS = 2_000_000  # of a trial with a pipeline, all of which is played: half a minute


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
    untried
        Whether smaller micro-batches of a pipeline were left out, as they are too many to play.
    """

    remedies: tuple[Remedy, ...]
    least: Remedy | None
    capacity_bytes: int
    untried: bool = False

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
            if self.untried:
                yield "smaller micro-batches were not tried: a step of them has too many tasks"
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
    tasks = details.lowered.program.n_tasks / details.plan.micro_batches
    return _Trial(details.model, details.cluster, details.plan, tasks).advice()


@dataclass
class _Trial:
    """Tries changes of one plan; each is simulated once.

    Attributes
    ----------
    micro_batch_tasks
        Of a micro-batch of the plan as it is.
    untried
        Whether a micro-batch was too small to be tried in a pipeline.
    """

    model: Model
    cluster: Cluster
    plan: ResolvedPlan
    micro_batch_tasks: float
    untried: bool = False
    known: dict[tuple[tuple[str, str | int], ...], Remedy | None] = field(default_factory=dict)

    def advice(self) -> Advice:
        """Try few changes before many, and as many devices before more."""
        same = [self._micro_batches(), self._again(), self._shardings(), self._offloads()]
        wider = [self._wider("tensor"), self._wider("pipeline")]
        same, wider = ([a for a in map(self._possible, axes) if a] for axes in (same, wider))
        hardest, found = [axis[-1] for axis in same], []
        alone = [axis[-1:] for axis in (*same, *wider)]
        if any(map(self._may_fit, [*([*hardest, *axis[-1:]] for axis in ([], *wider)), *alone])):
            found = self._together([*same, *wider])
        found = found or self._on_more_devices(hardest)
        tried = [remedy for remedy in self.known.values() if remedy is not None]
        # Less is not always held with more changes: whatever was met on the way and fits is told.
        found = found or sorted((one for one in tried if one.fits), key=_nearness)[:1]
        least = min(tried, key=lambda one: (one.memory_bytes, one.devices), default=None)
        capacity = int(self.cluster.device.capacity_bytes)
        return Advice(tuple(sorted(found, key=_nearness)), least, capacity, self.untried)

    def _possible(self, axis: list[Changes]) -> list[Changes]:
        """Leave out the last steps of an axis that no plan can take."""
        while axis and self._tried(axis[-1:]) is None:
            axis = axis[:-1]
        return axis

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
        smaller = [m for m in divisors(self.plan.rank_batch) if m < self.plan.micro_batch_size]
        return [{"micro_batch": m} for m in reversed(smaller)]

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

    def _may_fit(self, steps: Iterable[Changes]) -> bool:
        """Tell whether steps fit, or are no plan together, which says nothing of fewer of them."""
        remedy = self._tried(steps)
        return remedy is None or remedy.fits

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
        changes["micro_batch"] = self._playable(changes)
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
        result = simulate(self.model, self.cluster, plan, most_micro_batches=_MOST_PLAYED)
        total = result.memory_bytes["total"]
        return Remedy(changes, plan.devices, total, result.step_time_s, result.fits)

    def _playable(self, changes: Changes) -> int:
        """Return the micro-batch of changes, or the smallest of which a pipeline's are played."""
        wanted, data = (int(changes[name]) if name in changes else getattr(self.plan, name)
                        for name in ("micro_batch", "data"))  # fmt: skip
        if int(changes.get("pipeline", self.plan.pipeline)) == 1:
            return wanted  # the first micro-batches tell all
        now, samples = self.plan.micro_batch_size, self.plan.global_batch // data
        for size in divisors(samples):
            tasks = self.micro_batch_tasks * (samples // size)
            if size >= wanted and (tasks <= _MOST_TASKS or size >= now):
                self.untried |= size > wanted
                return size
        return wanted


def _nearness(one: Remedy) -> tuple[int, int, float]:
    """Order remedies: few fields, few devices, a short step."""
    return len(one.changes), one.devices, one.step_time_s
