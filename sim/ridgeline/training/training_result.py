"""Result of a whole run: time by category, failures, energy, cost and carbon, over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ridgeline import views
from ridgeline.errors import RidgelineError
from ridgeline.training import goodput
from ridgeline.training.footprint import RunFootprint
from ridgeline.training.input_epochs import InputSummary
from ridgeline.training.run_file import Facility
from ridgeline.training.statistical_efficiency import TrainingAmount
from ridgeline.training.storage import CheckpointTimes
from ridgeline.training.training_loop import RunSpan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERCENTILES = (5.0, 50.0, 95.0)


@dataclass(frozen=True)
class RunOutcome:
    """One run with its chances.

    Attributes
    ----------
    time_s
        Wall clock by category (`goodput.CATEGORIES`); sums to `wall_s`.
    failures
        By cause.
    lost_steps
        Steps that were done again.
    """

    seed: int
    wall_s: float
    time_s: Mapping[str, float]
    failures: Mapping[str, int]
    restarts: int
    saves: int
    lost_steps: int
    footprint: RunFootprint

    @property
    def goodput(self) -> float:
        """Share of the wall clock that undisturbed training takes."""
        return self.time_s[goodput.PRODUCTIVE] / self.wall_s


@dataclass(frozen=True)
class Spread:
    """A quantity over seeds: 5 %, median and 95 %."""

    p5: float
    median: float
    p95: float


@dataclass(frozen=True)
class TrainingResult:
    """A whole run to its target: what it takes, and where the time goes.

    Attributes
    ----------
    samples_per_s
        Of undisturbed steps of the longest phase.
    undisturbed_s
        All steps, without anything that goes wrong, saves or stops.
    between_failures_s
        Mean time between failures that stop the job; infinite without any.
    daly_s
        Time of the run that Daly's model expects of saves and failures alone; None where the model
        does not hold.
    facility
        Prices of the run.
    input
        What the steps wait for; None where no pipeline is simulated.
    outcomes
        One for each seed.
    spans
        Of the first seed, for its timeline.
    """

    name: str
    model: str
    cluster: str
    plan: str
    software: str
    devices: int
    nodes: int
    steps: int
    step_time_s: float
    samples_per_s: float
    undisturbed_s: float
    between_failures_s: float
    daly_s: float | None
    checkpoint: CheckpointTimes | None
    steps_between_saves: int | None
    amount: TrainingAmount | None
    input: InputSummary | None
    facility: Facility
    tuning_runs: int
    outcomes: tuple[RunOutcome, ...]
    spans: tuple[RunSpan, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def spread(self, quantity: Callable[[RunOutcome], float | None]) -> Spread | None:
        """Return a quantity over the seeds; None where it is not stated."""
        values = [quantity(outcome) for outcome in self.outcomes]
        if any(value is None for value in values):
            return None
        p5, median, p95 = np.percentile(np.array(values, np.float64), _PERCENTILES)
        return Spread(float(p5), float(median), float(p95))

    @property
    def wall_s(self) -> float:
        """Median time of the run."""
        return float(np.median([outcome.wall_s for outcome in self.outcomes]))

    @property
    def goodput(self) -> float:
        """Median share of the time that undisturbed training takes."""
        return float(np.median([outcome.goodput for outcome in self.outcomes]))

    @property
    def time_s(self) -> dict[str, float]:
        """Mean time over the seeds, by category."""
        count = len(self.outcomes)
        return {
            name: sum(outcome.time_s[name] for outcome in self.outcomes) / count
            for name in goodput.CATEGORIES
        }

    @property
    def badput_s(self) -> dict[str, float]:
        """Mean time over the seeds that is not training, by the names of Google's library."""
        named = dict.fromkeys(goodput.GOOGLE_NAMES.values(), 0.0)
        for name, time_s in self.time_s.items():
            if name != goodput.PRODUCTIVE:
                named[goodput.GOOGLE_NAMES[name]] += time_s
        return named

    @property
    def failures(self) -> dict[str, float]:
        """Mean failures over the seeds, by cause."""
        count = len(self.outcomes)
        return {
            name: sum(outcome.failures[name] for outcome in self.outcomes) / count
            for name in self.outcomes[0].failures
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values; totals count the tuning runs, too."""
        quantities: dict[str, Callable[[RunOutcome], float | None]] = {
            "wall_s": lambda o: o.wall_s,
            "goodput": lambda o: o.goodput,
            "energy_j": lambda o: o.footprint.energy_j,
            "device_hours": lambda o: o.footprint.device_hours,
            "electricity_usd": lambda o: o.footprint.electricity_usd,
            "rent_usd": lambda o: o.footprint.rent_usd,
            "carbon_kg": lambda o: o.footprint.carbon_kg,
        }
        spreads = {name: self.spread(of) for name, of in quantities.items()}
        whole = 1 + self.tuning_runs
        stated = {name: None if of is None else asdict(of) for name, of in spreads.items()}
        values = {
            "name": self.name,
            "model": self.model,
            "cluster": self.cluster,
            "plan": self.plan,
            "software": self.software,
            "devices": self.devices,
            "nodes": self.nodes,
            "steps": self.steps,
            "step_time_s": self.step_time_s,
            "samples_per_s": self.samples_per_s,
            "undisturbed_s": self.undisturbed_s,
            "between_failures_s": None
            if self.between_failures_s == float("inf")
            else self.between_failures_s,
            "daly_s": self.daly_s,
            "checkpoint": None if self.checkpoint is None else asdict(self.checkpoint),
            "steps_between_saves": self.steps_between_saves,
            "amount": None if self.amount is None else asdict(self.amount),
            "input": None if self.input is None else asdict(self.input),
            **stated,
            "with_tuning": {
                name: None if of is None else whole * of.median
                for name, of in spreads.items()
                if name not in ("wall_s", "goodput")
            },
            "tuning_runs": self.tuning_runs,
            "time_s": self.time_s,
            "badput_s": self.badput_s,
            "failures": self.failures,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "notes": list(self.notes),
        }
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """Return the result as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def costs(self) -> dict[str, dict[str, float]]:
        """Return what the run costs by kind and category, the mean over its seeds.

        Kinds are "rent" and "electricity" in dollars, as far as the file states prices; else
        "device time" in hours. Energy of steps counts for training and for what is lost of it by
        their times. Tuning runs are not in it.
        """
        found: dict[str, dict[str, float]] = {}
        hour_s, price = self.facility.device_hour, self.facility.electricity
        held_s = {n: 0.0 if n in goodput.AWAY else s for n, s in self.time_s.items()}
        if hour_s is not None:
            found["rent"] = {n: self.devices * s * hour_s for n, s in held_s.items()}
        if price is not None:
            found["electricity"] = {n: j * price for n, j in self._energy_by_j().items()}
        if not found:
            found["device time"] = {n: self.devices * s / 3600 for n, s in held_s.items()}
        return found

    def _energy_by_j(self) -> dict[str, float]:
        """Return the mean energy by category; that of steps is shared out by their times."""
        count = len(self.outcomes)
        found = {
            name: sum(of.footprint.energy_by_j[name] for of in self.outcomes) / count
            for name in goodput.CATEGORIES
        }
        steps_j, times = found[goodput.PRODUCTIVE], self.time_s
        parts = [n for n in goodput.OF_STEPS if n != goodput.DATA_LOADING] + [goodput.LOST_WORK]
        whole_s = sum(times[name] for name in parts)
        found[goodput.PRODUCTIVE] = 0.0
        for name in parts:
            found[name] += steps_j * times[name] / whole_s
        return found

    def plot(self, kind: Literal["timeline", "costs"] = "timeline", ax: Axes | None = None) -> Axes:
        """Draw the timeline of the first seed, or what the run costs by category.

        Raises
        ------
        RidgelineError
            If there is no figure of this name.
        """
        if kind not in ("timeline", "costs"):
            raise RidgelineError(f"a run has figures timeline and costs, found {kind!r}")
        return views.view(f"run_{kind}")(self, ax)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return (
            f"<TrainingResult {self.name}: {self.wall_s / 86400:.4g} days, "
            f"{self.goodput:.1%} goodput, {len(self.outcomes)} seeds>"
        )
