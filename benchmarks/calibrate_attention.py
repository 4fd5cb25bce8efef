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
from pathlib import Path

import numpy as np

FEATURES, TILE = 128, 128
PEAK_FLOP_PER_S = {"b200": 2250e12, "gb200": 2500e12, "gb300": 2500e12}
ALONE = {"gb200"}
PRODUCTS = {"forward": 2, "backward": 5}


def main() -> None:
    """Print share, tiles, fixed time and residuals of every device and pass."""
    path = Path(__file__).parent / "data" / "attention_blackwell.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for device, peak in PEAK_FLOP_PER_S.items():
        mine = [row for row in rows if row["device"] == device]
        positions = np.array([float(row["positions"]) for row in mine])
        heads = np.array([float(row["heads"]) for row in mine])
        met = (positions / TILE + 1) / 2
        for name, products in PRODUCTS.items():
            time_s = np.array([float(row[f"{name}_ms"]) for row in mine]) / 1e3
            flops = 2 * products * heads * FEATURES * positions * met * TILE
            fixed = np.zeros_like(flops) if device in ALONE else np.ones_like(flops)
            terms = np.stack([fixed, flops, flops / met], axis=1)
            fit, *_ = np.linalg.lstsq(terms / time_s[:, None], np.ones(len(mine)), rcond=None)
            share, tiles = 1 / fit[1] / peak, fit[2] / fit[1]
            residuals = ", ".join(f"{r:+.0f}" for r in 100 * (terms @ fit / time_s - 1))
            print(f"{device} {name}: {share:.2f} of the peak, {tiles:.1f} tiles,")
            print(f"    {fit[0] * 1e6:.0f} us a call; residuals {residuals} %")


if __name__ == "__main__":
    main()
