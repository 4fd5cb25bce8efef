"""What every reproduction returns: rows of predicted beside published."""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class ReproducedFigure:
    """One published figure and its prediction.

    Attributes
    ----------
    published
        The figure, or the ends of its range.
    predicted
        With the fitted constants.
    unfitted
        Without them; the same as `predicted` where none is used; None where there is no prediction
        without.
    points
        Whether the residual is a difference of shares, in percentage points; otherwise it is
        predicted over published, less one.
    tolerance
        Residual that the reproduction promises; None: shown without a promise.
    is_input
        Whether the prediction was put in rather than computed.
    note
        What a reader must know.
    """

    group: str
    quantity: str
    unit: str
    published: tuple[float, float]
    predicted: float
    unfitted: float | None
    points: bool = False
    tolerance: float | None = None
    is_input: bool = False
    note: str = ""

    @property
    def is_fitted(self) -> bool:
        """Whether a fitted constant takes part."""
        return self.unfitted != self.predicted

    @property
    def residual(self) -> float:
        """Of the prediction, 0 within a published range; positive means that it is too much."""
        return self._residual(self.predicted)

    @property
    def unfitted_residual(self) -> float | None:
        """Of the prediction without fitted constants."""
        return None if self.unfitted is None else self._residual(self.unfitted)

    @property
    def is_kept(self) -> bool | None:
        """Whether the residual is within the tolerance; None without one."""
        return None if self.tolerance is None else abs(self.residual) <= self.tolerance

    def _residual(self, value: float) -> float:
        low, high = self.published
        nearest = min(max(value, low), high)
        return value - nearest if self.points else value / nearest - 1

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and what follows from them as plain values."""
        return {
            "group": self.group,
            "quantity": self.quantity,
            "unit": self.unit,
            "published": list(self.published),
            "predicted": self.predicted,
            "residual": self.residual,
            "fitted": self.is_fitted,
            "predicted_without_fits": self.unfitted,
            "residual_without_fits": self.unfitted_residual,
            "residual_in_points": self.points,
            "tolerance": self.tolerance,
            "within_tolerance": self.is_kept,
            "input": self.is_input,
            "note": self.note,
        }


def printed(
    group: str,
    quantity: str,
    published: float,
    predicted: float,
    tolerance: float | None = None,
    note: str = "",
) -> ReproducedFigure:
    """Return the row of one printed figure without a unit, predicted without fitted constants."""
    return ReproducedFigure(
        group=group,
        quantity=quantity,
        unit="",
        published=(published, published),
        predicted=predicted,
        unfitted=predicted,
        tolerance=tolerance,
        note=note,
    )


def published_rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table of published figures, ``TABLE.csv`` in this folder."""
    text = resources.files(__package__).joinpath(f"{table}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A constant that was chosen so that figures come out."""

    constant: str
    value: str
    chosen_by: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Rows, the constants fitted to some of them, and what is not derivable."""

    name: str
    title: str
    source: str
    rows: tuple[ReproducedFigure, ...]
    fits: tuple[FittedConstant, ...]
    notes: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return how many figures there are, how many promises are kept, and the residuals.

        Residuals are of what was computed, not put in: the middle and the largest, without sign.
        """
        promises = [row.is_kept for row in self.rows if row.is_kept is not None]
        residuals = [abs(row.residual) for row in self.rows if not row.is_input]
        return {
            "name": self.name,
            "figures": len(self.rows),
            "promised": len(promises),
            "kept": sum(promises),
            "median_residual": statistics.median(residuals) if residuals else None,
            "largest_residual": max(residuals, default=None),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "rows": [row.to_dict() for row in self.rows],
            "fits": [
                {"constant": fit.constant, "value": fit.value, "chosen_by": fit.chosen_by}
                for fit in self.fits
            ],
            "notes": list(self.notes),
        }
