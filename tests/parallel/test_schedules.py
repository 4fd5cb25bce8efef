"""Pipeline schedules, played with exact times, against what is published of them."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.pipeline import held, play, source
from oracles.schedules import orders as told_orders
from ridgeline.errors import RidgelineError
from ridgeline.parallel.schedule import (
    PHASES,
    SCHEDULES,
    Slot,
    slot_arrays,
    zero_bubble_2p,
)
from ridgeline.parallel.schedule.player import PassTimes

CASES = [
    (name, stages, micro_batches, chunks)
    for name in SCHEDULES
    if not SCHEDULES[name].carried(7, 8, 24, 1)  # `test_carried`: stages do not begin together
    for stages in (1, 2, 3, 4, 8)
    for micro_batches in (1, 2, 3, 4, 8, 16, 24)
    for chunks in ((2, 3, 4) if name == "interleaved" else (1 + SCHEDULES[name].turns,))
    if name != "interleaved" or micro_batches % stages == 0
]


def durations(name, chunks, forward=1, backward=1, weight=1):
    """Of a slot, by phase, from those of a stage."""
    if not SCHEDULES[name].splits_backward:
        backward, weight = backward + weight, 0
    times = (forward, backward, weight)
    return {p: Fraction(t) / chunks for p, t in zip(PHASES, times, strict=True)}


@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), CASES)
def test_every_piece_of_work_is_done_once_and_in_an_order_that_can_be_played(
    name, stages, micro_batches, chunks
):
    orders = SCHEDULES[name](stages, micro_batches, chunks)
    phases = PHASES if SCHEDULES[name].splits_backward else PHASES[:2]
    every = {Slot(p, i, c) for p in phases for i in range(micro_batches) for c in range(chunks)}
    assert len(orders) == stages
    for order in orders:
        assert Counter(order) == dict.fromkeys(every, 1)
    turns = SCHEDULES[name].turns
    ends = play(orders, durations(name, chunks), chunks, turns)
    assert len(ends) == stages * len(every)
    for stage, slot in ends:
        waits = source(stage, slot, stages, chunks, turns)
        assert waits is None or ends[waits] < ends[stage, slot]


@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), CASES)
def test_bubble_is_the_published_one(name, stages, micro_batches, chunks):
    schedule = SCHEDULES[name]
    orders = schedule(stages, micro_batches, chunks)
    for times in ((1, 1, 1), (2, 3, 1), (3, 3, 2), (1, 2, 4), (5, 1, 2)):
        ends = play(orders, durations(name, chunks, *times), chunks, schedule.turns)
        idle = max(ends.values()) - micro_batches * sum(times)
        published = Fraction(schedule.bubble_s(stages, chunks, *map(Fraction, times)))
        full = micro_batches >= stages and (name != "zero-bubble-v" or len(set(times)) == 1)
        if schedule.splits_backward and not full:  # published for a full pipeline, or equal passes
            assert published <= idle <= (stages - 1) * sum(times), times
        else:
            assert idle == published, times


def test_bubble_of_zb_h1_is_that_of_its_table_where_weight_gradients_are_short():
    for times in ((1, 1, 1), (2, 3, 2), (3, 3, 1)):
        forward, backward, weight = times
        bubble = SCHEDULES["zero-bubble"].bubble_s(8, 1, *times)
        assert bubble == 7 * (forward + backward - weight)


def test_bubble_fraction_of_gpipe_and_1f1b():
    for name in ("gpipe", "1f1b"):
        for stages, micro_batches in ((2, 4), (4, 8), (8, 32)):
            span = max(play(SCHEDULES[name](stages, micro_batches), durations(name, 1)).values())
            busy = 3 * micro_batches
            assert (span - busy) / span == Fraction(stages - 1, micro_batches + stages - 1)


@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), CASES)
def test_activations_in_flight_are_the_published_ones(name, stages, micro_batches, chunks):
    schedule = SCHEDULES[name]
    expected = [schedule.in_flight(k, stages, micro_batches, chunks) for k in range(stages)]
    assert held(schedule(stages, micro_batches, chunks)) == expected


def test_interleaving_holds_korthikantis_share_of_the_layers():
    """1 + (p - 1) / (p m) of all layers' activations on the first stage: section 4.2.3."""
    for stages, chunks in ((4, 2), (8, 3), (12, 2)):
        chunks_held = held(SCHEDULES["interleaved"](stages, 2 * stages, chunks))[0]
        share = Fraction(chunks_held, stages * chunks)
        assert share == 1 + Fraction(stages - 1, stages * chunks)


def test_pipedream_keeps_a_version_of_the_weights_for_each_micro_batch_in_flight():
    versions = [SCHEDULES["pipedream"].weight_versions(k, 4, 100, 1) for k in range(4)]
    assert versions == [4, 3, 2, 1]
    assert [SCHEDULES["continuous"].weight_versions(k, 4, 100, 1) for k in range(4)] == [1] * 4


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted({name for name, *_ in CASES if not SCHEDULES[name].interleaves})),
    st.integers(1, 6),
    st.integers(1, 20),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_no_schedule_beats_the_work_of_a_stage_and_the_way_through_the_pipeline(
    name, stages, micro_batches, times
):
    span = max(play(SCHEDULES[name](stages, micro_batches), durations(name, 1, *times)).values())
    forward = times[0]
    assert span >= micro_batches * sum(times) + (stages - 1) * forward
    assert span <= micro_batches * sum(times) + (stages - 1) * sum(times)


passes = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def fullest(order, share):
    """Most activations that a stage holds, of which a share is left between B and W."""
    held = most = 0.0
    for slot in order:
        held += {"F": 1.0, "B": share - 1.0, "W": -share}[slot.phase]
        most = max(most, held)
    return most


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), passes, st.integers(0, 3), st.floats(0.1, 1))
def test_zb_2p_keeps_twice_the_memory_and_waits_no_longer_than_zb_h1(
    stages, micro_batches, times, message, share
):
    orders = zero_bubble_2p.order(stages, micro_batches, PassTimes(*times, message), share)
    every = {Slot(p, i) for p in PHASES for i in range(micro_batches)}
    ends = play(orders, durations("zero-bubble", 1, *times))
    for order in orders:
        assert Counter(order) == dict.fromkeys(every, 1)
        assert fullest(order, share) <= 2 * stages + 1e-9
    if message:
        return  # the oracle plays without
    spans = [
        max(ends[stage, slot] for slot in order) - ends[stage, order[0]] + times[0]
        for stage, order in enumerate(orders)
    ]
    first = SCHEDULES["zero-bubble"](stages, micro_batches)
    assert max(spans) <= max(play(first, durations("zero-bubble", 1, *times)).values())


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 9), (8, 24), (16, 48)])
def test_zb_2p_has_no_bubble_where_passes_are_equal(stages, micro_batches):
    """Table 1 of the paper: for F = B = W, in twice the activations of 1F1B."""
    orders = zero_bubble_2p.order(stages, micro_batches, PassTimes(), 1.0)
    ends = play(orders, durations("zero-bubble", 1))
    for stage, order in enumerate(orders):
        assert ends[stage, order[-1]] - ends[stage, order[0]] + 1 == 3 * micro_batches
    assert max(fullest(order, 1.0) for order in orders) == 2 * stages


def test_what_weight_gradients_need_is_the_papers():
    """Table 2 of the paper: 32 s b h of s b h (34 + 5 a s / h)."""
    assert zero_bubble_2p.weight_share(24, 1024, 2304) == pytest.approx(32 / (34 + 53.33), rel=1e-3)


def test_a_v_comes_back_through_the_stages():
    schedule = SCHEDULES["zero-bubble-v"]
    assert [schedule.place(part, 3) for part in range(6)] == [
        (0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0),
    ]  # fmt: skip
    for name in ("zero-bubble-v", "interleaved"):
        for part in range(6):
            chunk, stage = SCHEDULES[name].place(part, 3)
            assert SCHEDULES[name].part(chunk, stage, 3) == part


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-h2")),
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(2, 4),
)
def test_orders_are_those_written_slot_by_slot(name, stages, micro_batches, chunks):
    if name == "interleaved":
        micro_batches = stages * (1 + micro_batches % 5)
    else:
        chunks = 1
    numbers = (stages, micro_batches, chunks)
    assert SCHEDULES[name](*numbers) == told_orders(name, *numbers)


def test_slots_as_arrays():
    orders = SCHEDULES["zero-bubble"](3, 5)
    arrays = slot_arrays(orders)
    assert len(arrays.stage_ptr) == 4
    for stage, order in enumerate(orders):
        part = slice(arrays.stage_ptr[stage], arrays.stage_ptr[stage + 1])
        fields = arrays.phase[part], arrays.micro_batch[part], arrays.chunk[part]
        assert [Slot(PHASES[p], i, c) for p, i, c in zip(*fields, strict=True)] == order


@pytest.mark.parametrize(
    ("name", "numbers", "says"),
    [
        ("1f1b", (0, 4, 1), "at least 1"),
        ("gpipe", (2, 4, 2), "interleaved"),
        ("interleaved", (4, 6, 2), "4 or 8"),
        ("interleaved", (4, 8, 1), "1f1b"),
        ("zero-bubble-v", (4, 8, 3), "two chunks"),
    ],
)
def test_impossible_schedules_are_refused(name, numbers, says):
    with pytest.raises(RidgelineError, match=says):
        SCHEDULES[name](*numbers)


def test_unknown_schedule_names_the_nearest():
    with pytest.raises(RidgelineError, match="gpipe"):
        SCHEDULES["gpip"]
