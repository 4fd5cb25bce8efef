"""Waves of one shape, as Python numbers: the compiled functions of `kernels.panel_trips`."""

from __future__ import annotations

from ridgeline.kernels.panel_trips import squarest_wave, trips_of_shape


def cached_trips(
    m: int,
    n: int,
    a_bytes: float,
    b_bytes: float,
    tile: tuple[int, int],
    cache_bytes: float,
    *,
    grouped: bool = False,
) -> tuple[int, int]:
    """Count how often the two operands pass a memory behind a cache that evicts what is oldest.

    Parameters
    ----------
    m, n
        Rows and columns of one product of the batch.
    a_bytes, b_bytes
        Of that product.
    tile
        Rows and columns of an output tile.
    grouped
        Whether kernels also go through tiles in groups.
    """
    a, b = trips_of_shape(
        float(m), float(n), float(a_bytes), float(b_bytes), float(tile[0]), float(tile[1]),
        float(cache_bytes), grouped,
    )  # fmt: skip
    return int(a), int(b)


def output_tile(m: int, n: int, held: int) -> tuple[int, int]:
    """Rows and columns of the output tile of at most `held` elements: square, or as the output is.

    Where one side of the output is shorter than the square's, the other side gets the room.
    """
    return squarest_wave(m, n, held)
