"""Points of a study share drafts, searches and prices; none of it may be seen in a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline.hardware import load_cluster
from ridgeline.kernels import price, wave_quantization
from ridgeline.kernels.cost import OpCost
from ridgeline.kernels.mapping import mapper
from ridgeline.parallel.emit import step_template
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.study.parallel_run import row_of
from ridgeline.study.point import Point, shared_model
from ridgeline.workload.files import load_model
from stacked import PLAIN
from thoroughly import sample_of

ARRAY, MEMORY = "cluster.device.engines.mxu.array", "cluster.device.memory"
ARRAYS = st.fixed_dictionaries(
    {
        f"{ARRAY}.rows": st.integers(1, 400),
        f"{ARRAY}.columns": st.integers(1, 400),
        f"{ARRAY}.count": st.integers(1, 4),
        f"{ARRAY}.dataflows": st.sets(st.sampled_from(["ws", "os", "is"]), min_size=1).map(sorted),
        f"{MEMORY}.vmem.capacity": st.integers(64, 65536).map(lambda kib: f"{kib} KiB"),
        f"{MEMORY}.hbm.bandwidth": st.integers(50, 4000).map(lambda rate: f"{rate} GB/s"),
    },
    optional={
        "cluster.device.launch_latency": st.integers(0, 20).map(lambda time: f"{time} us"),
        f"{MEMORY}.vmem.bandwidth": st.integers(1, 20).map(lambda rate: f"{rate} TB/s"),
        "cluster.device.energy_table": st.sampled_from(["asic-16nm", "jouppi-7nm"]),
    },
)
NODES = st.fixed_dictionaries(
    {f"{MEMORY}.hbm.bandwidth": st.integers(300, 3000).map(lambda rate: f"{rate} GB/s")},
    optional={
        "cluster.device.launch_latency": st.integers(0, 20).map(lambda time: f"{time} us"),
        "cluster.node.link_types.nvlink2.bandwidth": st.integers(10, 100).map(
            lambda rate: f"{rate} GB/s"
        ),
        "cluster.device.tdp": st.integers(100, 900).map(lambda power: f"{power} W"),
    },
)
PLANS = st.sampled_from(
    [
        {"data": 2},
        {"data": 2, "micro_batch": 4},
        {"pipeline": 2, "micro_batch": 8},
        {"tensor": 2, "data": 2},
    ]
)


def forget() -> None:
    """Forget all that a point may have from those before."""
    mapper.forget()
    wave_quantization._found.clear()
    step_template._drafts.clear()
    shared_model.cache_clear()


def alone(point: Point) -> Mapping[str, Any]:
    forget()
    return row_of(point)


@sample_of(3, 8, st.lists(ARRAYS, min_size=2, max_size=4), st.sampled_from([4, 32]))
def test_a_point_on_arrays_is_what_it_is_alone(devices: list[dict[str, Any]], batch: int) -> None:
    plan = {"global_batch": batch, "precision": "bf16-mixed"}
    points = [Point("lenet5", "tpu-v2", plan, device) for device in devices]
    forget()
    together = [row_of(point) for point in (*points, *points)]
    for point, first, again in zip(points, together, together[len(points) :], strict=False):
        assert first == again == alone(point)
        assert not first["error"] or "too small" in first["error"]


@sample_of(3, 8, st.lists(st.tuples(NODES, PLANS), min_size=2, max_size=4))
def test_a_point_on_a_node_is_what_it_is_alone(
    varied: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    points = [
        Point("mlp", "dgx1-v100", {"global_batch": 32, "precision": "fp16-mixed", **plan}, device)
        for device, plan in varied
    ]
    forget()
    together = [row_of(point) for point in (*points, *points)]
    for point, first, again in zip(points, together, together[len(points) :], strict=False):
        assert first == again == alone(point)
        assert not first["error"]


def _counted(cost: OpCost) -> OpCost:
    """Return a price whose shares of an engine are counted: functions are never equal."""
    shares = cost.engine_shares
    return replace(cost, engine_shares=shares() if callable(shares) else shares)


@pytest.mark.parametrize(
    ("cluster", "precision", "plan"),
    [
        ("tpu-v2", "bf16-mixed", {}),
        ("v100-sxm2-16gb", "fp16-mixed", {}),
        ("dgx1-v100", "fp16-mixed", {"data": 2, "micro_batch": 4}),
        ("a100-sxm4-40gb", "fp32", {}),
    ],
)
def test_every_task_takes_what_its_op_costs_alone(
    cluster: str, precision: str, plan: dict[str, int]
) -> None:
    result = simulate(
        load_model("lenet5"),
        load_cluster(cluster),
        Plan(global_batch=16, precision=precision, **plan),  # type: ignore[arg-type]
        software=PLAIN,
    )
    lowered, timeline = result.details.lowered, result.details.timeline
    device, program = result.details.cluster.device, timeline.program
    time_s = {}
    for op, together in zip(lowered.ops, lowered.op_costs, strict=True):
        cost = price(op, lowered.graph, device)
        assert _counted(cost) == _counted(together)
        time_s[op.name] = cost.time_s(device)
    tasks = [
        task
        for task, label in enumerate(program.label.tolist())
        if program.label_names[label] in time_s
        and program.kind_names[program.kind[task]] != COLLECTIVE
    ]
    assert len(tasks) >= len(lowered.ops)
    expected = [time_s[program.label_names[program.label[task]]] for task in tasks]
    assert np.allclose(timeline.durations_s[tasks], expected, rtol=1e-9, atol=1e-15)


def test_a_study_writes_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    written: list[int] = []
    inner = step_template.draft_of

    def counted(subject: step_template.Subject, write: Any) -> step_template.StepTemplate:
        return inner(subject, lambda: written.append(1) or write())

    monkeypatch.setattr("ridgeline.parallel.lower.draft_of", counted)
    plan = {"global_batch": 16, "data": 2, "precision": "fp16-mixed"}
    for time in (2, 3, 5):
        field = {"cluster.device.launch_latency": f"{time} us"}
        assert not row_of(Point("lenet5", "dgx1-v100", plan, field))["error"]
    assert len(written) == 1
    links = {"cluster.node.link_types.nvlink2.bandwidth": "50 GB/s"}
    assert not row_of(Point("lenet5", "dgx1-v100", plan, links))["error"]
    assert len(written) == 2
