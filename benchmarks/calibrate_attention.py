"""What fused attention loses on short rows of keys, from sweeps over the length of sequences.

    python benchmarks/calibrate_attention.py

Causal attention with heads of 128 features by cuDNN (NVIDIA, cudnn-frontend, MIT licence,
benchmark/sdpa_benchmark_training, commit bb37575, artifacts, rows "pyt_cudnn" of B200 and GB300;
commit 9072c4e, results/gb200_918_only_cudnn, llama3.1, bfloat16, top_left). A call takes

    fixed + FLOPs / (share peak) (1 + tiles / n)

where n is how many tiles of 128 keys a row of tiles meets; the numbers are those with the least
relative residuals. Times of the GB200 are of the device alone: nothing is fixed. Prints what stands
in `ramp` of hwconfigs/devices/*.yaml.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEATURES, TILE = 128, 128
PEAK_FLOP_PER_S = {"b200": 2250e12, "gb200": 2500e12, "gb300": 2500e12}
ALONE = {"gb200"}
PRODUCTS = {"forward": 2, "backward": 5}


class Fit(NamedTuple):
    """One pass on one device: what is fitted, and predicted over measured, less 1, of each row."""

    share: float
    tiles: float
    fixed_s: float
    residuals: NDArray[np.float64]


def fits() -> dict[tuple[str, str], Fit]:
    """Return what fits the sweeps best, by device and pass."""
    path = Path(__file__).parent / "data" / "attention_blackwell.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (device, name): _fit([row for row in rows if row["device"] == device], device, name)
        for device in PEAK_FLOP_PER_S
        for name in PRODUCTS
    }


def _fit(rows: Sequence[Mapping[str, str]], device: str, name: str) -> Fit:
    positions = np.array([float(row["positions"]) for row in rows])
    heads = np.array([float(row["heads"]) for row in rows])
    time_s = np.array([float(row[f"{name}_ms"]) for row in rows]) / 1e3
    met = (positions / TILE + 1) / 2
    flops = 2 * PRODUCTS[name] * heads * FEATURES * positions * met * TILE
    fixed = np.zeros_like(flops) if device in ALONE else np.ones_like(flops)
    terms = np.stack([fixed, flops, flops / met], axis=1)
    each = terms / time_s[:, None]  # relative residuals
    (fixed_s, per_flop, per_tile), *_ = np.linalg.lstsq(each, np.ones(len(rows)), rcond=None)
    share = 1 / per_flop / PEAK_FLOP_PER_S[device]
    fitted = np.array([fixed_s, per_flop, per_tile])
    return Fit(share, per_tile / per_flop, fixed_s, each @ fitted - 1)


def main() -> None:
    """Print share, tiles, fixed time and residuals of every device and pass."""
    for (device, name), fit in fits().items():
        residuals = ", ".join(f"{100 * r:+.0f}" for r in fit.residuals)
        print(f"{device} {name}: {fit.share:.2f} of the peak, {fit.tiles:.1f} tiles,")
        print(f"    {fit.fixed_s * 1e6:.0f} us a call; residuals {residuals} %")


if __name__ == "__main__":
    main()
