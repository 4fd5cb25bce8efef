"""Fixed times of frameworks' calls, by suite and number format: `data/call_starts.csv`.

Serving frameworks put short kernels around the ones that do the work: they plan blocks, clear
counters, find scales, put partial results together. What these take on the device whatever the
shape is (``start_us``) is fitted across devices to measured calls, as is what the host takes to
launch an op of eager PyTorch, over what it takes for an elementwise function (``launches``).
`benchmarks/leave_one_out.py` fits them, and says what each device's rows get without that device:
`error_left_out`, the mean over rows, beside what it was with nothing added. Formats for which that
is no better (fp8 and fp8-block of `gemm`) are not in the table; those of one device have none.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED

FILE = "call_starts.csv"


class CallStart(NamedTuple):
    """What a call takes besides its ops.

    Attributes
    ----------
    device_s
        Time on the device.
    launches
        Time of the host to launch it, in launches of elementwise functions.
    """

    device_s: float = 0.0
    launches: float = 1.0


NO_START = CallStart()


def call_start(suite: str, format_: str) -> CallStart:
    """Return the fixed time of a suite's calls in a format; of the suite where none is stated."""
    table = _table()
    return table.get((suite, format_), table.get((suite, ""), NO_START))


@cache
def _table() -> dict[tuple[str, str], CallStart]:
    return {
        (row["suite"], row["format"]): CallStart(
            float(row["start_us"]) * 1e-6, float(row["launches"])
        )
        for _, row in read_csv(SHIPPED / FILE, MAX_BYTES)
    }
