"""What frameworks' calls take besides their kernels: `data/call_starts.csv`.

Serving frameworks put short kernels around the ones that do the work: they plan blocks, clear
counters, find scales, put partial results together. What these take on the device whatever the
shape is (``start_us``) is fitted across devices to measured calls, and where a framework's kernels
are slower or faster than those that devices were calibrated with, so is the ratio
(``slowdown``). A call that is not recorded in a CUDA graph takes at least what the host takes to
launch it (``host_us``). Lines without a kernel are of all kernels of the framework that have none
of their own; ``kernel@library`` are those of one generation of devices (`Engine.library`), since
frameworks choose kernels by it; those of a framework with its version are of this one, where it
calls what others do not. Hosts of some devices launch more slowly than others
(`HOST_SLOWDOWN`). ``launches`` is what the host takes to launch an op of eager PyTorch, over what
it takes for an elementwise function. `benchmarks/leave_one_out.py` fits them, and says what each
device's rows get without that device: ``error_left_out``, the mean over rows, beside what it was
before. A framework, or a variant, for which that is no better has no line.
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
    slowdown
        Time of the framework's kernels over that of its ops.
    launches
        Time of the host to launch it, in launches of elementwise functions.
    host_s
        The least time between two calls, since the host launches them one by one.
    """

    device_s: float = 0.0
    slowdown: float = 1.0
    launches: float = 1.0
    host_s: float = 0.0

    def call_s(self, kernels_s: float, device: str = "") -> float:
        """Time on the device of a call whose ops take so long."""
        host_s = self.host_s * HOST_SLOWDOWN.get(device, 1.0)
        return max(host_s, self.slowdown * kernels_s + self.device_s)


NO_START = CallStart()


HOST_SLOWDOWN = {"gb200": 1.65, "gb300": 1.65, "gh200-96gb": 1.65, "l40s": 2.06}
"""What a host launches kernels in, over that of an x86 server: boards beside a Grace processor.

Of three kernels of vLLM in 8 bits that wait for the host, a GB200's medians are 1.70, 1.79 and 1.80
times a B200's (aiconfigurator), their least times 1.63, 1.65, 1.69. The others are assumed so. The
host of the L40S: its median of short block-scaled products of vLLM is 350 us, where boards beside
x86 servers of its table take 170."""


def call_start(
    suite: str,
    variant: str,
    framework: str = "",
    kernel: str = "",
    library: str = "",
    version: str = "",
) -> CallStart:
    """Return what a framework's call of a kernel takes besides its ops.

    Of all kernels of the framework where none is stated of this one, of all frameworks where none
    is of it, of the suite where none is of the variant: the number format, or the part of a layer.
    """
    table = _table()
    if version and (start := table.get((suite, variant, f"{framework} {version}", kernel))):
        return start
    if library and (start := table.get((suite, variant, framework, f"{kernel}@{library}"))):
        return start
    known = (suite, variant, framework, kernel)
    for told in range(4, 0, -1):
        key = (*known[:told], *("",) * (4 - told))
        if key in table:
            return table[key]
    return NO_START


@cache
def _table() -> dict[tuple[str, ...], CallStart]:
    return {
        (row["suite"], row["variant"], row["framework"], row["kernel"]): CallStart(
            float(row["start_us"]) * 1e-6,
            float(row["slowdown"]),
            float(row["launches"]),
            float(row["host_us"]) * 1e-6,
        )
        for _, row in read_csv(SHIPPED / FILE, MAX_BYTES)
    }
