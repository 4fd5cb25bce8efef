"""Normalised rows: measurements in catalogue names of model, machine, plan, software.

A row says itself what is simulated, and which number of the result its measurement is compared
with; `command` is the line that repeats it. Tables in other words become such rows by
`study.import_rows`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan.text import plan_fields
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack
from ridgeline.study.point import Point
from ridgeline.study.quantities import quantity_of
from ridgeline.study.relative import EFFICIENCY, One
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.written_fields import assignments

COLUMNS = ("model", "machine", "plan", "software", "quantity", "measured")
"""What a normalised row must have; `FIELDS` may be empty or missing."""
FIELDS = (
    "model_fields", "machine_fields", "overrides", "dataset", "one", "most_micro_batches", "unit",
    "inferred", "skip",
)  # fmt: skip
_OF = {"model": "model_fields", "cluster": "machine_fields", "software": "overrides"}


@dataclass(frozen=True)
class NormalRow:
    """A measurement, and the simulation that it is compared with.

    Attributes
    ----------
    model, machine, software
        Names in the catalogue, or paths.
    plan
        Fields of the plan, as ``--plan`` has them.
    model_fields, machine_fields, overrides
        Fields of the network, of the machine and settings of the software that are replaced:
        ``path=value;path=value``, values as in YAML.
    dataset
        What feeds the step, as ``--dataset`` has it; "": input is not modelled.
    quantity
        Number of the result, perhaps times a factor (`study.quantities`).
    one
        What an efficiency is relative to, as ``--relative-to-one`` has it.
    most_micro_batches
        How many micro-batches are played of a step with more, as `simulate` has it; "": all.
    row
        The row of the file, with the source's own words.
    """

    row: MeasuredRow
    model: str
    machine: str
    plan: str
    software: str
    quantity: str
    model_fields: str = ""
    machine_fields: str = ""
    overrides: str = ""
    dataset: str = ""
    one: str = ""
    most_micro_batches: str = ""

    @classmethod
    def of(cls, row: MeasuredRow) -> NormalRow:
        """Read a row of a table.

        Raises
        ------
        RidgelineError
            If it names no model, machine, plan, software or quantity, or says why it is skipped.
        """
        if why := row.text("skip"):
            raise RidgelineError(why)
        for name in COLUMNS[:-1]:
            if not row.text(name):
                raise RidgelineError(f"the column {name} is not given")
        optional = (*_OF.values(), "dataset", "one", "most_micro_batches")
        given = {name: row.text(name) for name in (*COLUMNS[:-1], *optional)}
        return cls(row, **given)

    @property
    def measured(self) -> float:
        """What was measured, in SI units.

        Raises
        ------
        RidgelineError
            If nothing is given.
        """
        found = self.row.number("measured")
        if found is None:
            raise RidgelineError("the column measured is not given")
        return found

    @cached_property
    def point(self) -> Point:
        """The simulation, as a point of a study."""
        replaced = {
            f"{root}.{path}": value
            for root, column in _OF.items()
            for path, value in assignments(getattr(self, column))
        }
        return Point(self.model, self.machine, plan_fields(self.plan), replaced, self.software)

    @property
    def device(self) -> str:
        """Name of the device that was measured."""
        return self.cluster.device.name

    @property
    def cluster(self) -> Cluster:
        """The machine that was measured."""
        return _cluster(self.machine, _frozen(self.point, "cluster"))

    def simulate(self) -> Result:
        """Simulate the step."""
        return _simulated(self.point, self.dataset, self._most)

    def shared(self) -> Result:
        """Simulate the step; rows of the same step share its result."""
        return shared(self.point, self.dataset, self._most)

    @property
    def _most(self) -> int | None:
        return int(self.most_micro_batches) if self.most_micro_batches else None

    def predict(self) -> float:
        """Return what the simulation says of the row's quantity."""
        return self.value(self.simulate())

    def value(self, result: Result) -> float:
        """Return the row's quantity of its result."""
        if self.quantity != EFFICIENCY:
            return quantity_of(result, self.quantity)
        if not self.one:
            raise RidgelineError(f"{EFFICIENCY} needs the column one: what it is relative to")
        one = One.parse(self.one)
        return one.efficiency(result, shared(one.point(self.point), most=self._most))

    def command(self) -> str:
        """Return the line of a shell that prints the prediction."""
        words = ["ridgeline", "run", self.model, self.machine, "--plan", self.plan]
        words += ["--software", self.software]
        for path, value in self._said():
            words += ["--set", f"{path}={value}"]
        words += ["--dataset", self.dataset] if self.dataset else []
        words += ["--relative-to-one", self.one] if self.one else []
        if self.most_micro_batches:
            words += ["--most-micro-batches", self.most_micro_batches]
        return shlex.join([*words, "--quantity", self.quantity])

    def _said(self) -> Iterator[tuple[str, str]]:
        for root, column in _OF.items():
            for part in filter(None, getattr(self, column).split(";")):
                path, _, value = part.partition("=")
                yield f"{root}.{path.strip()}", value.strip()


def shared(point: Point, dataset: str = "", most: int | None = None) -> Result:
    """Simulate a point; rows of the same step share its result."""
    return _shared(_Key(point, dataset, most))


class _Key:
    """A point that stands for all of equal content."""

    def __init__(self, point: Point, dataset: str, most: int | None) -> None:
        self.point, self.dataset, self.most = point, dataset, most
        self.content = json.dumps([*point.content(), dataset, most], sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.content == other.content


@lru_cache(maxsize=256)
def _shared(key: _Key) -> Result:
    return _simulated(key.point, key.dataset, key.most)


def _simulated(point: Point, dataset: str, most: int | None) -> Result:
    """Simulate a point with what others share of it."""
    stack = _stack(point.software, _frozen(point, "software"))
    cluster = _cluster(point.cluster, _frozen(point, "cluster"))
    model, plan = point.load("model"), point.load("plan")
    return simulate(
        model, cluster, plan, software=stack, dataset=dataset or None, most_micro_batches=most
    )


def _frozen(point: Point, root: str) -> str:
    return json.dumps(point.replaced(root), sort_keys=True)


@lru_cache(maxsize=128)
def _cluster(name: str, replaced: str) -> Cluster:
    return load_cluster(name, json.loads(replaced))


@lru_cache(maxsize=1024)
def _stack(name: str, replaced: str) -> Stack:
    stack, settings = _software(name), json.loads(replaced)
    return stack.with_settings(settings) if settings else stack


@lru_cache(maxsize=128)
def _software(name: str) -> Stack:
    return load_software(name)
