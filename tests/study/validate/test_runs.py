"""Suites of power, convergence and whole runs: rows become simulations, or say why not."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.validate import (
    SUITES,
    Validation,
    mlperf,
    shipped,
    validate,
    validate_suites,
)
from ridgeline.study.validate.convergence import Point, critical_batch
from ridgeline.study.validate.imagenet import _cable_gbit_s, _device, _grouped, _precision
from ridgeline.study.validate.machines import machine_of
from ridgeline.study.validate.rows import read_rows
from ridgeline.study.validate.workloads import (
    rounds,
    run_of,
    submitted,
    usual_precision,
    workload,
)

POWER = "id,kind,workload,accelerator,n_accel,batch,config,power_W,power_basis,source\n"
CONVERGENCE = "id,kind,task,batch_size,target,metric,mean,unit,source\n"
IMAGENET = (
    "id,model,accelerator,n_accel,nodes,interconnect,batch,epochs,precision,time_s,images_per_s,"
    "source\n"
)


def made(folder: Path, suite: str, header: str, rows: str) -> Validation:
    path = folder / "rows.csv"
    path.write_text(header + rows, encoding="utf-8")
    return validate(suite, path)


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
    assert predicted[0] == 100
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
    assert str(workload("llama2_70b_lora")) == "llama2-70b-lora"
    assert str(workload("resnet")) == "resnet50"
    with pytest.raises(RidgelineError, match="no description"):
        workload("colour-net")


def test_submissions_of_mlperf_leave_out_padding_and_multiply_in_narrow_formats() -> None:
    padded, _ = submitted("bert", "v0.7")
    unpadded, _ = submitted("bert", "v4.0")
    assert (dict(padded.fields)["sequence"], dict(unpadded.fields)["sequence"]) == (512, 256)
    assert padded.formats == unpadded.formats == ("fp8", "fp16", "bf16")
    adapters, options = submitted("llama2_70b_lora", "v4.0")
    assert (adapters.formats, dict(options)["adding"]) == (("fp8", "bf16"), "products")
    assert submitted("gpt3", "v4.0")[1]
    assert submitted("ssd", "v4.0") == submitted("retinanet", "v4.0") != submitted("ssd", "v1.0")
    assert workload("resnet").formats == ("bf16", "fp16")


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
    points = [Point("k", b, amount_0 + slope * b) for b in batches]
    found_0, found_slope = critical_batch(points)
    for point in points:
        assert found_0 + found_slope * point.batch == pytest.approx(point.amount, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 10**4), st.floats(1e-3, 1e9)), min_size=1, max_size=6))
def test_more_samples_are_never_fewer_epochs(pairs: list[tuple[int, float]]) -> None:
    amount_0, slope = critical_batch([Point("k", b, a) for b, a in pairs])
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


def test_twice_the_epochs_take_twice_the_time(tmp_path: Path) -> None:
    rows = (
        "".join(f"{n},ResNet-50,P100 (DGX-1),8,,,256,{n},fp32,1e5,,s\n" for n in (45, 90))
        + "r,ResNet-50,P100 (DGX-1),8,,,256,,fp32,,1700,s\n"
    )
    short, long, rate = made(tmp_path, "imagenet", IMAGENET, rows).outcomes
    assert long.predicted == pytest.approx(2 * short.predicted)
    epoch_s = short.predicted / 45
    assert epoch_s == pytest.approx((1_281_167 + 50_000 / 3) / rate.predicted)


def test_more_devices_than_a_catalogue_cluster_has_and_a_slower_network(tmp_path: Path) -> None:
    rows = "".join(
        f"{i},ResNet-50,P100,{n},,{net},{32 * n},90,fp32,1000,,s\n"
        for i, (n, net) in enumerate([(1024, "InfiniBand FDR"), (1024, "1 Gb Ethernet"), (8, "")])
    )
    fast, slow, one = made(tmp_path, "imagenet", IMAGENET, rows).outcomes
    assert fast.predicted < slow.predicted
    assert fast.predicted >= one.predicted / 128 * (1 - 1e-9)


def test_a_third_level_joins_what_two_cannot(tmp_path: Path) -> None:
    """Two levels of 36 ports join 648 adapters: 162 nodes of four."""
    rows = "".join(
        f"{nodes},ResNet-50,V100,{8 * nodes},{nodes},EDR IB,{256 * nodes},90,fp16 mixed,100,,s\n"
        for nodes in (162, 163)
    )
    few, many = made(tmp_path, "imagenet", IMAGENET, rows).outcomes
    assert many.predicted == pytest.approx(few.predicted * 162 / 163, rel=0.02)


def test_runs_are_of_their_program_and_their_machine(tmp_path: Path) -> None:
    columns = IMAGENET.replace("id,", "id,ref,")
    text = ",ResNet-50,V100 {},8,{},,{},90,{},1000,,s\n"
    rows = "a,DAWNBench DIUX" + text.format("", 1, "", "fp32")
    rows += "b,Osawa 2019 (K-FAC)" + text.format("", 1, "", "fp32")
    rows += "c,Mikami 2018" + text.format("(ABCI)", 2, 256, "fp16 mixed")
    found = made(tmp_path, "imagenet", columns, rows)
    batches = [o.configuration.split(", ")[1] for o in found.outcomes]
    assert batches == ["batch 256", "batch 256"]
    assert [row.reason for row in found.skipped] == ["no description of the optimizer K-FAC"]
    assert machine_of("v100-sxm2-16gb", 8, 2, "V100 (ABCI) 2x EDR")[0] == "abci-edr"


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("P100 (Big Basin, NVLink)", "p100-sxm2"),
        ("8 K80 / 488 GB / 32 CPU (Amazon)", "k80"),
        ("Lambda GPU Cloud - 4x GTX 1080", "gtx-1080"),
        ("KNL 7250 (Stampede2)", "xeon-phi-7250"),
    ],
)
def test_devices_in_words(text: str, device: str) -> None:
    assert _device(text) == device


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
    made_, by_device, by_source = estimate.estimate(rows)
    assert by_device == by_source >= 0.9
    assert made_.median == pytest.approx(0.2, abs=0.1)
    total = math.hypot(0.3, 0.1)
    for side in (made_.low, made_.high):
        assert math.hypot(side, 0.05) == pytest.approx(total, rel=0.35)


def test_what_stands_for_most_of_the_rows_is_not_left_out() -> None:
    estimate = script()
    rows = [estimate.Residual(0.1 * i, 0.0, f"g{i}", "one", f"s{i}") for i in range(5)]
    assert estimate.left_out(rows, 0.05, lambda row: row.device) is None
    assert estimate.left_out(rows, 0.05, lambda row: row.source) is not None


def test_new_suites_are_listed() -> None:
    assert {"energy", "convergence", "imagenet"} <= set(SUITES)


def test_a_row_of_nothing_but_an_efficiency_is_predicted_as_one(tmp_path: Path) -> None:
    header = IMAGENET.replace(",source", ",scaling_efficiency_pct,efficiency_basis,source")
    rows = (
        "a,alexnet,V100,16,4,EDR,1024,,fp32,,,90,vs 1 node,s\n"
        "b,alexnet,V100,16,4,EDR,1024,,fp32,,,80,14x over 1 GPU,s\n"
        'c,alexnet,V100,16,4,EDR,1024,,fp32,,,50,"8x speedup, STRONG scaling",s\n'
        "d,alexnet,V100,16,4,EDR,1024,,fp32,,,50,,s\n"
    )
    result = made(tmp_path, "imagenet", header, rows)
    node, one, strong = (o.predicted for o in result.outcomes)
    assert [o.measured for o in result.outcomes] == [0.9, 0.8, 0.5]
    assert 0.1 < strong < one < node <= 1.0 + 1e-9
    assert "relative to" in result.skipped[0].reason


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


MLPERF = (
    "id,round,system,division,benchmark,accelerator,n_accel,time_to_train_s_olympic,"
    "global_batch_size,epochs_last_median,samples_last_median,note,source\n"
)


def test_a_run_of_mlperf_takes_as_many_steps_as_its_samples_need(tmp_path: Path) -> None:
    rows = (
        "a,v4.0,x,closed,resnet,NVIDIA H100-SXM5-80GB (700W),8,800,3200,35,,,s\n"
        "b,v4.0,x,closed,resnet,H100,8,800,3200,70,,,s\n"
        "c,v4.0,x,closed,unet3d,H100,8,800,56,2000,,,s\n"
        "d,v4.0,x,closed,unet3d,H100,8,800,56,336000,,,s\n"
        "e,v4.0,x,closed,ssd,H100,8,800,256,4,,,s\n"
        "f,v4.0,x,closed,retinanet,H100,8,800,256,4,,,s\n"
    )
    found = {o.id: o for o in made(tmp_path, "mlperf", MLPERF, rows).outcomes}
    assert found["b"].predicted == pytest.approx(2 * found["a"].predicted)
    assert found["c"].predicted == found["d"].predicted  # 2,000 epochs of 168 volumes
    assert found["e"].predicted == found["f"].predicted  # renamed
    assert 300 < found["a"].predicted < 2000
    assert found["a"].trivial["a third of the peak"] > 0


def test_slices_of_tpus_that_are_named_by_their_cores_have_half_as_many_chips(
    tmp_path: Path,
) -> None:
    rows = (
        "slice,v0.6,x,closed,resnet,tpuv3-32,32,2000,4096,70,,,s\n"
        "chips,v0.7,x,closed,resnet,tpu-v3,16,2000,4096,70,,,s\n"
    )
    first, second = made(tmp_path, "mlperf", MLPERF, rows).outcomes
    assert first.predicted == second.predicted
    assert "16 x tpu-v3" in first.configuration


def test_epochs_of_dlrm_are_counted_from_one(tmp_path: Path) -> None:
    rows = (
        "once,v2.0,x,closed,dlrm,A100-SXM-80GB,8,100,55296,2,,,s\n"
        "twice,v2.0,x,closed,dlrm,A100-SXM-80GB,8,100,55296,3,,,s\n"
        "one,v4.0,x,closed,dlrm_dcnv2,A100-SXM-80GB,8,100,55296,1,,,s\n"
        "two,v4.0,x,closed,dlrm_dcnv2,A100-SXM-80GB,8,100,55296,2,,,s\n"
    )
    found = {o.id: o.predicted for o in made(tmp_path, "mlperf", MLPERF, rows).outcomes}
    assert found["twice"] == pytest.approx(2 * found["once"])
    assert found["two"] == pytest.approx(2 * found["one"])


def test_options_of_a_run_reach_its_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[object] = []

    def step(*args: object, options: object = (), **fields: object) -> None:
        given.append(options)
        raise RidgelineError("not simulated")

    monkeypatch.setattr("ridgeline.study.validate.mlperf.run_step", step)
    row = "a,v4.0,x,closed,llama31_8b,H100,8,1,8,,3072,,s\n"
    made(tmp_path, "mlperf", MLPERF, row)
    assert given == [(("adding", "products"), ("sharding", 1))]


def test_padding_of_bert_is_left_out_from_the_second_round_on(tmp_path: Path) -> None:
    rows = "".join(
        f"{round_},{round_},x,closed,bert,A100-SXM-80GB,8,1000,448,,3000000,,s\n"
        for round_ in ("v0.7", "v1.0")
    )
    first, second = made(tmp_path, "mlperf", MLPERF, rows).outcomes
    assert second.predicted < 0.7 * first.predicted


def test_a_submission_runs_with_all_that_is_said_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def ask(*_: object, options: object = (), **__: object) -> None:
        asked.append(options)
        raise RidgelineError("asked")

    monkeypatch.setattr(mlperf, "run_step", ask)
    rows = "a,v4.0,x,closed,resnet,H100,8,800,3200,35,,,s\n"
    rows += "b,v5.1,x,closed,llama31_8b,B200,8,800,8,,100000,,s\n"
    made(tmp_path, "mlperf", MLPERF, rows)
    assert asked == [(), run_of("llama31_8b").options]
    assert dict(run_of("llama31_8b").options)["sharding"] == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("v4.0,x,closed,rgat,H100,8,1,256,1,,,s", "no description of the run rgat"),
        ("v4.0,x,open,resnet,H100,8,1,256,1,,,s", "open division"),
        ("v4.0,x,closed,resnet,Ascend910,8,1,256,1,,,s", "no description of the device Ascend910"),
        ("v4.0,x,closed,bert,H100,8,1,256,6,,,s", "how much was trained"),
        ("v4.0,x,closed,resnet,H100,,1,256,6,,,s", "number of devices"),
        ("v0.5,x,closed,resnet,H100,8,1,256,6,,batch may be per worker,s", "of one device or"),
    ],
)
def test_runs_of_mlperf_that_cannot_be_predicted_say_why(
    tmp_path: Path, row: str, reason: str
) -> None:
    (skipped,) = made(tmp_path, "mlperf", MLPERF, f"a,{row}\n").skipped
    assert reason in skipped.reason


@pytest.mark.parametrize(
    ("told", "device", "precision"),
    [
        ("fp32 (fp16 comm)", "p100-sxm2", "fp32"),
        ("mixed (fp16 storage/comm; P40 has no fast fp16)", "p40", "fp16-mixed"),
        ("mixed", "v100-sxm2-16gb", "fp16-mixed"),
        ("fp16 mixed, fp16 comm", "p100-sxm2", "fp16-mixed"),
        ("", "tpu-v2", "bf16-mixed"),
        ("", "m40", "fp32"),
    ],
)
def test_mixed_precision_is_what_the_device_multiplies_fast_in(
    told: str, device: str, precision: str
) -> None:
    assert _precision(told, device) == precision


@pytest.mark.parametrize(
    ("devices", "batch", "groups"), [(64, 256, 2), (128, 512, 4), (1, 8, 1), (16, 4096, 4)]
)
def test_layers_in_groups_follow_the_published_optimum(
    devices: int, batch: int, groups: int
) -> None:
    """sqrt(N MB / 4096), to the nearest divisor (Das et al., 2016)."""
    assert _grouped("fc*", "vgg-a", devices, batch) == f"fc*:data={groups}"
    assert _grouped("", "vgg-a", devices, batch) == ""


def test_gradients_in_half_precision_and_groups_speed_up_whole_runs(tmp_path: Path) -> None:
    header = IMAGENET.replace("id,", "id,ref,")
    run = "ResNet-50,P100,64,8,10 Gb Ethernet,2048,90,{},9000,,s"
    rows = "".join(
        f"{name},{ref},{run.format(precision)}\n"
        for name, ref, precision in (
            ("own", "someone", "fp32"),
            ("half", "someone", "fp32 (fp16 comm)"),
            ("after", "Akiba 2017", "fp32 (fp16 comm)"),
        )
    )
    found = {o.id: o.predicted for o in made(tmp_path, "imagenet", header, rows).outcomes}
    assert found["half"] < found["own"]
    assert found["half"] < found["after"]


def test_a_rate_from_memory_does_not_count_beside_an_efficiency(tmp_path: Path) -> None:
    header = IMAGENET.replace(
        "source", "images_per_s_basis,scaling_efficiency_pct,efficiency_basis,source"
    )
    run = "ResNet-50,V100,16,2,EDR,1024,,fp32,,5000"
    rows = (
        f"read,{run},,90,1 to 16: vs 8-GPU node,s\n"
        f"recalled,{run},RECALL,90,vs 8-GPU node,s\n"
        f"only,{run},RECALL,,,s\n"
    )
    found = {o.id: o.quantity for o in made(tmp_path, "imagenet", header, rows).outcomes}
    assert found == {
        "read": "images/s", "recalled": "scaling efficiency", "only": "images/s",
    }  # fmt: skip
