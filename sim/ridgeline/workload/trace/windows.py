"""Window arithmetic for one, two and three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.workload.ops.pooling import adaptive_windows
from ridgeline.workload.ops.window import folded

_NAMES = ("n", "c", "h", "w", "f", "r", "s", "stride", "padding", "dilation", "taps")


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


def conv_loops(
    x: Sequence[int],
    weight: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> dict[str, object]:
    """Describe a convolution of 1 to 3 axes as a 2-D one with as many products (`folded`)."""
    loops = folded(x, weight, out, stride, padding, dilation)
    return {**dict(zip(_NAMES, loops, strict=True)), "groups": groups}


def pool_attrs(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[str, int], ...]:
    """Describe the windows of a pool along rows and columns, as `ops.pooling` does."""
    sizes = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    axes = ("h", "w") if len(kernel) > 1 else ()
    return tuple(
        (f"{name}_{axis}", int(values[i - 2]))
        for name, values in sizes.items()
        for i, axis in enumerate(axes)
    )
