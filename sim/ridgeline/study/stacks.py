"""What a framework costs: one step under every software stack that can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.stack_choice import BOUND, refusals
from ridgeline.software.load import load_software
from ridgeline.study.point import Point

_NUMBERS = ("step_time_s", "samples_per_s", "tokens_per_s", "mfu", "fits")


@dataclass(frozen=True)
class StackStep:
    """A step under one stack.

    Attributes
    ----------
    software
        Name of the stack.
    row
        Numbers of the step; empty where it cannot be simulated.
    decided
        Fields of the plan that the stack decided, with their values.
    error
        Why it cannot be simulated.
    """

    software: str
    row: Mapping[str, Any]
    decided: Mapping[str, Any]
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "software": self.software,
            **self.row,
            "decided": dict(self.decided),
            "error": self.error,
        }


@dataclass(frozen=True)
class StackComparison:
    """A step under every stack that can run it, the fastest first, and why others cannot.

    Attributes
    ----------
    title
        Of the step: model, devices, machine, batch.
    steps
        Those that could not be simulated come last. `row` has ``of_bound``, the step time over that
        of the bound ``ideal``.
    refused
        Reason by name of every other stack that ships.
    """

    title: str
    steps: tuple[StackStep, ...]
    refused: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "title": self.title,
            "steps": [step.to_dict() for step in self.steps],
            "refused": dict(self.refused),
        }


def compare_stacks(
    point: Point,
    dataset: str | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> StackComparison:
    """Simulate a step under every shipped stack that can run it.

    Parameters
    ----------
    point
        Its `software` does not matter; settings of software that it replaces are those of each.
    progress
        Is told the name of every stack before its step.

    Raises
    ------
    RidgelineError
        If the step cannot be simulated under any stack.
    """
    model, cluster, plan = (point.load(root) for root in ("model", "cluster", "plan"))
    steps, refused = [], {}
    for name in catalog.names("software"):
        if why := refusals(load_software(name), model, cluster, plan):
            refused[name] = "; ".join(why)
            continue
        progress(name)
        steps.append(_step(replace(point, software=name), dataset))
    bound = next((s.row["step_time_s"] for s in steps if s.software == BOUND and not s.error), None)
    if bound is None:
        raise RidgelineError(next(step.error for step in steps if step.software == BOUND))
    steps = [_against(step, bound) for step in steps]
    steps.sort(key=lambda step: (bool(step.error), step.row.get("step_time_s", 0.0), step.software))
    title = (
        f"{model.name} on {plan.devices} x {cluster.device.name} ({cluster.name}),"
        f" batch {plan.global_batch}"
    )
    return StackComparison(title, tuple(steps), refused)


def _step(point: Point, dataset: str | None) -> StackStep:
    try:
        result = point.simulate(dataset)
    except RidgelineError as error:
        return StackStep(point.software, {}, {}, str(error))
    plan = result.details.plan
    row = {
        **{name: getattr(result, name) for name in _NUMBERS},
        "memory_bytes": result.memory_bytes["total"],
        "capacity_bytes": result.memory_bytes["capacity"],
        "precision": plan.precision,
        "energy_j": result.energy_j["total"],
        "bound": result.bound,
        "manifest_hash": result.manifest["hash"],
    }
    return StackStep(point.software, row, {name: getattr(plan, name) for name, _ in plan.decided})


def _against(step: StackStep, bound_s: float) -> StackStep:
    if step.error:
        return step
    return replace(step, row={**step.row, "of_bound": step.row["step_time_s"] / bound_s})
