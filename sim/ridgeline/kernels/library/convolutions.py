"""Convolutions of cuDNN in fp32: the fastest of what a library has for 3 x 3 filters.

As one product whose columns are gathered on the way (implicit GEMM); by Winograd's
F(2 x 2, 3 x 3) in one kernel, with 16 multiplications for 4 outputs instead of 36; by
F(4 x 4, 3 x 3) in three, with 36 for 16 instead of 144, whose transformed images and results pass
memory (Lavin and Gray, 2015, arXiv:1509.09308). Each is cut into tiles that the processors take in
waves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.kernels.library.kernel_model import (
    Constant,
    DiscreteConstant,
    Floats,
    KernelModel,
    Work,
)
from ridgeline.workload.graph import Conv

_SIDE = 3
_HEIGHT = 128  # outputs of a tile
_WIDTHS = (32, 64, 128)  # filters of a tile
_SUM_STEP = 8  # channels that a kernel multiplies at a time
_POINTS, _OUTPUTS = 36, 4  # of F(4 x 4, 3 x 3): multiplications of a tile, outputs along a side
_FUSED_POINTS, _FUSED_OUTPUTS = 16, 2
_BYTES = 4


def convolution_work(loops: Conv) -> dict[str, float]:
    """Return the work of a forward pass."""
    plain = (loops.r, loops.s, loops.taps) == (_SIDE, _SIDE, 1)
    return {
        "images": float(loops.batch),
        "c_in": float(loops.c_in / loops.groups),
        "c_out": float(loops.c_out),
        "height_out": float(loops.h_out),
        "width_out": float(loops.w_out),
        "filter": float(loops.r * loops.s * loops.taps),
        "winograd": float(plain and loops.stride == loops.dilation == (1, 1) and loops.groups == 1),
        "moved": float(
            _BYTES * loops.batch
            * (loops.c_in * loops.h_in * loops.w_in + loops.c_out * loops.h_out * loops.w_out)
            + _BYTES * loops.c_out * loops.c_in * loops.r * loops.s
        ),
    }  # fmt: skip


def _patches(work: Work, choices: Mapping[str, float]) -> Work:
    """Count the patches of images that Winograd's kernels transform, whole ones."""

    def of(side: int) -> Floats:
        return (
            work["images"]
            * np.ceil(work["height_out"] / side)
            * np.ceil(work["width_out"] / side)
        )  # fmt: skip

    return {
        **work,
        "fused_patches": of(_FUSED_OUTPUTS),
        "patches": of(_OUTPUTS),
        "fused_tile": np.full(len(work["images"]), choices["fused_tile"]),
        "fused_width": np.full(len(work["images"]), choices["fused_width"]),
    }


def _convolution_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    processor = work["vector_flop_s"] / work["processors"]
    far = work["far_bps"] * x["far_share"]
    ends = x["block_cycles"] / work["clock"]
    least = work["moved"] / far

    def waved(blocks: Floats, block_s: Floats) -> Floats:
        waves = blocks / work["processors"]
        filled = np.ceil(waves) / waves
        return waves * block_s * (1 + x["tail"] * (filled - 1))

    def product(rows: Floats, length: Floats, count: Floats | float, share: Floats) -> Floats:
        found: Floats | None = None
        for width in _WIDTHS:
            rate = processor * share * (width / _WIDTHS[-1]) ** x["narrow"]
            block = 2 * _HEIGHT * width * np.ceil(length / _SUM_STEP) * _SUM_STEP / rate + ends
            blocks = count * np.ceil(rows / _HEIGHT) * np.ceil(work["c_out"] / width)
            taken = waved(blocks, block)
            found = taken if found is None else np.minimum(found, taken)
        assert found is not None
        return found

    outputs = work["images"] * work["height_out"] * work["width_out"]
    gathered = product(outputs, work["c_in"] * work["filter"], 1.0, x["gathered_share"])
    gathered = np.maximum(gathered, least)
    sums = np.ceil(work["c_in"] / _SUM_STEP) * _SUM_STEP
    block = 2 * _FUSED_POINTS * work["fused_tile"] * work["fused_width"] * sums
    block = block / (processor * x["fused_share"]) + ends
    blocks = np.ceil(work["fused_patches"] / work["fused_tile"])
    blocks = blocks * np.ceil(work["c_out"] / work["fused_width"])
    fused = np.maximum(waved(blocks, block), least)
    transformed = _BYTES * _POINTS * work["patches"] * (work["c_in"] + work["c_out"])
    filters = _BYTES * _POINTS * work["c_in"] * work["c_out"]
    apart = product(work["patches"], work["c_in"], float(_POINTS), x["apart_share"])
    apart = np.maximum(apart, (transformed + filters) / far)
    apart = apart + (transformed + filters + work["moved"]) / far + x["apart_us"] * 1e-6
    by_winograd = np.minimum(fused, apart)
    return np.where(work["winograd"] > 0, np.minimum(gathered, by_winograd), gathered)


CONVOLUTION = KernelModel(
    "convolution",
    (
        Constant("gathered_share", 0.2, 1.0, 0.8),
        Constant("fused_share", 0.2, 1.0, 0.7),
        Constant("apart_share", 0.2, 1.0, 0.8),
        Constant("narrow", 0.0, 1.0, 0.2),
        Constant("block_cycles", 0.0, 30e3, 2e3),
        Constant("tail", 0.0, 1.0, 0.7),
        Constant("far_share", 0.3, 1.0, 0.8),
        Constant("apart_us", 0.0, 100.0, 5.0),
    ),
    (
        DiscreteConstant("fused_tile", (32, 64, 16, 128)),
        DiscreteConstant("fused_width", (64, 32, 128)),
    ),
    _patches,
    _convolution_s,
)
