"""Convolution algorithms: the matrix products that kernels make of one; the fastest is taken.

`traffic.as_gemm` counts what has to be multiplied. Kernels do more:

*Input gradients* gather (implicit GEMM): for each pixel of the image they go through the taps that
may reach it, ceil(r / stride) ceil(s / stride) of them, so that a filter of 1 x 1 at stride 2 does
four times what is needed. Or they multiply first, m = pixels of the output, n = C R S, k = filters,
and then add up columns that lie in memory (Chetlur et al., cuDNN, 2014, arXiv:1410.0759, Sections
2 and 3).

*Winograd's filtering* of 3 x 3 computes blocks of outputs of one image (`Achievable.block`): an
image that does not fill its blocks costs as much as one that does. Channels are worked on in
eights. The gradients of filters have no fused kernels: the transformed images, 36 elements for 16,
are written and read (Lavin and Gray, CVPR 2016, F(4 x 4, 3 x 3)). Where a device has such kernels,
it still has the direct ones, which reach the share of filters that slide further. Where its
table has a row for *products of transformed tiles*, it has these, too: kernels transform images and
filters, 36 products are done in tiles of 128 x 128 (so the kernels' names), and what comes out is
transformed back. Each pass over memory comes by itself; few filters do not fill a tile.

*Larger filters* that slide by one pixel may be multiplied as spectra (Mathieu, Henaff and LeCun,
Fast training of convolutional networks through FFTs, ICLR 2014), so that they have a share of their
own; the direct kernels are there beside these, too.

*Work space* (`cudnn_fp32_conv`) may be limited (`Op.workspace_bytes`), and a library may be
too old for transforms: where these are not there, or their spectra, images or columns do not fit, a
kernel without is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple, cast

from ridgeline.hardware.device import Achievable, OutputBlock
from ridgeline.kernels.cudnn_fp32_conv import Library, held_bytes
from ridgeline.kernels.efficiency_table import TRANSFORMED, filter_class, share_of
from ridgeline.kernels.traffic import Operands, as_gemm
from ridgeline.workload.graph import Conv, Gemm, Op, Pass

_CHANNELS = 8
_TRANSFORMS = {  # of filters of each class: algorithms with fewer multiplications
    "3x3": ("winograd", "winograd-nonfused"),
    "larger": ("fft", "fft-tiling"),
}
_OUTPUTS, _NUMBERS = 4, 36  # along an axis of a tile of F(4 x 4, 3 x 3), and in it, transformed
_TILES = ((128, 128),)
_TRANSFORMED = 36 / 16  # elements of a transformed image of F(4 x 4, 3 x 3), over its own


class ConvolutionVariant(NamedTuple):
    """One way to do a contraction.

    Attributes
    ----------
    gemm
        The products that are done.
    share
        Of the peak that they reach.
    row
        Where that share stands.
    more_bytes
        What passes the farthest memory besides operands and result.
    before_bytes
        How much of all that kernels move before and after the products.
    tiles
        Tiles that these kernels have; (): any.
    """

    gemm: Gemm
    share: float
    row: Achievable | None
    more_bytes: float = 0.0
    before_bytes: float = 0.0
    tiles: tuple[tuple[int, int], ...] = ()


def variants(
    op: Op,
    operands: Operands,
    row: Achievable | None,
    direct: Achievable | None,
    products: Achievable | None = None,
) -> list[ConvolutionVariant]:
    """Return the ways to do a contraction on processors.

    Parameters
    ----------
    row
        The device's row for the op's class.
    direct
        The row for direct kernels, which those of 3 x 3 filters reach without Winograd's filtering.
    products
        The row for products of transformed tiles.
    """
    loops, share = op.loops, share_of(op, row)
    if not isinstance(loops, Conv):
        return [ConvolutionVariant(operands.gemm, share, row)]
    beside = [] if direct is None else _direct(op, loops, operands, direct.fraction.value, direct)
    if products is not None and products.filter == TRANSFORMED and filter_class(loops) == "3x3":
        return [*_filtered(op, loops, operands, row, products), *beside]
    if beside and not _fits(op, loops, share, direct):
        return beside
    if row is None or row.block is None:
        found = _direct(op, loops, operands, share, row)
        return [*found, *beside] if row is not None and row.filter == "larger" else found
    gemm = _in_blocks(loops, op.priced_as, row.block)
    images = operands.a_bytes + operands.b_bytes if op.priced_as is Pass.WEIGHT_GRADIENT else 0
    filtered = ConvolutionVariant(gemm, share, row, 2 * _TRANSFORMED * images)
    return [filtered, *beside]


def _filtered(
    op: Op, loops: Conv, operands: Operands, row: Achievable | None, products: Achievable
) -> list[ConvolutionVariant]:
    """Return Winograd's kernels: one that does all, of blocks, or products between transforms."""
    held = held_bytes(loops, op.priced_as, _library(op))
    fits = {name for name, size in held.items() if size <= op.workspace_bytes}
    found: list[ConvolutionVariant] = []
    if "winograd" in fits and row is not None and row.block is not None:
        gemm = _in_blocks(loops, op.priced_as, row.block)
        found.append(ConvolutionVariant(gemm, row.fraction.value, row))
    if "winograd-nonfused" in fits:
        found.append(_between_transforms(op, loops, operands, products))
    return found


def _between_transforms(
    op: Op, loops: Conv, operands: Operands, row: Achievable
) -> ConvolutionVariant:
    """Return F(4 x 4, 3 x 3) as kernels that transform, multiply and transform back."""
    is_input_gradient = op.priced_as is Pass.INPUT_GRADIENT
    of_result = (loops.h_in, loops.w_in) if is_input_gradient else (loops.h_out, loops.w_out)
    tiles = loops.batch * ceil(of_result[0] / _OUTPUTS) * ceil(of_result[1] / _OUTPUTS)
    c_in, c_out = loops.c_in, loops.c_out
    if op.priced_as is Pass.FORWARD:
        gemm = Gemm(tiles, c_out, c_in, batch=_NUMBERS)
        first = loops.batch * c_in * loops.h_in * loops.w_in
    else:
        first = loops.batch * c_out * loops.h_out * loops.w_out
        shape = (tiles, c_in, c_out) if is_input_gradient else (c_in, c_out, tiles)
        gemm = Gemm(*shape, batch=_NUMBERS)
    size = operands.a_bytes / first  # of an element
    transformed = _NUMBERS * size * (tiles * (c_in + c_out) + c_in * c_out)
    before = operands.far.total + transformed
    return ConvolutionVariant(gemm, row.fraction.value, row, 2 * transformed, before, _TILES)


def _fits(op: Op, loops: Conv, share: float, direct: Achievable | None) -> bool:
    """Tell whether the kernels of an op's own class fit in the work space that there may be.

    Where their share is not above that of direct kernels, they are such, which need none.
    """
    names = _TRANSFORMS.get(filter_class(loops))
    if names is None or direct is None or share <= direct.fraction.value:
        return True
    attrs = dict(op.attrs)
    if "workspace" not in attrs and "library" not in attrs:
        return True
    held = held_bytes(loops, op.priced_as, _library(op))
    return any(held[name] <= op.workspace_bytes for name in names if name in held)


def _direct(
    op: Op, loops: Conv, operands: Operands, share: float, row: Achievable | None
) -> list[ConvolutionVariant]:
    if op.priced_as is not Pass.INPUT_GRADIENT:
        return [ConvolutionVariant(operands.gemm, share, row)]
    c_in, c_out = loops.c_in // loops.groups, loops.c_out // loops.groups
    taps = ceil(loops.r / loops.stride[0]) * ceil(loops.s / loops.stride[1])
    pixels = loops.batch * loops.h_in * loops.w_in
    gathered = Gemm(pixels, c_in, c_out * taps, batch=loops.groups)
    found = [ConvolutionVariant(gathered, share, row)]
    if loops.r * loops.s > 1 and _columns_bytes(op, loops) <= op.workspace_bytes:
        columns = Gemm(operands.gemm.m, c_in * loops.r * loops.s, c_out, batch=loops.groups)
        size = operands.a_bytes / (operands.gemm.m * loops.c_out)  # of an element
        found.append(
            ConvolutionVariant(
                columns, share, row, 2 * size * columns.batch * columns.m * columns.n
            )
        )
    return found


def _columns_bytes(op: Op, loops: Conv) -> int:
    """Return what the columns of one image take."""
    return held_bytes(loops, op.priced_as)["gemm"]


def _library(op: Op) -> Library:
    return next((cast(Library, value) for name, value in op.attrs if name == "library"), "cudnn5")


def _in_blocks(loops: Conv, pass_: Pass, block: OutputBlock) -> Gemm:
    """Return the direct products of a convolution whose images and channels are filled up."""
    backward = pass_ is Pass.INPUT_GRADIENT
    height, width = (loops.h_in, loops.w_in) if backward else (loops.h_out, loops.w_out)
    height, width = (
        ceil(size / whole) * whole for size, whole in ((height, block.rows), (width, block.columns))
    )
    summed = loops.c_out if backward else loops.c_in
    summed = ceil(summed / _CHANNELS) * _CHANNELS
    # An image of this size, padded as much as keeps it: all of its outputs are computed.
    filled = replace(loops, h_in=height, w_in=width, padding=(loops.r // 2, loops.s // 2))
    filled = replace(filled, c_out=summed) if backward else replace(filled, c_in=summed)
    return as_gemm(filled, pass_)
