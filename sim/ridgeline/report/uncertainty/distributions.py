"""What is known of errors: of a device's parameters, and of the model beyond them.

Three tables beside this file, of natural logarithms of measured over predicted (`points`: their
differences). ``residuals.csv`` has the scatter of the kernels that each class of a device was
calibrated with; ``spreads.csv`` how far a parameter may be off that was measured, taken over from
a device of the same generation or from another one; ``model_error.csv`` what remains of whole
predictions, by their kind. ``benchmarks/estimate_uncertainty.py`` writes the first and the last,
and the spreads between devices.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.hardware.device import Achievable, Device

Relation = Literal["own", "generation", "other"]
ClassKey = tuple[str, str, str, str]
"""Number format, kind of op, pass and filter of a row of achievable shares."""

_Z95 = 1.6448536269514722  # standard normal quantile of 95 %


@dataclass(frozen=True, slots=True)
class ModelError:
    """Error of a kind of prediction beyond the device's parameters.

    Attributes
    ----------
    kind
        A suite of ``ridgeline validate``; "several-devices": step times of several devices;
        "node-power": power of whole nodes, where "energy" is that of devices.
    points
        Whether it is a difference; else the logarithm of measured over predicted.
    median, low, high
        Of two halves of normal distributions that meet in the median, with these standard
        deviations.
    n, groups
        Rows that it was estimated from, and groups of them.
    by_device, by_source, by_group
        Share of rows inside the interval of 5 to 95 % when their device, their source, or their
        group was left out of the estimate; None where one makes up most of the rows.
    """

    kind: str
    points: bool
    median: float
    low: float
    high: float
    n: int
    groups: int
    by_device: float | None
    by_source: float | None
    by_group: float | None

    def draws(self, shares: Floats) -> Floats:
        """Return the errors at these shares of the distribution."""
        z = _standard_normal(shares)
        return self.median + np.where(z < 0, self.low, self.high) * z

    def interval(self, predicted: float, spread: float = 0.0) -> tuple[float, float]:
        """Return 5 and 95 % around a prediction.

        Parameters
        ----------
        spread
            Standard deviation that the parameters add, in the same measure.
        """
        low, high = (_Z95 * float(np.hypot(side, spread)) for side in (self.low, self.high))
        if self.points:
            return predicted + self.median - low, predicted + self.median + high
        return (
            predicted * float(np.exp(self.median - low)),
            predicted * float(np.exp(self.median + high)),
        )


def model_error(kind: str) -> ModelError | None:
    """Return the error of a kind of prediction, None where it was never estimated."""
    return _model_errors().get(kind)


def relation_of(device: Device, row: Achievable) -> tuple[str, Relation]:
    """Tell which device a share was measured on, and how this one is related to it."""
    if row.fraction.basis in {"measured", "derived"}:
        return device.name, "own"
    origin = row.fraction.source
    node_nm = _measured_nodes_nm().get(origin)
    own = None if device.process_node is None else round(device.process_node.value * 1e9)
    return origin, "generation" if node_nm is not None and node_nm == own else "other"


def scatter(device: str, key: ClassKey) -> float:
    """Return the standard deviation between kernels of one class.

    Where the class was not measured on the device it is that of all classes of the kind of op; of
    a kind that no table has, the largest of those that one has.
    """
    known = _residuals().get((device, *key))
    typical = _typical_scatter()
    return typical.get(key[1], max(typical.values())) if known is None else known


def spread(parameter: str, relation: str) -> float:
    """Return the standard deviation of the logarithm of a parameter as a whole.

    The share of a kind of op that no table has is as uncertain as the worst of those that one has.
    """
    known = _spreads().get((parameter, relation))
    if known is None:
        known = max(_spreads()[op, relation] for op in _typical_scatter())
    return known


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return iter(csv.DictReader(text.splitlines()))


@cache
def _residuals() -> dict[tuple[str, ...], float]:
    return {
        (row["device"], row["format"], row["op"], row["pass"], row["filter"]): float(row["scatter"])
        for row in _rows("residuals.csv")
    }


@cache
def _measured_nodes_nm() -> dict[str, int]:
    return {row["device"]: int(row["process_node_nm"]) for row in _rows("residuals.csv")}


@cache
def _typical_scatter() -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for (_, _, op, *_), value in _residuals().items():
        found.setdefault(op, []).append(value)
    return {op: float(np.median(values)) for op, values in found.items()}


@cache
def _spreads() -> dict[tuple[str, str], float]:
    return {(r["parameter"], r["relation"]): float(r["sd"]) for r in _rows("spreads.csv")}


@cache
def _model_errors() -> dict[str, ModelError]:
    def share(text: str) -> float | None:
        return float(text) if text else None

    return {
        row["kind"]: ModelError(
            kind=row["kind"],
            points=row["measure"] == "points",
            median=float(row["median"]),
            low=float(row["low"]),
            high=float(row["high"]),
            n=int(row["n"]),
            groups=int(row["groups"]),
            by_device=share(row["by_device"]),
            by_source=share(row["by_source"]),
            by_group=share(row["by_group"]),
        )
        for row in _rows("model_error.csv")
    }


def _standard_normal(shares: Floats) -> Floats:
    """Return quantiles of the standard normal (Acklam's rational approximation, to 1e-9)."""
    a = (-3.969683028665376e1, 2.209460984245205e2, -2.759285104469687e2,
         1.383577518672690e2, -3.066479806614716e1, 2.506628277459239)  # fmt: skip
    b = (-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2,
         6.680131188771972e1, -1.328068155288572e1, 1.0)  # fmt: skip
    c = (-7.784894002430293e-3, -3.223964580411365e-1, -2.400758277161838,
         -2.549732539343734, 4.374664141464968, 2.938163982698783)  # fmt: skip
    d = (7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0)
    tail = np.minimum(shares, 1 - shares)
    q = shares - 0.5
    middle = np.polyval(a, q * q) * q / np.polyval(b, q * q)
    far = np.sqrt(-2 * np.log(np.minimum(tail, 0.1)))
    end = np.polyval(c, far) / np.polyval(d, far) * np.sign(0.5 - shares)
    return np.where(tail < 0.02425, end, middle)
