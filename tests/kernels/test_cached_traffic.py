"""Traffic behind a cache against a simulation of the cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.lru_panels import misses
from ridgeline.kernels.traffic import cached_trips
from ridgeline.workload.graph import Gemm


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
    gemm = Gemm(down * 8, across * 8, chunks)
    a_bytes, b_bytes = down * chunks * a_chunk, across * chunks * b_chunk
    a_trips, b_trips = cached_trips(gemm, a_bytes, b_bytes, (8, 8), cache)
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
    gemm, a, b = Gemm(m, n, k), 2.0 * m * k, 2.0 * k * n
    small, large = (
        trips[0] * a + trips[1] * b
        for trips in (
            cached_trips(gemm, a, b, (rows, columns), size) for size in (cache, cache * more)
        )
    )
    assert a + b <= large <= small
    nothing = cached_trips(gemm, a, b, (rows, columns), 0.0)
    assert nothing == (-(-n // columns), -(-m // rows))
