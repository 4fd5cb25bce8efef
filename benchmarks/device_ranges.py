"""Ranges by the distance of a device from measured ones: what `estimate_uncertainty.py` writes.

``device_ranges.csv`` has two half-normal sides around a median for every kind of prediction and
distance (`ridgeline.report.uncertainty.device_range`). Errors are of predictions without the row's
device: constants of library kernels (`kernels.library`) and of libraries of products, and what
calls take besides their kernels (`study.validate.call_starts`), are fitted anew to all other
devices, in the form that ships. The sides are the narrowest with which units that are left
out of the estimate are inside in 90 % of cases, groups weighing the same: devices for the distance
``generation``, generations for ``vendor``, makers for ``other``. Fewer than ten units cannot decide
(`conformal`); with fewer than three the sides are those of the nearer distance, `FARTHER` times as
wide (assumed). A farther distance is never narrower.

For every device there are lines that are estimated without its rows (``left_out``), with which
``ridgeline validate`` says how often ranges of devices that nobody measured hold.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fit_kernels
import fit_product_library
import leave_one_out
from ridgeline.hardware import load_device
from ridgeline.kernels.library.kernel_model import table
from ridgeline.report.uncertainty.device_range import DEVICES, DISTANCES, RANGES, generation_of
from ridgeline.study.validate import measured
from ridgeline.study.validate.call_starts import NO_START, CallStart, call_start
from ridgeline.study.validate.measured import PricedRow
from ridgeline.study.validate.rows import read_rows
from ridgeline.study.validate.statistics import weighted_quantile

Floats = NDArray[np.float64]
Words = NDArray[np.str_]
Z95 = 1.6448536269514722
STATED = 0.9
FARTHER = 1.25
LEAST_UNITS, ENOUGH_UNITS = 3, 10
TRIES = [
    *((outside, 1.0) for outside in (
        0.08, 0.07, 0.06, 0.05, 0.045, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015, 0.01, 0.005)),
    *((0.005, wider) for wider in (1.1, 1.2, 1.35, 1.5, 1.75, 2.0)),
]  # fmt: skip
LIBRARY_TABLES = {
    "attention": ("attention-prefill", "attention-encoder", "attention-decode"),
    "cast": ("cast",),
    "conv": ("convolution",),
    "linear-attention": ("linear-chunks", "linear-step", "causal-convolution"),
    "moe": ("experts",),
    "norm": ("norm",),
    "softmax": ("softmax",),
}
"""Tables of constants that the calls of a suite are priced by."""
_ROUNDS = 20  # of each fit: half of those of the fits that ship, which begin at no known line
_PRODUCTS = 20  # of each device and op that libraries of products are fitted to
RANGE_FIELDS = ("kind", "left_out", "distance", "measure", "median", "low", "high", "n", "devices",
                "by_device")  # fmt: skip
DEVICE_FIELDS = ("kind", "device", "generation", "vendor")


@dataclass(frozen=True)
class Errors:
    """Errors of rows, and what they are left out by.

    Attributes
    ----------
    spread
        What the machine's parameters explain of each.
    group
        Rows of one group share a unit of weight.
    """

    error: Floats
    spread: Floats
    group: Words
    device: Words
    generation: Words
    vendor: Words

    def at(self, kept: NDArray[np.bool_]) -> Errors:
        """Return some of the rows."""
        return Errors(*(values[kept] for values in vars(self).values()))

    @property
    def weight(self) -> Floats:
        """Of each row, groups weighing the same; the sum is 1."""
        sizes = Counter(self.group.tolist())
        found = np.array([1.0 / sizes[group] for group in self.group.tolist()])
        return found / found.sum()


@dataclass(frozen=True)
class Sides:
    """Two half-normal sides around a median."""

    median: float
    low: float
    high: float

    def inside(self, rows: Errors) -> NDArray[np.bool_]:
        """Tell which rows are between 5 and 95 %."""
        off = rows.error - self.median
        low, high = (Z95 * np.hypot(side, rows.spread) for side in (self.low, self.high))
        return (off >= -low) & (off <= high)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the range, without what parameters add."""
        return self.median - Z95 * self.low, self.median + Z95 * self.high

    def around(self, other: Sides) -> Sides:
        """Return sides that hold both ranges."""
        low, high = min(self.ends[0], other.ends[0]), max(self.ends[1], other.ends[1])
        return Sides(self.median, (self.median - low) / Z95, (high - self.median) / Z95)

    def wider(self, factor: float) -> Sides:
        """Return sides that are so much as wide."""
        return Sides(self.median, factor * self.low, factor * self.high)


def sides_of(rows: Errors, outside: float, wider: float) -> Sides:
    """Fit both sides so that `outside` of the weight lies beyond each, then widen them."""
    weight, made = rows.weight, []
    median = weighted_quantile(rows.error, weight, 0.5)
    for sign in (-1.0, 1.0):
        off = sign * (rows.error - median)
        needed = np.sqrt(np.maximum((off / Z95) ** 2 - rows.spread**2, 0.0))
        needed[off <= 0] = 0.0
        made.append(wider * weighted_quantile(needed, weight, 1.0 - outside))
    return Sides(median, *made)


def coverage(rows: Errors, unit: Words, outside: float, wider: float) -> float:
    """Return the share of weight inside when its unit was left out."""
    weight, inside = rows.weight, 0.0
    for name in np.unique(unit):
        out = unit == name
        made = sides_of(rows.at(~out), outside, wider)
        inside += float(weight[out] @ made.inside(rows.at(out)))
    return inside


def conformal(rows: Errors, unit: Words) -> tuple[Sides, float] | None:
    """Return sides that hold for units left out, and how often they did; None of too few units.

    Ten units and more decide: the narrowest sides with which 90 % are inside count. Fewer cannot
    always show 90 %, since one that is outside is more than a tenth: the widest sides that are
    tried are then those that 5 % of all errors lie beyond, of which each is of a unit left out of
    fits, and less with fewer units.
    """
    count = len(np.unique(unit))
    if count < LEAST_UNITS:
        return None
    widest = 0.05 * count / (count + 2)
    few = [*(one for one in TRIES if one[0] > widest), (widest, 1.0)]
    for outside, wider in TRIES if count >= ENOUGH_UNITS else few:
        share = coverage(rows, unit, outside, wider)
        if share >= STATED:
            break
    return sides_of(rows, outside, wider), share


def by_distance(rows: Errors, own: Sides | None) -> dict[str, tuple[Sides, float | None]]:
    """Return the sides of every distance, and how often they held for units left out."""
    made: dict[str, tuple[Sides, float | None]] = {} if own is None else {"own": (own, None)}
    units = (rows.device, rows.generation, rows.vendor)
    nearer = own
    for distance, unit in zip(DISTANCES[1:], units, strict=True):
        found = conformal(rows, unit)
        if found is None:
            start = sides_of(rows, 0.05, 1.0) if nearer is None else nearer
            sides, share = start.wider(1.0 if distance == "generation" else FARTHER), None
        else:
            sides, share = found
        nearer = sides if nearer is None else sides.around(nearer)
        made[distance] = nearer, share
    return made


def lines(kind: str, rows: Errors, own: Sides, *, points: bool) -> list[dict[str, str]]:
    """Return the lines of a kind: of all devices, and with each of them left out."""
    found = [
        _line(kind, "", distance, made, rows, points=points)
        for distance, made in by_distance(rows, own).items()
    ]
    for name in np.unique(rows.device):
        out = rows.device == name
        others = rows.at(~out)
        if not len(others.error):
            continue
        distance = _distance(rows.at(out), others)
        made = by_distance(others, None)[distance]
        found.append(_line(kind, str(name), distance, made, others, points=points))
    return found


def _distance(mine: Errors, others: Errors) -> str:
    if mine.generation[0] in others.generation:
        return "generation"
    return "vendor" if mine.vendor[0] in others.vendor else "other"


def _line(
    kind: str, left_out: str, distance: str, made: tuple[Sides, float | None], rows: Errors,
    *, points: bool,
) -> dict[str, str]:  # fmt: skip
    sides, share = made
    low, high = (f"{math.ceil(side * 1e6 + 1) / 1e6:.6f}" for side in (sides.low, sides.high))
    return {
        "kind": kind, "left_out": left_out, "distance": distance,
        "measure": "points" if points else "log", "median": f"{sides.median:.6f}",
        "low": low, "high": high, "n": str(len(rows.error)),
        "devices": str(len(np.unique(rows.device))),
        "by_device": "" if share is None else f"{share:.3f}",
    }  # fmt: skip


def errors_of(
    error: Sequence[float], spread: Sequence[float], group: Sequence[str], device: Sequence[str]
) -> Errors:
    """Return errors with the generations and makers of their devices."""
    known = {name: load_device(name) for name in set(device)}
    generation = {name: generation_of(of) for name, of in known.items()}
    vendor = {name: of.vendor.lower() for name, of in known.items()}
    return Errors(
        np.array(error, dtype=np.float64),
        np.array(spread, dtype=np.float64),
        np.array(group, dtype=np.str_),
        np.array(device, dtype=np.str_),
        np.array([generation[name] for name in device], dtype=np.str_),
        np.array([vendor[name] for name in device], dtype=np.str_),
    )


def left_out_errors(suite: str, tables: Iterable[Path]) -> dict[tuple[str, int], float]:
    """Return log(measured / predicted) of rows whose device was left out of fits across devices.

    By file and line; of suites whose calls have no such fit, none.
    """
    compressed = [path for path in tables if path.name.endswith(".gz")]
    found = _without_own_starts(suite, compressed)
    for name in LIBRARY_TABLES.get(suite, ()):
        found |= _without_own_line(name, compressed)
    if suite == "gemm":
        found |= _without_own_library(compressed)
    return found


def _without_own_line(name: str, tables: Sequence[Path]) -> dict[tuple[str, int], float]:
    """Return errors of library kernels by constants that are fitted without the row's device.

    Rows that no line is left for keep what they have without one.
    """
    calls = fit_kernels.read_calls(name, tables)
    errors = fit_kernels.without(calls, table(name), calls.devices, _ROUNDS)
    return {
        place: -math.log1p(error)
        for place, error in zip(calls.places, errors.tolist(), strict=True)
        if math.isfinite(error)
    }


def _without_own_library(tables: Sequence[Path]) -> dict[tuple[str, int], float]:
    """Return errors of products by libraries that are fitted without the row's device.

    Of the formats that libraries are fitted to.
    """
    found = {}
    for kind in fit_product_library.KINDS:
        devices = fit_product_library.read(tables, kind, _PRODUCTS)
        fits = fit_product_library.Fit(kind, devices)
        for name, one in devices.items():
            others = [other for other in devices if other != name]
            point = fits.search(others, fits.begin(apart=False))
            errors = fits.errors(name, point, left_out=True)
            for (row, _), error in zip(one.calls, errors.tolist(), strict=True):
                found[row.file, row.line] = -math.log1p(error)
    return found


def _without_own_starts(suite: str, tables: Sequence[Path]) -> dict[tuple[str, int], float]:
    """Return errors of calls whose fixed times are fitted without the row's device."""
    module = leave_one_out._MODULES.get(suite)
    if module is None:
        return {}
    groups: dict[tuple[str, ...], list[PricedRow]] = {}
    for path in tables:
        for row in measured.priced(read_rows(path), module.call):
            if isinstance(row, PricedRow):
                groups.setdefault(leave_one_out._key(suite, row), []).append(row)
    found = {}
    for key, rows in _by_start(groups).items():
        for row, error in zip(rows, _without_own_device(suite, key, rows), strict=True):
            found[row.row.file, row.row.line] = error
    return found


def _by_start(
    groups: Mapping[tuple[str, ...], list[PricedRow]],
) -> dict[tuple[str, ...], list[PricedRow]]:
    """Put kernels of a framework together that ship with one start."""
    found: dict[tuple[str, ...], list[PricedRow]] = {}
    for key, rows in groups.items():
        alike = call_start(*key) == call_start(*key[:3])
        found.setdefault((*key[:3], "") if alike else key, []).extend(rows)
    return found


def _without_own_device(
    suite: str, key: tuple[str, ...], rows: Sequence[PricedRow]
) -> Sequence[float]:
    start = call_start(*key)
    every = leave_one_out.Rows.of(rows)
    tried = _form(suite, start, every)
    errors = np.empty(len(rows))
    for name in np.unique(every.devices):
        mine = every.devices == name
        if start == NO_START:
            found = NO_START
        elif mine.all():
            found = call_start(key[0], key[1])  # what other frameworks take
        else:
            found = leave_one_out.best(every.but(str(name)), tried, "ratio")
        errors[mine] = every.at(np.flatnonzero(mine)).errors(found)
    logs: list[float] = (-np.log1p(errors)).tolist()
    return logs


def _form(suite: str, start: CallStart, rows: leave_one_out.Rows) -> Sequence[CallStart]:
    """Return the candidates of the form that a start has."""
    forms = leave_one_out.candidates(suite, rows)
    if "launches" in forms:
        return forms["launches"]
    if start.host_s:
        return forms["host"]
    return forms["start" if start.slowdown == 1.0 else "start and slowdown"]


def write(
    tables: Path,
    made: Mapping[str, Sequence[Mapping[str, str]]],
    devices: Mapping[str, Errors],
) -> None:
    """Replace the lines of some kinds in both tables; others stay."""
    members = {
        kind: sorted(
            {
                (str(d), str(g), str(v))
                for d, g, v in zip(rows.device, rows.generation, rows.vendor, strict=True)
            }
        )
        for kind, rows in devices.items()
    }
    named = {
        kind: [dict(zip(DEVICE_FIELDS, (kind, *member), strict=True)) for member in found]
        for kind, found in members.items()
    }
    _replace(tables / RANGES, RANGE_FIELDS, made)
    _replace(tables / DEVICES, DEVICE_FIELDS, named)


def _replace(
    path: Path, fields: Sequence[str], made: Mapping[str, Sequence[Mapping[str, str]]]
) -> None:
    kept: list[Mapping[str, str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in csv.DictReader(stream) if row["kind"] not in made]
    every = [*kept, *(line for found in made.values() for line in found)]
    every.sort(key=lambda row: tuple(row[name] for name in fields[:3]))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(fields), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)
