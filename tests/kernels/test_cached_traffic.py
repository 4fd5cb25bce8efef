"""Traffic behind a cache against a simulation of the cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.lru_panels import misses
from ridgeline.kernels.panel_trips import least_trips, square_trips
from wave_shapes import cached_trips, output_tile


@settings(max_examples=300, deadline=None)
@given(
    down=st.integers(1, 5), across=st.integers(1, 5), chunks=st.integers(1, 4),
    a_chunk=st.integers(1, 9), b_chunk=st.integers(1, 9), cache=st.integers(20, 400),
)  # fmt: skip
def test_a_cache_keeps_what_fits_between_two_uses(
    down: int, across: int, chunks: int, a_chunk: int, b_chunk: int, cache: int
) -> None:
    """Whole panels: the better order of tiles misses what the closed form says, to the byte.

    Chunks are evicted whole, so a cache that is fuller than a chunk less than the distance between
    two uses may keep some of them: the closed form is never below the cache's misses.
    """
    a_bytes, b_bytes = down * chunks * a_chunk, across * chunks * b_chunk
    a_trips, b_trips = cached_trips(8 * down, 8 * across, a_bytes, b_bytes, (8, 8), cache)
    said = a_trips * a_bytes + b_trips * b_bytes
    played = [misses(down, across, chunks, a_chunk, b_chunk, cache, rows) for rows in (True, False)]
    least = min(map(sum, played))
    assert said >= least >= a_bytes + b_bytes
    # Where no distance between two uses is near the cache's size there is no doubt.
    panels = chunks * (a_chunk + b_chunk)
    distances = (panels, b_bytes + 2 * chunks * a_chunk, a_bytes + 2 * chunks * b_chunk)
    if all(d <= cache or d > cache + 2 * panels for d in distances):
        assert said == least


sizes = st.integers(1, 5000)


@given(
    m=sizes,
    n=sizes,
    k=sizes,
    rows=sizes,
    columns=sizes,
    cache=st.floats(0, 1e8),
    more=st.floats(1, 9),
)
@settings(deadline=None)
def test_a_larger_cache_never_moves_more(
    m: int, n: int, k: int, rows: int, columns: int, cache: float, more: float
) -> None:
    a, b = 2.0 * m * k, 2.0 * k * n
    small, large = (
        trips[0] * a + trips[1] * b
        for trips in (
            cached_trips(m, n, a, b, (rows, columns), size) for size in (cache, cache * more)
        )
    )
    assert a + b <= large <= small
    nothing = cached_trips(m, n, a, b, (rows, columns), 0.0)
    assert nothing == (-(-n // columns), -(-m // rows))


@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 16), n=st.integers(1, 16), a_row=st.integers(1, 9), b_column=st.integers(1, 9),
    held=st.integers(1, 300), room=st.floats(0, 1.5),
)  # fmt: skip
def test_the_shape_of_a_wave_is_the_best_of_all(
    m: int, n: int, a_row: int, b_column: int, held: int, room: float
) -> None:
    """Against every shape that the registers hold, and every smaller square."""
    a, b = float(m * a_row), float(n * b_column)
    cache = room * (a + b)

    def moved(trips: tuple[int, int]) -> float:
        return trips[0] * a + trips[1] * b

    shapes = [
        (rows, columns)
        for rows in range(1, m + 1)
        for columns in range(1, n + 1)
        if rows * columns <= held
    ]
    every = min(moved(cached_trips(m, n, a, b, tile, cache, grouped=True)) for tile in shapes)
    assert moved(least_trips(m, n, a, b, held, cache)) == every
    squares = {output_tile(m, n, size) for size in range(1, held + 1)}
    every = min(moved(cached_trips(m, n, a, b, tile, cache)) for tile in squares)
    assert moved(square_trips(m, n, a, b, held, cache)) == every


@settings(max_examples=150, deadline=None)
@given(
    m=sizes, n=sizes, k=sizes, held=st.integers(1, 10**7), cache=st.floats(0, 1e8),
    registers=st.floats(1, 9), more=st.sampled_from([0.5, 1.0, 3.0]),
)  # fmt: skip
def test_more_registers_or_cache_never_move_more(
    m: int, n: int, k: int, held: int, cache: float, registers: float, more: float
) -> None:
    a, b = 2.0 * m * k, 2.0 * k * n
    larger = int(held * registers)
    for trips in (least_trips, square_trips):
        before, after, fuller = (
            x * a + y * b
            for x, y in (
                trips(m, n, a, b, held, cache),
                trips(m, n, a, b, larger, cache),
                trips(m, n, a, b, larger, cache * (1 + more)),
            )
        )
        assert a + b <= fuller <= after <= before
