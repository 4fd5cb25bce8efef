"""Fused experts of libraries: two grouped products over the tokens of each expert.

Every expert has its own tiles of rows, so that its last one is filled up; the height of a tile is
chosen by the mean number of rows. A tile costs its product at a share of the processor's rate (less
where it is low), at least the weights that it reads; a product takes its waves of tiles, at least
the weights of all experts that have rows, once. Around the products, tokens are sorted by expert,
copied, quantised, passed through the activation and added up: bytes, and cycles for each row and
expert. Some versions go through the rows of experts that other ranks have as well (`other_tiles`,
`other_rows`: shares of them), and some were measured with all choices of the tokens that reach a
rank (`whole_tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.kernels.library.kernel_model import (
    Constant,
    DiscreteConstant,
    Floats,
    KernelModel,
    Work,
)

HEIGHTS = (8, 16, 32, 64, 128, 256)
_FULL_HEIGHT = 128
_WIDE_BYTES = 2  # of a number between the ops around the products
_NEAR_SHARE = 0.5  # of the last cache's bandwidth, by weights that stay there


def experts_work(
    counts: Sequence[int],
    *,
    tokens: int,
    top_k: int,
    own: int,
    hidden: int,
    inter: int,
    gated: bool,
    input_bytes: float,
    weight_bytes: float,
    quantises: bool,
) -> dict[str, float]:
    """Return the work of the experts of one rank.

    Parameters
    ----------
    counts
        Rows of every expert of the rank that has any.
    own
        Experts of the rank.
    tokens, top_k
        Of all ranks together.
    """
    rows = np.asarray(counts, np.float64)
    more = min(rows.sum(), tokens) * top_k / rows.sum()
    return {
        "tokens": float(tokens),
        "rows": float(rows.sum()),
        "other": float(max(0.0, tokens * top_k - rows.sum())),
        "active": float(len(rows)),
        "own": float(own),
        "hidden": float(hidden),
        "inter": float(inter),
        "gates": 2.0 if gated else 1.0,
        "input_bytes": input_bytes,
        "weight_bytes": weight_bytes,
        "quantises": float(quantises),
        "whole_rows": float(max(rows.sum(), more * rows.sum())),
        **{f"tiles_{height}": float(np.ceil(rows / height).sum()) for height in HEIGHTS},
        **{
            f"whole_tiles_{height}": float(np.ceil(max(1.0, more) * rows / height).sum())
            for height in HEIGHTS
        },
    }


def _grouped(work: Work, choices: Mapping[str, float]) -> Work:
    """Choose the height of tiles, and count them."""
    before = "whole_" if choices["whole_tokens"] else ""
    rows = work[f"{before}rows"]
    mean = np.maximum(rows / work["active"] * choices["height_for"], 1)
    height = 2.0 ** np.ceil(np.log2(mean))
    height = np.clip(height, choices["least_height"], choices["most_height"])
    which = np.searchsorted(HEIGHTS, height)
    tiles = np.choose(which, [work[f"{before}tiles_{each}"] for each in HEIGHTS])
    width = np.full_like(height, choices["width"])
    fused = np.full_like(height, choices["fused_activation"])
    other = np.maximum(0.0, work["other"] - (rows - work["rows"]))
    return {
        **work,
        "rows": rows,
        "other": other,
        "height": height,
        "tiles": tiles,
        "width": width,
        "fused": fused,
    }


def _experts_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    clock, processors = work["clock"], work["processors"]
    low = (work["height"] / _FULL_HEIGHT) ** x["low_tiles"]
    rate = work["flop_s"] / processors * x["share"] * low
    tiles = work["tiles"] + x["other_tiles"] * work["other"] / work["height"]
    passed = work["rows"] + x["other_rows"] * work["other"]
    wide = work["inter"] * work["gates"]
    products: Floats | float = 0.0
    for n, k in ((wide, work["hidden"]), (work["hidden"], work["inter"])):
        blocks = tiles * np.ceil(n / work["width"])
        read = work["width"] * k * work["weight_bytes"] / (x["bytes_per_cycle"] * clock)
        block = 2 * work["height"] * work["width"] * k / rate
        block = np.maximum(block, read) + x["block_cycles"] / clock
        filled = np.ceil(blocks / processors) * processors / np.maximum(blocks, 1)
        waves = np.where(blocks <= processors, 1, blocks / processors * (1 + filled) / 2)
        weights = work["active"] * n * k * work["weight_bytes"]
        moved = weights + work["rows"] * (n * _WIDE_BYTES + k * work["input_bytes"])
        stays = weights < x["near_kept"] * work["near_bytes"]
        near, far = work["near_bps"] * _NEAR_SHARE, work["far_bps"] * x["far_share"]
        products = products + np.maximum(
            waves * block, moved / np.where(stays, np.maximum(near, far), far)
        )
    copied = work["input_bytes"] + _WIDE_BYTES
    around = work["tokens"] * work["hidden"]
    around = around * (_WIDE_BYTES + work["quantises"] * work["input_bytes"])
    around = around + passed * work["hidden"] * copied
    apart = (1 - work["fused"]) * (wide + work["inter"]) * _WIDE_BYTES
    again = work["quantises"] * work["inter"] * (_WIDE_BYTES + 1)
    around = around + passed * (apart + again)
    sorted_ = passed * x["row_cycles"] / (processors * clock) + x["expert_ns"] * 1e-9 * work["own"]
    return products + around / (work["far_bps"] * x["around_share"]) + sorted_


EXPERTS = KernelModel(
    "experts",
    (
        Constant("share", 0.05, 1.0, 0.6),
        Constant("low_tiles", 0.0, 1.0, 0.3),
        Constant("block_cycles", 0.0, 30e3, 3e3),
        Constant("bytes_per_cycle", 4.0, 200.0, 60.0),
        Constant("far_share", 0.2, 1.0, 0.8),
        Constant("near_kept", 0.0, 1.0, 0.3),
        Constant("around_share", 0.05, 1.0, 0.5),
        Constant("row_cycles", 0.0, 1.5e3, 100.0),
        Constant("expert_ns", 0.0, 300.0, 1.0),
        Constant("other_tiles", 0.0, 1.0, 0.02),
        Constant("other_rows", 0.0, 1.0, 0.1),
    ),
    (
        DiscreteConstant("width", (128, 64, 256)),
        DiscreteConstant("least_height", (16, 8, 64, 128)),
        DiscreteConstant("most_height", (128, 64, 256)),
        DiscreteConstant("height_for", (1, 2, 0.5)),
        DiscreteConstant("fused_activation", (0, 1)),
        DiscreteConstant("whole_tokens", (0, 1)),
    ),
    _grouped,
    _experts_s,
)
