"""Steps whose layers are fused: what `fuse` finds is what the step takes, and all of it adds up."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.hardware.templates import device_template
from ridgeline.kernels.breakdown import time_breakdown
from ridgeline.kernels.cost import op_energy_j
from ridgeline.kernels.fusion.fused_cost import fused_cost
from ridgeline.kernels.fusion.schedule import FusedSchedule, fuse
from ridgeline.report.result import Result
from ridgeline.study.planner.searcher import searcher
from ridgeline.workload.fused_op import FusedOp, FusedRows, fused_op
from ridgeline.workload.graph import Pass
from thoroughly import further


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for kind in ("systolic", "gpu", "chiplet"):
        path = tmp_path_factory.mktemp("fused") / f"{kind}.yaml"
        path.write_text(device_template(kind), "utf-8")
        found[kind] = str(path)
    return found


def _network(rng: random.Random, folder: Path, name: str) -> rl.Model:
    """A few convolutions, most of stride 1, on small images, and a classifier."""
    layers = []
    for place in range(rng.randint(2, 3)):
        filters, kernel = rng.choice([16, 32]), rng.choice([1, 3, 3])
        layers.append(
            f"  - {{layer: conv, name: c{place}, filters: {filters}, kernel: {kernel}, "
            f"padding: {kernel // 2}, stride: {rng.choice([1, 1, 1, 2])}}}"
        )
        layers.append(f"  - {{layer: relu, name: r{place}}}")
    layers += ["  - {layer: flatten}", "  - {layer: linear, name: out, features: 10}"]
    size = rng.choice([32, 40])
    text = [
        "kind: model", f"name: {name}", "family: sequential", f"title: {name}", "citation: drawn",
        f"image: {{channels: 8, height: {size}, width: {size}}}", "optimizer: sgd", "layers:",
        *layers,
    ]  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(text) + "\n", "utf-8")
    found = rl.load_model(str(path))
    assert isinstance(found, rl.Model)
    return found


def _fields(rng: random.Random, kind: str) -> dict[str, Any]:
    """A slow memory behind a small level that keeps tensors: fusing layers pays."""
    fields = {
        "memory.l2.capacity": f"{rng.choice([24, 48, 96, 300])} KiB",
        "memory.hbm.bandwidth": f"{rng.choice([2, 10, 50])} GB/s",
        "launch_latency": f"{rng.choice([0, 1])} us",
    }
    return fields | _KEEPS[kind]


_KEEPS: dict[str, dict[str, Any]] = {
    "systolic": {"memory.l1.keeps": False},
    "chiplet": {"memory.l1.keeps": False},
    "gpu": {"memory.l2.keeps": True},
}


def _stack(objective: str) -> Any:
    return rl.software["ideal"].with_settings({"kernels.fused_layers": objective})


def _fused_ops(result: Result) -> list[FusedOp]:
    return [op for op in result.details.lowered.ops if isinstance(op, FusedOp)]


def _steps(
    path: str, fields: dict[str, Any], model: rl.Model, objective: str, **plan: Any
) -> tuple[Result, Result]:
    """The step without and with fused layers."""
    cluster = rl.load_cluster(path, {f"device.{name}": value for name, value in fields.items()})
    made = rl.Plan(precision="bf16-true", **plan)
    return (
        rl.simulate(model, cluster, made, software="ideal"),
        rl.simulate(model, cluster, made, software=_stack(objective)),
    )


def _check_sums(result: Result) -> None:
    """Ledger, traffic, energy and the parts of every op's time add up."""
    ledger, device = result.ledger(), result.details.cluster.device
    by_component = ledger.by("component")
    for name, joules in result.energy_j.items():
        if name != "total":
            assert by_component.get(name, 0.0) == pytest.approx(joules, rel=1e-9, abs=1e-18)
    amounts = ledger.by("place", "unit", value="amount")
    for place, size in result.traffic_bytes.items():
        assert amounts[place, "B"] == pytest.approx(size, rel=1e-9)
    assert result.time_s["total"] == pytest.approx(
        math.fsum(s for name, s in result.time_s.items() if name != "total"), rel=1e-9
    )
    lowered = result.details.lowered
    for op, cost in zip(lowered.ops, lowered.op_costs, strict=True):
        time_s = cost.time_s(device)
        parts = time_breakdown(cost, device)
        assert parts.total_s == pytest.approx(time_s, rel=1e-9, abs=1e-18)
        assert all(part >= -1e-9 * time_s for _, part in parts.parts())
        if isinstance(op, FusedOp):
            for place, count in (cost.flops | cost.traffic_bytes).items():
                each = [(p.flops | p.traffic_bytes).get(place, 0.0) for p in cost.parts]
                assert math.fsum(each) == pytest.approx(count, rel=1e-9)


@pytest.mark.parametrize("kind", ["systolic", "gpu", "chiplet"])
@pytest.mark.parametrize("part", [0, *further(1, 2, 3)])
def test_a_step_takes_what_fuse_finds(
    devices: dict[str, str], tmp_path: Path, kind: str, part: int
) -> None:
    """Random networks and machines: time, energy and bytes; never more of what is least."""
    rng, fused = random.Random(f"{kind} {part}"), 0
    for number in range(2 + 4 * (part > 0)):
        fields, model = _fields(rng, kind), _network(rng, tmp_path, f"net{part}{number}")
        objective, batch = rng.choice(["time", "time", "energy", "bytes"]), rng.choice([1, 4])
        device = load_device(devices[kind], fields)
        found = rl.fuse(
            model, device, batch=batch, precision="bf16-true", objective=objective, training=True
        )
        apart, whole = _steps(devices[kind], fields, model, objective, global_batch=batch)
        far = device.far_memory
        figures = [
            {
                "time": step.step_time_s,
                "energy": step.energy_j["total"],
                "bytes": step.traffic_bytes[far],
            }
            for step in (apart, whole)
        ]
        assert figures[1][objective] <= figures[0][objective] * (1 + 1e-9)
        total = found.total
        if _fused_ops(whole):
            fused += 1
            assert whole.step_time_s == pytest.approx(total.time_s, rel=1e-9)
            assert whole.energy_j["total"] == pytest.approx(total.energy_j, rel=1e-9)
            assert whole.traffic_bytes[far] == pytest.approx(total.far_bytes, rel=1e-9)
        _check_sums(whole)
        assert whole.flops_per_step == apart.flops_per_step
        assert whole.details.lowered.graph.flops(Pass.WEIGHT_GRADIENT) == (
            apart.details.lowered.graph.flops(Pass.WEIGHT_GRADIENT)
        )
    assert fused > 0


def test_what_lies_between_layers_takes_no_far_memory(
    devices: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(5)
    fields = {"memory.l2.capacity": "64 KiB", "memory.hbm.bandwidth": "2 GB/s"}
    fields |= _KEEPS["systolic"]
    model = _network(rng, tmp_path, "between")
    apart, whole = _steps(devices["systolic"], fields, model, "bytes", global_batch=4)
    (first, *_) = _fused_ops(whole)
    inside = {name for op in first.parts for name in op.outputs} - set(first.outputs)
    graph = whole.details.lowered.graph
    assert inside
    assert inside.isdisjoint(graph.tensors)
    assert all(name in graph.tensors for op in graph.ops for name in (*op.inputs, *op.outputs))
    peak = {name: step.memory_bytes["total"] for name, step in (("a", apart), ("b", whole))}
    assert peak["b"] <= peak["a"]
    named = {entry.op for entry in whole.ledger()}
    assert {op.name for op in first.parts} <= named  # each layer has rows of its own
    assert first.name not in {entry.op for entry in whole.ledger() if entry.unit == "FLOP"}


def _priced(found: FusedSchedule) -> None:
    """Every fused group as one op: time, joules and bytes as the schedule says."""
    for group in found.groups:
        if not group.rows:
            continue
        how = FusedRows(
            group.rows, group.halo, group.weights, group.cores, group.core_of, group.steps
        )
        ops = found.graph.ops[group.first : group.end]
        cost = fused_cost(fused_op(ops, found.graph, group.results, how), found.device)
        time_s = cost.time_s(found.device)
        assert time_s == pytest.approx(group.cost.time_s, rel=1e-9)
        assert op_energy_j(cost, found.device)["total"] == pytest.approx(
            group.cost.energy_j, rel=1e-9
        )
        far = found.device.far_memory
        assert cost.traffic_bytes[far] == pytest.approx(group.cost.far_bytes, rel=1e-9)
        parts = time_breakdown(cost, found.device)
        assert parts.total_s == pytest.approx(time_s, rel=1e-9)


def test_pipelines_over_cores_are_priced_alike(devices: dict[str, str]) -> None:
    """Groups over arrays and dies, with what their links and copies take."""
    from fused_graphs import chain

    rng, several = random.Random(7), 0
    for number in range(10):
        kind = ("systolic", "chiplet")[number % 2]
        fields = {
            "memory.l2.capacity": f"{rng.choice([64, 1000])} KiB",
            "memory.hbm.bandwidth": f"{rng.choice([5, 50])} GB/s",
            "launch_latency": "0 us",
        }
        found = fuse(
            chain(rng, rng.randint(2, 4), 4), load_device(devices[kind], fields),
            objective=rng.choice(["energy", "bytes", "time"]),
        )  # fmt: skip
        several += sum(group.cores > 1 for group in found.groups)
        _priced(found)
    assert several > 0


def test_gradients_of_fused_layers_are_reduced(devices: dict[str, str], tmp_path: Path) -> None:
    """Two replicas, and micro-batches: every gradient is summed, and the sums are sent."""
    model = _network(random.Random(5), tmp_path, "data")
    fields = {"memory.l2.capacity": "64 KiB", "memory.hbm.bandwidth": "2 GB/s"}
    fields |= _KEEPS["systolic"]
    overrides = {"node.device": devices["systolic"]}
    overrides |= {f"device.{name}": value for name, value in fields.items()}
    cluster = rl.load_cluster("dgx-a100", overrides)
    for more in ({"data": 2}, {"micro_batch": 4}, {"data": 2, "micro_batch": 2, "zero_stage": 1}):
        plan = rl.Plan(global_batch=8, precision="bf16-true", **more)
        apart = rl.simulate(model, cluster, plan, software="ideal")
        whole = rl.simulate(model, cluster, plan, software=_stack("time"))
        assert _fused_ops(whole)
        assert whole.step_time_s <= apart.step_time_s * (1 + 1e-9)
        _check_sums(whole)
        sent = [
            sum(e.amount for e in step.ledger() if e.pass_ == "collective" and e.unit == "B")
            for step in (apart, whole)
        ]
        assert sent[1] == pytest.approx(sent[0])
        assert (sent[0] > 0) == ("data" in more)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pipeline": 2}, "pipeline=2"),
        ({"tensor": 2}, "tensor=2"),
        ({"data": 2, "zero_stage": 3}, "zero_stage=3"),
        ({"offload": "all"}, "offload=all"),
    ],
)
def test_what_divides_the_network_is_refused(fields: dict[str, Any], said: str) -> None:
    plan = rl.Plan(global_batch=8, precision="bf16-true", **fields)
    with pytest.raises(RidgelineError, match=f"each device does the whole network.*{said}"):
        rl.simulate("resnet18", "dgx-a100", plan, software=_stack("time"))


def test_searches_of_plans_and_memory_without_a_device_are_refused() -> None:
    with pytest.raises(RidgelineError, match=r"fuses layers .* bounds of a search do not know"):
        searcher("mlp", "dgx-a100", 1, 8, precision="bf16-mixed", software=_stack("time"))
    with pytest.raises(RidgelineError, match="memory: ideal fuses layers"):
        rl.memory("mlp", rl.Plan(global_batch=8), software=_stack("time"))
