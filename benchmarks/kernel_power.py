"""Fit how benchmarks read the power of kernels, with each device and each framework left out.

    python benchmarks/kernel_power.py [--write] TABLE ...

Tables are of measured calls with power (columns ``power_w``, ``board_limit_w``). For each kind of
call `study.validate.power_meter` has the power of busy processors; for each variant and framework,
an activity and a settling time; of products also by rows, where a benchmark that goes from many
rows to few begins with memory that nobody has written. All are fitted to the rows of all devices
but one, each of which weighs as much as another, and the rows of that device are predicted with
them. Lines that are no better there than nothing are not kept, and rows are told apart where that
is better there by a twentieth; a line of one device alone is kept if it halves the error.
``--write`` puts the lines, fitted to all devices, into the table that ships.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.validate import kernel_power, measured
from ridgeline.study.validate.measured import PricedRow
from ridgeline.study.validate.power_meter import FILE, PowerMeter
from ridgeline.study.validate.rows import SHIPPED, MeasuredRow, read_rows

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_ACTIVITIES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
_SETTLES = (0, 1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450)
_BUSY = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_FIRST_ROWS = (4097, 8193, 16385)
_FEWEST = 12  # rows of a line
_BETTER = 0.95  # where rows are told apart
_FAR_BETTER = 0.5  # of a line that no device could be left out of
FIELDS = ("kind", "variant", "framework", "rows", "busy", "activity", "settle_us", "calls",
          "error_before", "error_left_out", "error_fitted")  # fmt: skip


class Calls:
    """Calls as arrays: events in J, time in s, idle and limit in W, and what was read."""

    def __init__(self, made: Sequence[PricedRow]) -> None:
        machine = [one.machine for one in made]
        self.events_j = np.array([one.events_j for one in made])
        self.time_s = np.array([one.device_s for one in made])
        self.idle_w = np.array([device.idle_power.value for device in machine])
        self.limit_w = np.array([_limit(one) for one in made])
        self.read_w = np.array([float(one.row.values["power_w"]) for one in made])
        self.device = np.array([one.device for one in made])
        keys = [kernel_power.meter_key(one) for one in made]
        self.kind, self.variant, self.framework = (
            np.array([key[i] for key in keys]) for i in range(3)
        )
        self.rows = np.array([key[3] for key in keys])

    def errors(self, meter: PowerMeter, chosen: Mask) -> Floats:
        """Absolute relative errors of some calls, as `PowerMeter.read_w` has it of one."""
        room_w = self.limit_w[chosen] - self.idle_w[chosen]
        time_s = self.time_s[chosen]
        rise_w = meter.activity * self.events_j[chosen] / time_s + meter.busy * room_w
        read_w = self.idle_w[chosen] + np.minimum(rise_w, room_w) * time_s / (
            time_s + meter.settle_s
        )
        return np.asarray(np.abs(read_w / self.read_w[chosen] - 1.0))


@dataclass(frozen=True)
class Line:
    """Calls that one line of the table is for, and the errors of every meter that is tried."""

    calls: Calls
    chosen: Mask
    busy: float

    @cached_property
    def meters(self) -> list[PowerMeter]:
        return [PowerMeter(a, us * 1e-6, self.busy) for a in _ACTIVITIES for us in _SETTLES]

    @cached_property
    def errors(self) -> Floats:
        """[meters, calls]."""
        return np.array([self.calls.errors(meter, self.chosen) for meter in self.meters])

    @property
    def devices(self) -> NDArray[np.str_]:
        return self.calls.device[self.chosen]

    def fit(self, but: str = "") -> int:
        """Return which meter has the least mean error, each device with the same weight."""
        devices = self.devices
        counts = {name: float(np.sum(devices == name)) for name in np.unique(devices)}
        weights = np.array([0.0 if name == but else 1.0 / counts[name] for name in devices])
        return int(np.argmin(self.errors @ weights))

    def left_out(self, device: str) -> Floats:
        """Errors of a device's calls with the others' meter; none where there are no others."""
        ours = self.devices == device
        if ours.all() or not ours.any():
            return np.zeros(0)
        return np.asarray(self.errors[self.fit(device)][ours])

    @property
    def each_left_out(self) -> Floats:
        return np.concatenate([self.left_out(name) for name in np.unique(self.devices)])


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


def lines_of(calls: Calls, kind: str, busy: float) -> list[tuple[tuple[str, str], Mask]]:
    """Return the calls of each variant and framework of a kind, and of each variant."""
    ours = calls.kind == kind
    found = []
    for variant in sorted(set(calls.variant[ours])):
        of_variant = ours & (calls.variant == variant)
        frameworks = sorted(set(calls.framework[of_variant]))
        found += [((variant, ""), of_variant)]
        found += [((variant, name), of_variant & (calls.framework == name)) for name in frameworks]
    return found


def told_apart(calls: Calls, chosen: Mask, busy: float) -> list[tuple[int, Mask]]:
    """Divide the calls of a line by their rows, where that is better on devices left out."""
    best = [(0, chosen)]
    least = _BETTER * _mean(Line(calls, chosen, busy).each_left_out)
    for rows in _FIRST_ROWS:
        first = chosen & (calls.rows >= rows)
        rest = chosen & ~first
        if min(first.sum(), rest.sum()) < _FEWEST:
            continue
        error = _mean(
            np.concatenate([Line(calls, part, busy).each_left_out for part in (first, rest)])
        )
        if error < least:
            best, least = [(0, rest), (rows, first)], error
    return best


def _mean(errors: Floats) -> float:
    return float(errors.mean()) if errors.size else float("nan")


def busy_of(calls: Calls, kind: str, but: str = "") -> float:
    """Return the power of busy processors of a kind with which its lines have the least error."""

    def error(busy: float) -> float:
        found = 0.0
        for (_, framework), chosen in lines_of(calls, kind, busy):
            kept = chosen & (calls.device != but)
            if framework and kept.any():
                line = Line(calls, kept, busy)
                found += float(line.errors[line.fit()].sum())
        return found

    return min(_BUSY, key=error)


def table_of(calls: Calls) -> list[dict[str, str]]:
    """Return the lines of the table that are better than nothing on devices left out."""
    table = []
    for kind in sorted(set(calls.kind)):
        busy = busy_of(calls, kind)
        but = {name: busy_of(calls, kind, name) for name in np.unique(calls.device)}
        for (variant, framework), chosen in lines_of(calls, kind, busy):
            for rows, part in told_apart(calls, chosen, busy):
                before = calls.errors(PowerMeter(), part)
                line = Line(calls, part, busy)
                left_out = np.concatenate(
                    [Line(calls, part, value).left_out(name) for name, value in but.items()]
                )
                fit = line.fit()
                fitted = _mean(line.errors[fit])
                is_alone = not left_out.size and fitted < _FAR_BETTER * _mean(before)
                if part.sum() < _FEWEST or not (_mean(left_out) < _mean(before) or is_alone):
                    continue
                meter = line.meters[fit]
                table.append(dict(zip(FIELDS, (
                    kind, variant, framework, str(rows), f"{meter.busy:g}", f"{meter.activity:g}",
                    f"{meter.settle_s * 1e6:g}", str(int(part.sum())), f"{_mean(before):.3f}",
                    "" if is_alone else f"{_mean(left_out):.3f}", f"{fitted:.3f}",
                ), strict=True)))  # fmt: skip
    return table


def without_framework(calls: Calls) -> float:
    """Mean error where each framework is predicted with what others' benchmarks of a kind read."""
    found = []
    for kind in sorted(set(calls.kind)):
        busy = busy_of(calls, kind)
        for (variant, framework), test in lines_of(calls, kind, busy):
            if framework:
                train = (calls.kind == kind) & (calls.variant == variant) & ~test
                line = Line(calls, train, busy)
                meter = line.meters[line.fit()] if train.any() else PowerMeter()
                found.append(calls.errors(meter, test))
    return _mean(np.concatenate(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("tables", nargs="+")
    arguments = parser.parse_args()
    calls = Calls(priced(arguments.tables))
    lines = table_of(calls)
    for line in lines:
        print(" ".join(f"{value or '-':>16}" for value in line.values()))
    print(f"each framework left out: {without_framework(calls):.3f}")
    if arguments.write:
        with (SHIPPED / FILE).open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
