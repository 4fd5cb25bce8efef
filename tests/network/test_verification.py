"""Collectives are verified on symbolic chunks; the oracle moves real data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from oracles.collective_data import CollectiveData
from ridgeline.network import collective, from_text
from ridgeline.network.algorithm import (
    ALGORITHMS,
    CollectiveGroup,
    DoesNotApplyError,
    algorithm,
    asked_bytes,
)
from ridgeline.network.message_schedule import MessageSchedule, make_script, make_step
from ridgeline.network.verification import WrongCollectiveError, verify_script
from thoroughly import sample_of

TOPOLOGIES = {
    2: "Ring(2, 50 GB/s, 1 us)",
    6: "Torus(2x3, 50 GB/s, 1 us)",
    8: "Torus(2x4, 50 GB/s, 1 us)",
}
NAMES = sorted(ALGORITHMS)


@pytest.mark.parametrize("key", NAMES, ids=" ".join)
@pytest.mark.parametrize("n", sorted(TOPOLOGIES))
def test_own_algorithms_are_right(key: tuple[str, str], n: int) -> None:
    group = CollectiveGroup(from_text(TOPOLOGIES[n]), tuple(range(n)), 4096.0)
    try:
        script = ALGORITHMS[key].write(group)
    except DoesNotApplyError:
        return
    verify_script(key[1], key[0], script, asked_bytes(key[0], group), n)


@sample_of(
    15,
    60,
    st.sampled_from([k for k in NAMES if k[0] != "barrier"]),
    st.sampled_from([6, 8]),
    st.data(),
)
def test_a_script_with_a_message_less_is_wrong_when_real_data_are(
    key: tuple[str, str], n: int, data: st.DataObject
) -> None:
    topology = from_text(TOPOLOGIES[n])
    group = CollectiveGroup(topology, tuple(range(n)), 4096.0)
    try:
        script = ALGORITHMS[key].write(group)
    except DoesNotApplyError:
        return
    which = data.draw(st.integers(0, len(script.steps) - 1))
    step = script.steps[which]
    gone = data.draw(st.integers(0, len(step.source) - 1))
    count = step.count.copy()
    count[gone] -= 1
    steps = (*script.steps[:which], replace(step, count=count), *script.steps[which + 1 :])
    damaged = replace(script, steps=steps)
    moved = CollectiveData(key[0], damaged, topology, list(range(n)), 1)
    try:
        moved.play()
        moved.check()
        right = True
    except AssertionError:
        right = False
    try:
        verify_script(key[1], key[0], damaged, asked_bytes(key[0], group), n)
        assert right
    except WrongCollectiveError:
        assert not right


def _ring(n: int, size: float, rounds: int) -> MessageSchedule:
    every = np.arange(n)
    step = make_step(
        every, (every + 1) % n, (every - 0) % n, span=n, shift=-1, combine=True, repeat=rounds
    )
    again = make_step(every, (every + 1) % n, (every + 1) % n, span=n, shift=-1, repeat=n - 1)
    return make_script(np.full(n, size / n), [step, again])


@pytest.fixture
def registered() -> Iterator[object]:
    things = ALGORITHMS._load()
    before = dict(things)
    yield things
    things.clear()
    things.update(before)


def test_a_wrong_one_of_a_user_is_refused_and_a_right_one_is_priced(
    registered: object,
) -> None:
    where = "Ring(8, 50 GB/s, 1 us)"

    @algorithm("all-reduce", "mine")
    def mine(group: CollectiveGroup) -> MessageSchedule:
        return _ring(group.n, group.size_bytes, group.n - 1)

    own = collective("all-reduce", 8e6, where, algorithm="mine")
    assert own.time_s == pytest.approx(
        collective("all-reduce", 8e6, where, algorithm="ring").time_s
    )

    @algorithm("all-reduce", "short")
    def short(group: CollectiveGroup) -> MessageSchedule:
        return _ring(group.n, group.size_bytes, group.n - 2)

    for name in ("short", "auto"):
        with pytest.raises(WrongCollectiveError, match=r"'short': rank \d misses the contribution"):
            collective("all-reduce", 8e6, where, algorithm=name)


def test_less_than_the_payload_is_refused(registered: object) -> None:
    @algorithm("all-reduce", "half")
    def half(group: CollectiveGroup) -> MessageSchedule:
        return _ring(group.n, group.size_bytes / 2, group.n - 1)

    with pytest.raises(
        WrongCollectiveError, match=r"are 4e\+06 B together; the operation has 8e\+06"
    ):
        collective("all-reduce", 8e6, "Ring(8, 50 GB/s, 1 us)", algorithm="half")
