"""Every described machine trains: vector work, formats, host, forward passes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.cost import EXCHANGE, op_energy_j
from ridgeline.kernels.pricing import price
from ridgeline.parallel.plan.default_precision import default_precision, unasked_notes
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Pass, Role

HOSTED = ("tpu-v1", "eyeriss", "gemmini-rocket")
PARTS = ("compute", "registers", "sram", "dram", "network", "static")


@pytest.mark.parametrize("device", catalog.names("devices"))
def test_every_device_trains_a_small_network(device: str) -> None:
    result = simulate("mlp", device, Plan(global_batch=4), software="ideal")
    assert 0 < result.step_time_s < 1
    assert result.energy_j["total"] > 0
    assert result.energy_j["total"] == math.fsum(result.energy_j[part] for part in PARTS)
    assert result.memory_bytes["weights"] > 0
    assert 0 < result.mfu <= 1


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("caterpillar-a", "fp16"),
        ("lap-dp", "fp64"),
        ("csx700-dp", "fp64"),
        ("eyeriss", "int16"),
        ("tpu-v1", "int8"),
        ("lap-sp", "fp32"),
        ("v100-sxm2-16gb", "fp32"),
    ],
)
def test_the_widest_format_is_taken_where_there_is_no_other(device: str, precision: str) -> None:
    assert default_precision("fp32", load_device(device)) == precision
    result = simulate("mlp", device, Plan(global_batch=4), software="ideal")
    assert result.details.plan.precision == precision
    is_said = any("precision" in note and precision in note for note in result.manifest["notes"])
    assert is_said == (precision != "fp32")


def test_a_slow_default_is_said_on_every_machine() -> None:
    """A note exactly where arrays lack the default's format and a vector unit multiplies it."""
    said = {}
    for name in catalog.names("devices"):
        device = load_device(name)
        arrays = [e for e in device.engines.values() if e.array or e.grid or e.spatial]
        arrays = [engine for engine in arrays if "matrix" in engine.runs]
        precision = default_precision("fp32", device)
        notes = unasked_notes(precision, device)
        if notes:
            formats = {format_ for engine in arrays for format_ in engine.rates}
            assert precision == "fp32"
            assert "fp32" not in formats
            assert any(f"--precision {f}" in notes[0] for f in ("bf16-mixed", "fp16-mixed"))
        said[name] = bool(notes)
        assert not unasked_notes("bf16-mixed", device) or "bf16" not in {
            f for engine in arrays for f in engine.rates
        }
    assert said["tpu-v3"]
    assert said["trainium2"]
    assert not said["v100-sxm2-16gb"]
    assert not said["lap-sp"]
    for precision, noted in ((None, True), ("bf16-mixed", False)):
        result = simulate("mlp", "tpu-v3", Plan(global_batch=4, precision=precision))
        assert any("nobody chose" in note for note in result.manifest["notes"]) == noted


def test_a_network_of_16_bits_is_not_changed_on_a_machine_with_fp32() -> None:
    assert default_precision("bf16-mixed", load_device("v100-sxm2-16gb")) == "bf16-mixed"


@pytest.mark.parametrize("precision", ["fp64", "fp16", "int16", "int8"])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18-cifar"])
def test_a_pure_precision_has_one_format(name: str, precision: str) -> None:
    graph = load_model(name).training(2, precision)
    found = {t.format for t in graph.tensors.values() if t.format not in ("int32", "int64")}
    assert found == {precision}
    assert not any(op.kind == "cast" for op in graph.ops)


@pytest.mark.parametrize("device", HOSTED)
def test_bytes_over_the_link_are_counted_and_take_time(device: str) -> None:
    plan = Plan(global_batch=4)
    result = simulate("mlp", device, plan, software="ideal")
    graph, lowered = result.details.graph, result.details.lowered
    machine = load_device(device)
    hosted = [
        (op, cost)
        for op, cost in zip(lowered.ops, lowered.op_costs, strict=True)
        if "host-link" in cost.traffic_bytes
    ]
    assert {op.pass_ for op, _ in hosted} >= {Pass.INPUT_GRADIENT, Pass.UPDATE}
    for op, cost in hosted:
        moved = graph.read_bytes(op) + graph.write_bytes(op)
        assert cost.traffic_bytes["host-link"] == moved
        assert machine.host is not None
        link = machine.host.link
        calls = 0 if op.kind == "host-input" else 2  # the host sends inputs by itself
        least_s = (moved / link.bandwidth.value + calls * link.latency.value) * (1 - 1e-12)
        assert cost.time_s(machine) >= least_s
    total = math.fsum(cost.traffic_bytes["host-link"] for _, cost in hosted)
    assert result.traffic_bytes["host-link"] == total
    assert result.energy_j["network"] > 0 or device == "gemmini-rocket"


def test_a_slower_link_is_a_slower_step_and_a_free_one_costs_nothing() -> None:
    def step_s(gb_per_s: float) -> float:
        device = load_device("tpu-v1", {"host.link.bandwidth.value": f"{gb_per_s} GB/s"})
        model = load_model("mlp")
        graph = model.training(4, "int8")
        return math.fsum(price(op, graph, device).time_s(device) for op in graph.ops)

    times = [step_s(rate) for rate in (1.0, 4.0, 15.0, 1000.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_unit_of_fixed_function_does_its_ops_forward_alone() -> None:
    device = load_device("tpu-v1")
    graph = load_model("mlp").training(4, "int8")
    costs = {op.name: price(op, graph, device) for op in graph.ops}
    for op in graph.ops:
        if op.kind == "sigmoid":
            on_chip = "activation.int8" in costs[op.name].flops
            assert on_chip == (op.pass_ is Pass.FORWARD)
            assert on_chip != ("host.fp32" in costs[op.name].flops)


def test_an_unknown_op_of_a_unit_is_an_error() -> None:
    device = load_device(
        "tpu-v1", {"engines.activation.ops": ["rellu"], "engines.activation.epilogue": []}
    )
    plan = Plan(global_batch=2)
    cluster = simulate("mlp", "tpu-v1", plan, software="ideal").details.cluster
    nodes = cluster.nodes.model_copy(update={"devices": device})
    with pytest.raises(RidgelineError, match="did you mean 'relu'"):
        simulate("mlp", cluster.model_copy(update={"nodes": nodes}), plan, software="ideal")


def test_a_machine_with_neither_says_which_fields_to_add(tmp_path: Path) -> None:
    text = Path(catalog.find("devices", "gemmini-rocket")).read_text(encoding="utf-8")
    start, end = text.index("  accumulator-port:"), text.index("\nmemory:\n")
    text = text[:start] + text[end:]
    start, end = text.index("# Everything else is the program"), text.index("launch_latency:")
    path = tmp_path / "alone.yaml"
    path.write_text(text[:start] + text[end:])
    with pytest.raises(RidgelineError, match=r"add vector to the field runs .* or the field host"):
        simulate("mlp", str(path), Plan(global_batch=2), software="ideal")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"engines.cores.vector_rates": {"fp32": "1 GFLOP/s"}}, "'fp32' has no rate"),
        ({"engines.cores.runs": ["matrix"]}, "is of engines that run vector work"),
    ],
)
def test_mistakes_in_vector_fields(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device("caterpillar-a", overrides)


def test_a_host_needs_an_energy_for_each_format() -> None:
    with pytest.raises(ConfigError, match="the host has no energy for fp64"):
        load_device("tpu-v1", {"host.rates": {"fp32": "1 GFLOP/s", "fp64": "1 GFLOP/s"}})


def test_vector_work_takes_a_lane_a_cycle() -> None:
    device = load_device("caterpillar-a")
    graph = load_model("mlp").training(2, "fp16")
    op = next(op for op in graph.ops if op.kind == "sigmoid" and op.pass_ is Pass.FORWARD)
    assert price(op, graph, device).compute_s(device) == pytest.approx(op.vector_flops / 512e9)


@pytest.mark.parametrize("name", ["mlp", "alexnet", "lstm-lm", "gpt2"])
def test_a_forward_pass_has_no_loss_gradient_or_update(name: str) -> None:
    model = load_model(name)
    graph, whole = model.inference(2, "fp32"), model.forward(2, "fp32")
    assert all(op.pass_ is Pass.FORWARD for op in graph.ops)
    assert graph.flops() == whole.flops()
    assert not any("loss" in op.kind for op in graph.ops)
    assert not any(t.role is Role.STATE for t in graph.tensors.values())
    plan = Plan(global_batch=2, precision="fp32", forward_only=True)
    result = simulate(name, "a100-sxm4-80gb", plan, software="ideal")
    training = simulate(
        name, "a100-sxm4-80gb", plan.model_copy(update={"forward_only": False}), software="ideal"
    )
    assert result.step_time_s < training.step_time_s
    assert result.time_s["optimizer"] == 0
    assert result.memory_bytes["gradients"] == result.memory_bytes["optimizer"] == 0


TABLE_1 = {
    "mlp0": (200, 20e6, 200),
    "mlp1": (168, 5e6, 168),
    "lstm0": (64, 52e6, 64),
    "lstm1": (96, 34e6, 96),
    "cnn0": (8, 8e6, 2888),
    "cnn1": (32, 100e6, 680),  # Table 1 has 1,750, which the file says cannot be
}


@pytest.mark.parametrize("name", TABLE_1)
def test_tpu_v1_applications_meet_their_published_counts(name: str) -> None:
    """Jouppi et al., ISCA 2017, Table 1: batch, weights, multiply-adds a weight and batch."""
    batch, weights, intensity = TABLE_1[name]
    graph = load_model(name).inference(batch, "int8")
    held = sum(t.elements for t in graph.tensors.values() if t.role is Role.WEIGHT)
    assert held == pytest.approx(weights, rel=0.04)
    assert graph.flops() / 2 / held == pytest.approx(intensity, rel=0.06)


def _tiles(device: Device) -> tuple[float, float]:
    graph = load_model("mlp").training(32, "fp32")
    op = next(op for op in graph.ops if op.loops is not None)
    cost = price(op, graph, device)
    return cost.traffic_bytes[EXCHANGE], op_energy_j(cost, device)["network"]


@pytest.mark.parametrize("name", ["ipu-gc2", "ipu-gc200", "ipu-bow"])
def test_tiles_exchange_has_bytes_and_energy(name: str) -> None:
    moved, energy_j = _tiles(load_device(name))
    assert moved > 0
    assert energy_j == pytest.approx(moved * 8e-12)  # 1 pJ/bit
    result = simulate("mlp", name, Plan(global_batch=32))
    assert result.traffic_bytes["exchange"] > 0
    assert result.traffic_bytes["tile-memory"] > result.traffic_bytes["exchange"]
    assert result.energy_j["network"] == pytest.approx(8e-12 * result.traffic_bytes["exchange"])
