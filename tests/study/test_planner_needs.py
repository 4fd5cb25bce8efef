"""What the leanest plan needs: bounds of memory where layers are wide."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.study.planner.memory import _leanest
from ridgeline.study.planner.searcher import Searcher
from ridgeline.workload.files import load_model
from stacked import plain_searcher as searcher
from thoroughly import sample_of

WIDTHS = st.lists(st.sampled_from([8, 64, 512, 4096, 20000]), min_size=2, max_size=5)


@st.composite
def searches(draw: st.DrawFn, most_devices: int) -> Searcher:
    """Perceptrons whose kept activations are anything from far less to far more than weights."""
    fields = {
        "widths": [*draw(WIDTHS), 10],
        "inputs": draw(st.sampled_from([8, 784, 4096])),
        "bias": draw(st.booleans()),
        "optimizer": draw(st.sampled_from(["sgd", "adam"])),
    }
    devices = draw(st.integers(1, most_devices))
    batch = devices * draw(st.sampled_from([1, 2, 8, 256]))
    precision = draw(st.sampled_from(["fp32", "fp16-mixed"]))
    return searcher(load_model("mlp", fields), "dgx1-v100", devices, batch, precision=precision)


def bounds(one: Searcher) -> list[tuple[float, int]]:
    found = []
    for i in range(len(one.space)):
        group = one.groups.group(one.key(i))
        if group is not None:
            found.append((one.memory_bytes(group, i), i))
    return sorted(found)


@sample_of(4, 12, one=searches(most_devices=4), data=st.data())
def test_no_plan_holds_less_than_its_bound(one: Searcher, data: st.DataObject) -> None:
    """What units keep for the backward pass counts once, however wide the layers between are."""
    i = data.draw(st.integers(0, len(one.space) - 1))
    group = one.groups.group(one.key(i))
    if group is None:
        return
    bound = one.memory_bytes(group, i)
    try:
        played = one.replay(one.space.plan(i))
    except RidgelineError:
        return
    assert 0 < bound <= played.memory_bytes, one.space.plan(i)


@settings(max_examples=4, deadline=None)
@given(one=searches(most_devices=1))
def test_the_leanest_plan_is_one_of_those_with_the_least_bounds(one: Searcher) -> None:
    found = _leanest(one, np.inf)
    assert found is not None
    known = {str(one.space.plan(i)): bound for bound, i in bounds(one)}
    assert known[str(found.plan)] <= found.memory_bytes
    assert min(known.values()) <= found.memory_bytes
    none = _leanest(one, min(known.values()) / 2)  # no plan can hold so little
    assert none is None
