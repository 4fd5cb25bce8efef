"""Efficiency table: the row of a device's achievable shares that a contraction takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.hardware.device import Achievable, Device
from ridgeline.workload.graph import Conv, Gemm, Op, Pass
from ridgeline.workload.ops.attention import CHUNK, OFF_DIAGONAL, WINDOW
from ridgeline.workload.ops.cached_attention import CONTEXT
from ridgeline.workload.ops.state_space import STATE_SPACE

MEASURED = frozenset({"measured", "derived"})
"""Bases of a share that is the device's own."""
TRANSFORMED = "transformed"
"""Class of 3 x 3 filters as products of tiles that kernels of their own transform."""
_SIDE = 3  # of the smallest filter with fewer multiplications
_FUSED_ATTENTION = frozenset({"flash-attention", "latent-attention"})
_ATTENTION_TILE = 128  # keys that fused attention works on at a time (FlashAttention-2: 64 or 128)


class Keys(NamedTuple):
    """Tiles of keys of fused attention.

    Attributes
    ----------
    met
        That a row of tiles of scores computes, on average.
    columns
        That there are.
    """

    met: float
    columns: int


def keys_of(op: Op) -> Keys:
    """Return the tiles of keys of fused attention: none that a causal mask hides is computed.

    Of `t` columns of tiles a row of tiles at place i needs i, so (t + 1) / 2 on average (Dao,
    FlashAttention-2, 2023, arXiv:2307.08691, Section 3.1, "causal masking"). Where positions lie in
    a zig-zag, tiles off the diagonal are hidden whole: half of them. A window of keys leaves the
    tiles that it touches: its own length in tiles, and the one on the diagonal. Chunks are short
    causal masks one after the other.
    """
    assert isinstance(op.loops, Gemm)
    tiles = math.ceil(op.loops.n / _ATTENTION_TILE)
    chunk = next((int(keys) for name, keys in op.attrs if name == CHUNK), 0)
    if chunk:
        of_chunk = math.ceil(chunk / _ATTENTION_TILE)
        return Keys((of_chunk + 1) / 2 if op.causal else of_chunk, tiles)
    if not op.causal:
        return Keys(tiles, tiles)
    if (OFF_DIAGONAL, 1) in op.attrs:
        return Keys(tiles / 2, tiles)
    if (CONTEXT, 0) not in op.attrs and any(name == CONTEXT for name, _ in op.attrs):
        return Keys(min(tiles, op.met_share * tiles + 0.5), tiles)  # half of the last one is hidden
    window = next((int(keys) for name, keys in op.attrs if name == WINDOW), op.loops.n)
    most = min(math.ceil(window / _ATTENTION_TILE) + 1, tiles)  # of a row of tiles
    if most == tiles:
        return Keys((tiles + 1) / 2, tiles)
    return Keys(most - most * (most - 1) / (2 * tiles), tiles)


def share_of(op: Op, row: Achievable | None) -> float:
    """Return the share of the peak that an op reaches by its row; the peak without one."""
    if row is None:
        return 1.0
    if row.ramp is None:
        return row.fraction.value
    ends = row.ramp.tiles.value / keys_of(op).met
    return min(row.fraction.value, row.ramp.fraction.value / (1 + ends))


DIRECT = "direct"
"""Class of the filters that neither Winograd's algorithm nor Fourier's transform helps."""


def filter_class(loops: Conv) -> str:
    """Class of a convolution in a device's table of achievable shares.

    What slides by one pixel can have fewer multiplications: 3 x 3 filters by Winograd's algorithm,
    larger ones by Fourier's transform. Filters that slide further, are dilated, are of volumes, or
    have fewer taps along a side, are multiplied directly.
    """
    if loops.r * loops.s * loops.taps == 1:
        return "1x1"
    if (loops.stride, loops.dilation, loops.taps) != ((1, 1), (1, 1), 1) or min(
        loops.r, loops.s
    ) < _SIDE:
        return DIRECT
    return "3x3" if (loops.r, loops.s) == (_SIDE, _SIDE) else "larger"


def achievable_share(op: Op, device: Device, engine: str, format_: str) -> Achievable | None:
    """Find the first calibration row of the device that fits an op.

    A recurrence, fused attention or state-space layer for which there is no row is as good as the
    products that it consists of.
    """
    return achievable_shares((op,), device, engine, format_)[0]


def achievable_shares(
    ops: Sequence[Op], device: Device, engine: str, format_: str, *, as_filter: str = ""
) -> list[Achievable | None]:
    """Find the calibration row of each op; the table is searched once for each class of ops.

    Parameters
    ----------
    as_filter
        The class of filters that convolutions are taken to be of; "": their own. Where a device
        has no row of direct ones, those of larger filters stand for them.
    """
    known: dict[tuple[tuple[str, ...], Pass, str], list[Achievable]] = {}
    found = []
    has_direct = any(row.filter == DIRECT for row in device.achievable)
    for op in ops:
        filter_ = (as_filter or filter_class(op.loops)) if isinstance(op.loops, Conv) else ""
        if filter_ == DIRECT and not has_direct:
            filter_ = "larger"
        class_ = _names(op), op.priced_as, filter_
        if class_ not in known:
            known[class_] = [
                row
                for name in class_[0]
                for row in device.achievable
                if (row.engine, row.format, row.op, row.stored) == (engine, format_, name, None)
                and row.pass_ in {None, op.priced_as.value}
                and row.filter in {None, filter_}
            ]
        large = (
            row
            for row in known[class_]
            if row.at_least is None or op.matrix_flops >= row.at_least.value
        )
        found.append(next(large, None))
    return found


def is_calibrated(device: Device, engine: str, format_: str) -> bool:
    """Tell whether any share of the peak of an engine in a format is the device's own."""
    return any(
        row.fraction.basis in MEASURED
        for row in device.achievable
        if (row.engine, row.format) == (engine, format_)
    )


def is_plain_product(op: Op) -> bool:
    """Tell whether an op is a matrix product by itself: no convolution, attention or recurrence."""
    return isinstance(op.loops, Gemm) and _names(op) == ("gemm",)


def engines_with_kernels(op: Op, names: Sequence[str], device: Device) -> Sequence[str]:
    """Return the engines, of some, that do an op: of a state-space layer those with rows of it.

    Its kernels are what was measured, so that another engine is no choice, however far they are
    from its peak.
    """
    of_kind = {row.engine for row in device.achievable if row.op == op.kind == STATE_SPACE.name}
    return [name for name in names if name in of_kind] or names


def _names(op: Op) -> tuple[str, ...]:
    """Names that an op may have in the table, the most special first."""
    product = "conv2d" if isinstance(op.loops, Conv) else "gemm"
    if op.sequential:
        return "recurrence", product
    if op.kind in _FUSED_ATTENTION:
        first = ("attention-1",) if dict(op.attrs).get("first") else ()
        return *first, "attention", product
    if op.kind == STATE_SPACE.name:
        return STATE_SPACE.name, product
    return (product,)
