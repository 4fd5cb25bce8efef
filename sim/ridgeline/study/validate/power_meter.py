"""How the board power of a repeated call is read: `data/power_meters.csv`.

A benchmark samples the board's power meter while one call repeats. Between the events of the call
and its reading stand:

- The meter averages over time (NVML: over the last second on most boards since Ampere), and begins
  with what the board drew before. A benchmark that repeats a call a number of times, not for a
  time, is over before the meter has settled where the call is short: of the rise above idle power,
  the share ``time / (time + settle_us)`` is read.
- Data decide how many wires toggle (Gregersen et al., "Input-dependent power usage in GPUs",
  arXiv:2409.18324). Weights that a benchmark leaves as the allocator gave them are often zeros:
  ``activity`` is the energy of events over that with random data. A benchmark that goes from many
  rows to few begins with memory that nobody has written yet: lines of products have the least
  ``rows`` of the activations that they are for.
- Processors that hold blocks of threads draw power besides the events that are counted: they fetch
  instructions, compute addresses, exchange and wait (Kandiah et al., "AccelWattch", MICRO 2021:
  power of active processors beside that of their instructions). ``busy`` is that power over what
  the board may draw above idle, by kind of call.

All are fitted across devices to measured calls by `benchmarks/kernel_power.py`, which says what
each device's rows get without that device: ``error_left_out``, beside ``error_before`` with nothing
fitted. Lines without a framework are of all.
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
    busy
        What busy processors draw besides events, over what the board may draw above idle power.
    """

    activity: float = 1.0
    settle_s: float = 0.0
    busy: float = 0.0

    def read_w(
        self, events_j: float, time_s: float, idle_w: float, limit_w: float | None = None
    ) -> float:
        """Mean reading while a call of this time and energy of events repeats.

        A board without a limit has no power of busy processors either.
        """
        most_w = math.inf if limit_w is None else limit_w
        rise_w = self.activity * events_j / time_s
        if limit_w is not None:
            rise_w = min(rise_w + self.busy * (limit_w - idle_w), limit_w - idle_w)
        return min(most_w, idle_w + rise_w * time_s / (time_s + self.settle_s))  # to the last bit


NO_METER = PowerMeter()


def power_meter(kind: str, variant: str, framework: str, rows: int = 0) -> PowerMeter:
    """Return how a framework's benchmark of a kind of call reads power.

    Of all frameworks where none is stated of this one, of the kind where none is of the variant; of
    these the line for the most `rows` that the call has.
    """
    table = _table()
    for key in (
        (kind, variant, framework),
        (kind, "", framework),
        (kind, variant, ""),
        (kind, "", ""),
    ):
        for least, meter in table.get(key, ()):  # from many rows to few
            if rows >= least:
                return meter
    return NO_METER


@cache
def _table() -> dict[tuple[str, str, str], list[tuple[int, PowerMeter]]]:
    found: dict[tuple[str, str, str], list[tuple[int, PowerMeter]]] = {}
    for _, row in read_csv(SHIPPED / FILE, MAX_BYTES):
        meter = PowerMeter(
            float(row["activity"]), float(row["settle_us"]) * 1e-6, float(row["busy"])
        )
        key = (row["kind"], row["variant"], row["framework"])
        found.setdefault(key, []).append((int(row["rows"]), meter))
    return {
        key: sorted(lines, key=lambda line: line[0], reverse=True) for key, lines in found.items()
    }
