"""What becomes of a measured row: a prediction beside it, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.validate.rows import MeasuredRow


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prediction and its measurement.

    Attributes
    ----------
    group
        Rows of one group share one unit of weight: model, device and source.
    sweep
        Rows between which the order matters: one machine and number format.
    configuration
        What was simulated, in words.
    trivial
        What trivial predictors say, by their name.
    p05, p95
        The range in which ridgeline itself expects the measurement, if it states one.
    points
        The error is a difference of shares rather than a relative one.
    aside
        It is of another kind than what the suite predicts, and counts in the line of its quantity
        alone.
    verdict
        Whether a step is predicted to fit into memory where it did, and not to where it did not;
        None: that was not measured.
    command
        The line of a shell that prints the prediction.
    device, format, kind
        What errors of single kernels are told apart by besides: the device, the number format as
        the table calls it, the kind of work.
    published
        Errors that other programs state of their own predictions of this row, or, as a mean, of
        rows like it; by the name of that statement.
    limit
        What a prediction must not exceed: a board's power limit.
    p05_left_out, p95_left_out
        The range that would be stated if no row of the device had been measured.
    """

    file: str
    line: int
    id: str
    group: str
    sweep: str
    configuration: str
    quantity: str
    predicted: float
    measured: float
    source: str
    trivial: Mapping[str, float] = field(default_factory=dict)
    p05: float | None = None
    p95: float | None = None
    points: bool = False
    aside: bool = False
    verdict: bool | None = None
    command: str = ""
    device: str = ""
    format: str = ""
    kind: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None
    p05_left_out: float | None = None
    p95_left_out: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less one; or their difference, where both are shares."""
        if self.points:
            return self.predicted - self.measured
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the stated range; None without one."""
        if self.p05 is None or self.p95 is None:
            return None
        return self.p05 <= self.measured <= self.p95

    @property
    def covered_left_out(self) -> bool | None:
        """As `covered`, of the range without the device's rows."""
        if self.p05_left_out is None or self.p95_left_out is None:
            return None
        return self.p05_left_out <= self.measured <= self.p95_left_out

    def by(self, name: str) -> Outcome:
        """Return the outcome of a trivial predictor; where it says nothing, it is not a number."""
        predicted = self.trivial.get(name, float("nan"))
        return replace(self, predicted=predicted, trivial={}, p05=None, p95=None, p05_left_out=None,
                       p95_left_out=None)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the error as plain values."""
        return {**asdict(self), "error": self.error, "skipped": None}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be simulated, and why.

    Attributes
    ----------
    unreadable
        The field that should be a number and is none, where that is the reason.
    """

    file: str
    line: int
    id: str
    reason: str
    unreadable: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"file": self.file, "line": self.line, "id": self.id, "skipped": self.reason}


def skip(row: MeasuredRow, reason: str) -> Skipped:
    """Skip a row for a reason, in words that many rows can share."""
    return Skipped(row.file, row.line, row.id, reason)


def skip_for(row: MeasuredRow, error: RidgelineError) -> Skipped:
    """Skip a row because it cannot be read or simulated."""
    if isinstance(error, ConfigError) and error.file == row.file and error.field:
        reason = f"{error.field}: {error.message}"
        return Skipped(row.file, row.line, row.id, reason, unreadable=error.field)
    return skip(row, str(error))


def predict_each(
    rows: Iterable[MeasuredRow], one: Callable[[MeasuredRow], Outcome | Skipped | None]
) -> Iterator[Outcome | Skipped]:
    """Predict row by row, but for those that are not the suite's (None).

    A row that cannot be read or simulated is skipped with its reason, and the others go on; so is
    one whose measurement cannot be compared: it is zero, negative, or its error no finite number.
    """
    for row in rows:
        try:
            made = one(row)
        except RidgelineError as error:
            made = skip_for(row, error)
        if isinstance(made, Outcome) and not _comparable(made):
            made = skip(row, f"nothing that can be compared was measured: {made.measured:g}")
        if made is not None:
            yield made


def _comparable(made: Outcome) -> bool:
    return (made.points or made.measured > 0) and math.isfinite(made.error)
