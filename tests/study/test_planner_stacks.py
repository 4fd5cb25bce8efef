"""Searches under software stacks: no bound is above the engine, and the answer is the optimum."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import resolved
from ridgeline.simulation import simulate
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack
from ridgeline.study.planner import search
from ridgeline.study.planner.bounds import totals
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.study.scaling import scaling
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model
from stacked import PLAIN
from thoroughly import further, sample_of

LAYER = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 512
sequence: 128
hidden: 512
attention: {heads: 8, bias: false, output_bias: false}
feed_forward: {width: 1024, activation: swiglu, bias: false}
norm: rms-norm
positions: rotary
tied: false
"""
MADE = {
    "mixture": "layers: 7\nmixture: {experts: 12, top_k: 2, width: 1024}\n",
    "shared": "layers: 3\nmixture: {experts: 8, top_k: 3, width: 256, shared: 1}\n",
    "decoder": "layers: 6\n",
    "unlike": "layers: 6\nsequence_length_std: 0.4\n",
    "uneven": "layers: 3\nmixture: {experts: 8, top_k: 2, width: 256}\nexpert_load_factor: 1.3\n",
}
MODELS = (*MADE, "resnet18", "mlp", "t5-small")
MACHINES = ("selene-a100", "dgx1-v100-edr", "superpod-h100", "tpu-v4-pod", "frontier")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"overlap.tensor": True},
    {"overlap.tensor": "gathers", "moe.dispatch": "node-limited"},
    {"overlap.tensor": "pieces", "gradients.accumulation_fusion": True},
    {"overlap.moe_a2a": True},
    {"gradients.main_grads": "narrow", "memory.allocator": "caching"},
    {"gradients.main_grads": "flat", "memory.allocator": "caching", "overlap.gradients": False},
    {"gradients.main_grads": "both", "overlap.gradients": "gathers"},
    {"gradients.reduce_dtype": "bf16", "kernels.norm": "fused"},
    {"gradients.bucket": 1e5, "pipeline.p2p_scatter_gather": "none"},
    {"zero.reshard_after_forward": "blocks", "plan.hybrid_shard_size": "slice"},
    {"plan.expert_tensor_parallel": 1, "plan.sequence": True, "moe.combine": "atomic"},
    {"plan.stage_balance": "layers", "pipeline.p2p_scatter_gather": "forward"},
    {"plan.stage_balance": "ends", "host.launch_time": 40e-6},
    {"host.launch_time": 40e-6, "host.async_launch": False, "overlap.contention": True},
)


@cache
def network(name: str) -> Model:
    if name not in MADE:
        return load_model(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(LAYER + MADE[name])
        return load_model(str(path))


@st.composite
def searches(draw: st.DrawFn, stacks: st.SearchStrategy[Stack]) -> Searcher | None:
    """Small steps on machines of few devices or many; None: the stack cannot run the step."""
    devices = draw(st.sampled_from([1, 2, 4, 6, 8, 16, 24, 96]))
    batch = devices * draw(st.integers(1, 4))
    precision = draw(st.sampled_from([None, "fp16-mixed"]))
    stack, name = draw(stacks), draw(st.sampled_from(MODELS))
    try:
        return searcher(
            network(name), draw(st.sampled_from(MACHINES)), devices, batch,
            precision=precision, software=stack, context=draw(st.booleans()),
        )  # fmt: skip
    except RidgelineError:
        return None


def check(one: Searcher | None, data: st.DataObject) -> None:
    """No bound of some plan is above what the engine plays."""
    if one is None or not len(one.space):
        return
    s = one.space
    small = np.flatnonzero(s.micro_batches * s.pipeline <= 48).tolist()
    i = data.draw(st.sampled_from(small)) if small else 0
    plan, key = s.plan(i), one.key(i)
    try:
        group, replay = one.groups.group(key), one.replay(plan)
    except RidgelineError:
        return
    if group is None:
        return
    known, who = totals(group), (one.runs.stack.name, plan)
    less, margin = one.groups.least(one.groups.family(key)), 1e-12 * np.abs(known[:7])
    assert less is not None
    assert (less <= known[:7] + margin).all(), who
    if one.groups.family(key) != key:
        again = one.groups.least_again(key)
        assert again is not None
        assert (again <= known[:7] + margin).all(), who
    at, row = np.array([i]), np.array([0])
    coarse = one.screened(at, row, known[None, :])[0]
    unpriced = one.screened(at, row, one.may_fit(key)[None, :])[0]
    for wired in (True, False):
        sharp = one.tightened(group, i, wired=wired)
        values = one.bound_values(np.array([sharp.time_s]), np.array([sharp.energy_j]), at)
        assert 0 < sharp.time_s <= replay.step_time_s, who
        assert values[0] <= replay.objective, who
        assert sharp.memory_bytes <= replay.memory_bytes, who
    assert coarse[0] <= replay.step_time_s, who
    assert max(coarse[2], unpriced[2]) <= replay.memory_bytes, who


@sample_of(
    10, 40, searches(st.sampled_from(catalog.names("software")).map(load_software)), st.data()
)
def test_no_bound_is_above_the_engine_under_any_stack(
    one: Searcher | None, data: st.DataObject
) -> None:
    check(one, data)


@sample_of(10, 40, searches(st.sampled_from(SETTINGS).map(PLAIN.with_settings)), st.data())
def test_no_bound_counts_what_a_setting_saves(one: Searcher | None, data: st.DataObject) -> None:
    check(one, data)


@pytest.mark.parametrize("bucket", [1e4, 1e5, 1e6])
def test_gradients_made_during_a_wait_are_not_late(bucket: float) -> None:
    """Once above: a wait stood before gradients that are made while rows of experts travel."""
    stack = PLAIN.with_settings({"gradients.bucket": bucket})
    one = searcher(network("shared"), "selene-a100", 24, 24, precision="bf16-mixed", software=stack)
    plan = Plan(
        global_batch=24, data=8, pipeline=3, expert=2, micro_batch=1, schedule="gpipe",
        recompute="sqrt", precision="bf16-mixed",
    )  # fmt: skip
    (i,) = (i for i in range(len(one.space)) if one.space.plan(i) == plan)
    group = one.groups.group(one.key(i))
    assert group is not None
    assert 0.9 < one.tightened(group, i).time_s / one.replay(plan).step_time_s <= 1.0


STACKS = ("megatron-core", "megatron-lm-2021", "torchtitan", "maxtext-gpu", "bigscience", "ideal")


@pytest.mark.parametrize("name", [*STACKS[::2], *further(*STACKS[1::2])])
def test_a_replay_is_the_simulation_of_the_same_plan_and_stack(name: str) -> None:
    gpt2 = load_model("gpt2", {"layers": 4})
    one = searcher(gpt2, "selene-a100", 16, 32, precision="bf16-mixed", software=name)
    for i in range(0, len(one.space), max(1, len(one.space) // 5)):
        plan = one.space.plan(i)
        try:
            replay = one.replay(plan)
        except RidgelineError:
            continue
        result = simulate(gpt2, "selene-a100", plan, software=name)
        assert replay.step_time_s == result.step_time_s
        assert replay.energy_j == result.energy_j["total"]
        assert replay.memory_bytes == result.memory_bytes["total"]
        told = simulate(gpt2, "selene-a100", Plan(**replay.said), software=name)
        assert told.step_time_s == result.step_time_s


OPTIMA = (
    ("mlp", "dgx1-v100", 4, 8, "pytorch"),
    ("mlp", "selene-a100", 4, 2, "zero-bubble"),
    ("decoder", "superpod-h100", 2, 2, "torchtitan"),
    ("mlp", "selene-a100", 2, 4, "deepspeed"),
    ("shared", "superpod-h100", 2, 2, "megatron-bridge"),
)


@pytest.mark.parametrize(
    "case", [*OPTIMA[:2], *further(*((case,) for case in OPTIMA[2:4])), OPTIMA[4]]
)
def test_the_answer_is_the_optimum_under_a_stack(case: tuple[str, str, int, int, str]) -> None:
    name, machine, devices, batch, software = case
    stack = load_software(software)
    if name == "mlp":  # which transformers' programs do not train
        stack = stack.model_copy(
            update={"supports": stack.supports.model_copy(update={"networks": ()})}
        )
    step = (network(name), machine, devices, batch)
    one = searcher(*step, software=stack)
    found = search(*step, software=stack)
    everything = []
    for i in range(len(one.space)):
        try:
            everything.append(one.replay(one.space.plan(i)))
        except RidgelineError:
            continue
    assert found.best.objective == min(r.objective for r in everything if r.fits)
    assert found.proven
    assert found.software == software


def test_only_plans_that_a_stack_supports_are_listed() -> None:
    found = search("resnet18", "dgx1-v100", 4, 32, limit=1, software="pytorch")
    assert found.best.plan.data == 4
    assert found.notes == ("pytorch has no parallelism but data",)
    space = searcher("gpt2", "selene-a100", 8, 16, software="megatron-lm-2019").space
    assert set(space.tensor.tolist()) > {1}
    assert set(space.pipeline.tolist()) == {1}
    narrow = PLAIN.with_settings({"gradients.reduce_dtype": "bf16"})
    assert not searcher("gpt2", "selene-a100", 8, 16, software=narrow).space.sharding.any()
    with pytest.raises(RidgelineError, match="cannot run this step"):
        search("resnet18", "dgx1-v100", 1, 8, precision="bf16-mixed", software="caffe")


def test_a_plan_says_what_a_stack_would_have_otherwise() -> None:
    """megatron-lm-2019 recomputes unless it is told not to."""
    one = searcher("gpt2", "selene-a100", 2, 4, software="megatron-lm-2019")
    plan = Plan(global_batch=4, data=2, recompute="none")
    replay = one.replay(plan)
    assert "recompute=none" in str(replay)
    assert Plan(**replay.said).recompute == "none"
    with_default = one.replay(Plan(global_batch=4, data=2))
    assert with_default.memory_bytes < replay.memory_bytes
    assert with_default.to_dict()["plan"] == str(with_default)


@pytest.mark.parametrize("cut", ["layers", "ends"])
@pytest.mark.parametrize("name", ["decoder", "gpt2", "mixture"])
def test_layers_are_cut_where_the_step_cuts_them(cut: str, name: str) -> None:
    """Also where a few of them tell of all."""
    stack = PLAIN.with_settings({"plan.stage_balance": cut})
    one = searcher(network(name), "superpod-h100", 2, 4, software=stack)
    key = one.key(0)._replace(micro_batch=1, tensor=1, sequence=False, recompute="none")
    group = one.groups.group(key)
    assert group is not None
    graph = network(name).training(1, one.groups.precision)
    for stages in (2, 3, 4):
        parts = partition(graph, (), stages, cut).parts  # type: ignore[arg-type]
        part = np.repeat(np.arange(stages), np.diff(group.cuts(stages)[0]))
        sent = np.zeros((stages, stages))
        for target, of in enumerate(parts):
            for receipt in of.receipts:
                sizes = (graph.tensors[n].bytes for n in receipt.tensors)
                sent[receipt.source, target] += sum(sizes)
        np.testing.assert_array_equal(group.crossing.between(part), sent)


def test_defaults_that_are_not_searched_are_the_stacks_own() -> None:
    one = searcher("gpt2", "selene-a100", 4, 8, software="megatron-core")
    plan = Plan(global_batch=8, data=2, pipeline=2, micro_batch=1)
    assert resolved(plan, one.runs.stack).stage_balance == "layers"
    assert one.runs.cut == "layers"
    assert any("stage_balance=layers" in note for note in one.runs.notes())


def test_scaling_runs_under_a_stack() -> None:
    case = ("resnet18", "dgx1-v100", [1, 2])
    ran = scaling(*case, batch=16, strategies=["data"], limit=1, software="pytorch-compile")
    for point in ran.points:
        assert point.result is not None
        assert point.result.details.plan.stack.name == "pytorch-compile"
