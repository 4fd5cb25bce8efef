"""Search result: the best plan, alternatives, and what was proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.planner.objectives import Objective
from ridgeline.units import show


def _text(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in fields.items())


def shape_of(plan: Plan) -> tuple[object, ...]:
    """Return what plans differ in that are alternatives, and not variants of one."""
    return (
        *(plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert, plan.spatial),
        *(plan.recompute, plan.zero_stage > 1),
    )


_TOLD, _MUCH, _MOST_TOLD = 0.005, 0.03, 4


def _signed(share: float) -> str:
    """Write a share of the best plan's as per cent."""
    return f"{share:+.1%}"


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan that the engine has played.

    Attributes
    ----------
    bound_s
        What its step takes at least, by the screen.
    said
        The fields of the plan that its stack has to be told.
    spent_s
        On what the rank that finishes last spends the time of a step (`searcher.spent_s`).
    """

    plan: Plan
    step_time_s: float
    energy_j: float
    memory_bytes: int
    fits: bool
    bound_s: float
    objective: float
    said: Mapping[str, Any]
    spent_s: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return _text(self.said)

    @property
    def shape(self) -> tuple[object, ...]:
        """What plans differ in that are alternatives: degrees, recomputation, what is sharded."""
        return shape_of(self.plan)

    def loses_by(self, best: SimulatedPlan) -> str:
        """Say on what a plan spends more than the best, the most first; less only where it is much.

        Of the time of a step, then of energy and memory.
        """
        whole = best.step_time_s
        names = {**self.spent_s, **best.spent_s}
        more = {n: self.spent_s.get(n, 0.0) - best.spent_s.get(n, 0.0) for n in names}
        ordered = sorted(more.items(), key=lambda item: -item[1])
        said = [
            f"{_signed(seconds / whole)} {name}"
            for name, seconds in ordered
            if seconds > _TOLD * whole or seconds < -_MUCH * whole
        ][:_MOST_TOLD]
        for name, mine, other in (
            ("energy", self.energy_j, best.energy_j),
            ("memory", float(self.memory_bytes), float(best.memory_bytes)),
        ):
            if mine > other * (1 + _MUCH):
                said.append(f"{_signed(mine / other - 1)} {name}")
        return ", ".join(said) or "as much of everything, within half a per cent"

    @property
    def shown(self) -> str:
        """The plan in words of the command line, less what all plans of a search share."""
        shared = ("global_batch", "precision")
        return _text({n: v for n, v in self.said.items() if n not in shared}) or "data=1"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "plan": str(self),
            "devices": self.plan.devices,
            "step_time_s": self.step_time_s,
            "samples_per_s": self.plan.global_batch / self.step_time_s,
            "energy_j": self.energy_j,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "bound_s": self.bound_s,
            "objective": self.objective,
            "spent_s": dict(self.spent_s),
        }


class SearchProgress(NamedTuple):
    """How far a search is.

    Attributes
    ----------
    seconds
        Since it began.
    doing, plan
        "searching", or "playing" a plan.
    best
        The best plan so far.
    open_bound
        No plan that is not known yet is better than this; 0: nothing is known.
    priced, families, played
        How many families of plans are priced, of how many, and plans that were played.
    """

    seconds: float
    doing: str
    plan: str
    best: SimulatedPlan | None
    open_bound: float
    priced: int
    families: int
    played: int

    @property
    def gap(self) -> float:
        """How much better, as a share, another plan could be at most; 1 where nothing is known."""
        if self.best is None:
            return 1.0
        return max(0.0, 1 - self.open_bound / self.best.objective)


@dataclass(frozen=True)
class FeasibilityGap:
    """What it would take, where no plan fits into memory.

    Attributes
    ----------
    least
        Of the plans that bounds say are small, the one that needs the least memory.
    devices
        On so many of them some plan fits; None: on none of those tried, up to `most_devices`.
    offloaded
        The same plan with activations in the host's memory, where it then fits.
    """

    least: SimulatedPlan
    capacity_bytes: float
    devices: int | None
    most_devices: int
    offloaded: SimulatedPlan | None = None

    def __str__(self) -> str:
        plan = self.least.shown
        text = (
            f"{plan} needs {show(float(self.least.memory_bytes), 'B', 4)} of"
            f" {show(self.capacity_bytes, 'B', 4)} a device; "
        )
        if self.offloaded is not None:
            held, step = float(self.offloaded.memory_bytes), self.offloaded.step_time_s
            text += f"with offload=all {show(held, 'B', 4)}, {show(step, 's', 4)} a step; "
        if self.devices is not None:
            return text + f"{self.devices} devices would do"
        if self.most_devices > self.least.plan.devices:
            return text + f"nothing was found that fits on up to {self.most_devices} devices"
        return text + "it takes more devices, or larger ones"


@dataclass(frozen=True)
class SearchResult:
    """The answer of a search.

    Attributes
    ----------
    software, chosen_by
        The stack that runs the plans, and who chose it (`plans.stack_choice.StackChoice`).
    notes
        What the stack leaves out of the search, and what it decides of every plan.
    replays
        All plans that were played and fit, the best first.
    n_plans, n_dropped
        How many are legal, and how many of them cannot fit into memory or be cut so.
    n_too_full, n_unplayable
        How many did not fit when they were played, and how many could not be played.
    open_bound
        The least bound of what was not played: at most this much better than the best could a plan
        be; infinite where nothing is left.
    screen_plans_per_s
        How many plans a second the compiled screen took.
    needs
        What it would take, where no plan fits.
    stopped
        "time limit" or "interrupted", where the search did not end by itself.
    """

    model: str
    cluster: str
    software: str
    chosen_by: str
    notes: tuple[str, ...]
    devices: int
    objective: Objective
    replays: tuple[SimulatedPlan, ...]
    n_plans: int
    n_dropped: int
    n_too_full: int
    n_unplayable: int
    open_bound: float
    screen_plans_per_s: float
    seconds: float
    needs: FeasibilityGap | None = None
    stopped: str = ""

    @property
    def best(self) -> SimulatedPlan:
        """The best plan."""
        if not self.replays:
            where = f"{self.model} on {self.devices} devices of {self.cluster}"
            if self.stopped:
                raise RidgelineError(
                    f"the search of {where} ended by {self.stopped} before a plan was found that"
                    " fits; give it more time"
                )
            if np.isfinite(self.open_bound):
                raise RidgelineError(
                    f"none of the {self.n_too_full} plans of {where} that were played fits into "
                    "memory; others are left, which a greater limit plays"
                )
            if not self.n_plans:
                raise RidgelineError(f"there is no plan of {where}")
            needs = "more devices may do" if self.needs is None else self.needs
            raise RidgelineError(
                f"none of the {self.n_plans} plans of {where} fits into memory: {needs}"
            )
        return self.replays[0]

    @property
    def gap(self) -> float:
        """How much better, as a share, a plan that was not played could be at most."""
        return max(0.0, 1 - self.open_bound / self.best.objective)

    @property
    def proven(self) -> bool:
        """Whether no other plan can be better."""
        return self.open_bound >= self.best.objective

    def alternatives(self) -> tuple[SimulatedPlan, ...]:
        """Return the best played plan of every shape but that of the best, the best first."""
        shapes = {self.best.shape}
        found = []
        for replay in self.replays:
            if replay.shape not in shapes:
                shapes.add(replay.shape)
                found.append(replay)
        return tuple(found)

    def pareto(self) -> tuple[SimulatedPlan, ...]:
        """Return the replayed plans that none beats in time, energy and memory at once."""
        return pareto(self.replays)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "software": self.software,
            "software_chosen_by": self.chosen_by,
            "notes": list(self.notes),
            "devices": self.devices,
            "objective": self.objective,
            "best": self.best.to_dict(),
            "proven_optimal": self.proven,
            "stopped": self.stopped,
            "gap": self.gap,
            "alternatives": [
                {**replay.to_dict(), "loses_by": replay.loses_by(self.best)}
                for replay in self.alternatives()
            ],
            "runners_up": [replay.to_dict() for replay in self.replays[1:]],
            "pareto": [replay.to_dict() for replay in self.pareto()],
            "n_plans": self.n_plans,
            "n_cannot_fit": self.n_dropped,
            "n_unplayable": self.n_unplayable,
            "n_replayed": len(self.replays) + self.n_too_full,
            "screen_plans_per_s": self.screen_plans_per_s,
            "seconds": self.seconds,
        }


def pareto(replays: tuple[SimulatedPlan, ...]) -> tuple[SimulatedPlan, ...]:
    """Return what none beats in step time, energy, memory and devices at once."""
    rows = np.array(
        [(r.step_time_s, r.energy_j, r.memory_bytes, r.plan.devices) for r in replays]
    ).reshape(-1, 4)
    kept = [
        replay
        for replay, row in zip(replays, rows, strict=True)
        if not np.any(np.all(rows <= row, axis=1) & np.any(rows < row, axis=1))
    ]
    return tuple(kept)
