"""A point of a design study: a model on a cluster under a plan, with fields replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from ridgeline import catalog
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.stack_choice import BOUND, StackChoice, choose_stack
from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.software.load import load_software
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model
from ridgeline.workload.numerics import find

ROOTS = ("model", "cluster", "plan", "software")


class Replaceable:
    """What a point of any study is: things by name or path, and fields of them replaced.

    A kind of point is a data class, with a field for each of its things, in `NAMES`, and
    `overrides`, whose dotted paths begin with one of `HEADS`. Those in `REQUIRED` have no default.
    """

    NAMES: ClassVar[tuple[str, ...]]
    HEADS: ClassVar[tuple[str, ...]]

    REQUIRED: ClassVar[tuple[str, ...]]

    overrides: Mapping[str, Any]

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return this point with more fields replaced: names of things, or dotted paths.

        Raises
        ------
        ConfigError
            If a path begins with something else, or a thing's name is not a text.
        """
        named = {}
        overrides = dict(self.overrides)
        for path, value in values.items():
            if path in self.NAMES:
                if not isinstance(value, str):
                    raise ConfigError(f"expected a name, found {value!r}", field=path)
                named[path] = value
            else:
                check_path(path, self.HEADS)
                overrides[path] = value
        return type(self)(**{**vars(self), **named, "overrides": overrides})

    def replaced(self, head: str) -> dict[str, Any]:
        """Return the fields below one head that are replaced, by the rest of their paths."""
        parted = ((*check_path(path, self.HEADS), value) for path, value in self.overrides.items())
        return {rest: value for found, rest, value in parted if found == head}


@dataclass(frozen=True)
class Point(Replaceable):
    """Everything that `simulate` needs, by name.

    Attributes
    ----------
    model, cluster, software
        Names in the catalogue, or paths. Without a name of software it is the usual one of the
        machine or the network (`plan.stack_choice`).
    plan
        Fields of the plan.
    overrides
        Dotted path -> new value. Paths begin with ``model.``, ``cluster.`` (``cluster.node.…``,
        ``cluster.device.…``, ``cluster.device.energy_table.…``), ``plan.`` or ``software.``.
    """

    NAMES = ("model", "cluster", "software")
    HEADS = ROOTS
    REQUIRED = ("plan.global_batch",)

    model: str
    cluster: str
    plan: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    software: str = ""

    @classmethod
    def parse(
        cls,
        model: str,
        cluster: str,
        plan: str,
        more: Mapping[str, Any],
        overrides: Mapping[str, Any],
        software: str = "",
    ) -> Point:
        """Make a point of the words of a command line; `more` holds plan fields or None."""
        return cls(model, cluster, plan_fields(plan, more), overrides, software)

    def simulate(
        self,
        dataset: str | None = None,
        *,
        fold: bool = True,
        most_micro_batches: int | None = None,
    ) -> Result:
        """Load everything and simulate it, fed from a data set if one is named."""
        model, cluster = self.load("model"), self.load("cluster")
        plan = self.load("plan")
        choice = self.choice(model, cluster, plan)
        result = simulate(
            model,
            cluster,
            plan,
            software=choice.stack,
            dataset=dataset,
            fold=fold,
            most_micro_batches=most_micro_batches,
        )
        details = replace(
            result.details, chosen_by=choice.chosen_by, spelled=self.spelled_otherwise()
        )
        return replace(result, details=details)

    def spelled_otherwise(self) -> dict[str, str]:
        """Return what names are taken to mean that are not those of the catalogue."""
        machines = ("clusters", "nodes", "devices")
        cluster, _, device = self.cluster.partition("@")
        given = [
            (self.model, ("models",)), (cluster.strip(), machines),
            (device.strip(), ("devices",)), (self.software, ("software",)),
        ]  # fmt: skip
        found = {
            name: catalog.spelled(name, *kinds)
            for name, kinds in given
            if name and not catalog.is_path(name)
        }
        return {name: known for name, known in found.items() if known not in {None, name}}

    def choice(self, model: Model, cluster: Cluster, plan: Plan) -> StackChoice:
        """Return the software stack of the step, with its settings replaced, and who chose it."""
        stack, by = choose_stack(self.software or None, model, cluster, plan)
        replaced = self.replaced("software")
        return StackChoice(stack.with_settings(replaced) if replaced else stack, by)

    def load(self, root: str) -> Any:
        """Load the model, the cluster, the plan or the named software, with its fields replaced."""
        replaced = self.replaced(root)
        if root == "software":
            return load_software(self.software or BOUND, replaced)
        if root == "model":
            return shared_model(
                self.model, json.dumps(replaced, sort_keys=True), _state(self.model)
            )
        if root == "cluster":
            return load_cluster(self.cluster, replaced)
        plan = make_plan({**self.plan, **replaced})
        try:
            if plan.precision is not None:
                find(plan.precision)
        except RidgelineError as error:
            raise ConfigError(str(error), field="plan.precision") from error
        return plan

    def row(self) -> dict[str, Any]:
        """Simulate the step, and return its numbers and those of the device."""
        result = self.simulate()
        device = result.manifest["device"]
        chance: dict[str, Any] = {}
        if "cluster.faults" in self.overrides:
            from ridgeline.report.fault_distribution import weather

            chance = weather(result).to_row()
        return {
            **result.to_row(),
            **chance,
            "software": result.manifest["software"]["name"],
            "devices": result.manifest["plan"]["devices"],
            **{name: device[name] for name in ("area_mm2", "tdp_w", "price_usd")},
        }

    def content(self) -> list[Any]:
        """Return all that tells this point from others, as plain values."""
        named = [self.software] if self.software else []
        return [self.model, self.cluster, dict(self.plan), dict(self.overrides), *named]


@lru_cache(maxsize=16)
def shared_model(name: str, replaced: str, state: tuple[int, int]) -> Model:
    """Load a model; points with the same model share it, and so its graphs."""
    return load_network(name, json.loads(replaced))


def _state(name: str) -> tuple[int, int]:
    """Return what changes when a model's file is written anew."""
    try:
        return state_of(catalog.find("models", name))
    except OSError:
        return 0, 0  # loading says what is wrong


def state_of(file: Path) -> tuple[int, int]:
    """Return what changes when a file is written anew; OSError if it is not there."""
    there = file.stat()
    return there.st_mtime_ns, there.st_size


def _either(roots: Sequence[str]) -> str:
    """Write ``model., cluster. or plan.``."""
    *others, last = (f"{root}." for root in roots)
    return f"{', '.join(others)} or {last}" if others else last


def check_path(path: str, roots: Sequence[str] = ROOTS) -> tuple[str, str]:
    """Part a dotted path into its root and the rest, or raise ConfigError."""
    root, _, rest = path.partition(".")
    if rest and not all(path.split(".")):
        raise ConfigError("two dots follow each other, or one stands at the end", field=path)
    if root not in roots or not rest:
        raise ConfigError(
            f"a path begins with {_either(roots)} and goes on with a field"
            f"{nearest(root, roots) if root not in roots else ''}",
            field=path,
        )
    return root, rest
