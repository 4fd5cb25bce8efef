"""Names in tables, in any spelling, and what tables leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows import columns, imported, steps
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.import_rows.names import Kind, device_in, find_name, unknown
from ridgeline.study.import_rows.rules import rule, section
from ridgeline.study.import_rows.steps import network_of
from ridgeline.study.validate import memory
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import Read, configuration, read


@pytest.mark.parametrize(
    ("kind", "spelled", "name"),
    [
        ("devices", "NVIDIA A100 80GB SXM4", "a100-sxm4-80gb"),
        ("devices", "Tesla v100-sxm2-32gb", "v100-sxm2-32gb"),
        ("devices", "80GB A100 PCIe", "a100-pcie-80gb"),
        ("models", "resnet_50 V1.5", "resnet50"),
        ("models", "Llama-3.1 70B", "llama3-70b"),
        ("devices", "AMD Instinct MI300X", "mi300x"),
        ("devices", "MI250X GCD (Frontier)", "mi250x-gcd"),
        ("devices", "TPU v3-2048", "tpu-v3"),
        ("devices", "tpu-v5p-128", "tpu-v5p"),
        ("devices", "NVIDIA H200-SXM5-141GB", "h200-sxm"),
        ("models", "Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
        ("models", "Mixtral 8x22B", "mixtral-8x22b"),
        ("models", "Gemma-2 9B", "gemma2-9b"),
        ("models", "GPT OSS 120B", "gpt-oss-120b"),
        ("models", "Kimi_K2", "kimi-k2"),
        ("models", "shufflenet_v2_x1_0", "shufflenet-v2-1.0"),
        ("precisions", "Mixed Precision", "fp16-mixed"),
        ("precisions", "bfloat16", "bf16-mixed"),
    ],
)
def test_case_dashes_vendors_and_order_do_not_matter(kind: Kind, spelled: str, name: str) -> None:
    assert find_name(kind, spelled) == name


def test_a_column_of_its_own_may_name_the_network() -> None:
    assert network_of("ConvNets/efficientnet_v1", "EfficientNet-B4", "") == "efficientnet-b4"
    assert network_of("Torchvision", "wide_resnet50_2", "") == "wide-resnet50-2"
    assert network_of("ResNet-50", "with dali", "") == "resnet50"
    assert network_of("InsightFace", "an unknown one", "") is None


def test_a_board_may_depend_on_the_table() -> None:
    gavel, other = "Gavel cluster", "TensorFlow benchmarks page"
    assert rule("boards", {"device": "p100-sxm2", "suite": gavel})["board"] == "p100-pcie"
    assert not rule("boards", {"device": "p100-sxm2", "suite": other})
    assert not rule("boards", {"device": "v100-sxm2-16gb", "suite": gavel})


def test_other_names_are_not_guessed_and_the_nearest_is_said() -> None:
    assert find_name("devices", "A100-SXM4-60GB") is None
    assert unknown("devices", "A100-SXM4-60GB").endswith("did you mean 'A100-SXM-80GB'?")
    assert "number format (not given)" in unknown("precisions", "")


@pytest.mark.parametrize(
    ("device", "devices", "nodes", "called", "machine"),
    [
        ("tpu-v2", 4, None, "", "tpu-v2-pod"),
        ("tpu-v3", 1024, None, "v3-2048", "tpu-v3-pod"),
        ("v100-sxm2-16gb", 16, 2, "2 x p3.16xlarge", "aws-p3-25g"),
        ("v100-sxm2-32gb", 16, 2, "AWS p3dn.24xlarge", "aws-p3dn-efa"),
        ("a100-sxm4-40gb", 16, 2, "p4d.24xlarge", "aws-p4d-efa"),
        ("p100-sxm2", 16, 2, "DGX-1", "dgx1-p100-edr"),
        ("p100-sxm2", 4, None, "consolidated", "gcp-n1-p100"),
        ("p100-sxm2", 8, None, "consolidated", "gcp-n1-p100-32g"),
        ("mi300x", 8, 1, "", "mi300x-8"),
        ("mi250x-gcd", 1024, None, "Frontier", "frontier"),
    ],
)
def test_machines_of_clouds_and_pods_are_found(
    device: str, devices: int, nodes: int | None, called: str, machine: str
) -> None:
    assert machine_of(device, devices, nodes, called)[0] == machine


def test_a_machine_is_known_by_what_its_table_calls_it() -> None:
    called = "4 nodes x 8 V100 (DGX-1-like)"
    assert machine_of("v100-sxm2-16gb", 16, 2, called)[0] == "v100-8gpu-edr1"
    assert machine_of("v100-sxm2-16gb", 16, 2)[0] == "dgx1-v100-edr"
    assert machine_of("v100-sxm2-16gb", 2, None, "Unconsolidated")[0] == "pcie3-1gpu-10gbe"


def test_layers_follow_from_a_name_and_a_width() -> None:
    values = {"model": "BLOOM-prequel 183B", "hidden": "14400", "heads": "96", "pp": "12",
              "n_accel": "384", "tp": "8", "accelerator": "A100-80GB", "micro_batch": "1",
              "global_batch_seqs": "2048", "precision": "fp16", "n_layers": ""}  # fmt: skip
    wanted = configuration(MeasuredRow("t", 2, values))
    assert wanted.model.network.layers == 72
    assert wanted.model.network.vocabulary == 250880
    with pytest.raises(RidgelineError, match="neither shape nor description of GPT"):
        configuration(MeasuredRow("t", 2, {**values, "model": "GPT"}))


MEMORY = {
    "model": "GPT 22B", "n_layers": "4", "hidden": "1024", "heads": "16", "seq_len": "512",
    "micro_batch": "4", "accelerator": "A100-80GB", "n_accel": "8", "tp": "8", "pp": "1",
    "technique": "none", "quantity": "activations, first pipeline stage", "value": "1",
    "unit": "GiB", "source": "s",
}  # fmt: skip


def of_memory(**fields: str) -> memory.Outcome | memory.Skipped:
    rows = imported("memory", [MeasuredRow("t", 2, {**MEMORY, **fields})])
    return next(iter(memory.predict(rows)))


def test_activations_count_at_their_own_peak_and_scale_with_the_batch() -> None:
    small, large = (
        next(
            iter(
                memory.predict(
                    imported("memory", [MeasuredRow("t", 2, {**MEMORY, "micro_batch": size})])
                )
            )
        )
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
    made = next(
        iter(
            memory.predict(
                imported("memory", [MeasuredRow("t", 2, {**MEMORY, "technique": words})])
            )
        )
    )
    assert isinstance(made, memory.Skipped)
    assert why in made.reason


def test_steps_of_many_micro_batches_follow_from_few() -> None:
    values = {"model": "resnet18", "framework": "MXNet", "accelerator": "V100",
              "precision": "fp32", "n_accel": "8", "batch_per_accel": "1", "grad_accum": "20",
              "unit": "images/s", "throughput": "1"}  # fmt: skip
    made = normal(_row(**values))
    assert made.most_micro_batches == "8"
    short, whole = made.simulate(), replace(made, most_micro_batches="").simulate()
    assert whole.details.plan.micro_batches == short.details.plan.micro_batches == 20
    for name in ("samples_per_s", "mfu", "flops_per_step"):
        assert getattr(short, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    for name in ("time_s", "energy_j", "traffic_bytes", "limits_s"):
        assert getattr(short, name) == pytest.approx(getattr(whole, name), rel=1e-6)


def test_networks_that_only_the_place_of_a_table_tells_apart() -> None:
    place = "github:NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/Transformer-XL/README.md L"
    assert network_of("Transformer-XL", "", f"{place}1466") == "transformer-xl-large"
    assert network_of("Transformer-XL", "", f"{place}1446") == "transformer-xl-base"
    assert network_of("alexnet", "", "github:jcjohnson/cnn-benchmarks") == "alexnet-two-tower"
    assert network_of("AlexNet", "", "elsewhere") == "alexnet"


def test_lengths_that_sequences_are_padded_to() -> None:
    """Half of 512 tokens are padding; 64 tokens apart, bins add half of that."""
    ours = "github:NVIDIA/DeepLearningExamples"
    for framework, given, padded in (
        ("PyTorch", "512", 256 + 32), ("PyTorch", "128", 128), ("TensorFlow", "512", 512),
    ):  # fmt: skip
        made = step(model="BERT-large", framework=framework, source=ours, seq_len=given)
        assert made.sequence == padded


def _row(**values: str) -> MeasuredRow:
    filled = dict.fromkeys((*steps.READS, "seq_len", "data", "note", "system", "nodes"), "")
    basic = {"accelerator": "A100-SXM4-80GB", "n_accel": "1", "batch_per_accel": "32"}
    return MeasuredRow("t.csv", 2, {**filled, **basic, "precision": "tf32", **values})


def step(**values: str) -> Read:
    return read(steps.step_of(_row(**values)))


def normal(row: MeasuredRow) -> NormalRow:
    return NormalRow.of(MeasuredRow("t.csv", 2, {**row.values, **steps.normal(row)}))


def test_as_many_tokens_are_masked_as_of_the_whole_length() -> None:
    wanted = steps.step_of(_row(model="BERT-large", framework="TensorFlow", seq_len="128"))
    assert wanted.fields == {"sequence": 128, "masked": 20}
    note = "Fine-tuning for SQuAD"
    wanted = steps.step_of(_row(model="BERT-large", framework="TensorFlow", note=note))
    assert wanted.fields == {"sequence": 384, "masked": 1}
    with pytest.raises(RidgelineError, match="lengths of the sequences"):
        steps.step_of(_row(model="BART", framework="PyTorch", note=note))


def test_batches_of_tokens_become_sequences() -> None:
    fields = {"model": "Transformer", "framework": "PyTorch", "batch_per_accel": "10240"}
    made = normal(_row(**fields, unit="tokens/s", throughput="1"))
    assert (made.model, made.quantity) == ("transformer-big", "samples_per_s*32")
    assert made.simulate().details.plan.global_batch == 10240 // 32


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)", "b300"),
        ("NVIDIA A100-SXM4-40GB(400W)", "a100-sxm4-40gb"),
        ("NVIDIA A100 - PCIe - 80 GB", "a100-pcie-80gb"),
        ("NVIDIA A30-PCIE-24GB", "a30"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA V100-SXM3-32GB-H(450W)", "v100-sxm3-32gb"),
        ("V100 (Jean Zay, 4/node, 32GB unless stated)", "v100-sxm2-32gb"),
        ("tpuv3-512", "tpu-v3"),
        ("tpu-v4-128-TF", "tpu-v4"),
        ("tpu-v4-256-JAX-Distributed-Shampoo", "tpu-v4"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX Pro 6000 SE PCIe 96GB", "rtx-pro-6000-se"),
        ("RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("GB200-NVL72", "gb200"),
        ("H20-3e", "h20-141gb"),
        ("TPUv3 16GB/core", "tpu-v3"),
        ("RTX 3090 Ti", None),  # another model
        ("RTX 4080 Super", None),
        ("A100-SXM4-40GB (80GB)", None),  # which of the two is not said
        ("P100 12GB", None),
        ("K80 24GB", "k80"),  # a board of two
        ("8x A100-SXM4-80GB, 640GB", "a100-sxm4-80gb"),
        ("H100 80GB, 512GB RAM", "h100-sxm5-80gb"),
        ("DGX A100 640GB", None),
        ("Ascend 910 Premium A", None),
        ("", None),
    ],
)
def test_a_device_is_found_in_the_words_around_it(words: str, name: str | None) -> None:
    assert device_in(words) == name


@pytest.mark.parametrize(
    ("variant", "model", "fields", "divided"),
    [
        ("R100; Face Emore; Data Parallelism", "arcface-r100", {}, ""),
        ("R100; Face Emore; Batch size = 96(max)", "arcface-r100", {}, ""),
        ("R100; Glint360k; Model Parallelism", "arcface-r100-glint360k", {}, "identities*"),
        (
            "R100; Glint360k; Partial FC, sample_ratio=0.1",
            "arcface-r100-glint360k",
            {"identities": 36032},
            "identities*",
        ),
        ("Y1(MobileFaceNet); Face Emore; Batch size=32", "mobilefacenet", {}, ""),
        ("Y1(MobileFaceNet); Face Emore; Model Parallelism", "mobilefacenet", {}, "identities*"),
    ],
)
def test_variants_of_face_recognition_say_what_is_divided(
    variant: str, model: str, fields: dict[str, int], divided: str
) -> None:
    wanted = steps.step_of(
        _row(model="InsightFace", variant=variant, framework="OneFlow", source="DLPerf")
    )
    layers = wanted.plan.get("layers", "").partition(":")[0]
    assert (wanted.model, wanted.fields, layers) == (model, fields, divided)


def test_a_variant_that_is_not_described_is_not_read_as_another() -> None:
    row = _row(model="InsightFace", variant="Y1(MobileFaceNet); Face Emore; Partial FC")
    with pytest.raises(RidgelineError, match="no description of the network InsightFace"):
        steps.step_of(row)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("OPT-1.3B", "opt-1.3b"),
        ("opt_1.3b", "opt-1.3b"),
        ("OPT 13B", "opt-13b"),
        ("GPT3-1.3B", "gpt3-1.3b"),
        ("GPT3 13B", "gpt3-13b"),
        ("llama31_405b", "llama3-405b"),
    ],
)
def test_a_decimal_point_tells_networks_apart(spelled: str, name: str) -> None:
    assert find_name("models", spelled) == name


def test_networks_and_plans_that_a_table_leaves_out_fill_its_empty_columns() -> None:
    values = {
        "model": "128B", "accelerator": "TPU v5e", "n_accel": "256", "precision": "bf16",
        "framework": "MaxText", "tp": "", "micro_batch": "", "recompute": "", "sharding": "",
        "interconnect": "", "source": "github:AI-Hypercomputer/maxtext README.md",
    }  # fmt: skip
    row = columns.translated(MeasuredRow("rows.csv", 2, values))
    wanted = configuration(row)
    assert wanted.model.name == "maxtext-128b"
    assert (wanted.plan.tensor, wanted.plan.global_batch, wanted.plan.zero_stage) == (16, 256, 3)
    given = columns.translated(MeasuredRow("rows.csv", 2, {**values, "tp": "8"}))
    assert given.text("tp") == "8"


@pytest.mark.parametrize("kind", ["models", "devices"])
def test_every_name_and_alias_means_its_own(kind: Kind) -> None:
    assert {name for name in catalog.names(kind) if find_name(kind, name) != name} == set()
    aliases = [(alias, name) for name, others in section(kind).items() for alias in others]
    assert [(a, name) for a, name in aliases if find_name(kind, a) != name] == []
