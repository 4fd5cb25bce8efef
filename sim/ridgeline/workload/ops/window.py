"""Windows that slide over images: their output sizes by PyTorch's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.errors import RidgelineError

Pair = int | tuple[int, int]
"""A size in both directions, or (height, width)."""


def pair(value: Pair) -> tuple[int, int]:
    """Return (height, width)."""
    return (value, value) if isinstance(value, int) else value


def image(layer: str, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return (batch, channels, height, width), or raise RidgelineError if it is no image."""
    if len(shape) != 4:
        raise RidgelineError(
            f"layer {layer!r} needs images [batch, channels, height, width], found {list(shape)}"
        )
    return shape


def steps(size: int, reach: int, stride: int, padding: int, ceil_mode: bool = False) -> int:
    """Positions of a window that reaches over `reach` elements of a padded axis.

    torch.nn.MaxPool2d: the last window of `ceil_mode` must start inside the input or its left
    padding.
    """
    room = size + 2 * padding - reach
    if not ceil_mode:
        return room // stride + 1
    positions = -(-room // stride) + 1
    return positions - 1 if (positions - 1) * stride >= size + padding else positions


def check(
    layer: str, size: tuple[int, int], reach: tuple[int, int], padding: tuple[int, int]
) -> None:
    """Raise RidgelineError if a window is larger than the padded image."""
    (h, w), (p, q) = size, padding
    if h + 2 * p < reach[0] or w + 2 * q < reach[1]:
        raise RidgelineError(
            f"layer {layer!r}: a window of {reach[0]} x {reach[1]} does not fit on images of"
            f" {h} x {w} with padding {p} x {q}"
        )


class Folded(NamedTuple):
    """The loops of a convolution as those of a 2-D one, by the names of `Conv`, but for groups."""

    batch: int
    c_in: int
    h_in: int
    w_in: int
    c_out: int
    r: int
    s: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    taps: int


def folded(
    x: Sequence[int],
    weight: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Folded:
    """Describe a convolution of 1 to 3 axes as a 2-D one with the same products.

    One axis is an image of one row. Of three axes the first is folded away: its outputs count as
    images, its filter taps as channels (im2col along that axis). Padding that differs between the
    two sides becomes part of the image. `x` [n, c, ...], `weight` [f, c / groups, ...].
    """
    n, c, *sizes = x
    f, _, *taps = weight
    stride, dilation, padding = list(stride), list(dilation), list(padding)
    if len(sizes) == 1:
        sizes, taps = [1, *sizes], [1, *taps]
        stride, dilation, padding = [1, *stride], [1, *dilation], [(0, 0), *padding]
    deep = 1
    while len(sizes) > 2:
        n, c, deep = n * out[len(out) - len(sizes)], c * taps[0], deep * taps[0]
        sizes, taps = sizes[1:], taps[1:]
        stride, dilation, padding = stride[1:], dilation[1:], padding[1:]
    for axis, (before, after) in enumerate(padding):
        if before != after:
            sizes[axis] += before + after
            padding[axis] = (0, 0)
    (p, _), (q, _) = padding
    (u, v), (d, e) = stride, dilation
    return Folded(n, c, sizes[0], sizes[1], f, taps[0], taps[1], (u, v), (p, q), (d, e), deep)
