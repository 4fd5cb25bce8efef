"""Errors in a few figures, weighted so that every group of rows counts the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.validate.outcome import Outcome

Floats = NDArray[np.float64]
_MIN_RANKED = 3  # rows of a sweep, below which an order says nothing


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors over all rows of a suite, as fractions; None where nothing can be said.

    Attributes
    ----------
    bias
        Weighted mean of the signed errors.
    rank_correlation
        Spearman's, within each sweep; the mean over the sweeps.
    coverage
        Share of the measurements inside the stated range of 5 to 95 %, of the rows that have one.
    coverage_left_out
        The same with each row's device left out of everything that the range rests on.
    """

    n: int
    skipped: int
    groups: int
    median_abs_error: float | None
    mean_abs_error: float | None
    p90_abs_error: float | None
    within_10pct: float | None
    within_25pct: float | None
    bias: float | None
    rank_correlation: float | None
    coverage: float | None
    coverage_left_out: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def summarise(outcomes: Sequence[Outcome], skipped: int) -> Summary:
    """Summarise the errors; each group weighs as much as every other, shared by its rows."""
    rows = [o for o in outcomes if np.isfinite(o.error)]
    if not rows:
        return Summary(0, skipped, 0, *[None] * 8)
    sizes = Counter(o.group for o in rows)
    weight = np.array([1.0 / sizes[o.group] for o in rows])
    weight /= weight.sum()
    error = np.array([o.error for o in rows])
    size = np.abs(error)
    return Summary(
        n=len(rows),
        skipped=skipped,
        groups=len(sizes),
        median_abs_error=weighted_quantile(size, weight, 0.5),
        mean_abs_error=float(weight @ size),
        p90_abs_error=weighted_quantile(size, weight, 0.9),
        within_10pct=float(weight @ (size <= 0.10)),
        within_25pct=float(weight @ (size <= 0.25)),
        bias=float(weight @ error),
        rank_correlation=_rank_correlation(rows),
        coverage=_coverage(weight, [o.covered for o in rows]),
        coverage_left_out=_coverage(weight, [o.covered_left_out for o in rows]),
    )


def _coverage(weights: Floats, inside: Sequence[bool | None]) -> float | None:
    """Return the share of weight inside, of the rows that have a range."""
    known = [(w, is_in) for w, is_in in zip(weights, inside, strict=True) if is_in is not None]
    stated = sum(w for w, _ in known)
    return float(sum(w for w, is_in in known if is_in) / stated) if known else None


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the smallest value below or at which `share` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))
    return float(values[order][at])


def _rank_correlation(rows: Sequence[Outcome]) -> float | None:
    """Mean over the sweeps of Spearman's correlation of predictions with measurements."""
    sweeps: dict[str, list[Outcome]] = {}
    for row in rows:
        sweeps.setdefault(row.sweep, []).append(row)
    found = [
        spearman(np.array([o.predicted for o in members]), np.array([o.measured for o in members]))
        for members in sweeps.values()
        if len(members) >= _MIN_RANKED
    ]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman's rank correlation, equal values sharing their ranks; None if all are equal."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place].astype(np.float64)
