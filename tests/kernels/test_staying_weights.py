"""Weights that stay on chip over micro-batches: against a list of blocks, and what follows."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_residence import slow

import ridgeline as rl
from machines import DEVICE, write_machine
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.cache_residency import (
    NONE_STAY,
    STAYING_SHARES,
    Staying,
    can_stay,
    residence,
)
from ridgeline.parallel.op_pricer import OpPricer
from ridgeline.report.summary import kept_text
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Pass, Role

MACHINE = tempfile.TemporaryDirectory()
FILE = Path(MACHINE.name) / "array.yaml"
write_machine(Path(MACHINE.name))
FILE.write_text(
    DEVICE.replace("name: toy", "name: toy-array")
    .replace("kind: tensor-core", "kind: systolic")
    .replace(
        "instruction: {m: 4, n: 4, k: 4}",
        "array: {rows: 64, columns: 64, count: 4, clock: 1 GHz, dataflows: [ws]}",
    )
    .replace("fp32: 10 TFLOP/s, fp16: 40 TFLOP/s", "fp32: 8192 GFLOP/s, fp16: 32768 GFLOP/s")
    .replace("keeps: false", "keeps: true, kept_share: 1.0")
)


def array(capacity: str) -> Device:
    return load_device(str(FILE), {"memory.l2.capacity": capacity})


def mlp(batch: int, widths: list[int], precision: str = "fp32") -> Graph:
    model = load_model("mlp", {"inputs": 16, "widths": widths, "optimizer": "adam"})
    return model.training(batch, precision)


def by_hand(
    graph: Graph, capacity: float, staying: Staying
) -> tuple[float, list[tuple[int, ...]]] | None:
    """Set some weights aside, and play the rest over a list of blocks in the room that is left."""
    weights: list[str] = []
    for op in graph.ops:
        for name in op.inputs if op.loops is not None else ():
            tensor = graph.tensors[name]
            if tensor.role in {Role.WEIGHT, Role.WEIGHT_COPY} and name not in weights:
                weights.append(name)
    some = frozenset(weights[: math.ceil(len(weights) * staying.share / STAYING_SHARES)])
    held = sum(graph.tensors[name].bytes for name in some)
    if held * staying.parts > capacity:
        return None
    return held, slow(graph, capacity - held * staying.parts, some)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 32),
    widths=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    precision=st.sampled_from(["fp32", "fp16-mixed"]),
    capacity=st.integers(1, 96),
    staying=st.builds(Staying, st.integers(0, STAYING_SHARES), st.integers(1, 2)),
)
def test_as_a_list_of_blocks_beside_weights(
    batch: int, widths: list[int], precision: str, capacity: int, staying: Staying
) -> None:
    graph, device = mlp(batch, widths, precision), array(f"{capacity} KiB")
    slowly = by_hand(graph, capacity * 1024.0, staying)
    assert can_stay(graph, device, staying) == (slowly is not None)
    if slowly is not None:
        fast = residence(graph, device, staying)
        assert sum(fast.staying.values()) == slowly[0]
        assert [fast.found[id(op)] for op in graph.ops] == slowly[1]


def step(capacity: str, plan: rl.Plan, file: Path = FILE) -> rl.Result:
    model = load_model("mlp", {"inputs": 512, "widths": [512] * 6 + [10]})
    return rl.simulate(
        model, rl.load_cluster(str(file), {"device.memory.l2.capacity": capacity}), plan
    )


def test_weights_that_fit_are_read_once_a_step() -> None:
    """3.0 MiB of weights in fp16: no micro-batch reads them from the farthest memory."""
    plans = [
        rl.Plan(global_batch=64 * count, micro_batch=64, precision="fp16-mixed")
        for count in (1, 2, 8)
    ]
    one, two, eight = (step("6 MiB", plan) for plan in plans)
    assert not one.details.lowered.staying_bytes
    weights = eight.details.lowered.staying_bytes["l2"]
    assert weights == (512 * 512 * 6 + 512 * 10) * 2
    assert two.details.lowered.staying_bytes == eight.details.lowered.staying_bytes
    lowered = eight.details.lowered
    for op, cost in zip(lowered.graph.ops, lowered.op_costs, strict=True):
        if op.loops is not None and op.pass_ is not Pass.WEIGHT_GRADIENT:
            assert cost.moved["hbm"].b == 0.0
    rows = [row for row in eight.ledger() if row.unit == "B kept" and row.place == "l2"]
    assert math.fsum(row.amount for row in rows) == pytest.approx(eight.kept_bytes["l2"])
    assert "weights that stay over all micro-batches: 3.156 MB in l2" in kept_text(eight)


def test_more_room_is_never_slower() -> None:
    plan = rl.Plan(global_batch=256, micro_batch=32, precision="fp16-mixed")
    results = [step(f"{kib} KiB", plan) for kib in (64, 1024, 2048, 3200, 4096, 8192, 65536)]
    times = [result.step_time_s for result in results]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(times))
    staying = [sum(result.details.lowered.staying_bytes.values()) for result in results]
    assert 0 < staying[3] < 3155968  # some of them, where not all fit beside the maps


@pytest.mark.parametrize("mib", [1, 3, 6])
def test_the_evaluator_decides(mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other share of the weights makes a step faster."""
    plan = rl.Plan(global_batch=128, micro_batch=16, precision="fp16-mixed")
    chosen = step(f"{mib} MiB", plan).step_time_s
    for share in range(STAYING_SHARES + 1):
        one = Staying(share, 1)
        monkeypatch.setattr(
            OpPricer,
            "staying",
            lambda self, graph, *_, one=one: (
                one if can_stay(graph, self.device, one) else NONE_STAY
            ),
        )
        assert chosen <= step(f"{mib} MiB", plan).step_time_s * (1 + 1e-12)


def test_caches_of_hardware_set_nothing_aside() -> None:
    """A GPU's L2 evicts what is oldest; nobody fills it."""
    file = Path(MACHINE.name) / "gpu.yaml"
    file.write_text(DEVICE.replace("keeps: false", "keeps: true"))
    plan = rl.Plan(global_batch=256, micro_batch=64, precision="fp16-mixed")
    assert not step("4 MiB", plan, file).details.lowered.staying_bytes


def test_a_stage_keeps_its_own_weights() -> None:
    """Of a pipeline each device holds a part of the weights, which then fit."""
    node = Path(MACHINE.name) / "array-node.yaml"
    text = (Path(MACHINE.name) / "node.yaml").read_text()
    node.write_text(text.replace("device.yaml", "array.yaml"))
    model = load_model("mlp", {"inputs": 512, "widths": [512] * 6 + [10]})
    cluster = rl.load_cluster(str(node), {"device.memory.l2.capacity": "1600 KiB"})

    def staying(pipeline: int) -> float:
        plan = rl.Plan(global_batch=512, micro_batch=16, precision="fp16-mixed", pipeline=pipeline)
        lowered = rl.simulate(model, cluster, plan).details.lowered
        return sum(lowered.staying_bytes.values())

    assert staying(1) == 0 < staying(4)
