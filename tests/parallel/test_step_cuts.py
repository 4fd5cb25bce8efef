"""Cuts of a pipeline that know their messages, against every cut written out and played anew."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.parallel.stages import cuts
from ridgeline.parallel.stages.cuts import Pace, balance_step
from ridgeline.parallel.stages.schedules import SCHEDULES

NUMBERS = st.floats(0.01, 4.0)
KINDS = [
    "1f1b", "gpipe", "zero-bubble", "zero-bubble-h2", "zero-bubble-v", "interleaved",
]  # fmt: skip


def step_of(
    work: list[list[float]], where: tuple[int, ...], sizes: list[float], pace: Pace
) -> float:
    """When a pipeline ends: each slot by the slot before it and what it needs, by recursion."""
    parts = len(where) - 1
    devices = parts // pace.chunks
    schedule = SCHEDULES[pace.schedule]
    orders = schedule(devices, pace.micro_batches, pace.chunks)
    each = [np.sum(work[i:j], axis=0) for i, j in pairwise(where)]
    if not schedule.splits_backward:
        each = [np.array([f, b + w, 0.0]) for f, b, w in each]
    sent = [
        late + byte * sizes[cut - 1]
        for late, byte, cut in zip(pace.late_s, pace.byte_s, where[1:-1], strict=True)
    ]
    back = sent if pace.returns else [0.0] * len(sent)
    before: dict[tuple[str, int, int], tuple[str, int, int] | None] = {}
    messages: dict[tuple[int, int], list[int]] = {}
    for k, order in enumerate(orders):
        last = None
        for slot in order:
            key = (slot.phase, schedule.part(slot.chunk, k, devices), slot.micro_batch)
            before[key], last = last, key
            if slot.phase != "W":
                messages.setdefault((slot.phase == "B", key[1]), []).append(slot.micro_batch)

    @cache
    def end(key: tuple[str, int, int]) -> float:
        phase, part, i = key
        begin = 0.0 if before[key] is None else end(before[key])
        if phase == "F" and part:
            begin = max(begin, came(0, part, i))
        if phase == "B":
            turn = part == parts - 1
            begin = max(begin, end(("F", part, i)) if turn else came(1, part, i))
        return begin + float(each[part]["FBW".index(phase)])

    @cache
    def came(direction: int, part: int, i: int) -> float:
        source = part + 1 if direction else part - 1
        order = messages[direction == 1, source]
        at = order.index(i)
        free = came(direction, part, order[at - 1]) if at else 0.0
        takes = back[part] if direction else sent[part - 1]
        return max(free, end(("FB"[direction], source, i))) + takes

    return max(end(key) for key in before)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[list[float]], list[float], int, Pace]:
    """Draw layers, what they send, the number of parts, and a pace."""
    name = draw(st.sampled_from(KINDS))
    chunks = 2 if SCHEDULES[name].interleaves else 1
    devices = draw(st.integers(2, 3))
    parts = devices * chunks
    n = draw(st.integers(parts, parts + 3))
    work = draw(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=n, max_size=n))
    sizes = draw(st.lists(NUMBERS, min_size=n, max_size=n))
    links = st.lists(NUMBERS, min_size=parts - 1, max_size=parts - 1).map(tuple)
    micro_batches = devices * draw(st.integers(1, 4))
    return work, sizes, parts, Pace(
        name, micro_batches, draw(links), draw(links), chunks, draw(st.booleans())
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_no_cut_written_out_gives_a_shorter_step(
    case: tuple[list[list[float]], list[float], int, Pace],
) -> None:
    work, sizes, parts, pace = case
    n = len(work)
    found = balance_step(work, parts, sizes, pace)
    where = (0, *(stage.stop for stage in found))
    least = min(
        step_of(work, (0, *inner, n), sizes, pace) for inner in combinations(range(1, n), parts - 1)
    )
    assert step_of(work, where, sizes, pace) == pytest.approx(least, rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(pipelines())
def test_where_not_every_cut_is_played_moving_one_does_not_help(
    case: tuple[list[list[float]], list[float], int, Pace],
) -> None:
    work, sizes, parts, pace = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "comb", lambda n, k: 10**9)  # so that no list is short enough
        found = balance_step(work, parts, sizes, pace)
    where = [0, *(stage.stop for stage in found)]
    best = step_of(work, tuple(where), sizes, pace)
    for k in range(1, parts):
        for place in range(where[k - 1] + 1, where[k + 1]):
            moved = (*where[:k], place, *where[k + 1 :])
            assert step_of(work, moved, sizes, pace) >= best * (1 - 1e-8)


@settings(max_examples=15, deadline=None)
@given(pipelines(), st.integers(5, 12))
def test_long_steps_are_told_by_their_pace(
    case: tuple[list[list[float]], list[float], int, Pace], more: int
) -> None:
    """Of a step of more micro-batches than are played, the cut is the best but for a little."""
    work, sizes, parts, pace = case
    pace = pace._replace(micro_batches=pace.micro_batches * more)
    found = balance_step(work, parts, sizes, pace)
    where, n = (0, *(stage.stop for stage in found)), len(work)
    least = min(
        step_of(work, (0, *inner, n), sizes, pace) for inner in combinations(range(1, n), parts - 1)
    )
    assert step_of(work, where, sizes, pace) <= least * 1.02
