"""Whole runs of MLPerf Training: rows become simulations, or say why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from row_tables import made

from ridgeline.hardware.load import load_cluster
from ridgeline.study.import_rows import mlperf
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.import_rows.runs import (
    SUBMISSION,
    CatalogueStep,
    WorkloadRun,
    grown,
    run_of,
    step_of,
    submitted,
    usual_precision,
    workload,
)
from ridgeline.study.validate.rows import MeasuredRow


def test_submissions_of_mlperf_leave_out_padding_and_multiply_in_narrow_formats() -> None:
    padded, unpadded = (submitted("bert", round_) for round_ in ("v0.7", "v4.0"))
    assert (padded.fields["sequence"], unpadded.fields["sequence"]) == (512, 256)
    assert padded.formats == unpadded.formats == ("fp8", "fp16", "bf16")
    adapters = submitted("llama2_70b_lora", "v4.0")
    assert adapters.formats == ("fp8", "bf16")
    assert adapters.software["gradients.accumulation_fusion"]
    assert submitted("gpt3", "v4.0").options
    assert submitted("ssd", "v4.0") == submitted("retinanet", "v4.0") != submitted("ssd", "v1.0")
    assert workload("resnet").formats == ("bf16", "fp16")


MLPERF = (
    "id,round,system,division,benchmark,accelerator,n_accel,time_to_train_s_olympic,"
    "global_batch_size,epochs_last_median,samples_last_median,note,source\n"
)


@pytest.mark.parametrize(
    ("system", "nodes", "devices"),
    [("C4140", "", 4), ("2xC4140", "", 8), ("4 x DSS8440", "", 16), ("2xC4140", "3", 12)],
)
def test_devices_are_those_of_nodes_that_a_name_counts(
    system: str, nodes: str, devices: int
) -> None:
    cells = {"system": system, "n_nodes": nodes, "accel_per_node": "4", "n_accel": ""}
    row = MeasuredRow("table.csv", 2, {**cells, "accelerator": "V100"})
    assert mlperf._chips(row) == devices


@pytest.mark.parametrize("system", ["eos_n64_ngc23.09", "pod", ""])
def test_no_number_of_nodes_is_read_from_other_names(system: str) -> None:
    cells = {"system": system, "n_nodes": "", "accel_per_node": "8", "n_accel": ""}
    assert not mlperf._chips(MeasuredRow("table.csv", 2, {**cells, "accelerator": "H100"}))


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
    assert "data=16," in first.configuration
    assert "tpu-v3" in first.configuration


def test_epochs_of_dlrm_are_counted_from_one(tmp_path: Path) -> None:
    rows = (
        "once,v2.0,x,closed,dlrm,A100-SXM-80GB,8,100,55296,2,,,s\n"
        "half,v2.0,x,closed,dlrm,A100-SXM-80GB,8,100,55296,1.5,,,s\n"
        "tenth,v0.7,x,closed,dlrm,A100-SXM-80GB,8,100,55296,10,,,s\n"
        "one,v4.0,x,closed,dlrm_dcnv2,A100-SXM-80GB,8,100,55296,1,,,s\n"
        "two,v4.0,x,closed,dlrm_dcnv2,A100-SXM-80GB,8,100,55296,2,,,s\n"
    )
    found = {o.id: o.predicted for o in made(tmp_path, "mlperf", MLPERF, rows).outcomes}
    assert found["once"] == pytest.approx(2 * found["half"])
    assert found["tenth"] == pytest.approx(found["half"])  # ten evaluations of twenty
    assert found["two"] == pytest.approx(2 * found["one"])


def test_padding_of_bert_is_left_out_from_the_second_round_on(tmp_path: Path) -> None:
    rows = "".join(
        f"{round_},{round_},x,closed,bert,A100-SXM-80GB,8,1000,448,,3000000,,s\n"
        for round_ in ("v0.7", "v1.0")
    )
    first, second = made(tmp_path, "mlperf", MLPERF, rows).outcomes
    assert second.predicted < 0.7 * first.predicted


def test_a_submission_runs_with_all_that_is_said_of_its_plan() -> None:
    cells = dict(zip(MLPERF.strip().split(","), [""] * 99, strict=False))
    of = {"round": "v5.1", "division": "closed", "n_accel": "8", "time_to_train_s_olympic": "800"}
    photographs = {"benchmark": "resnet", "accelerator": "H100", "epochs_last_median": "35"}
    tokens = {"benchmark": "llama31_8b", "accelerator": "B200", "samples_last_median": "100000"}
    first, second = (
        mlperf.normal(MeasuredRow("a.csv", 2, {**cells, **of, **more, "global_batch_size": "800"}))
        for more in (photographs, tokens)
    )
    assert first["overrides"] == "kernels.norm=fused;overlap.contention=false"
    assert second["overrides"].split(";") == [
        "gradients.accumulation_fusion=true",
        "gradients.bucket=160000000.0",
        "gradients.bucket_per_rank=4000000.0",
        "overlap.contention=false",
    ]
    assert "zero_stage=1" in second["plan"]
    assert (first["software"], second["software"]) == (SUBMISSION, SUBMISSION)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("v4.0,x,closed,rgat,H100,8,1,256,1,,,s", "no description of the run rgat"),
        ("v4.0,x,open,resnet,H100,8,1,256,1,,,s", "open division"),
        ("v4.0,x,closed,resnet,Ascend910,8,1,256,1,,,s", "no description of the device Ascend910"),
        ("v0.6,x,closed,bert,H100,8,1,256,6,,,s", "how much was trained"),
        ("v4.0,x,closed,resnet,H100,,1,256,6,,,s", "number of devices"),
        ("v0.5,x,closed,resnet,H100,8,1,256,6,,batch may be per worker,s", "of one device or"),
    ],
)
def test_runs_of_mlperf_that_cannot_be_predicted_say_why(
    tmp_path: Path, row: str, reason: str
) -> None:
    (skipped,) = made(tmp_path, "mlperf", MLPERF, f"a,{row}\n").skipped
    assert reason in skipped.reason


def test_amounts_that_a_row_leaves_out_are_those_of_reference_runs(tmp_path: Path) -> None:
    rows = (
        "given,v1.0,x,closed,bert,A100-SXM-80GB,8,1000,448,,2600000,,s\n"
        "none,v1.0,x,closed,bert,A100-SXM-80GB,8,1000,448,,,,s\n"
        "steps,v1.0,x,closed,bert,A100-SXM-80GB,8,1000,448,,5800,,s\n"
    )
    found = {o.id: o.predicted for o in made(tmp_path, "mlperf", MLPERF, rows).outcomes}
    assert found["none"] == pytest.approx(found["given"], rel=0.1)
    assert found["steps"] == found["none"]  # a number that counts something else


def test_devices_for_which_no_share_of_the_batch_is_left_validate() -> None:
    volumes, photographs = workload("unet3d"), workload("resnet")
    training = mlperf._training
    assert training(volumes, 72, 56) == 56
    assert training(volumes, 768, 84) == 672  # eight share a volume
    assert training(volumes, 512, 32) == 512
    assert training(photographs, 72, 56) == 56
    assert training(photographs, 8, 256) == 8


def test_gradient_accumulation_says_how_many_share_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def fits(step: CatalogueStep) -> bool:
        tried.append(step.plan.get("tensor", 1))
        return False

    monkeypatch.setattr(CatalogueStep, "fits", fits)
    adapters = run_of("llama2_70b_lora").work
    for accumulated, told, degrees in (
        (1, True, []),
        (2, True, []),
        (8, True, []),  # the others share positions
        (1, False, [1, 2]),  # the first that fits
    ):
        tried.clear()
        job = WorkloadRun("h200-sxm", 8, 8, "fp8-mixed", accumulated=accumulated, told=told)
        step = step_of(adapters, job, SUBMISSION, {})
        assert tried == degrees
        assert step.plan.get("tensor", 1) == (min(accumulated, 4) if told else 4)


def test_products_have_four_bits_from_the_round_on_in_which_they_were_allowed() -> None:
    run = run_of("llama2_70b_lora")
    assert run.work_of("v5.0").formats == ("fp8", "bf16")
    assert run.work_of("v5.1").formats == ("fp4", "fp8", "bf16")
    assert usual_precision("b200", mixed=True, formats=("fp4", "fp8")) == "nvfp4-mixed"
    assert usual_precision("h100-sxm5-80gb", mixed=True, formats=("fp4", "fp8")) == "fp8-mixed"


def test_gpt3_on_tpus_is_run_as_by_maxtext() -> None:
    """In int8, weights shared; all is formed again where what products make has no room."""
    run = run_of("gpt3").on("tpu-v5p")
    assert (run.work.formats, run.work.plan) == (("int8",), {"tensor": 8})
    assert usual_precision("tpu-v5p", mixed=True, formats=run.work.formats) == "int8-mixed"
    small = {**run.work.fields, "layers": 2}
    held = {}
    for sequence in (2048, 32768):
        work = replace(run.work, fields={**small, "sequence": sequence})
        job = WorkloadRun("tpu-v5p", 16, 128, "int8-mixed")
        held[sequence] = step_of(work, job, SUBMISSION, {}).plan
    assert [plan["recompute"] for plan in held.values()] == ["projections", "full"]
    assert {plan["micro_batch"] for plan in held.values()} == {64}  # weights are gathered once
    assert run_of("gpt3").on("h100-sxm5-80gb").work.tight == {}


def test_programs_of_other_makers_have_formats_and_plans_of_their_own() -> None:
    bert = run_of("bert")
    assert bert.on("gaudi2").work.formats == ("bf16", "fp16")
    assert bert.on("tpu-v4").unpadded is None
    assert bert.on("tpu-v4").work.options["zero_stage"] == 1
    assert bert.on("h100-sxm5-80gb") is bert


def test_large_batches_of_translation_count_tokens(tmp_path: Path) -> None:
    rows = (
        "tokens,v0.7,x,closed,transformer,A100-SXM4-40GB,8,500,110400,3,,,s\n"
        "sentences,v0.7,x,closed,transformer,tpu-v4,64,100,3712,3,,,s\n"
    )
    outcomes = {o.id: o for o in made(tmp_path, "mlperf", MLPERF, rows).outcomes}
    assert "global_batch=3680," in outcomes["tokens"].configuration
    assert "global_batch=3712," in outcomes["sentences"].configuration


def test_machines_are_as_large_as_a_run() -> None:
    assert machine_of("tpu-v3", 1024, None)[0] == "tpu-v3-pod"
    assert machine_of("tpu-v3", 4096, None)[0] == "tpu-v3-multipod"
    assert machine_of("gaudi", 8, 1)[0] == "hls-1"
    assert machine_of("gaudi", 8, 2)[0] == "hls-1h-roce"
    assert machine_of("mi325x", 16, 2)[0] == "mi300x-roce"
    assert machine_of("h200-nvl", 8, 1)[0] == "h200-nvl-8gpu"
    within, beyond = (
        load_cluster("dgx1-v100-edr", grown("dgx1-v100-edr", {}, devices))
        for devices in (992, 2048)
    )
    assert within.fabric is not None
    assert beyond.fabric is not None
    assert (within.fabric.levels, beyond.fabric.levels) == (2, 3)
    assert beyond.max_nodes == 256
    assert grown("tpu-v4-pod", {}, 5000) == {}  # optical switches have so many ports
