"""Suites of power, convergence and whole runs: rows become simulations, or say why not."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_tables import made

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.uncertainty.distributions import model_error
from ridgeline.study.import_rows.imagenet import _cable_gbit_s, _device
from ridgeline.study.import_rows.runs import rounds, usual_precision, workload
from ridgeline.study.validate import (
    SUITES,
    find_suite,
    shipped,
    validate,
    validate_suites,
)
from ridgeline.study.validate.convergence import ConvergencePoint, critical_batch
from ridgeline.study.validate.energy import of_node
from ridgeline.study.validate.rows import read_rows

POWER = "id,kind,workload,accelerator,n_accel,batch,config,power_W,power_basis,source\n"
CONVERGENCE = "id,kind,task,batch_size,target,metric,mean,unit,source\n"
IMAGENET = (
    "id,model,accelerator,n_accel,nodes,interconnect,batch,epochs,precision,time_s,images_per_s,"
    "source\n"
)


def test_power_follows_the_limit_until_nothing_is_limited(tmp_path: Path) -> None:
    limits = (100, 150, 200, 250)
    rows = "".join(
        f"{limit},power,imagenet/resnet50,V100,1,64,optimizer=sgd power_limit={limit}.0W,{limit},"
        "NVML GPU board average,s\n"
        for limit in limits
    )
    found = {o.id: o for o in made(tmp_path, "energy", POWER, rows).outcomes}
    predicted = [found[str(limit)].predicted for limit in limits]
    assert predicted == sorted(predicted)
    assert predicted[0] == pytest.approx(100, rel=0.01)  # launches and waiting draw less
    assert 100 < predicted[-1] < 250
    assert all(o.p05 is not None and o.p95 is not None for o in found.values())


def test_power_of_a_node_at_the_wall_and_behind_its_supplies(tmp_path: Path) -> None:
    rows = "".join(
        f"{side},power,{work},H100-SXM5-80GB,8,256,MLPerf run x,7000,node {side}-side mean,s\n"
        for side, work in (("AC", "resnet"), ("DC", "resnet"), ("?", "colour-net"))
    )
    result = made(tmp_path, "energy", POWER, rows)
    wall, supplied = (o.predicted for o in result.outcomes)
    assert 4000 < supplied < wall < 10200
    assert "colour-net" in result.skipped[0].reason


def test_what_is_no_power_of_a_step_is_skipped(tmp_path: Path) -> None:
    rows = "a,per-op energy,ADD,,,,16-bit,0.18,,s\nb,power,bert,V100,1,,x,100,NVML GPU,s\n"
    reasons = [s.reason for s in made(tmp_path, "energy", POWER, rows).skipped]
    assert "per-op energy" in reasons[0]
    assert "batch" in reasons[1]


def test_a_network_is_found_by_the_name_of_a_table() -> None:
    assert workload("llama2_70b_lora").model == "llama2-70b-lora"
    assert workload("resnet").model == "resnet50"
    with pytest.raises(RidgelineError, match="no description"):
        workload("colour-net")


def test_formats_where_a_table_does_not_say_them() -> None:
    assert usual_precision("a40", mixed=False) == "tf32"
    assert usual_precision("v100-sxm2-16gb", mixed=False) == "fp32"
    assert usual_precision("v100-sxm2-16gb", mixed=True) == "fp16-mixed"
    assert usual_precision("h100-sxm5-80gb", mixed=True) == "bf16-mixed"
    assert rounds("tpu-v2")
    assert not any(map(rounds, ("v100-sxm2-16gb", "a100-sxm4-40gb", "k80", "xeon-phi-7250")))


@settings(max_examples=50)
@given(
    st.floats(1, 1e6),
    st.floats(0, 1e3),
    st.lists(st.integers(1, 10**5), min_size=2, max_size=8, unique=True),
)
def test_the_law_is_found_again(amount_0: float, slope: float, batches: list[int]) -> None:
    points = [ConvergencePoint("k", b, amount_0 + slope * b) for b in batches]
    found_0, found_slope = critical_batch(points)
    for point in points:
        assert found_0 + found_slope * point.batch == pytest.approx(point.amount, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 10**4), st.floats(1e-3, 1e9)), min_size=1, max_size=6))
def test_more_samples_are_never_fewer_epochs(pairs: list[tuple[int, float]]) -> None:
    amount_0, slope = critical_batch([ConvergencePoint("k", b, a) for b, a in pairs])
    assert amount_0 >= 0
    assert slope >= 0
    assert amount_0 + slope > 0


def test_a_row_is_not_predicted_from_its_own_batch(tmp_path: Path) -> None:
    rows = read_rows(shipped("convergence"))
    row = next(r for r in rows if (r.text("task"), r.text("kind")) == ("resnet", "MLPerf RCP"))
    batch = row.text("batch_size")
    text = "".join(
        f"x,MLPerf RCP,resnet,{batch},{row.text('target')},to_converge,{mean},epochs,s\n"
        for mean in (row.number("mean"), 3 * (row.number("mean") or 1))
    )
    first, second = made(tmp_path, "convergence", CONVERGENCE, text).outcomes
    assert first.predicted == second.predicted
    assert first.measured != second.measured
    assert abs(first.error) < 0.2


def test_amounts_in_another_unit_are_skipped(tmp_path: Path) -> None:
    rows = (
        "a,MLPerf RCP,resnet,4096,MLPerf quality target,to_converge,4e7,epochs,s\n"
        "b,x,resnet,4096,,top1,25,%,s\n"
        "c,x,colour-net,4096,t,to_converge,5,epochs,s\n"
    )
    reasons = {s.id: s.reason for s in made(tmp_path, "convergence", CONVERGENCE, rows).skipped}
    assert "unit" in reasons["a"]
    assert "unit" in reasons["b"]
    assert "another batch" in reasons["c"]


@pytest.mark.parametrize(
    ("suite", "header", "row", "field"),
    [
        ("energy", POWER, "a,power,bert,V100,1,many,x,100,NVML GPU,s\n", "batch"),
        ("convergence", CONVERGENCE, "a,k,resnet,1k,t,to_converge,5,epochs,s\n", "batch_size"),
        ("imagenet", IMAGENET, "a,ResNet-50,P100,8,,,256,all,fp32,1,,s\n", "epochs"),
    ],
)
def test_a_field_that_is_no_number_is_an_error_of_its_line(
    tmp_path: Path, suite: str, header: str, row: str, field: str
) -> None:
    with pytest.raises(ConfigError, match="expected a number") as error:
        made(tmp_path, suite, header, row)
    assert (error.value.line, error.value.field) == (2, field)


def test_reference_points_beat_a_constant() -> None:
    suite = validate("convergence")
    median = suite.summary.median_abs_error
    constant = suite.trivial["as at other batches"].median_abs_error
    assert median is not None
    assert constant is not None
    assert median < 0.1 < constant


def test_networks_in_words() -> None:
    assert _cable_gbit_s("NVLink intra; 50 Gb Ethernet inter", 4) == 12.5
    assert _cable_gbit_s("NVLink2 + 2x EDR IB", 2) == 100
    assert _cable_gbit_s("unknown", 2) is None
    with pytest.raises(RidgelineError, match="Abacus"):
        _device("Abacus (4 beads)")


@pytest.mark.parametrize("suite", ["gemm", "convergence", "pipeline"])
def test_truths_are_inside_as_often_as_stated(suite: str) -> None:
    coverage = validate(suite).summary.coverage
    assert coverage is not None
    assert 0.85 <= coverage <= 1.0


def script() -> ModuleType:
    name = "estimate_uncertainty"
    path = Path(__file__).parents[3] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_estimate_covers_groups_that_it_did_not_see() -> None:
    estimate = script()
    rng = np.random.default_rng(3)
    rows = [
        estimate.Residual(0.2 + off + 0.1 * rng.standard_normal(), 0.05, f"g{g}", f"d{g}", f"s{g}")
        for g, off in enumerate(0.3 * rng.standard_normal(60))
        for _ in range(5)
    ]
    made_, shares = estimate.estimate(rows)
    assert shares[0] == shares[1] == shares[2] >= 0.9
    assert made_.median == pytest.approx(0.2, abs=0.1)
    total = math.hypot(0.3, 0.1)
    for side in (made_.low, made_.high):
        assert math.hypot(side, 0.05) == pytest.approx(total, rel=0.35)


def drawn(estimate: ModuleType, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    offs = enumerate(0.2 * rng.standard_normal(80))
    return [estimate.Residual(off, 0.0, f"g{g}", f"d{g % 4}", "one") for g, off in offs]


def test_four_devices_do_not_widen_what_is_stated() -> None:
    """A tenth of four devices cannot be outside: other rows are inside as often as stated."""
    estimate = script()
    inside = []
    for seed in range(20):
        made_, (_, by_source, by_group) = estimate.estimate(drawn(estimate, seed))
        assert by_source is None
        assert 0.9 <= by_group < 0.95
        inside += [made_.covers(row) for row in drawn(estimate, 100 + seed)]
    assert 0.85 <= np.mean(inside) <= 0.94  # the narrowest that does is a little too narrow


def test_power_of_nodes_and_of_devices_is_stated_apart() -> None:
    path = shipped("energy")
    rows = [row for row in read_rows(path) if of_node(row)]
    others = [row for row in read_rows(path) if not of_node(row)]
    made_ = list(find_suite("energy").predict([rows[0], others[0]]))
    for outcome, kind in zip(made_, ("node-power", "energy"), strict=True):
        error = model_error(kind)
        assert error is not None
        assert (outcome.p05, outcome.p95) == error.interval(outcome.predicted)


def test_what_stands_for_most_of_the_rows_is_not_left_out() -> None:
    estimate = script()
    rows = [estimate.Residual(0.1 * i, 0.0, f"g{i}", "one", f"s{i}") for i in range(5)]
    assert estimate.left_out(rows, 0.05, lambda row: row.device) is None
    assert estimate.left_out(rows, 0.05, lambda row: row.source) is not None


def test_new_suites_are_listed() -> None:
    assert {"energy", "convergence", "imagenet"} <= set(SUITES)


def test_a_step_that_contradicts_its_source_is_no_baseline(tmp_path: Path) -> None:
    header = (
        "suite,framework,model,variant,accelerator,system,n_accel,nodes,batch_per_accel,grad_accum,"
        "seq_len,precision,xla,data,throughput,unit,note,source\n"
    )
    rows = "".join(
        f"x,PyTorch,resnet-18,,V100,,{n},1,{batch},,,fp32,,synthetic,{rate},images/s,{note},s\n"
        for n, batch, rate, note in (
            (1, 64, 900, ""), (8, 64, 7000, ""), (1, 32, 40, "SOURCE ANOMALY: x"), (8, 32, 6800, "")
        )
    )  # fmt: skip
    result = made(tmp_path, "multi-device", header, rows)
    assert len(result.outcomes) == 1
    assert "contradicts itself" in result.skipped[0].reason


def test_suites_in_two_processes_say_the_same() -> None:
    names = ["convergence", "pipeline"]
    alone, shared = (
        [one.to_dict(rows=True) for one in validate_suites(names, processes)]
        for processes in (1, 2)
    )
    assert [one["suite"] for one in alone] == names
    assert alone == shared


def test_rows_of_one_suite_in_two_processes_say_the_same(tmp_path: Path) -> None:
    header, *rows = shipped("gemm").read_text(encoding="utf-8").splitlines()
    of_suite = [row for row in rows if ",gemm," in row]
    path = tmp_path / "some.csv"  # three parts, the last of them not full
    path.write_text("\n".join([header, *of_suite[::20][:70]]) + "\n", encoding="utf-8")
    alone, shared = (validate("gemm", path, processes) for processes in (1, 2))
    assert len(alone.outcomes) > 32
    assert alone == shared
