"""Products of experts that the host issues one by one, when it knows of how many rows they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.emit.host_launches import experts_of
from ridgeline.workload.graph import Pass, Role
from stacked import stacked
from thoroughly import sample_of

SHAPE = {
    "layers": 2, "sequence": 64, "vocabulary": 64, "hidden": 64, "attention.heads": 4,
    "attention.kv_heads": 4, "feed_forward.width": 64, "mixture.width": 64,
}  # fmt: skip
MODEL = rl.load_model("mixtral-8x7b", SHAPE)
EXPERTS, LINEARS = 8, 2


def step(
    *, reference: bool = False, cluster: rl.Cluster | str = "dgx-h100", **fields: Any
) -> rl.Result:
    plan = {"global_batch": 8, "data": 4, "micro_batch": 1, "precision": "bf16-mixed", **fields}
    return rl.simulate(MODEL, cluster, stacked(**plan), reference=reference)


@pytest.mark.parametrize(("precision", "converted"), [("bf16-mixed", 0), ("fp8-mixed", 2)])
def test_products_and_conversions_of_rows_are_those_of_experts(
    precision: str, converted: int
) -> None:
    graph = MODEL.training(2, precision)
    found = experts_of(graph)
    assert set(found.values()) == {EXPERTS}
    ops = [op for op in graph.ops if op.name in found]
    products = [op for op in ops if op.kind == "gemm"]
    assert len(products) == SHAPE["layers"] * LINEARS * 3  # forward, and both gradients
    assert len(ops) - len(products) == SHAPE["layers"] * LINEARS * converted  # rows, and gradients
    weights = {Role.WEIGHT, Role.WEIGHT_COPY}
    assert not any(graph.tensors[op.outputs[0]].role in weights for op in ops)
    assert experts_of(rl.load_model("gpt2").training(1, precision)) == {}


@sample_of(
    3,
    8,
    st.floats(1e-7, 1e-3),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("bf16-mixed", "fp8-mixed")),
    st.sampled_from(("none", "full")),
)
def test_a_step_takes_as_long_as_the_slower_of_host_and_device(
    issue: float, expert: int, precision: str, recompute: str
) -> None:
    fields = {
        "expert": expert, "precision": precision, "recompute": recompute, "global_batch": 4,
    }  # fmt: skip
    free = step(**fields)
    together = step(host__launch_time=issue, **fields)
    apart = step(host__launch_time=issue, moe__grouped_gemm=False, **fields)
    graph = apart.details.lowered.graph
    found = experts_of(graph)
    assert set(found.values()) == {EXPERTS // expert}
    silent = {"all-to-all", "all-reduce"}
    once = {name for name, one in graph.tensors.items() if one.role is Role.WEIGHT_COPY}
    ops = [op for op in graph.ops if op.pass_ is not Pass.UPDATE and op.kind not in silent]
    ops = [op for op in ops if once.isdisjoint(op.outputs)]  # which are issued with the updates
    issued = issue * sum(found.get(op.name, 1) for op in ops)
    assert apart.step_time_s >= together.step_time_s * (1 - 1e-12)
    assert apart.step_time_s >= issued * (1 - 1e-12)
    assert apart.step_time_s <= (free.step_time_s + issued) * (1 + 1e-9)
    assert apart.traffic_bytes == free.traffic_bytes
    assert apart.memory_bytes == free.memory_bytes


@pytest.mark.parametrize("fields", [{}, {"expert": 4}, {"expert": 2, "overlap__moe_a2a": True}])
def test_both_executors_play_it_alike(fields: dict[str, Any]) -> None:
    plan = {
        "host__launch_time": 1e-5,
        "moe__grouped_gemm": False,
        "pipeline": 2,
        "data": 4,
        **fields,
    }
    fast, slow = step(**plan), step(reference=True, **plan)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


def test_the_host_goes_on_when_rows_are_known() -> None:
    timeline = step(host__launch_time=1e-7, moe__grouped_gemm=False, expert=4).details.timeline
    program = timeline.program
    kinds, labels = np.array(program.kind_names)[program.kind], np.array(program.label_names)
    labels = labels[program.label]
    first = program.stream == program.stream[np.flatnonzero(kinds == "issue")[0]]
    routed = (kinds == "forward") & np.char.endswith(labels, ".experts.dispatch")
    behind = (kinds == "issue") & first & np.char.endswith(labels, ".experts.combine")
    assert behind.sum() == routed.sum() == 2 * SHAPE["layers"]
    assert (np.sort(timeline.start_s[behind]) >= np.sort(timeline.end_s[routed])).all()


def test_a_slower_host_takes_longer_to_issue() -> None:
    slow = rl.load_cluster("dgx-h100", {"node.host.issue": 3.0})
    plan = {"moe__grouped_gemm": False, "expert": 4}
    twice = step(host__launch_time=3e-5, **plan).step_time_s
    assert step(host__launch_time=1e-5, cluster=slow, **plan).step_time_s == pytest.approx(
        twice, rel=1e-12
    )
    assert step(cluster=slow, **plan).step_time_s == step(**plan).step_time_s
