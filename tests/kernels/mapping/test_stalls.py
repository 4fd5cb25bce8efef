"""The recurrence of double buffers against a simulation event by event, and its closed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.tile_events import makespan
from oracles.tile_stalls import tile_stalls
from ridgeline.errors import RidgelineError
from thoroughly import sample_of

durations = st.integers(0, 9).map(float)
tiles = st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=12)
buffers = st.integers(1, 2)


@sample_of(75, 300, tiles=tiles, inputs=buffers, outputs=buffers, shared=st.booleans())
def test_the_recurrence_is_the_simulation(
    tiles: list[tuple[float, float, float]], inputs: int, outputs: int, shared: bool
) -> None:
    load, compute, store = zip(*tiles, strict=True)
    found = tile_stalls(
        load, compute, store,
        input_buffers=inputs, output_buffers=outputs, shared_port=shared,
    )  # fmt: skip
    assert found.total_s == makespan(load, compute, store, inputs, outputs, shared)
    assert found.compute_s == sum(compute)


@settings(max_examples=200, deadline=None)
@given(tiles=tiles)
def test_double_buffers_on_one_port_have_a_closed_form(
    tiles: list[tuple[float, float, float]],
) -> None:
    load, compute, store = (list(x) for x in zip(*tiles, strict=True))
    beside = [x + y for x, y in zip([*load[1:], 0], [0, *store[:-1]], strict=True)]
    want = load[0] + sum(map(max, compute, beside)) + store[-1]
    found = tile_stalls(load, compute, store)
    assert found.total_s == want
    fits = all(m <= c for m, c in zip(beside, compute, strict=True))
    assert (found.steady_s == 0) == fits


@settings(max_examples=200, deadline=None)
@given(tiles=tiles)
def test_separate_ports_stall_if_and_only_if_something_does_not_fit(
    tiles: list[tuple[float, float, float]],
) -> None:
    load, compute, store = (list(x) for x in zip(*tiles, strict=True))
    found = tile_stalls(load, compute, store, shared_port=False)
    fits = all(
        max(into, out) <= c
        for into, out, c in zip([*load[1:], 0], [0, *store[:-1]], compute, strict=True)
    )
    assert (found.steady_s == 0) == fits


@given(load=durations, compute=durations, store=durations, count=st.integers(1, 50))
@settings(deadline=None)
def test_equal_tiles_with_separate_ports(
    load: float, compute: float, store: float, count: int
) -> None:
    found = tile_stalls([load] * count, compute, store, shared_port=False)
    assert found.total_s == load + (count - 1) * max(load, compute, store) + compute + store


@settings(max_examples=100, deadline=None)
@given(
    tiles=tiles,
    more=st.lists(st.integers(0, 3), min_size=36, max_size=36),
    inputs=buffers,
    outputs=buffers,
    shared=st.booleans(),
)
def test_longer_transfers_and_fewer_buffers_are_never_faster(
    tiles: list[tuple[float, float, float]],
    more: list[int],
    inputs: int,
    outputs: int,
    shared: bool,
) -> None:
    load, compute, store = (list(x) for x in zip(*tiles, strict=True))
    how = {"input_buffers": inputs, "output_buffers": outputs, "shared_port": shared}
    fast = tile_stalls(load, compute, store, **how).total_s
    worse = [
        [x + next(extra) for x in row] for extra in [iter(more)] for row in (load, compute, store)
    ]
    assert tile_stalls(*worse, **how).total_s >= fast
    assert tile_stalls(load, compute, store, **{**how, "input_buffers": 1}).total_s >= fast
    assert tile_stalls(load, compute, store, **{**how, "output_buffers": 1}).total_s >= fast
    assert tile_stalls(load, compute, store, **{**how, "shared_port": True}).total_s >= fast


@pytest.mark.parametrize(
    ("load", "buffers", "message"),
    [
        ([], 2, "at least one tile"),
        ([-1.0], 2, "at least 0"),
        ([float("nan")], 2, "finite"),
        ([1.0], 3, "1 or 2 buffers"),
    ],
)
def test_nonsense_is_refused(load: list[float], buffers: int, message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        tile_stalls(load, 1.0, 1.0, input_buffers=buffers)
