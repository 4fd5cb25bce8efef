"""What fused attention loses on short rows of keys, from a sweep over the length of sequences.

    python benchmarks/calibrate_attention.py

Causal attention of 128 heads of 128 features on a B200 by cuDNN (NVIDIA, cudnn-frontend, MIT
licence, commit bb37575, benchmark/sdpa_benchmark_training/artifacts,
sdpa_bf16_benchmark_results_NVIDIA_B200.csv, rows "pyt_cudnn"). A call takes

    fixed + FLOPs / (share peak) (1 + tiles / n)

where n is how many tiles of 128 keys a row of tiles meets; the three numbers are those with the
least relative residuals. Prints what stands in `ramp` of hwconfigs/devices/b200.yaml.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HEADS, FEATURES, TILE = 128, 128, 128
PEAK_FLOP_PER_S = 2250e12
PRODUCTS = {"forward": 2, "backward": 5}


def main() -> None:
    """Print share, tiles, fixed time and residuals of both passes."""
    path = Path(__file__).parent / "data" / "attention_b200.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    positions = np.array([float(row["positions"]) for row in rows])
    met = (positions / TILE + 1) / 2
    for name, products in PRODUCTS.items():
        time_s = np.array([float(row[f"{name}_ms"]) for row in rows]) / 1e3
        flops = 2 * products * HEADS * FEATURES * positions * met * TILE
        terms = np.stack([np.ones_like(flops), flops, flops / met], axis=1)
        fit, *_ = np.linalg.lstsq(terms / time_s[:, None], np.ones(len(rows)), rcond=None)
        share, tiles = 1 / fit[1] / PEAK_FLOP_PER_S, fit[2] / fit[1]
        residuals = ", ".join(f"{100 * (p / t - 1):+.0f}" for p, t in zip(terms @ fit, time_s))
        print(f"{name}: {share:.2f} of the peak, {tiles:.1f} tiles, {fit[0] * 1e6:.0f} us a call;")
        print(f"    residuals {residuals} %")


if __name__ == "__main__":
    main()
