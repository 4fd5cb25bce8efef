"""Parts that look the same: copied blocks against blocks that are written."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.emit import step_emitter
from ridgeline.parallel.emit.stage_dedup import look_of
from ridgeline.parallel.emit.step_template import _drafts
from ridgeline.parallel.lower import Lowered, lower
from ridgeline.parallel.partition.pipeline_partition import StagePart
from ridgeline.parallel.plan.plan import Plan
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph
from stacked import stacked

MODELS = ("gpt2", "resnet18", "t5-small", "mixtral-8x7b")
SMALL = {
    "mixtral-8x7b": {
        "layers": 8, "sequence": 64, "vocabulary": 64, "hidden": 64, "attention.heads": 4,
        "attention.kv_heads": 4, "feed_forward.width": 64, "mixture.width": 64,
    }
}  # fmt: skip
CLUSTERS = (("selene-a100", 64), ("dgx1-v100", 8))  # devices that are wired alike, and not


@functools.cache
def graph_of(model: str, micro_batch: int) -> Graph:
    return load_model(model, SMALL.get(model)).training(micro_batch, "fp16-mixed")


@functools.cache
def topology_of(cluster: int) -> Topology:
    name, devices = CLUSTERS[cluster]
    return from_cluster(load_cluster(name), devices)


def lowered(plan: Plan, model: str, cluster: int, *, copied: bool) -> Lowered:
    _drafts.clear()
    graph = graph_of(model, plan.micro_batch_size)
    with pytest.MonkeyPatch.context() as patch:
        if not copied:
            patch.setattr(step_emitter, "look_of", lambda part, *more: _unlike(part))
        return lower(graph, plan, load_cluster(CLUSTERS[cluster][0]), topology_of(cluster))


def _unlike(part: StagePart) -> Any:
    found = look_of(part, (), (), (), 0, {})
    return type(found)((id(part),), found.tensors, found.ops)


def content(program: Program) -> dict[str, Any]:
    return {f.name: getattr(program, f.name) for f in fields(program)}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS), st.integers(0, 1), st.data())
def test_copied_blocks_are_those_that_would_be_written(
    model: str, cluster: int, data: st.DataObject
) -> None:
    pipeline = data.draw(st.sampled_from((2, 4, 8)))
    tensor = data.draw(st.sampled_from((1, 2) if cluster == 0 else (1,)))
    replicas = data.draw(st.sampled_from((1, 2)))
    schedule = data.draw(st.sampled_from(("1f1b", "interleaved", "zero-bubble")))
    if pipeline * tensor * replicas > CLUSTERS[cluster][1]:
        return
    try:
        plan = stacked(
            data=replicas,
            tensor=tensor,
            sequence=tensor if data.draw(st.booleans()) else 1,
            pipeline=pipeline,
            virtual_stages=data.draw(st.sampled_from((2, 3))) if schedule == "interleaved" else 1,
            micro_batch=data.draw(st.sampled_from((1, 2))),
            global_batch=2 * replicas * pipeline,
            schedule=schedule,  # type: ignore[arg-type]
            zero_stage=data.draw(st.integers(0, 3)) if replicas > 1 else 0,
            recompute=data.draw(st.sampled_from(("none", "full"))),  # type: ignore[arg-type]
            stage_balance=data.draw(st.sampled_from(("even", "layers"))),  # type: ignore[arg-type]
            pipeline__deallocate_outputs=not data.draw(st.booleans()),
            gradients__bucket="1 MB",
            precision="fp16-mixed",
            host__launch_time=data.draw(st.sampled_from((0.0, 1e-5))),
            host__async_launch=data.draw(st.booleans()),
            moe__grouped_gemm=data.draw(st.sampled_from(("together", "apart"))),  # type: ignore[arg-type]
            optimizer__impl=data.draw(st.sampled_from(("together", "apart", "chunks"))),  # type: ignore[arg-type]
            optimizer__loss_scale_check=data.draw(st.booleans()),
        )
        one = lowered(plan, model, cluster, copied=True)
    except RidgelineError:
        return
    two = lowered(plan, model, cluster, copied=False)
    mine, other = content(one.program), content(two.program)
    for name, value in mine.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other[name], err_msg=f"{plan} {name}")
        else:
            assert value == other[name], (plan, name)
    assert one.talks == two.talks
    assert one.dimension_of_row == two.dimension_of_row
    assert one.schedules == two.schedules


@pytest.mark.parametrize("issue", [0.0, 1e-5])
def test_most_layers_are_not_written(issue: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 parts of equal layers the two ends are, what is next to the last, and one for all."""
    written: Counter[int] = Counter()
    write = step_emitter.StepEmitter._written

    def counted(self: Any, team: Any, number: int, *more: Any) -> Any:
        written[number] += 1
        return write(self, team, number, *more)

    monkeypatch.setattr(step_emitter.StepEmitter, "_written", counted)
    plan = stacked(
        global_batch=8,
        pipeline=4,
        virtual_stages=3,
        schedule="interleaved",
        stage_balance="layers",
        precision="fp16-mixed",
        host__launch_time=issue,
    )
    lowered(plan, "gpt2", 0, copied=True)
    assert set(written) == {0, 4, 10, 11}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_gradients_are_summed_when_all_micro_batches_are_done(schedule: Any) -> None:
    """In GPipe the first micro-batch is the last to go back."""
    from ridgeline.engine.executor import run

    plan = stacked(
        global_batch=16,
        data=2,
        pipeline=2,
        schedule=schedule,
        gradients__bucket="10 GB",
        precision="fp16-mixed",
    )
    timeline = run(lowered(plan, "gpt2", 0, copied=True).program)
    program = timeline.program
    for stage in range(2):
        queues = {
            name.split("/")[1]: number
            for number, name in enumerate(program.stream_names)
            if program.stream_rank[number] == stage
        }
        kinds = [program.kind_names[k] for k in program.kind]
        gradient = [
            t
            for t in np.flatnonzero(program.stream == queues["compute"])
            if kinds[t] in {"input-gradient", "weight-gradient"}
        ]
        sums = np.flatnonzero(program.stream == queues["network"])
        assert len(sums)
        later = (timeline.end_s[gradient] > timeline.start_s[sums].min()).sum()
        assert later < len(gradient) / plan.micro_batches / 2  # what needs no sum yet
