"""Any legal plan of any network can be played, and its accounts add up."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from pods import write_pod

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import DIMENSIONS, Plan
from ridgeline.parallel.plan.resolved import ALTERNATING
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.report.accounting import union
from ridgeline.report.result import Result
from ridgeline.simulation import matrix_peak, simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model
from stacked import stacked
from thoroughly import sample_of

FOLDER = Path(tempfile.mkdtemp())
DECODER = """
kind: model
name: small
family: decoder
title: Small
citation: made for tests
vocabulary: 512
sequence: 64
layers: 4
hidden: 128
attention: {heads: 4, bias: true}
feed_forward: {width: 512, activation: gelu}
norm: layer-norm
positions: learned
tied: true
"""
MIXTURE = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 512
sequence: 64
layers: 3
hidden: 128
attention: {heads: 4, bias: false, output_bias: false}
feed_forward: {width: 256, activation: swiglu, bias: false}
mixture: {experts: 8, top_k: 2, width: 128}
norm: rms-norm
positions: rotary
tied: false
"""
FUSED = DECODER.replace("bias: true}", "bias: true, kernel: flash}")
MODELS = ("decoder", "fused", "mixture", "mlp", "resnet18")
DEGREES = st.sampled_from((1, 1, 2, 2, 4))


@functools.cache
def cluster() -> Cluster:
    return load_cluster(str(write_pod(FOLDER)))


@functools.cache
def model(name: str) -> Model:
    text = {"decoder": DECODER, "fused": FUSED, "mixture": MIXTURE}.get(name)
    if text is None:
        return load_model(name)
    path = FOLDER / f"{name}.model.yaml"
    path.write_text(text)
    return load_model(str(path))


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a plan, most of which are legal together."""
    data, tensor, pipeline = draw(DEGREES), draw(DEGREES), draw(DEGREES)
    context = draw(st.sampled_from((1, 1, 1, 2)))
    micro_batch, micro_batches = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4, 6)))
    schedules = sorted(SCHEDULES)
    layers = draw(rules(data * tensor))
    schedule = draw(st.sampled_from(schedules if pipeline > 1 else ("1f1b", "gpipe")))
    replicas = draw(st.sampled_from(("",) * 5 + ("2-1", "1-3", "3-1-2")))
    if replicas:
        data = pipeline = 1
        layers, micro_batches = "", 6 * micro_batches
    degrees = [n for n in (1, 1, 2, 4) if data % n == 0]
    expert = draw(st.sampled_from(degrees)) if not layers else 1
    alternates = schedule in ALTERNATING
    return {
        "data": data,
        "tensor": tensor,
        "context": context,
        "cp_comm_type": draw(st.sampled_from(("all-gather", "ring")))
        if context > 1
        else "all-gather",
        "pipeline": pipeline,
        "replicas": replicas,
        "micro_batch": micro_batch,
        "global_batch": data * micro_batch * micro_batches,
        "schedule": schedule,
        "virtual_stages": draw(st.sampled_from((2, 3))) if schedule == "interleaved" else 1,
        "expert": expert,
        "overlap__moe_a2a": draw(st.booleans()) if expert > 1 and alternates else False,
        "sequence": draw(st.sampled_from((1, tensor))),
        "zero_stage": 0 if replicas else draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(("none", "full", "selective", "sqrt", "optimal"))),
        "overlap__gradients": draw(st.booleans()),
        "overlap__tensor": draw(st.booleans()),
        "gradients__bucket": draw(st.sampled_from((1e4, 1e6, 1e9))),
        "precision": draw(st.sampled_from(("fp32", "fp16-mixed"))),
        "order": "-".join(DIMENSIONS if replicas else draw(st.permutations(DIMENSIONS))),
        "layers": layers,
    }


@st.composite
def rules(draw: st.DrawFn, devices: int) -> str:
    """Rules for some layers, which all the networks here have, or none."""
    patterns = draw(st.sampled_from(((), (), ("*1*",), ("*2*", "*1*"), ("*1*", "*d*"))))
    degrees = st.sampled_from([n for n in (1, 2, 4, 8, 16) if devices % n == 0])
    return ";".join(f"{pattern}:tensor={draw(degrees)}" for pattern in patterns)


def played(name: str, plan: dict[str, Any]) -> Result | None:
    """Play a plan; None where it is refused."""
    try:
        return simulate(model(name), cluster(), stacked(**plan))
    except ConfigError:
        return None


def assert_path(result: Result) -> None:
    """Tasks without slack follow each other from the beginning to the end of the step."""
    timeline = result.details.timeline
    rounding = 1e-9 * timeline.makespan_s
    tight = timeline.slack_s() <= rounding
    spans = union(timeline.start_s[tight], timeline.end_s[tight] + rounding)
    assert len(spans) == 1
    assert spans[0, 0] == 0
    assert spans[0, 1] == pytest.approx(result.step_time_s, rel=1e-8)


def check(name: str, plan: dict[str, Any]) -> bool:
    result = played(name, plan)
    if result is None:
        return False
    devices = stacked(**plan).devices
    for parts in (result.time_s, result.energy_j):
        assert all(value >= 0 for value in parts.values())
        whole = math.fsum(value for key, value in parts.items() if key != "total")
        assert whole == pytest.approx(parts["total"], rel=1e-9)
    assert result.time_s["total"] == pytest.approx(result.step_time_s, rel=1e-9)
    assert math.fsum(result.limits_s.values()) == pytest.approx(result.step_time_s, rel=1e-9)
    assert_path(result)
    memory = {k: v for k, v in result.memory_bytes.items() if k != "capacity"}
    assert all(value >= 0 for value in memory.values())  # at any time: else the engine complains
    assert sum(memory.values()) == 2 * memory["total"]
    peak = matrix_peak(result.details.lowered, cluster().device)
    assert result.step_time_s * peak * devices >= result.flops_per_step
    return True


@sample_of(15, 60, st.sampled_from(MODELS), fields())
def test_every_legal_plan_can_be_played(name: str, plan: dict[str, Any]) -> None:
    check(name, plan)


def test_split_backward_with_scattered_gradients_and_scores_made_again() -> None:
    plan = {
        "schedule": "zero-bubble",
        "pipeline": 2,
        "tensor": 2,
        "data": 2,
        "zero_stage": 2,
        "recompute": "selective",
        "micro_batch": 4,
        "global_batch": 16,
        "precision": "fp32",
    }
    assert check("resnet18", plan)


def test_parts_that_are_done_again_and_again_wait_for_no_other_stage() -> None:
    plan = {
        "schedule": "interleaved",
        "pipeline": 2,
        "virtual_stages": 3,
        "tensor": 2,
        "recompute": "optimal",
        "zero_stage": 3,
        "micro_batch": 1,
        "global_batch": 4,
    }
    assert check("resnet18", plan)


def test_other_stages_do_not_wait_for_gradients_of_weights() -> None:
    """A slice that both these and another stage's backward pass read is made early."""
    plan = stacked(
        schedule="zero-bubble-v",
        pipeline=2,
        tensor=2,
        micro_batch=4,
        global_batch=8,
        precision="fp16-autocast",
        pipeline__p2p_scatter_gather="none",
    )
    assert simulate(model("ssd300"), "selene-a100", plan).step_time_s > 0


def test_what_is_done_again_is_where_it_was_done_first() -> None:
    """Also in layers that are cut, whose own ops and what these gather are on two stages."""
    plan = Plan(
        schedule="zero-bubble",
        pipeline=2,
        tensor=4,
        tensor_rows=2,
        context=2,
        micro_batch=4,
        tensor_mode="stationary",
        recompute="full",
        global_batch=16,
        precision="bf16-mixed",
    )
    assert simulate(model("transformer-base"), "tpu-v3-pod", plan).step_time_s > 0
