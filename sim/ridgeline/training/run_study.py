"""Run study: one field of a run file varied, and which value is best for what.

The best batch differs by what is asked: throughput grows with it, time to a quality has an optimum,
and so has energy, elsewhere. Values at which nothing is known of the target stay in the answer with
the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline import views
from ridgeline.errors import RidgelineError
from ridgeline.training.train import train

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RunStudyRow:
    """The run at one value; medians over seeds, or why there is none.

    Attributes
    ----------
    samples_per_s
        Of undisturbed training.
    """

    value: Any
    samples_per_s: float = 0.0
    steps: int = 0
    wall_s: float = 0.0
    goodput: float = 0.0
    energy_j: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class RunStudy:
    """Runs that differ in one field."""

    name: str
    field: str
    rows: tuple[RunStudyRow, ...]

    @property
    def known(self) -> list[RunStudyRow]:
        """Rows that were simulated."""
        return [row for row in self.rows if not row.reason]

    @property
    def best(self) -> dict[str, RunStudyRow]:
        """The row of the most samples a second, of the least time, and of the least energy.

        Raises
        ------
        RidgelineError
            If no value could be simulated.
        """
        if not self.known:
            raise RidgelineError(
                f"no value of {self.field} could be simulated: {self.rows[0].reason}"
            )
        return {
            "samples_per_s": max(self.known, key=lambda row: row.samples_per_s),
            "wall_s": min(self.known, key=lambda row: row.wall_s),
            "energy_j": min(self.known, key=lambda row: row.energy_j),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        best = {name: row.value for name, row in self.best.items()}
        rows = [asdict(row) for row in self.rows]
        return {"name": self.name, "field": self.field, "rows": rows, "best": best}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw samples a second, time and energy over the values, each over its best."""
        return views.view("run_study")(self, ax)  # type: ignore[no-any-return]


def train_over(
    path: str | Path,
    field: str,
    values: Sequence[Any],
    *,
    seeds: int = 1,
    processes: int = 1,
    cluster_address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunStudy:
    """Simulate a run once for each value of a field.

    Parameters
    ----------
    field
        Dotted path in the run file, such as ``plan.batch``.
    seeds, processes, cluster_address, overrides
        See `train`.

    Raises
    ------
    RidgelineError
        If the file has a mistake, or no value could be simulated.
    """
    name, rows = "", []
    for value in values:
        try:
            found = train(
                path,
                seeds=seeds,
                processes=processes,
                cluster_address=cluster_address,
                overrides={**(overrides or {}), field: value},
            )
        except RidgelineError as error:
            rows.append(RunStudyRow(value, reason=str(error)))
            continue
        name = found.name
        energy = found.spread(lambda outcome: outcome.footprint.energy_j)
        assert energy is not None  # every run takes some
        rows.append(
            RunStudyRow(
                value,
                samples_per_s=found.samples_per_s,
                steps=found.steps,
                wall_s=found.wall_s,
                goodput=found.goodput,
                energy_j=energy.median,
            )
        )
    study = RunStudy(name, field, tuple(rows))
    _ = study.best  # refuses a study without a row
    return study
