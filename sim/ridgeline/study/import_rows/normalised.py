"""Normalised rows written: what was read of a foreign row, in catalogue names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.parallel.plan.stack_choice import refusals
from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.written_fields import plan_text, written
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model

UNSTATED = "unstated"
"""The stack of programs that are not known."""
_UNITS = {
    **dict.fromkeys(("host.launch_time", "host.step_wait", "gradients.fusion_cycle_time"), "s"),
    **dict.fromkeys(("kernels.conv_workspace", "memory.runtime"), "B"),
}


@dataclass
class NormalisedStep:
    """A training step that a row measured, by the names of the catalogue.

    Attributes
    ----------
    settings
        Those of the software by which the row's program is known to work.
    inferred
        What the row does not say itself, in words.
    """

    model: str
    machine: str
    software: str
    fields: dict[str, Any] = field(default_factory=dict)
    machine_fields: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    dataset: str = ""
    most_micro_batches: str = ""
    device: str = ""
    inferred: list[str] = field(default_factory=list)

    @property
    def stack(self) -> Stack:
        """The software by its name, as it ships."""
        return stack_of(self.software)

    @property
    def network(self) -> Model:
        """The network with the row's fields."""
        return loaded(self.model, tuple(self.fields.items()))

    @property
    def cluster(self) -> Cluster:
        """The machine with the row's fields."""
        return machine(self.machine, written(self.machine_fields), **self.machine_fields)

    def infer(self, what: str, source: str = "") -> None:
        """Note something that the row does not say."""
        self.inferred.append(f"{what} ({source})" if source else what)

    def columns(self) -> dict[str, str]:
        """Return the columns of a normalised row that say what is simulated.

        Software that cannot run the step is replaced by one that is not known, with its settings.
        """
        plan = make_plan(plan_fields(plan_text(self.plan)))
        if why := refusals(self.stack, self.network, self.cluster, plan):
            self.infer(f"{self.software} without what it says of itself", why[0])
            own = {path: setting(self.stack, path) for path in self.stack.provenance}
            self.settings = {p: v for p, v in own.items() if p[:5] != "plan."} | self.settings
            defaults = {p[5:]: v for p, v in own.items() if p in _PLAIN and v is not None}
            self.plan = {**defaults, **self.plan}
            self.software = UNSTATED
        overrides = {
            path: _with_unit(path, value)
            for path, value in self.settings.items()
            if setting(self.stack, path) != value
        }
        return {
            "model": self.model,
            "model_fields": written(self.fields),
            "machine": self.machine,
            "machine_fields": written(self.machine_fields),
            "plan": plan_text(self.plan),
            "software": self.software,
            "overrides": written(overrides),
            "dataset": self.dataset,
            "most_micro_batches": self.most_micro_batches,
            "inferred": "; ".join(self.inferred),
        }


_PLAIN = frozenset({"plan.zero_stage", "plan.recompute", "plan.sequence"})


def setting(stack: Stack, path: str) -> Any:
    """Return a setting of a stack by its dotted path."""
    group, _, name = path.partition(".")
    return getattr(getattr(stack, group), name)


def defaults(paths: Iterable[str]) -> dict[str, Any]:
    """Return the schema's defaults of settings: what a row leaves out of what its software does."""
    return {path: setting(NEUTRAL, path) for path in paths}


def _with_unit(path: str, value: Any) -> Any:
    return f"{float(value)!r} {_UNITS[path]}" if path in _UNITS and value is not None else value


@cache
def stack_of(name: str) -> Stack:
    """Load a software stack once."""
    return load_software(name)


@lru_cache(maxsize=1024)
def loaded(name: str, fields: tuple[tuple[str, Any], ...] = ()) -> Model:
    """Load a network once."""
    return load_network(name, dict(fields))


_machines: dict[tuple[str, str], Cluster] = {}


def machine(name: str, key: str, **fields: Any) -> Cluster:
    """Load a machine once."""
    if (name, key) not in _machines:
        _machines[name, key] = load_cluster(name, fields)
    return _machines[name, key]


def number_of(row: MeasuredRow, name: str) -> float | None:
    """Return a field as a number; None if it is empty or its column is missing."""
    return row.number(name) if name in row.values else None


def whole_of(row: MeasuredRow, name: str) -> int | None:
    """Return a field as a whole number; None if it is empty or its column is missing.

    A number with more words behind it, "50688 (50257 padded)" or "16/device", is that number.

    Raises
    ------
    RidgelineError
        If it is something else.
    """
    text = row.text(name) if name in row.values else ""
    if text in {"", "n/a"}:
        return None
    value = text.split(" (")[0].removesuffix("/device").removesuffix(".0")
    if not value.isdecimal():
        raise RidgelineError(f"{name} is not a whole number: {text}")
    return int(value)
