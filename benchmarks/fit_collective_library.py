"""Fit what protocols of NCCL's rings take on a link, each machine left out in turn.

``python benchmarks/fit_collective_library.py TABLE`` reads a table of measured collectives (columns
of ``validate collectives``: device_key, library, op, ranks, nodes, bytes, time_us, ...) and prints
the constants of LL and Simple for every device, with the mean error on its own rows, and the error
of the constants of all other devices. The node files carry the constants, rounded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ridgeline.study.csv_file import read_csv

Floats = npt.NDArray[np.float64]
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
CHANNELS, CHANNEL_BYTES = 24, 512
SMALL, LARGE = 2**19, 2**22
"""Up to where all rows are taken as LL, and from where as Simple."""


def rows_of(path: Path) -> dict[str, Floats]:
    """Return [N, (passes, ranks, bytes, us)] of the rings of one node, by device."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for _, row in read_csv(path, 2**28):
        passes = PASSES.get(row["op"])
        own = row["library"] == "NCCL" and "CUDA" not in row["note"]
        if passes and own and row["nodes"] == "1":
            if row["framework"] != "nccl" or (row["op"] == "all_reduce" and row["ranks"] == "8"):
                continue  # profiled with the host, or added up in switches
            values = (passes, float(row["ranks"]), float(row["bytes"]), float(row["time_us"]))
            found.setdefault(row["device_key"], []).append(values)
    return {device: np.array(values) for device, values in found.items()}


def terms(rows: Floats, *, small: bool) -> Floats:
    """Return [N, 5] start, hops, doublings of channels (or none), MB sent and MB copied."""
    passes, n, size, _ = rows.T
    spread = np.log2(np.clip(size / n / CHANNEL_BYTES, 1, CHANNELS)) if small else 0 * n
    wire, own = passes * (n - 1) / n * size / 1e6, size / n / 1e6
    return np.stack((np.ones(len(n)), passes * (n - 1), spread, wire, own), axis=1)


def fitted(parts: Floats, measured: Floats) -> Floats:
    """Return the factors with the least mean of absolute relative errors."""
    weighted, weight = parts / measured[:, None], np.ones(len(measured))
    for _ in range(100):
        factors: Floats = np.linalg.lstsq(weighted * weight[:, None], weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(np.abs(weighted @ factors - 1), 1e-6))
    return factors


def main(path: Path) -> None:
    """Print the constants and the errors."""
    devices = rows_of(path)
    print(f"{'device':18} {'protocol':8} {'rows':>5}  start us, hop us, spread us, us/MB, copied"
          "   own error, left out")  # fmt: skip
    for small in (True, False):
        chosen = {
            device: rows[rows[:, 2] <= SMALL if small else rows[:, 2] >= LARGE]
            for device, rows in devices.items()
        }
        for device, rows in chosen.items():
            parts = terms(rows, small=small)
            factors = fitted(parts, rows[:, 3])
            error = np.abs(parts @ factors / rows[:, 3] - 1).mean()
            others = np.concatenate([r for d, r in chosen.items() if d != device] or [rows])
            apart = fitted(terms(others, small=small), others[:, 3])
            left = np.abs(parts @ apart / rows[:, 3] - 1).mean()
            print(f"{device:18} {'LL' if small else 'Simple':8} {len(rows):5}  "
                  f"{np.array2string(factors, precision=3)}   {error:.1%}, {left:.1%}")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
