"""Tables of large language models, their memory and their pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.software.load import load_software
from ridgeline.study.import_rows.columns import translated
from ridgeline.study.import_rows.memory import translated as translated_memory
from ridgeline.study.import_rows.rules import rule
from ridgeline.study.validate import validate
from ridgeline.study.validate.pipeline import MeasuredStage, bubble_rate
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import configuration

VTRAIN = (
    "Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,"
    "sequence length,tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n"
    "0.1,8,16,2,128,4,4,64,2,2,2,12.5\n"
)


def test_a_row_of_vtrain_is_a_plan_of_megatron(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(VTRAIN, encoding="utf-8")
    made = validate("llm", path)
    (outcome,) = made.outcomes
    assert outcome.measured == pytest.approx(12.5e-3)
    for part in ("data=2", "tensor=2", "pipeline=2", "micro_batch=2", "recompute=full",
                 "megatron-lm-2021"):  # fmt: skip
        assert part in outcome.configuration


def test_a_case_of_simumax_is_in_its_name() -> None:
    row = MeasuredRow("f", 2, {"case": "llama3_70b_l12_tp2_pp1_dp4_mbc8_cef", "real_ms": "1387.0",
                       "real_alloc_GiB": "60.68"})  # fmt: skip
    made = translated(row)
    assert float(made.values["step_time_s"]) == pytest.approx(1.387)
    wanted = configuration(made)
    assert wanted.model.network.layers == 12
    assert (wanted.plan.tensor, wanted.plan.sequence, wanted.plan.data) == (2, 2, 4)
    assert wanted.plan.global_batch == 32
    assert wanted.plan.zero_stage == 1


def test_what_a_row_does_not_say_is_a_reason_to_skip_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "id,model,n_accel,accelerator,precision,framework,step_time_s,seq_len,global_batch_seqs,"
        "recompute,source\n"
        "a,llama3-8b,8,A100-80GB,posit16,x,1,512,8,,s\n"
        "b,llama3-8b,,A100-80GB,bf16,x,1,512,8,,s\n"
        "c,Abacus,8,A100-80GB,bf16,x,1,512,8,,s\n"
        "d,llama3-8b,8,A100-80GB,bf16,x,,512,8,,s\n",
        encoding="utf-8",
    )
    made = validate("llm", path)
    assert not made.outcomes
    reasons = {row.id: row.reason for row in made.skipped}
    assert "precision" in reasons["a"]
    assert "n_accel" in reasons["b"]
    assert "Abacus" in reasons["c"]
    assert "no measured" in reasons["d"]


def row_of(**fields: str) -> MeasuredRow:
    plain = {
        "model": "GPT", "n_layers": "22", "hidden": "2304", "heads": "24", "seq_len": "1024",
        "accelerator": "A100-80GB", "n_accel": "8", "tp": "1", "pp": "8", "vpp": "1", "dp": "1",
        "micro_batch": "1", "global_batch_seqs": "24", "precision": "fp16", "recompute": "none",
        "sharding": "", "framework": "Megatron-LM 1F1B", "step_time_s": "1", "source": "s",
    }  # fmt: skip
    return MeasuredRow("f", 2, {**plain, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tp": "0"}, "tp is 0"),
        ({"cp": "0"}, "cp is 0"),
        ({"tp": "-2"}, "tp is not a whole number"),
        ({"ep": "1.5"}, "ep is not a whole number"),
        ({"model": "Llama 9B"}, "width of the gated"),
        ({"n_layers": "0"}, "neither shape"),
        ({"kv_heads": "5"}, "must divide heads"),
        ({"precision": "float8 rowwise"}, "scale a row"),
    ],
)
def test_an_odd_value_is_a_reason(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(RidgelineError, match=reason):
        configuration(row_of(**fields))


def test_negative_measurements_are_reasons_to_skip_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "id,model,n_layers,hidden,heads,seq_len,accelerator,n_accel,precision,framework,recompute,"
        "micro_batch,step_time_s,mem_GB_per_accel,source\n"
        "a,GPT,2,128,4,64,A100-80GB,1,bf16,x,none,1,-3,-1,s\n"
        "b,GPT,2,128,4,64,A100-80GB,1,bf16,x,none,1,nan,0,s\n",
        encoding="utf-8",
    )
    for suite, second in (("llm", "expected a number"), ("memory", "not positive")):
        made = validate(suite, path)
        assert not made.outcomes
        reasons = {row.id: row.reason for row in made.skipped}
        assert ("negative" if suite == "llm" else "not positive") in reasons["a"]
        assert second in reasons["b"]


@pytest.mark.parametrize(
    ("model", "ffn", "millions"),
    [
        ("GPT", "", 12.6), ("GPT", "4096", 12.6), ("Falcon 40B", "4096", 12.6),
        ("Qwen2 7B", "2816", 12.8), ("Mistral 7B", "3584", 15.2), ("PaLM 62B", "4096", 16.8),
    ],
)  # fmt: skip
def test_a_width_other_than_four_times_is_that_of_a_gate(
    model: str, ffn: str, millions: float
) -> None:
    """A layer of 1,024 features: 4 h^2 of attention, and 2 or 3 h f of the feed-forward network."""
    shape = {"model": model, "hidden": "1024", "heads": "16", "ffn": ffn, "vocab": "512"}
    two, one = (
        configuration(row_of(n_layers=n, **shape)).model.training(1, "fp32").parameters
        for n in ("16", "8")
    )
    assert (two - one) / 8e6 == pytest.approx(millions, rel=0.01)


def test_what_torchtitan_calls_selective_is_by_ops() -> None:
    """Its tables' word, and those of Megatron-LM; runs with asynchronous tensor parallelism."""
    row = {"recompute": "selective per-op", "pp": "1", "tp": "8", "global_batch_seqs": ""}
    vanilla = configuration(row_of(framework="torchtitan vanilla TP", **row)).plan
    fast = configuration(row_of(framework="torchtitan async TP", **row)).plan
    assert {vanilla.recompute, fast.recompute} == {"alternate"}
    overlaps = vanilla.stack.overlap.tensor, fast.stack.overlap.tensor
    assert overlaps == (False, True)
    assert vanilla.global_batch == 1  # no accumulation is stated
    assert configuration(row_of(framework="Megatron-LM", **row)).plan.recompute == "selective"


def test_what_torchtitan_does_unless_told_otherwise() -> None:
    """Selective recomputation by ops, nothing compiled, scales by tensors' own magnitudes."""
    row = {"pp": "1", "tp": "1", "global_batch_seqs": "", "recompute": "", "precision": "float8"}
    plain, compiled, tensor = (
        configuration(row_of(framework=f"torchtitan {name}", **row)).plan
        for name in ("FSDP", "FSDP+compile", "vanilla TP")
    )
    assert {p.recompute for p in (plain, compiled, tensor)} == {"alternate"}
    assert {p.precision for p in (plain, compiled, tensor)} == {"fp8-dynamic"}
    assert [p.stack.kernels.fusion for p in (plain, compiled, tensor)] == [
        "eager",
        "fused",
        "fused",
    ]
    stated = configuration(row_of(framework="torchtitan FSDP", **{**row, "recompute": "none"}))
    assert stated.plan.recompute == "none"
    assert configuration(row_of(framework="Megatron-Core", **row)).plan.recompute == "none"


def test_megatron_core_does_what_it_does_unless_told_otherwise() -> None:
    plan = configuration(row_of(framework="Megatron-Core (SimuMax)")).plan
    gradients = plan.stack.gradients
    assert (gradients.accumulation_fusion, plan.stack.overlap.gradients) == (True, False)
    assert (gradients.sweeps, plan.stack.optimizer.clip_sweeps) == (4, 3)
    beside = configuration(row_of(framework="Megatron-Core r0.8.0")).plan
    assert beside.bucket_bytes == max(160e6, 4e6 * beside.data) < plan.bucket_bytes
    older = configuration(row_of(framework="Megatron-LM")).plan  # unscales fp16's, too
    assert (older.stack.gradients.sweeps, older.stack.optimizer.clip_sweeps) == (5, 3)
    shared = {"cp": "2", "pp": "1", "global_batch_seqs": "8"}
    modes = [
        configuration(row_of(framework=name, **shared)).plan.cp_comm_type
        for name in ("Megatron-Core", "NeMo 24.x", "torchtitan FSDP+CP+compile", "Meta internal")
    ]
    assert modes == ["ring", "ring", "all-gather", "all-gather"]
    assert plan.cp_comm_type == "all-gather"  # nothing is shared
    stated = configuration(row_of(framework="Megatron-Core r0.8.0 (overlap DP/TP/PP)")).plan
    gradients = stated.stack.gradients
    assert (gradients.accumulation_fusion, gradients.sweeps) == (True, 4)
    assert stated.stack.overlap.gradients is True


def test_pipelines_are_cut_between_layers_as_megatron_does() -> None:
    assert (
        configuration(row_of()).plan.stage_balance == "ends"
    )  # 22 layers and both ends on 8 stages
    assert configuration(row_of(n_layers="24")).plan.stage_balance == "layers"
    most = configuration(row_of(vpp="max (1 layer/chunk)", framework="Megatron-LM 1F1B-I")).plan
    assert (most.schedule, most.virtual_stages) == ("interleaved", 3)


@pytest.mark.parametrize(
    ("framework", "source", "pieces"),
    [
        ("Megatron-LM", "arXiv:2104.04473 Table 1", "both"),
        ("Megatron-DeepSpeed", "github:bigscience", "forward"),
        ("Megatron-LM", "github:Oneflow-Inc/DLPerf@c89430b", "none"),
    ],
)
def test_what_stages_send_is_the_framework_s(framework: str, source: str, pieces: str) -> None:
    assert (
        configuration(row_of(framework=framework, source=source)).stack.pipeline.p2p_scatter_gather
        == pieces
    )


@pytest.mark.parametrize(
    ("fields", "cluster"),
    [
        ({"accelerator": "V100-SXM2-16GB"}, "dgx1-v100-edr"),
        ({"accelerator": "V100-SXM2-16GB", "interconnect": "100Gb/s InfiniBand inter"},
         "v100-8gpu-edr1"),
        ({"accelerator": "V100-SXM3-32GB (DGX-2H)"}, "dgx2-edr"),
        ({"accelerator": "DGX-GB200", "n_accel": "128", "dp": "16"}, "gb200-nvl64-ndr"),
    ],
)  # fmt: skip
def test_a_machine_is_known_by_its_network(fields: dict[str, str], cluster: str) -> None:
    many = {"n_accel": "32", "dp": "4", "global_batch_seqs": "96", "precision": "bf16"}
    wanted = configuration(row_of(**{**many, **fields}))
    assert wanted.cluster.name == cluster


@pytest.mark.parametrize(
    ("model", "accelerator", "dispatch"),
    [
        ("DeepSeekV3", "DGX-B200", "node-limited"),
        ("Qwen3_30B_a3B", "DGX-H100", "node-limited"),
        ("Qwen3_235B_a22B", "DGX-B200", "per-expert"),
        ("Qwen3_235B_a22B", "DGX-GB200", "node-limited"),
        ("Qwen3_235B_a22B", "DGX-B300 26.04", "per-expert"),
        ("Qwen3_235B_a22B", "DGX-B300 26.04.01", "node-limited"),
    ],
)
def test_what_recipes_send_of_a_token(model: str, accelerator: str, dispatch: str) -> None:
    accelerator, _, container = accelerator.partition(" ")
    fields = {
        "model": model, "accelerator": accelerator, "n_accel": "64", "ep": "8", "micro_batch": "1",
        "global_batch_seqs": "64", "precision": "MXFP8", "source": "NVIDIA-NeMo/Megatron-Bridge",
        "other": f"{container} NeMo Container",
    }  # fmt: skip
    of_bridge, of_core = (
        configuration(
            MeasuredRow("t.csv", 2, {**fields, "framework": framework})
        ).stack.moe.dispatch
        for framework in ("Megatron-Bridge/NeMo", "Megatron-Core")
    )
    assert of_bridge == dispatch
    assert of_core == "per-expert"


def test_launches_of_bigscience_wait_for_their_kernels() -> None:
    fields = {"n_layers": "70", "hidden": "14336", "heads": "112", "recompute": "full"}
    there, elsewhere, another = (
        configuration(translated(row_of(model=model, framework="", accelerator=where, **fields)))
        for model, where in (
            ("BLOOM-176B", "A100-80GB (Jean Zay)"),
            ("BLOOM-176B", "A100-80GB"),
            ("GPT 176B", "A100-80GB (Jean Zay)"),
        )
    )
    assert not there.stack.host.async_launch
    assert there.stack.host.launch_time == load_software("megatron-deepspeed").host.launch_time > 0
    assert elsewhere.stack.host.async_launch
    assert another.stack.host.async_launch
    assert there.model.network.vocabulary == elsewhere.model.network.vocabulary == 250_880


def test_a_table_with_columns_for_degrees_must_say_one() -> None:
    with pytest.raises(RidgelineError, match="the plan is not given"):
        configuration(row_of(tp="", pp="", dp=""))
    assert configuration(row_of(tp="", pp="", dp="", sharding="FSDP")).plan.data == 8


def test_the_technique_of_a_memory_row_holds_its_plan() -> None:
    row = MeasuredRow("f", 2, {
        "technique": "Megatron-DeepSpeed full recompute, ZeRO-1 DP=2, GBS=64 bf16",
                       "quantity": "max GPU memory", "value": "40", "unit": "GB", "tp": "4",
                       "pp": "2", "n_accel": "16", "micro_batch": "1"})  # fmt: skip
    values = translated_memory(row).values
    assert values["global_batch_seqs"] == "64"
    assert values["sharding"] == "zero-1"
    assert values["recompute"] == "full"
    assert values["of"] == "total"


def test_software_is_found_by_the_beginning_of_its_name() -> None:
    names = {
        "Megatron-LM 1F1B": "zero-bubble",
        "Megatron-LM": "megatron-lm-2021",
        "Megatron-Core r0.8.0": "megatron-core-overlap",
        "something else": "unstated",
    }
    for framework, name in names.items():
        assert rule("software", {"framework": framework})["software"] == name


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 16)])
def test_without_messages_the_bubble_is_the_published_one(
    name: str, stages: int, micro_batches: int
) -> None:
    stage = MeasuredStage(2.0, 2.0, 1.0, 0.0, layers=2)
    chunks = 2 if SCHEDULES[name].interleaves else 1
    idle = SCHEDULES[name].bubble_s(stages, chunks, 2.0, 2.0, 1.0)
    busy = micro_batches * stage.total_s
    found = bubble_rate(name, stages, micro_batches, stage)
    assert found == pytest.approx(idle / (idle + busy), abs=1e-9)


def test_further_forwards_leave_the_published_bubble_of_zb_h2() -> None:
    found = bubble_rate("zero-bubble-h2", 4, 12, MeasuredStage(2.0, 2.0, 1.0, 0.0, layers=1))
    idle = 3 * (2.0 + 2.0 - 2 * 1.0)
    assert found == pytest.approx(idle / (idle + 12 * 5.0), abs=1e-9)


def test_published_bubble_rates_are_met_within_half_a_point() -> None:
    made = validate("pipeline")
    assert made.summary.n == 36
    assert made.summary.skipped == 0
    assert max(abs(outcome.error) for outcome in made.outcomes) < 0.005


@pytest.mark.parametrize(
    ("cells", "beside"),
    [
        ({"model": "DeepSeekV3", "accelerator": "DGX-B200", "ep": "32"}, True),
        ({"model": "DeepSeekV3", "accelerator": "DGX-B200", "ep": "8"}, False),
        ({"model": "DeepSeekV3", "accelerator": "DGX-GB300", "ep": "32"}, True),
        ({"model": "Kimi_K2", "accelerator": "DGX-GB300", "ep": "32", "micro_batch": "2"}, False),
        ({"model": "Kimi_K2", "accelerator": "DGX-GB300", "ep": "32"}, True),
        (
            {
                "model": "Qwen3_30B_a3B",
                "accelerator": "DGX-GB200",
                "ep": "8",
                "other": "26.06.01 NeMo Container",
            },
            True,
        ),
        (
            {
                "model": "Qwen3_30B_a3B",
                "accelerator": "DGX-GB200",
                "ep": "8",
                "other": "26.04 NeMo Container",
            },
            False,
        ),
        ({"model": "Qwen3_30B_a3B", "accelerator": "DGX-GB200", "ep": "8"}, False),
    ],
)
def test_recipes_send_rows_of_experts_beside_another_micro_batch(
    cells: dict[str, str], beside: bool
) -> None:
    fields = {
        "n_accel": "64", "micro_batch": "1", "global_batch_seqs": "128", "precision": "MXFP8",
        "source": "NVIDIA-NeMo/Megatron-Bridge", "framework": "Megatron-Bridge/NeMo",
    }  # fmt: skip
    plan = configuration(MeasuredRow("t.csv", 2, {**fields, **cells})).plan
    assert plan.stack.overlap.moe_a2a is beside
    fields["framework"] = fields["source"] = "Megatron-Core"
    assert not configuration(MeasuredRow("t.csv", 2, {**fields, **cells})).stack.overlap.moe_a2a
