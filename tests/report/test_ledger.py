"""The ledger sums to the totals, whatever is simulated, and says where every joule went."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from machines import DEVICE, ENERGY, write_machine
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.ledger import COLUMNS
from ridgeline.report.result import Result
from ridgeline.report.step_ledger import ledger
from ridgeline.study.point import Point
from ridgeline.workload.graph import Pass, Role
from thoroughly import sample_of


def check_sums(result: Result) -> None:
    table = result.ledger()
    energy = table.by("component")
    for name, joules in result.energy_j.items():
        if name != "total":
            assert energy.get(name, 0.0) == pytest.approx(joules, rel=1e-12, abs=1e-300), name
    assert math.fsum(table.columns["energy_j"]) == pytest.approx(
        result.energy_j["total"], rel=1e-12
    )
    moved = {place: v for (place, unit), v in amounts(result).items() if unit == "B"}
    assert moved.keys() == {place for place, v in result.traffic_bytes.items()} & moved.keys()
    for place, size in result.traffic_bytes.items():
        assert moved.get(place, 0.0) == pytest.approx(size, rel=1e-12), place


def amounts(result: Result) -> dict[Any, float]:
    return result.ledger().by("place", "unit", value="amount")


def test_rows_sum_to_the_totals(any_result: Result) -> None:
    check_sums(any_result)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_machine(tmp_path_factory.mktemp("ledger"))


@sample_of(
    5,
    20,
    st.sampled_from(["lenet5", "mlp", "alexnet"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["fp32", "fp16-mixed"]),
    st.booleans(),
)
def test_rows_sum_to_the_totals_of_any_plan(
    node: Path, model: str, data: int, micro: int, batches: int, precision: str, overlap: bool
) -> None:
    plan = {
        "data": data,
        "micro_batch": micro,
        "global_batch": data * micro * batches,
        "precision": precision,
    }
    changes = {"software.overlap.gradients": overlap}
    check_sums(Point(model, str(node), plan, changes, "ideal").simulate())


def test_every_op_moves_its_own_tensors(toy: Result) -> None:
    """Bytes at the farthest memory, summed again from the graph: operands of contractions apart."""
    graph, plan = toy.details.graph, toy.details.plan
    far = toy.details.cluster.device.far_memory
    found: dict[tuple[str, str], float] = {}
    for entry in toy.ledger():
        if entry.place == far:
            key = (entry.op, entry.tensor)
            found[key] = found.get(key, 0.0) + entry.amount
    for op in graph.ops:
        times = plan.data * (1 if op.pass_ is Pass.UPDATE else plan.micro_batches)
        if op.loops is not None:
            continue
        expected: dict[str, float] = {}
        for name, passes in zip(op.inputs, op.input_passes or (1,) * len(op.inputs), strict=True):
            expected[name] = expected.get(name, 0) + float(passes * graph.tensors[name].bytes)
        for name, passes in zip(
            op.outputs, op.output_passes or (1,) * len(op.outputs), strict=True
        ):
            expected[name] = expected.get(name, 0) + float(passes * graph.tensors[name].bytes)
        for name, size in expected.items():
            assert found.get((op.name, name), 0.0) == pytest.approx(times * size), (op.name, name)


def test_contractions_are_split_by_operand_at_every_level(single: Result) -> None:
    details = single.details
    rows = [e for e in single.ledger() if e.unit == "B"]
    for op, cost in zip(details.lowered.ops, details.lowered.op_costs, strict=True):
        if op.loops is None:
            continue
        for level, moved in cost.moved.items():
            mine = [e for e in rows if e.op == op.name and e.place == level]
            assert math.fsum(moved) == pytest.approx(cost.traffic_bytes[level])
            by_tensor = {e.tensor: e.amount for e in mine if e.operand != "partial-sum"}
            partial = [e.amount for e in mine if e.operand == "partial-sum"]
            assert by_tensor[op.inputs[0]] == moved.a
            assert by_tensor[op.inputs[1]] == moved.b
            assert math.fsum(partial) == moved.partial
            assert {e.operand for e in mine} <= {*(r.value for r in Role), "partial-sum"}


def test_passes_layers_and_collectives(result: Result) -> None:
    table = result.ledger()
    passes = set(table.by("pass"))
    assert passes == {*(op.pass_ for op in result.details.graph.ops), "collective", "waiting"}
    layers = {op.name: op.layer for op in result.details.graph.ops}
    for entry in table:
        if entry.op in layers:
            assert entry.layer == layers[entry.op]
        elif entry.pass_ == "collective":
            assert entry.operand == "message"
    network = table.by("pass", "component")
    assert network["collective", "network"] == pytest.approx(result.energy_j["network"])


def test_static_power_is_integrated_over_the_time_of_every_pass(single: Result) -> None:
    """On one device the ops follow each other: seconds of a pass are those of its ops."""
    timeline, power = single.details.timeline, single.details.cluster.device.idle_power.value
    program = timeline.program
    static = {e.pass_: e for e in single.ledger() if e.component == "static"}
    for number, name in enumerate(program.kind_names):
        seconds = float(timeline.durations_s[program.kind == number].sum())
        assert static[name].amount == pytest.approx(seconds)
        assert static[name].energy_j == pytest.approx(power * seconds)
    assert static["waiting"].amount == pytest.approx(0, abs=1e-9)
    total = math.fsum(e.amount for e in static.values())
    assert total == pytest.approx(single.step_time_s * single.details.plan.devices)


def test_waiting_devices_draw_idle_power(result: Result) -> None:
    static = {e.pass_: e.amount for e in result.ledger() if e.component == "static"}
    idle = result.time_s["exposed_communication"] + result.time_s["bubble"]
    assert static["waiting"] == pytest.approx(idle * result.details.plan.devices)


def test_it_is_made_for_data_frames(toy: Result) -> None:
    polars = pytest.importorskip("polars")
    table = toy.ledger()
    frame = table.to_polars()
    assert frame.columns == list(COLUMNS)
    assert frame.height == len(table)
    assert polars.DataFrame(dict(table.columns)).equals(frame)
    assert frame["energy_j"].sum() == pytest.approx(toy.energy_j["total"])
    assert table.columns["amount"].dtype == np.float64


def test_files_hold_every_row(toy: Result, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    table = toy.ledger()
    for name in ("ledger.csv", "ledger.parquet"):
        table.write(tmp_path / name)
    with (tmp_path / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(table)
    assert tuple(rows[0]) == COLUMNS
    assert [float(row["energy_j"]) for row in rows] == table.columns["energy_j"].tolist()
    assert polars.read_parquet(tmp_path / "ledger.parquet").equals(table.to_polars())
    with pytest.raises(ConfigError, match=r"use \.csv or \.parquet"):
        table.write(tmp_path / "ledger.xlsx")
    assert not (tmp_path / "ledger.xlsx").exists()


def test_parquet_without_polars_says_what_to_install(
    toy: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match="pip install"):
        toy.ledger().write(tmp_path / "ledger.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "value", "said"),
    [
        (("opp",), "energy_j", "did you mean 'op'"),
        (("op",), "layer", "only energy_j and amount"),
        (("op",), "amount", "different units"),
    ],
)
def test_sums_that_make_no_sense_are_refused(
    toy: Result, names: tuple[str, ...], value: str, said: str
) -> None:
    with pytest.raises(RidgelineError, match=said):
        toy.ledger().by(*names, value=value)


def test_it_shows_itself(toy: Result) -> None:
    table = ledger(toy)
    assert repr(table) == f"<Ledger of {len(table)} rows, {toy.energy_j['total']:.4g} J>"
    assert "<table" in table._repr_html_()
    assert "of AlexNet" not in table._repr_html_()


def test_the_command_writes_it_and_prints_passes(
    node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.csv"
    argv = ["run", "lenet5", str(node), "--batch", "8", "--ledger", str(path)]
    assert execute(argv) == 0
    shown = capsys.readouterr().out
    assert "energy a step" in shown
    assert all(f"\n {p} " in shown for p in Pass if p is not Pass.RECOMPUTE)
    assert path.read_text().startswith(",".join(COLUMNS))


def test_levels_that_a_device_does_not_describe_are_said(tmp_path: Path) -> None:
    (tmp_path / "energy.yaml").write_text(ENERGY)
    lines = [line for line in DEVICE.splitlines() if "kind: registers" not in line]
    (tmp_path / "device.yaml").write_text("\n".join(lines))
    result = Point("lenet5", str(tmp_path / "device.yaml"), {"global_batch": 2}).simulate()
    assert result.energy_j["registers"] == 0
    assert "energy of registers: toy describes none" in result.manifest["not_modelled"]
    assert "energy of registers" in result.summary(verbose=True)
