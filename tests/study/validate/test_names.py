"""Names in tables, in any spelling, and what tables leave out."""

from __future__ import annotations

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.study.validate import llm_rows, memory, steps
from ridgeline.study.validate.machines import machine_of
from ridgeline.study.validate.names import Kind, find_name, framework_of, unknown
from ridgeline.study.validate.rows import Row


@pytest.mark.parametrize(
    ("kind", "spelled", "name"),
    [
        ("devices", "NVIDIA A100 80GB SXM4", "a100-sxm4-80gb"),
        ("devices", "Tesla v100-sxm2-32gb", "v100-sxm2-32gb"),
        ("devices", "80GB A100 PCIe", "a100-pcie-80gb"),
        ("models", "resnet_50 V1.5", "resnet50"),
        ("models", "Llama-3.1 70B", "llama3-70b"),
        ("precisions", "Mixed Precision", "fp16-mixed"),
        ("precisions", "bfloat16", "bf16-mixed"),
    ],
)
def test_case_dashes_vendors_and_order_do_not_matter(kind: Kind, spelled: str, name: str) -> None:
    assert find_name(kind, spelled) == name


def test_other_names_are_not_guessed_and_the_nearest_is_said() -> None:
    assert find_name("devices", "A100-SXM4-60GB") is None
    assert unknown("devices", "A100-SXM4-60GB").endswith("did you mean 'A100-SXM4-80GB'?")
    assert "number format (not given)" in unknown("precisions", "")


def test_a_machine_is_known_by_what_its_table_calls_it() -> None:
    called = "4 nodes x 8 V100 (DGX-1-like)"
    assert machine_of("v100-sxm2-16gb", 16, 2, called)[0] == "v100-8gpu-edr1"
    assert machine_of("v100-sxm2-16gb", 16, 2)[0] == "dgx1-v100-edr"
    assert machine_of("v100-sxm2-16gb", 2, None, "Unconsolidated")[0] == "pcie3-1gpu-10gbe"


def test_frameworks_by_the_beginning_of_their_name() -> None:
    assert not framework_of("TensorFlow 1.x (May 2017)").overlap
    assert framework_of("NGC TensorFlow").overlap
    assert not framework_of("MXNet 1.2.0rc1").issue_ahead
    assert framework_of("llm-foundry/composer").attention == "flash-1"


def test_layers_follow_from_a_name_and_a_width() -> None:
    values = {"model": "BLOOM-prequel 183B", "hidden": "14400", "heads": "96", "pp": "12",
              "n_accel": "384", "tp": "8", "accelerator": "A100-80GB", "micro_batch": "1",
              "global_batch_seqs": "2048", "precision": "fp16", "n_layers": ""}  # fmt: skip
    wanted = llm_rows.configuration(Row("t", 2, values))
    assert wanted.model.network.layers == 72
    assert wanted.model.network.vocabulary == 250880
    with pytest.raises(RidgelineError, match="neither shape nor description of GPT"):
        llm_rows.configuration(Row("t", 2, {**values, "model": "GPT"}))


MEMORY = {
    "model": "GPT 22B", "n_layers": "4", "hidden": "1024", "heads": "16", "seq_len": "512",
    "micro_batch": "4", "accelerator": "A100-80GB", "n_accel": "8", "tp": "8", "pp": "1",
    "technique": "none", "quantity": "activations, first pipeline stage", "value": "1",
    "unit": "GiB", "source": "s",
}  # fmt: skip


def test_activations_count_at_their_own_peak_and_scale_with_the_batch() -> None:
    small, large = (
        next(iter(memory.predict([Row("t", 2, {**MEMORY, "micro_batch": size})])))
        for size in ("2", "4")
    )
    assert isinstance(small, memory.Outcome)
    assert isinstance(large, memory.Outcome)
    layer = 512 * 4 * 1024 * (10 + 24 / 8 + 5 * 16 * 512 / (1024 * 8))  # arXiv:2205.05198, eq. 2
    assert large.predicted > 4 * layer
    assert large.predicted == pytest.approx(2 * small.predicted, rel=0.01)


@pytest.mark.parametrize(
    ("words", "why"),
    [("FSDP+CP recompute=full m=", "context parallelism"), ("FSDP recompute= m=", "recomputation")],
)
def test_what_words_do_not_say_is_a_reason(words: str, why: str) -> None:
    made = next(iter(memory.predict([Row("t", 2, {**MEMORY, "technique": words})])))
    assert isinstance(made, memory.Skipped)
    assert why in made.reason


def test_steps_of_many_micro_batches_follow_from_few() -> None:
    values = {"model": "resnet18", "variant": "", "framework": "MXNet", "accelerator": "V100",
              "precision": "fp32", "n_accel": "8", "batch_per_accel": "1", "grad_accum": "20",
              "system": "", "unit": "images/s"}  # fmt: skip
    row = Row("t", 2, values)
    wanted = steps.configuration(row)
    assert wanted.micro_batches == 20
    whole = steps.simulated(wanted)
    predicted, third = steps.predicted_throughput(row, wanted)
    assert predicted == pytest.approx(whole.samples_per_s, rel=1e-6)
    assert third == pytest.approx(whole.samples_per_s / (3 * whole.mfu), rel=1e-6)
