"""The planner: its bounds against the engine, and its answer against replaying everything."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.planner import search
from ridgeline.study.planner.screen import totals
from ridgeline.study.planner.search import Searcher, pareto, searcher

CASES = (
    ("gpt2", "selene-a100", 8, 24),
    ("gpt3-1.3b", "selene-a100", 16, 32),
    ("resnet18", "dgx1-v100", 8, 48),
    ("bert-base", "dgx1-v100", 8, 16),
    ("mlp", "dgx1-v100", 4, 64),
    ("t5-small", "superpod-h100", 16, 32),
    ("llama3-8b", "superpod-h100", 32, 64),
)


@functools.cache
def prepared(case: int) -> Searcher:
    return searcher(*CASES[case])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(CASES) - 1), st.data())
def test_no_bound_is_above_the_engine(case: int, data: st.DataObject) -> None:
    one = prepared(case)
    i = data.draw(st.integers(0, len(one.space) - 1))
    group = one.groups.group(one.key(i))
    if group is None:
        return
    try:
        replay = one.replay(one.space.plan(i))
    except RidgelineError:
        return
    sharp = one.sharpened(group, i)
    coarse = one.screened(np.array([i]), np.array([0]), totals(group)[None, :])[0]
    values = one.bound_values(np.array([sharp.time_s]), np.array([sharp.energy_j]), np.array([i]))
    energy = sharp.energy_j * replay.plan.data * replay.plan.tensor
    assert sharp.time_s <= replay.step_time_s, replay.plan
    assert coarse[0] <= replay.step_time_s, replay.plan
    assert energy <= replay.energy_j, replay.plan
    assert sharp.memory_bytes <= replay.memory_bytes, replay.plan
    assert coarse[2] <= replay.memory_bytes, replay.plan
    assert values[0] <= replay.objective
