"""Rows of language models as users write them: names, plans and columns in other words."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows import llm
from ridgeline.study.import_rows.columns import translated
from ridgeline.study.import_rows.names import device_in, devices_in, network_in
from ridgeline.study.validate import validate
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import Read, configuration

PLAIN = {
    "model": "Llama-2 70B", "seq_len": "4096", "accelerator": "A100-80GB", "n_accel": "128",
    "tp": "8", "pp": "4", "dp": "4", "micro_batch": "1", "global_batch_seqs": "64",
    "precision": "bf16", "framework": "NeMo", "step_time_s": "9", "source": "s",
}  # fmt: skip


def read(values: dict[str, str]) -> Read:
    return configuration(translated(MeasuredRow("rows.csv", 2, values)))


def without(*names: str, **more: str) -> dict[str, str]:
    return {name: text for name, text in PLAIN.items() if name not in names} | more


@pytest.mark.parametrize(
    "values",
    [
        dict(reversed(PLAIN.items())),
        without(model="meta-llama/Llama-2-70b-chat-hf"),
        without(model="llama 2 70b (bf16)"),
        without(accelerator="NVIDIA A100-SXM4-80GB"),
        without("n_accel", accelerator="128 x A100 80GB"),
        without("n_accel"),
        without("tp", "pp", "dp", plan="TP8 PP4 DP4"),
        without("tp", "pp", "dp", "micro_batch", parallelism="tp=8, pp=4,dp:4 mbs=1"),
        without("tp", "pp", tensor_parallel="8", Pipeline_Parallel="4"),
        without("global_batch_seqs", "seq_len", **{"GBS": "64", "Sequence Length": "4096"}),
        without("n_accel", "accelerator", gpus="128", gpu="A100-80GB"),
        without("source", precision="BF16", dtype="fp8"),
    ],
    ids=str,
)
def test_other_words_say_the_same(values: dict[str, str]) -> None:
    made, plain = read(values), read(PLAIN)
    assert (made.model, made.sequence, made.device) == (plain.model, plain.sequence, plain.device)
    assert made.plan == plain.plan


@pytest.mark.parametrize(
    ("text", "device", "count"),
    [
        ("8xA100", "a100-sxm4-40gb", 8),
        ("A100x8", "a100-sxm4-40gb", 8),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb", None),
        ("RTX4090", "rtx-4090", None),
        ("MI300X", "mi300x", None),
        ("TPU v4-128", "tpu-v4", 64),
        ("v5p-128", "tpu-v5p", 64),
        ("v5litepod-256", "tpu-v5e", 256),
        ("v6e-64", "tpu-v6e", 64),
        ("p4de.24xlarge", "a100-sxm4-80gb", None),
    ],
)
def test_accelerators_and_their_number(text: str, device: str | None, count: int | None) -> None:
    assert (device_in(text), devices_in(text)) == (device, count)


@pytest.mark.parametrize(
    "name", ["GPT-2 13B", "Mistral-Small-24B", "Llama-like 70B", "Llama-2 70B Vision 11B", "-", ""]
)
def test_a_name_that_says_more_is_no_other_network(name: str) -> None:
    assert network_in(name) is None


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40), st.sampled_from(sorted(PLAIN)))
def test_any_cell_is_read_or_named(text: str, column: str) -> None:
    with suppress(RidgelineError):
        assert read({**PLAIN, column: text}).plan.devices > 0


def test_a_table_of_other_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "network,GPU,dtype,batch size,seconds_per_step\nGPT2-XL,8xA100,bf16,16,1.5\n"
        "GPT2-XXL,8xA100,bf16,16,1.5\n",
        encoding="utf-8",
    )
    made = validate("llm", path)
    (outcome,), (skipped,) = made.outcomes, made.skipped
    assert outcome.configuration.startswith("gpt2-xl, data=8")
    assert "run gpt2-xl dgx-a100" in outcome.command
    assert outcome.measured == 1.5
    assert "GPT2-XXL" in skipped.reason
    assert "did you mean" in skipped.reason


def test_adapters_alone_are_trained_where_a_row_says_so() -> None:
    made = read({**PLAIN, "model": "Llama-2 70B LoRA"})
    assert made.model.network.adapters is not None
    assert made.model.name == read(PLAIN).model.name


def test_products_in_four_bits_where_a_row_says_so() -> None:
    assert read({**PLAIN, "precision": "NVFP4", "accelerator": "DGX-GB200"}).plan.precision == (
        "nvfp4-mixed"
    )


def test_flops_of_a_row_count_what_its_framework_counts() -> None:
    rows = {
        framework: translated(
            MeasuredRow("t", 2, without("step_time_s", framework=framework, recompute="full"))
        )
        for framework in ("NeMo", "Megatron-LM")
    }
    model, hardware = (
        float(
            llm.normal(MeasuredRow("t", 2, {**row.values, "tflops_per_accel": "100"}))["measured"]
        )
        for row in rows.values()
    )
    assert hardware == pytest.approx(model * 4 / 3)


def test_maxtext_counts_parameters_and_half_of_attention() -> None:
    """Written out: 6 N a token, and 6 for each feature of heads, position and layer."""
    fields = without("step_time_s", model="Llama-2 7B", framework="MaxText", dp="8", tp="1", pp="1")
    row = translated(MeasuredRow("t", 2, {**fields, "n_accel": "8", "tflops_per_accel": "100"}))
    wanted = configuration(row)
    shape = wanted.model.description
    heads = shape["layers"] * shape["hidden"]
    parameters = wanted.model.training(1, "fp32").parameters
    tokens = wanted.plan.global_batch * wanted.sequence
    flops = (6 * parameters + 6 * heads * wanted.sequence) * tokens
    assert float(llm.normal(row)["measured"]) == pytest.approx(flops / 8e14, rel=1e-3)


def test_messages_beside_work_mean_an_interleaved_pipeline() -> None:
    core = without(framework="Megatron-Core r0.8.0 (overlap DP/TP/PP)", vpp="")
    assert (read(core).plan.schedule, read(core).plan.virtual_stages) == ("interleaved", 20)
    assert read({**core, "vpp": "5"}).plan.virtual_stages == 5
    assert read(PLAIN).plan.schedule == "1f1b"


def test_a_slice_of_tpus_is_a_machine() -> None:
    batch = {"global_batch_seqs": "256", "sharding": "fsdp"}
    made = read(without("n_accel", "tp", "pp", "dp", accelerator="v6e-256", **batch))
    assert (made.device, made.plan.devices, made.plan.zero_stage) == ("tpu-v6e", 256, 3)
    assert made.cluster.name == "tpu-v6e-pod"
