"""Fit how benchmarks read the power of kernels, with each device and each framework left out.

    python benchmarks/kernel_power.py [--write] TABLE ...

Tables are of measured calls with power (columns ``power_w``, ``board_limit_w``). For each kind of
call, variant and framework, `study.validate.power_meter` has an activity and a settling time; they
are fitted to the rows of all devices but one, each of which weighs as much as another, and the rows
of that device are predicted with them. Lines that are no better there than nothing are not kept; a
line of one device alone is, if it halves the error.
``--write`` puts the lines, fitted to all devices, into the table that ships.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.validate import kernel_power, measured
from ridgeline.study.validate.measured import PricedRow
from ridgeline.study.validate.power_meter import FILE, PowerMeter
from ridgeline.study.validate.rows import SHIPPED, MeasuredRow, read_rows

Floats = NDArray[np.float64]
_ACTIVITIES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
_SETTLES = (0, 1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450)
_FEWEST = 12  # rows of a line
_FAR_BETTER = 0.5  # of a line that no device could be left out of
Key = tuple[str, str, str]


class Rows:
    """Rows as arrays: events in J, time in s, idle and limit in W, and what was read."""

    def __init__(self, made: Sequence[PricedRow]) -> None:
        machine = [one.machine for one in made]
        self.events_j = np.array([one.events_j for one in made])
        self.time_s = np.array([one.device_s for one in made])
        self.idle_w = np.array([device.idle_power.value for device in machine])
        self.limit_w = np.array([_limit(one) for one in made])
        self.read_w = np.array([float(one.row.values["power_w"]) for one in made])
        self.device = np.array([one.device for one in made])
        self.keys = [kernel_power.meter_key(one) for one in made]

    def predicted_w(self, meter: PowerMeter, chosen: NDArray[np.bool_]) -> Floats:
        """Reading of some of the rows, as `PowerMeter.read_w` has it of one."""
        rise = meter.activity * self.events_j[chosen] / self.time_s[chosen]
        rise = np.minimum(rise, self.limit_w[chosen] - self.idle_w[chosen])
        time_s = self.time_s[chosen]
        return np.asarray(self.idle_w[chosen] + rise * time_s / (time_s + meter.settle_s))

    def errors(self, meter: PowerMeter, chosen: NDArray[np.bool_]) -> Floats:
        """Absolute relative errors."""
        return np.abs(self.predicted_w(meter, chosen) / self.read_w[chosen] - 1.0)

    def fit(self, chosen: NDArray[np.bool_]) -> PowerMeter:
        """Return the meter with the least mean error, each device with the same weight."""
        devices = self.device[chosen]
        counts = {name: float(np.sum(devices == name)) for name in np.unique(devices)}
        weights = np.array([1.0 / counts[name] for name in devices])
        tried = [PowerMeter(a, us * 1e-6) for a in _ACTIVITIES for us in _SETTLES]
        return min(tried, key=lambda meter: float(weights @ self.errors(meter, chosen)))


def _limit(made: PricedRow) -> float:
    limit = made.machine.board_limit
    return float("inf") if limit is None else limit.value


def priced(tables: Sequence[str]) -> list[PricedRow]:
    """Price all rows whose power was read and does not contradict the load."""
    rows: list[MeasuredRow] = []
    for table in tables:
        rows += [
            row
            for row in read_rows(Path(table))
            if row.text("power_w") and row.text("power_suspect") != "1"
        ]
    found = measured.priced(rows, kernel_power.call)
    return [made for made in found if isinstance(made, PricedRow)]


def left_out(rows: Rows, chosen: NDArray[np.bool_]) -> float:
    """Mean error of rows with each device left out, NaN where there is one device alone."""
    found: list[Floats] = []
    for name in np.unique(rows.device[chosen]):
        test = chosen & (rows.device == name)
        train = chosen & ~test
        if train.any():
            found.append(rows.errors(rows.fit(train), test))
    return float(np.concatenate(found).mean()) if found else float("nan")


def lines_of(rows: Rows) -> list[dict[str, str]]:
    """Return the lines of the table that are better than nothing on devices left out."""
    kinds = sorted({key[:2] for key in rows.keys})
    lines = []
    for kind, variant in kinds:
        ours = np.array([key[:2] == (kind, variant) for key in rows.keys])
        frameworks = sorted({key[2] for key in rows.keys if key[:2] == (kind, variant)})
        for framework in ("", *frameworks):
            chosen = ours & np.array([framework in ("", key[2]) for key in rows.keys])
            before, after = float(rows.errors(PowerMeter(), chosen).mean()), left_out(rows, chosen)
            meter = rows.fit(chosen)
            fitted = float(rows.errors(meter, chosen).mean())
            is_alone = np.isnan(after) and fitted < _FAR_BETTER * before
            if chosen.sum() < _FEWEST or not (after < before or is_alone):
                continue
            lines.append({
                "kind": kind, "variant": variant, "framework": framework,
                "activity": f"{meter.activity:g}", "settle_us": f"{meter.settle_s * 1e6:g}",
                "rows": str(int(chosen.sum())), "error_before": f"{before:.3f}",
                "error_left_out": "" if is_alone else f"{after:.3f}",
                "error_fitted": f"{fitted:.3f}",
            })  # fmt: skip
    return lines


def without_framework(rows: Rows) -> float:
    """Mean error where each framework is predicted with what others' benchmarks of a kind read."""
    found = []
    for kind, variant, framework in sorted(set(rows.keys)):
        ours = np.array([key[:2] == (kind, variant) for key in rows.keys])
        test = ours & np.array([key[2] == framework for key in rows.keys])
        train = ours & ~test
        found.append(rows.errors(rows.fit(train) if train.any() else PowerMeter(), test))
    return float(np.concatenate(found).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("tables", nargs="+")
    arguments = parser.parse_args()
    rows = Rows(priced(arguments.tables))
    lines = lines_of(rows)
    for line in lines:
        print(" ".join(f"{value or '-':>16}" for value in line.values()))
    print(f"each framework left out: {without_framework(rows):.3f}")
    if arguments.write:
        with (SHIPPED / FILE).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
