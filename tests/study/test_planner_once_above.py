"""Bounds that once were above the engine, and what they follow from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.hardware.load import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.recompute import Mode, with_recompute
from ridgeline.parallel.comm.comm_cost import FarMemory, Wires
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.planner.bounds import HELD, totals
from ridgeline.study.planner.extrapolation import ReducedModel
from ridgeline.study.planner.searcher import Searcher
from ridgeline.workload.graph import Pass
from stacked import plain_searcher as searcher
from thoroughly import one_in, sample_of

ABOVE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # kept activations that the unit before had made, and gradients that it waited for
    ("ncf", "dgx1-v100",
     {"global_batch": 24, "pipeline": 2, "micro_batch": 4, "recompute": "sqrt",
      "precision": "fp32"}),
    # weights in full format, and states, counted where the cast is in the chain of layers
    ("mlp", "superpod-h100",
     {"global_batch": 240, "data": 2, "tensor": 64, "pipeline": 2, "virtual_stages": 4,
      "micro_batch": 4, "schedule": "interleaved", "zero_stage": 1, "precision": "fp16-mixed"}),
    ("dlrm", "tpu-v2-pod",
     {"global_batch": 3, "pipeline": 3, "virtual_stages": 5, "micro_batch": 1,
      "schedule": "interleaved", "recompute": "full", "precision": "bf16-mixed"}),
    # layers of the same ops and other sizes, taken to be alike
    ("deepspeech2", "jean-zay-a100",
     {"global_batch": 8, "pipeline": 4, "virtual_stages": 7, "micro_batch": 1,
      "schedule": "interleaved", "precision": "fp8-mixed"}),
    # what is sent of gradients of weights is made in the backward pass, where that is split
    ("lenet5", "superpod-h100",
     {"global_batch": 3, "tensor": 2, "pipeline": 3, "micro_batch": 3, "schedule": "zero-bubble",
      "recompute": "full", "precision": "fp32"}),
    # an all-to-all of what is done again, while a stage waits for the gradient that it gets
    ("gpt-oss-20b", "tpu-v2-pod",
     {"global_batch": 16, "data": 2, "pipeline": 2, "expert": 2, "micro_batch": 8,
      "schedule": "gpipe", "recompute": "full", "precision": "bf16-mixed"}),
    # casts of gradients on the stage that makes them
    ("recoder-ml20m", "dgx1-v100",
     {"global_batch": 240, "pipeline": 8, "micro_batch": 80, "schedule": "gpipe",
      "recompute": "sqrt", "precision": "fp16-mixed"}),
    # what is kept and read by a collective alone, which is gone when the scores are done again
    ("tinyllama-1.1b", "pcie4-8gpu-edr",
     {"global_batch": 16, "context": 4, "pipeline": 2, "micro_batch": 4, "schedule": "gpipe",
      "recompute": "selective", "precision": "tf32"}),
    # few layers that told of all by a negative number of units: an IndexError
    ("dit-s2", "tpu-v4-pod",
     {"global_batch": 12, "pipeline": 3, "micro_batch": 4, "schedule": "gpipe",
      "recompute": "selective", "precision": "fp32"}),
    # messages whose way through the fabric depends on their direction
    ("resnet18-cifar", "dgx2-edr",
     {"global_batch": 105, "tensor": 32, "pipeline": 8, "micro_batch": 7,
      "precision": "fp16-mixed"}),
    # a torus in which no two stages lie alike
    ("convnext-small", "tpu-v5p-pod",
     {"global_batch": 12, "data": 6, "tensor": 5, "pipeline": 4, "micro_batch": 1,
      "precision": "fp32"}),
)  # fmt: skip
FAMILIES = (
    ("ncf", "dgx1-v100", 6, 12, "fp16-mixed"),
    ("recoder-ml20m", "superpod-h100", 4, 8, "bf16-mixed"),
    ("alexnet", "pcie4-8gpu-edr", 12, 24, "fp16-mixed"),
    ("mlp", "jean-zay-a100", 12, 24, "fp16-mixed"),
    ("lstm-wikitext2", "aws-p4d-efa", 6, 12, "fp32"),
)


def check(one: Searcher, plan: Plan, i: int) -> None:
    """No bound of a plan is above what the engine plays."""
    group = one.groups.group(one.key(i))
    assert group is not None
    bound, replay = one.tightened(group, i), one.replay(plan)
    assert 0 < bound.time_s <= replay.step_time_s, plan
    assert 0 < bound.memory_bytes <= replay.memory_bytes, plan
    values = one.bound_values(np.array([bound.time_s]), np.array([bound.energy_j]), np.array([i]))
    assert values[0] <= replay.objective, plan


@pytest.mark.parametrize(("model", "machine", "fields"), one_in(2, ABOVE))
def test_they_are_no_longer(model: str, machine: str, fields: dict[str, Any]) -> None:
    plan = Plan(**fields)
    one = searcher(
        model, machine, plan.devices, plan.global_batch,
        precision=plan.precision, context=plan.context > 1 or None,
    )  # fmt: skip
    s = one.space
    near = (s.pipeline == plan.pipeline) & (s.tensor == plan.tensor) & (s.data == plan.data)
    (i,) = (i for i in np.flatnonzero(near).tolist() if s.plan(i) == plan)
    check(one, plan, i)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.sampled_from(FAMILIES), st.data())
def test_no_bound_of_any_family_is_above_the_engine(
    case: tuple[str, str, int, int, str], data: st.DataObject
) -> None:
    *more, precision = case
    one = searcher(*more, precision=precision, objective="energy")  # type: ignore[arg-type]
    i = data.draw(st.integers(0, len(one.space) - 1))
    if one.groups.group(one.key(i)) is not None:
        check(one, one.space.plan(i), i)


@sample_of(3, 8,
    st.sampled_from(["gpt2", "t5-small", "resnet18", "ncf", "transformer-xl-base"]),
    st.integers(2, 8), st.sampled_from(["none", "full"]), st.sampled_from(["fp32", "fp16-mixed"]),
)  # fmt: skip
def test_ops_and_messages_are_where_the_step_has_them(
    name: str, stages: int, recompute: Mode, precision: str
) -> None:
    """Also where few layers tell of all: what stages send; and where what is done once is done."""
    one = searcher(name, "superpod-h100", stages, stages, precision=precision)
    stages = min(stages, one.groups.limits.max_stages)
    key = one.key(0)._replace(micro_batch=1, tensor=1, sequence=False, recompute=recompute)
    group = one.groups.group(key)
    assert group is not None
    graph = with_recompute(one.model.training(1, precision), recompute)
    cost_s = [cost.time_s(one.cluster.device) for cost in one.groups.kinds[0].costs(graph)]
    parts = partition(graph, cost_s, stages).parts
    part = np.repeat(np.arange(stages), np.diff(group.cuts(stages)[0]))
    sent = np.zeros((stages, stages))
    for target, of in enumerate(parts):
        for receipt in of.receipts:
            sent[receipt.source, target] += sum(graph.tensors[n].bytes for n in receipt.tensors)
    np.testing.assert_array_equal(group.crossing.between(part), sent)
    once = np.zeros((stages, 2))
    np.add.at(once, part, group.once_s)
    for k, of in enumerate(parts):
        costs = one.groups.kinds[0].costs(of.graph)
        updates = [c for op, c in zip(of.graph.ops, costs, strict=True) if op.pass_ is Pass.UPDATE]
        most = sum(cost.time_s(one.cluster.device) for cost in updates)
        assert once[k, 1] <= most * (1 + 1e-12)


def test_layers_of_other_sizes_are_not_alike() -> None:
    """The cast of the head's weight stands where a layer has the cast of its own."""
    few, whole = (searcher("deepspeech2", "jean-zay-a100", 4, 8) for _ in range(2))
    whole.groups.few = ReducedModel(whole.model, ())
    key = few.key(0)._replace(recompute="none", tensor=1, micro_batch=1)
    a, b = few.groups.group(key), whole.groups.group(key)
    assert a is not None
    assert b is not None
    np.testing.assert_allclose(a.balanced, b.balanced, rtol=1e-12)
    np.testing.assert_array_equal(a.held, b.held)


def test_the_price_of_a_collective_does_not_depend_on_what_was_asked_before() -> None:
    """NCCL's trees get less of the bandwidth for short messages, of all groups alike."""
    topology = from_cluster(load_cluster("aws-p4d-efa"), 256)
    groups = np.arange(256).reshape(32, 8).T
    sizes = [1e5, 1e6, 4.8e6, 12e6, 64e6]

    def priced(order: list[float]) -> dict[float, float]:
        builder = ProgramBuilder()
        wires = Wires(builder, topology, FarMemory(0, 0))
        return {size: sum(wires.together_s("all-reduce", groups, size)) for size in order}

    up, down = priced(sizes), priced(sizes[::-1])
    for size in sizes:
        assert up[size] == pytest.approx(down[size], rel=1e-12)


def test_messages_of_many_ranks_share_their_links() -> None:
    """Six pairs of a stage across two nodes: the bound knows what goes through each adapter."""
    one = searcher("nnunet-3d", "aws-p4d-efa", 12, 12, precision="fp32")
    s = one.space
    some = (s.data == 6) & (s.pipeline == 2) & (s.chunks == 8) & (s.sharding == 0)
    (i,) = np.flatnonzero(some & (s.micro_batch == 1) & (s.recompute == s.recompute.max()))
    group = one.groups.group(one.key(int(i)))
    assert group is not None
    step_s = one.replay(one.space.plan(int(i))).step_time_s
    bound = one.tightened(group, int(i))
    assert 0.6 < bound.time_s / step_s <= 1.0


def test_what_is_kept_is_not_told_from_fewer_samples_where_stretches_move() -> None:
    """Stretches that are done again end elsewhere for 30 images than for one and two."""
    one = searcher("densenet169", "tpu-v5e-pod", 1, 90, precision="bf16-mixed")
    key = one.key(0)._replace(micro_batch=30, recompute="sqrt")
    group = one.groups.group(key)
    assert group is not None
    assert (one.may_fit(key)[-HELD:] <= totals(group)[-HELD:]).all()
