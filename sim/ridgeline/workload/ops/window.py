"""Windows that slide over images: their output sizes by PyTorch's rules."""

from __future__ import annotations

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
