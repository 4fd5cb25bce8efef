"""How the board power of a repeated call is read: `data/power_meters.csv`.

A benchmark samples the board's power meter while one call repeats. Two things stand between the
power of the call and its reading:

- The meter averages over time (NVML: over the last second on most boards since Ampere), and begins
  with what the board drew before. A benchmark that repeats a call a number of times, not for a
  time, is over before the meter has settled where the call is short: of the rise above idle power,
  the share ``time / (time + settle_us)`` is read.
- Data decide how many wires toggle (Gregersen et al., "Input-dependent power usage in GPUs",
  arXiv:2409.18324). Weights that a benchmark leaves as the allocator gave them are often zeros:
  ``activity`` is the energy of events over that with random data.

Both are properties of a benchmark, not of a device, and are fitted across devices to measured calls
by `benchmarks/kernel_power.py`, which says what each device's rows get without that device:
``error_left_out``, beside ``error_before`` with nothing fitted. Lines without a framework are of
all.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED

FILE = "power_meters.csv"


class PowerMeter(NamedTuple):
    """How a benchmark reads the power of a call.

    Attributes
    ----------
    activity
        Energy of the call's events over that with random data.
    settle_s
        Time of a call of which half the rise above idle power is read.
    """

    activity: float = 1.0
    settle_s: float = 0.0

    def read_w(
        self, events_j: float, time_s: float, idle_w: float, limit_w: float | None = None
    ) -> float:
        """Mean reading while a call of this time and energy of events repeats."""
        most_w = math.inf if limit_w is None else limit_w
        rise_w = min(self.activity * events_j / time_s, most_w - idle_w)
        return min(most_w, idle_w + rise_w * time_s / (time_s + self.settle_s))  # to the last bit


NO_METER = PowerMeter()


def power_meter(kind: str, variant: str, framework: str) -> PowerMeter:
    """Return how a framework's benchmark of a kind of call reads power.

    Of all frameworks where none is stated of this one, of the kind where none is of the variant.
    """
    table = _table()
    for key in (
        (kind, variant, framework),
        (kind, "", framework),
        (kind, variant, ""),
        (kind, "", ""),
    ):
        if key in table:
            return table[key]
    return NO_METER


@cache
def _table() -> dict[tuple[str, str, str], PowerMeter]:
    return {
        (row["kind"], row["variant"], row["framework"]): PowerMeter(
            float(row["activity"]), float(row["settle_us"]) * 1e-6
        )
        for _, row in read_csv(SHIPPED / FILE, MAX_BYTES)
    }
