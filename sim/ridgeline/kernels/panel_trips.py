"""How often the panels of a matrix product pass the memory behind a cache, for waves of a shape.

Output tiles follow each other row by row of tiles, or column by column, whichever moves less. Row
by row, a panel of A is read again by the next tile, when its own bytes and those of a panel of B
have passed since; a panel of B by the next row, when all of B and the panels of A of both rows
have. What has less than the cache between two uses is still there, all else is not (the stack
property of least recently used: Mattson et al., IBM Systems Journal 9(2), 1970). Kernels may also
go row by row through some columns of tiles before they go on to the next ones, as many as the cache
keeps panels of B for; or the other way round (the rasterisation of thread blocks in CUTLASS, the
groups of Triton's products).

The tile here is a wave: what runs on all processors at a time. Its shape is a choice of the kernel,
too: of equal area a square reads least where nothing is kept, a flat one has smaller panels, which
a small cache keeps (`least_trips`). Shapes are listed by the op alone, and the registers only
strike out: a machine with more of them, or with more processors, has all waves of the smaller one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline._jit import kernel, kernel_part

_EXACT = 16  # numbers of waves of which all are looked at; beyond, those of four significant bits


@kernel_part
def _group_trips(
    panels: float, panel_bytes: float, other_bytes: float, whole_bytes: float, cache_bytes: float
) -> float:
    """Count the groups of panels that a cache keeps beside two panels of the other operand.

    Zero if it does not keep a single one.
    """
    room = cache_bytes - 2 * other_bytes
    if min(panel_bytes, whole_bytes) > room:
        return 0.0
    fit = panels if whole_bytes <= room else max(1.0, math.floor(room / panel_bytes))
    return math.ceil(panels / min(fit, panels))


@kernel_part
def _trips(
    down: float,
    across: float,
    a_bytes: float,
    b_bytes: float,
    a_panel: float,
    b_panel: float,
    cache_bytes: float,
    grouped: bool,
) -> tuple[float, float]:
    """Count the trips of A and B in the best order of so many rows and columns of tiles."""
    panels = a_panel + b_panel <= cache_bytes
    # Row by row of tiles, then column by column.
    a_trips = 1.0 if panels else across
    b_trips = 1.0 if b_bytes + (2 if across > 1 else 1) * a_panel <= cache_bytes else down
    least = a_trips * a_bytes + b_trips * b_bytes
    a_again = 1.0 if a_bytes + (2 if down > 1 else 1) * b_panel <= cache_bytes else across
    b_again = 1.0 if panels else down
    if a_again * a_bytes + b_again * b_bytes < least:
        a_trips, b_trips, least = a_again, b_again, a_again * a_bytes + b_again * b_bytes
    if grouped and least > a_bytes + b_bytes:
        again = _group_trips(across, b_panel, a_panel, b_bytes, cache_bytes)
        if again > 0.0 and again * a_bytes + b_bytes < least:
            a_trips, b_trips, least = again, 1.0, again * a_bytes + b_bytes
        again = _group_trips(down, a_panel, b_panel, a_bytes, cache_bytes)
        if again > 0.0 and a_bytes + again * b_bytes < least:
            a_trips, b_trips = 1.0, again
    return a_trips, b_trips


@kernel
def trips_of_shape(
    m: float,
    n: float,
    a_bytes: float,
    b_bytes: float,
    rows: float,
    columns: float,
    cache_bytes: float,
    grouped: bool,
) -> tuple[float, float]:
    """Count how often the operands of one product pass a cache, for waves of `rows` x `columns`.

    `grouped` kernels also go through waves in groups; the cache evicts what is oldest. Bytes of one
    product of a batch.
    """
    a_panel, b_panel = a_bytes * min(1.0, rows / m), b_bytes * min(1.0, columns / n)
    down, across = math.ceil(m / rows), math.ceil(n / columns)
    return _trips(
        float(down), float(across), a_bytes, b_bytes, a_panel, b_panel, cache_bytes, grouped
    )


@kernel
def squarest_wave(m: int, n: int, held: int) -> tuple[int, int]:
    """Rows and columns of a wave of at most `held` elements: square, or as the output is.

    Where one side of the output is shorter than the square's, the other side gets the room.
    """
    side = max(1, int(math.sqrt(held)))
    if m <= side:
        return m, max(1, held // m)
    if n <= side:
        return max(1, held // n), n
    return side, side


@kernel
def _of_best_square(
    m: int, n: int, a_bytes: float, b_bytes: float, held: int, cache_bytes: float
) -> tuple[float, float]:
    """Look at the largest wave, and at the largest ones of which the cache keeps more.

    That is a panel of each operand; or all of one operand, and one or two panels of the other. The
    waves between these, of which it keeps as much as of the next larger one, have more trips.
    """
    a_trips, b_trips, least = np.inf, np.inf, np.inf
    for a_panels, b_panels, a_whole, b_whole in (
        (0, 0, 0, 0), (1, 1, 0, 0), (1, 0, 0, 1), (2, 0, 0, 1), (0, 1, 1, 0), (0, 2, 1, 0),
    ):  # fmt: skip
        room = cache_bytes - a_whole * a_bytes - b_whole * b_bytes
        low, high = 1, held
        while low < high:  # the largest wave with such panels
            middle = (low + high + 1) // 2
            rows, columns = squarest_wave(m, n, middle)
            a_panel, b_panel = a_bytes * min(1.0, rows / m), b_bytes * min(1.0, columns / n)
            if a_panels * a_panel + b_panels * b_panel <= room or a_panels + b_panels == 0:
                low = middle
            else:
                high = middle - 1
        rows, columns = squarest_wave(m, n, low)
        again = trips_of_shape(m, n, a_bytes, b_bytes, rows, columns, cache_bytes, False)
        moved = again[0] * a_bytes + again[1] * b_bytes
        if moved < least:
            a_trips, b_trips, least = again[0], again[1], moved
        if least <= a_bytes + b_bytes:
            break
    return a_trips, b_trips


@kernel
def _of_best_shape(
    m: float,
    n: float,
    a_bytes: float,
    b_bytes: float,
    held: float,
    cache_bytes: float,
    downs: NDArray[np.float64],
    acrosses: NDArray[np.float64],
) -> tuple[float, float]:
    best_a, best_b, least = n, m, np.inf
    # No shape moves less: an operand that stays in parts has parts that the cache has room for.
    bound = 2.0 * math.sqrt(max(1.0, m * n / held) * a_bytes * b_bytes)
    bound = min(bound, a_bytes + max(1.0, math.ceil(a_bytes / cache_bytes)) * b_bytes)
    bound = min(bound, b_bytes + max(1.0, math.ceil(b_bytes / cache_bytes)) * a_bytes)
    bound = max(bound, a_bytes + b_bytes) * (1.0 + 1e-12)
    for down in downs:
        rows = float(math.ceil(m / down))
        # From the widest waves that the registers hold, to those of a single column.
        for i in range(np.searchsorted(acrosses, n * rows / held), len(acrosses)):
            columns = float(math.ceil(n / acrosses[i]))
            if rows * columns > held and rows * columns > 1.0:
                continue
            a_trips, b_trips = _trips(
                float(math.ceil(m / rows)), float(math.ceil(n / columns)), a_bytes, b_bytes,
                a_bytes * (rows / m), b_bytes * (columns / n), cache_bytes, True,
            )  # fmt: skip
            moved = a_trips * a_bytes + b_trips * b_bytes
            if moved < least:
                best_a, best_b, least = a_trips, b_trips, moved
                if moved <= bound:
                    return best_a, best_b
    return best_a, best_b


def square_trips(
    m: int, n: int, a_bytes: float, b_bytes: float, held: int, cache_bytes: float
) -> tuple[int, int]:
    """Count the trips of the operands with the best square wave, in rows or columns of waves.

    See `least_trips`; more registers never move more here, too.
    """
    a, b = _of_best_square(m, n, float(a_bytes), float(b_bytes), max(held, 1), float(cache_bytes))
    return int(a), int(b)


@lru_cache(maxsize=1 << 14)
def least_trips(
    m: int, n: int, a_bytes: float, b_bytes: float, held: int, cache_bytes: float
) -> tuple[int, int]:
    """Count the trips of the operands with the best shape of a wave, in the best order, in groups.

    Parameters
    ----------
    held
        Output elements of a wave, at most.
    """
    a, b = _of_best_shape(
        float(m), float(n), float(a_bytes), float(b_bytes), float(max(held, 1)),
        float(max(cache_bytes, 1.0)), _counts(m), _counts(n),
    )  # fmt: skip
    return int(a), int(b)


@lru_cache(maxsize=4096)
def _counts(extent: int) -> NDArray[np.float64]:
    """List the numbers of waves along an extent that are looked at, from one to the extent."""
    found = list(range(1, min(extent, _EXACT) + 1))
    step, count = 2, _EXACT + 2
    while count < extent:
        found.append(count)
        count += step
        if count == _EXACT * step:
            step *= 2
    if found[-1] < extent:
        found.append(extent)
    return np.array(found, np.float64)
