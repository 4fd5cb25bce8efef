"""Window arithmetic for one, two and three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.workload.ops.pooling import adaptive_windows


def spread(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Return one number for each axis; one number alone is for all."""
    numbers = (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
    return numbers * axes if len(numbers) == 1 else numbers


def adaptive(sizes: Sequence[int], positions: Sequence[int]) -> int:
    """Elements under all windows that cover axes of these sizes at so many positions."""
    return math.prod(
        sum(end - start for start, end in adaptive_windows(size, count))
        for size, count in zip(sizes, positions, strict=True)
    )


def conv_loops(  # one folded nest for 1, 2 and 3 axes
    x: Sequence[int],
    weight: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> dict[str, object]:
    """Describe a convolution of 1 to 3 axes as a 2-D one with the same products.

    One axis is an image of one row. Of three axes the first is folded away: its outputs count as
    images, its filter taps as channels (im2col along that axis). Padding that differs between the
    two sides becomes part of the image. `x` [n, c, ...], `weight` [f, c / groups, ...].
    """
    n, c, *image = x
    f, _, *taps = weight
    stride, dilation, padding = list(stride), list(dilation), list(padding)
    if len(image) == 1:
        image, taps = [1, *image], [1, *taps]
        stride, dilation, padding = [1, *stride], [1, *dilation], [(0, 0), *padding]
    while len(image) > 2:
        n, c = n * out[len(out) - len(image)], c * taps[0]
        image, taps = image[1:], taps[1:]
        stride, dilation, padding = stride[1:], dilation[1:], padding[1:]
    for axis, (before, after) in enumerate(padding):
        if before != after:
            image[axis] += before + after
            padding[axis] = (0, 0)
    return {
        "n": n, "c": c, "h": image[0], "w": image[1], "f": f, "r": taps[0], "s": taps[1],
        "stride": tuple(stride), "padding": tuple(p for p, _ in padding),
        "dilation": tuple(dilation), "groups": groups,
    }  # fmt: skip
