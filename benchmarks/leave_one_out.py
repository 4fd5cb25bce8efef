"""Leave each device out of a fit across devices: what is predicted of machines not measured.

    python benchmarks/leave_one_out.py attention [TABLE ...]

Tables are of measured kernels, plain or gzipped; by default the sample that ships. Of `attention`
the fixed time of a call (`study.validate.attention.START_S`) is fitted to the rows in bf16 of all
other devices, and all rows of the device are predicted with it. A fit minimises the mean absolute
logarithm of prediction over measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from ridgeline.study.validate import attention
from ridgeline.study.validate.device_rows import DeviceRow, device_rows, leave_one_out

_STARTS_S = np.arange(0.0, 25e-6, 0.25e-6)


def _logarithms(rows: Sequence[DeviceRow], start_s: float) -> np.ndarray:
    bare_s = np.array([row.predicted for row in rows]) - attention.START_S
    return np.log((bare_s + start_s) / np.array([row.measured for row in rows]))


def _fitted_s(rows: Sequence[DeviceRow]) -> float:
    ours = [row for row in rows if row.format.startswith("bf16") and "fp8" not in row.format]
    return float(min(_STARTS_S, key=lambda start_s: np.abs(_logarithms(ours, start_s)).mean()))


def _line(name: str, start_s: float, rows: Sequence[DeviceRow]) -> str:
    errors = np.abs(np.expm1(_logarithms(rows, start_s)))
    return (
        f"{name:24} {len(rows):6} {start_s * 1e6:9.2f} {100 * np.median(errors):8.1f}"
        f" {100 * errors.mean():8.1f}"
    )


def main() -> None:
    """Print the errors of each device, left out of the fit, and of all in the fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("suite", choices=["attention"])
    parser.add_argument("tables", nargs="*")
    asked = parser.parse_args()
    tables = asked.tables or [None]
    rows = [row for table in tables for row in device_rows(asked.suite, table)]
    print(f"{'left out':24} {'rows':>6} {'start us':>9} {'median %':>8} {'mean %':>8}")
    for device, known, left_out in leave_one_out(rows, lambda row: row.device):
        print(_line(device, _fitted_s(known), left_out))
    print(_line("none (fitted to all)", _fitted_s(rows), rows))
    print(_line("none (as shipped)", attention.START_S, rows))


if __name__ == "__main__":
    main()
