"""Leave each device out of a fit across devices: what is predicted of machines not measured.

    python benchmarks/leave_one_out.py SUITE [TABLE ...]

Tables are of measured calls, plain or gzipped; by default the sample that ships. Of each format the
fixed time of a call (`study.validate.call_starts`) is fitted to the rows of all other devices, and
the rows of the device are predicted with it: device time of serving frameworks' calls, launches of
the host of eager PyTorch's. Of attention one time is fitted to calls in bf16 alone. A fit minimises
the mean absolute logarithm of prediction over measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ridgeline.study.validate import attention, gemm, measured, moe, norm, softmax
from ridgeline.study.validate.call_starts import call_start
from ridgeline.study.validate.measured import PricedRow
from ridgeline.study.validate.rows import SHIPPED, read_rows

_SUITES = {"attention": attention, "gemm": gemm, "moe": moe, "norm": norm, "softmax": softmax}
_ONE_START = {"attention"}
_BY_HOST = {"norm", "softmax"}
_STARTS = np.arange(0.0, 60e-6, 0.5e-6)
_LAUNCHES = np.arange(0.0, 4.0, 0.05)


class _Fit:
    """Rows of one suite and the fixed time that is added to each."""

    def __init__(self, suite: str) -> None:
        self.suite, self.by_host = suite, suite in _BY_HOST
        self.tried = _LAUNCHES if self.by_host else _STARTS

    def errors(self, rows: Sequence[PricedRow], start: float) -> np.ndarray:
        bare_s = np.array([row.price.time_s for row in rows])
        host_s = np.array([measured.host_launch_s(row.row) for row in rows])
        predicted = bare_s + (start * host_s if self.by_host else start + host_s)
        return predicted / np.array([row.row.number("time_us") * 1e-6 for row in rows]) - 1

    def best(self, rows: Sequence[PricedRow]) -> float:
        if self.suite in _ONE_START:
            rows = [row for row in rows if "fp8" not in row.call.format]
        found = [np.abs(np.log1p(self.errors(rows, start))).mean() for start in self.tried]
        return float(self.tried[int(np.argmin(found))])

    def shipped(self, format_: str) -> float:
        start = call_start(self.suite, format_)
        return start.launches if self.by_host else start.device_s

    def show(self, start: float) -> str:
        return f"{start:6.2f} launches" if self.by_host else f"{start * 1e6:6.1f} us"


def _words(errors: np.ndarray) -> str:
    size = np.abs(errors)
    return f"{100 * np.median(size):7.1f} {100 * size.mean():7.1f} {100 * np.median(errors):+7.1f}"


def main() -> None:
    """Print the errors of each device, left out of the fit, and of all in the fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=sorted(_SUITES))
    parser.add_argument("tables", nargs="*", type=Path)
    asked = parser.parse_args()
    suite, fit = _SUITES[asked.suite], _Fit(asked.suite)
    samples = [suite.SHIPPED, *getattr(suite, "SAMPLES", ())]
    tables = asked.tables or [SHIPPED / name for name in samples if name.startswith("measured")]
    made = [row for path in tables for row in measured.priced(read_rows(path), suite.call)]
    rows = [row for row in made if isinstance(row, PricedRow)]
    one = fit.suite in _ONE_START
    print(f"{'format, device left out':40} rows  start   median %, mean %, bias %")
    for format_ in [""] if one else sorted({row.call.format for row in rows}):
        ours = [row for row in rows if one or row.call.format == format_]
        left_out = []
        for device in sorted({row.device for row in ours}):
            known = [row for row in ours if row.device != device]
            if not known:
                continue
            start = fit.best(known)
            left_out.append(fit.errors([row for row in ours if row.device == device], start))
            name = f"{format_} {device}"
            print(f"  {name:38} {len(left_out[-1]):5} {fit.show(start)} {_words(left_out[-1])}")
        for name, start in (
            ("nothing added", 1.0 if fit.by_host else 0.0),
            ("fitted to all", fit.best(ours)),
            ("as shipped", fit.shipped(format_)),
        ):
            print(f"{format_ + ' ' + name:40} {len(ours):5} {fit.show(start)} ", end="")
            print(_words(fit.errors(ours, start)))
        if left_out:
            print(f"{format_ + ' each device left out':40} {len(ours):5} ", end="")
            print(" " * 9, _words(np.concatenate(left_out)))


if __name__ == "__main__":
    main()
