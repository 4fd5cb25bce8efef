"""Fill the cells of the SRAM grid that no CACTI run covers, and say how well that works.

    python benchmarks/fill_sram_grid.py            # fill components/tables/sram-cacti.csv
    python benchmarks/fill_sram_grid.py --errors   # leave-out errors, as in docs/components.md

The grid holds seven quantities over cell, ports, banks, node, width and capacity. Letters in its
column `computed` name those that CACTI computed; all others are predicted from these by a Gaussian
process on logarithms: a trend that is linear in the logarithms of capacity, width and node, a
smooth departure from it that all kinds of memory share, and one of each kind, which is much like
that of the others, because CACTI often chooses the same organisation for them.

C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006,
equations 2.23 (prediction) and 5.12 (leave-one-out).
"""

from __future__ import annotations

import csv
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GRID = Path(__file__).parents[1] / "hwconfigs" / "components" / "tables" / "sram-cacti.csv"
QUANTITIES = {
    "read_pj": "r", "write_pj": "w", "access_ns": "a", "cycle_ns": "t",
    "leakage_mw": "l", "gate_leakage_mw": "g", "area_mm2": "m",
}  # fmt: skip
KEYS = ("cell", "ports", "banks", "node_nm", "width_bits", "capacity_bytes")

# Variances and length scales (steps of 4 in capacity and width, of the square root of 2 in node),
# found by a random search for the least leave-one-out error. The first two fix the trend loosely.
OFFSET, SLOPE = 100.0, 10.0
SHARED, SHARED_LENGTH = 1.32, (15.0, 4.2, 2.83)
OWN_OFFSET, OWN_SLOPE = 10.0, 0.754
OWN, OWN_LENGTH = 0.1133, (0.889, 0.981, 5.35)
ALIKE = {"ports": 0.9627, "cell": 0.941, "banks": 0.989}
NOISE = 0.00164

Array = NDArray[np.float64]


class Points(NamedTuple):
    """Where values stand: coordinates in steps, and what is not a number."""

    x: Array
    kinds: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, rows: list[dict[str, str]], quantities: list[str]) -> Points:
        """Take the places of a quantity each from rows of the grid."""
        x = np.array(
            [
                (
                    np.log2(float(row["capacity_bytes"])) / 2 - 9.3,
                    np.log2(float(row["width_bits"])) / 2 - 3.2,
                    np.log2(float(row["node_nm"])) * 2 - 10.8,
                )
                for row in rows
            ]
        )
        kinds = {name: np.array([row[name] for row in rows]) for name in ALIKE}
        return cls(x, {**kinds, "quantity": np.array(quantities)})


def covariance(one: Points, other: Points) -> Array:
    """Return the covariance of logarithms at two lots of places, without noise."""
    equal = {
        name: (one.kinds[name][:, None] == other.kinds[name][None, :]).astype(float)
        for name in one.kinds
    }
    alike = np.ones_like(equal["quantity"])
    for name, share in ALIKE.items():
        alike *= share + (1 - share) * equal[name]
    slope = one.x @ other.x.T
    trend = OFFSET + SLOPE * slope + SHARED * _matern(one.x, other.x, SHARED_LENGTH)
    own = OWN_OFFSET + OWN_SLOPE * slope + OWN * _matern(one.x, other.x, OWN_LENGTH)
    result: Array = equal["quantity"] * (trend + alike * own)
    return result


def _matern(one: Array, other: Array, lengths: tuple[float, ...]) -> Array:
    """Matern covariance of smoothness 5/2."""
    distance = np.zeros((len(one), len(other)))
    for axis, length in enumerate(lengths):
        distance += ((one[:, axis][:, None] - other[:, axis][None, :]) / length) ** 2
    scaled = np.sqrt(5 * distance)
    result: Array = (1 + scaled + scaled**2 / 3) * np.exp(-scaled)
    return result


def read_grid() -> list[dict[str, str]]:
    """Return the rows of the grid as they stand."""
    with GRID.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def computed(rows: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str], Array]:
    """Return the row, the quantity and the logarithm of every value that CACTI computed."""
    found = [
        (row, name, float(row[name]))
        for row in rows
        for name, letter in QUANTITIES.items()
        if letter in row["computed"]
    ]
    return [f[0] for f in found], [f[1] for f in found], np.log([f[2] for f in found])


def predict(rows: list[dict[str, str]], names: list[str], y: Array, to: Points) -> Array:
    """Predict logarithms at other places."""
    known = Points.of(rows, names)
    weights = np.linalg.solve(covariance(known, known) + NOISE * np.eye(len(y)), y)
    result: Array = covariance(to, known) @ weights
    return result


def leave_one_out(rows: list[dict[str, str]], names: list[str], y: Array) -> Array:
    """Return the relative error of each computed value, predicted from all others."""
    known = Points.of(rows, names)
    inverse = np.linalg.inv(covariance(known, known) + NOISE * np.eye(len(y)))
    result: Array = np.expm1(-(inverse @ y) / np.diag(inverse))
    return result


def leave_third_out(rows: list[dict[str, str]], names: list[str], y: Array) -> Array:
    """Return the relative error of each computed value, predicted without a third of them."""
    fold = np.array([_fold(row, name) for row, name in zip(rows, names, strict=True)])
    errors = np.zeros(len(y))
    for left in range(3):
        kept, out = np.flatnonzero(fold != left), np.flatnonzero(fold == left)
        at = Points.of([rows[i] for i in out], [names[i] for i in out])
        from_rows, from_names = [rows[i] for i in kept], [names[i] for i in kept]
        errors[out] = np.expm1(predict(from_rows, from_names, y[kept], at) - y[out])
    return errors


def _fold(row: dict[str, str], name: str) -> int:
    key = "|".join((*(row[key] for key in KEYS), name))
    return int(sha256(key.encode()).hexdigest(), 16) % 3


def summary(names: list[str], errors: Array) -> list[tuple[str, int, float, float, float, float]]:
    """Return quantity, values, median, 90 %, largest error and the share above 15 %."""
    found = []
    for name in QUANTITIES:
        sizes = np.abs(errors[np.array(names) == name])
        found.append(
            (
                name, len(sizes), float(np.median(sizes)), float(np.quantile(sizes, 0.9)),
                float(sizes.max()), float((sizes > 0.15).mean()),
            )
        )  # fmt: skip
    return found


def fill() -> None:
    """Predict what is not computed, and write the grid again."""
    rows = read_grid()
    asked = [
        (row, name)
        for row in rows
        for name, letter in QUANTITIES.items()
        if letter not in row["computed"]
    ]
    at = Points.of([row for row, _ in asked], [name for _, name in asked])
    for (row, name), value in zip(asked, np.exp(predict(*computed(rows), at)), strict=True):
        row[name] = f"{value:.5g}"
    with GRID.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*KEYS, *QUANTITIES, "computed"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Fill the grid, or print the errors."""
    if "--errors" not in sys.argv:
        fill()
        return
    known = computed(read_grid())
    for title, left in (("one", leave_one_out), ("a third", leave_third_out)):
        print(f"left out: {title}")
        for name, count, median, most, largest, beyond in summary(known[1], left(*known)):
            print(
                f"| {name} | {count} | {median:.1%} | {most:.1%} | {largest:.0%} | {beyond:.1%} |"
            )


if __name__ == "__main__":
    main()
