"""How close the planner's bounds are to the engine, and what they are made of."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.parallel.emit.buckets import gradient_buckets
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.experts import expert_weights, with_experts
from ridgeline.study.planner.dependencies import FORWARD, MADE, READ, WHOLE
from ridgeline.study.planner.max_plus import bucketed, parts_of
from ridgeline.study.planner.searcher import Searcher
from ridgeline.study.planner.space import SCHEDULE_NAMES
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Pass, Role
from stacked import plain_searcher as searcher
from thoroughly import sample_of

CASES = {
    "images": ("resnet18", "dgx1-v100-edr", 16, 32),
    "decoder": ("gpt2", "superpod-h100", 8, 16),
    "both": ("t5-small", "selene-a100", 8, 16),
}


@functools.cache
def prepared(name: str) -> Searcher:
    return searcher(*CASES[name], precision="fp16-mixed")


def share(one: Searcher, i: int, *, wired: bool = True) -> float:
    """Return the bound over the engine's time."""
    group = one.groups.group(one.key(i))
    assert group is not None
    bound = one.tightened(group, i, wired=wired)
    return bound.time_s / one.replay(one.space.plan(i)).step_time_s


@sample_of(3, 8, st.sampled_from(sorted(CASES)), st.data())
def test_a_pipeline_alone_is_bounded_by_nearly_its_time(name: str, data: st.DataObject) -> None:
    """Whatever the schedule: with what stages send each other, and what is done once a step."""
    one = prepared(name)
    s = one.space
    alone = (s.data == 1) & (s.tensor == 1) & (s.micro_batches * s.pipeline <= 128)
    alone &= s.chunks <= 2
    i = data.draw(st.sampled_from(np.flatnonzero(alone).tolist()))
    try:
        found = share(one, i)
    except RidgelineError:
        return
    assert 0.8 < found <= 1.0, s.plan(i)


@pytest.mark.parametrize("sharding", [0, 1, 2, 3])
def test_what_replicas_move_is_in_the_bound(sharding: int) -> None:
    """On one node, with nothing else on its links: buckets, gathers ahead of use, and queues."""
    one = prepared("decoder")
    s = one.space
    some = (s.data == 8) & (s.sharding == sharding) & (s.recompute == 0)
    for i in np.flatnonzero(some).tolist():
        found = share(one, i)
        assert 0.9 < found <= 1.0, s.plan(i)
        assert share(one, i, wired=False) < found - 0.04


def test_messages_between_stages_count() -> None:
    """Nothing is left out of a whole step."""
    one = prepared("images")
    s = one.space
    some = (s.pipeline == 16) & (s.schedule == SCHEDULE_NAMES.index("1f1b")) & (s.recompute == 0)
    for i in np.flatnonzero(some).tolist():
        group = one.groups.group(one.key(i))
        assert group is not None
        assert 0.999 < share(one, i) <= 1 + 1e-8  # messages take memory bandwidth of the work
    sent_s = next(reversed(one.cuts.values())).time.sent_s.sum()
    assert sent_s > 0


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.integers(2, 9), st.sampled_from([1e5, 2e6, 25 * 2.0**20]))
def test_buckets_are_those_of_the_step(name: str, stages: int, least: float) -> None:
    """Of every stage's own part of the graph, as the lowering puts them together."""
    one = prepared(name)
    key = one.key(0)._replace(recompute="none", tensor=1, sequence=False, micro_batch=1)
    group = one.groups.group(key)
    assert group is not None
    graph = one.model.training(1, one.groups.precision)
    cost_s = [cost.time_s(one.cluster.device) for cost in one.groups.kinds[0].costs(graph)]
    parts = partition(graph, cost_s, stages).parts
    part = np.empty(len(group.work), np.int64)
    parts_of(group.cuts(stages)[0], part)
    ahead = [with_sharding(one_part.graph, 3, 2, least) for one_part in parts]

    def found(direction: int, kind: int) -> list[list[float]]:
        p = group.played[direction]
        (after, ends), total = np.empty((2, len(p.kind)), np.int64), np.empty(len(p.kind))
        bucketed(
            kind, np.array([True, False]), p.kind, p.unit, p.value, p.shared, p.tied, part, least,
            after, total, ends,
        )  # fmt: skip
        assert np.count_nonzero(ends >= 0) == (np.count_nonzero(total) if kind == READ else 0)
        at = part[p.unit]
        return [total[(at == k) & (total > 0)].tolist() for k in range(stages)]

    def gathered(k: int, *, forward: bool) -> list[float]:
        ops = [op for op in ahead[k].ops if op.kind == "all-gather"]
        ops = [op for op in ops if (op.pass_ is Pass.FORWARD) is forward]
        return [float(str(dict(op.attrs)["size_bytes"])) for op in ops]

    sums = [[float(b.size_bytes) for b in gradient_buckets(one.graph, least)] for one in parts]
    assert found(WHOLE, MADE) == sums
    assert found(FORWARD, READ) == [gathered(k, forward=True) for k in range(stages)]
    assert found(WHOLE, READ) == [gathered(k, forward=False) for k in range(stages)]


@pytest.mark.parametrize("least", [1e6, 25 * 2.0**20, 400e6])
def test_what_experts_gather_early_comes_between_what_all_gather(least: float) -> None:
    """In the order of the ops that read the last of a bucket, as the step numbers them."""
    model = load_model("mixtral-8x7b", {"layers": 3})
    one = searcher(model, "superpod-h100", 4, 8, precision="bf16-mixed")
    key = one.key(0)._replace(
        micro_batch=1, tensor=1, sequence=False, recompute="none", expert=2, context=1
    )
    group = one.groups.group(key)
    assert group is not None
    graph = with_experts(model.training(1, "bf16-mixed"), 2)
    experts = expert_weights(graph)
    of_weights = {Role.WEIGHT, Role.WEIGHT_COPY}
    others = frozenset(t.name for t in graph.tensors.values() if t.role in of_weights) - experts
    for along, without in (("beyond", others), ("data", experts)):
        graph = with_sharding(graph, 1, 2, least, dimension=along, without=without)
    gathers = [dict(op.attrs) for op in graph.ops if op.kind == "all-gather"]
    p = group.played[FORWARD]
    (after, ends), total = np.empty((2, len(p.kind)), np.int64), np.empty(len(p.kind))
    bucketed(
        READ, np.array([True, True]), p.kind, p.unit, p.value, p.shared, p.tied,
        np.zeros(len(group.work), np.int64), least, after, total, ends,
    )  # fmt: skip
    early = ends[ends >= 0]
    assert total[early].tolist() == [float(str(g["size_bytes"])) for g in gathers]
    assert p.shared[early].tolist() == [int(g["dimension"] == "beyond") for g in gathers]
    assert 0 < p.shared[early].sum() < len(early)


@pytest.mark.parametrize(
    ("model", "machine", "fields"),
    [
        ("recoder-ml20m", "superpod-h100",
         {"pipeline": 8, "micro_batch": 16, "global_batch": 16, "schedule": "gpipe"}),
        ("recoder-ml20m", "dgx1-v100",
         {"pipeline": 4, "micro_batch": 1, "global_batch": 16, "schedule": "gpipe"}),
        ("alexnet", "frontier",
         {"pipeline": 40, "micro_batch": 40, "global_batch": 40, "recompute": "sqrt"}),
    ],
)  # fmt: skip
def test_stages_are_cut_where_the_step_cuts_them(
    model: str, machine: str, fields: dict[str, Any]
) -> None:
    """By the ops of each unit, also those that are done on a later stage: casts of gradients."""
    wanted = Plan(precision="fp16-mixed", **fields)
    one = searcher(model, machine, wanted.pipeline, wanted.global_batch, precision=wanted.precision)
    (i,) = (i for i in range(len(one.space.data)) if one.space.plan(i) == wanted)
    assert 0.9 < share(one, i) <= 1.0
