"""What programs of frameworks do, as tables name them."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.report.input_pipeline import InputPipeline
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack
from ridgeline.study.import_rows import steps
from ridgeline.study.import_rows.rules import rule
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import Read, read


def test_optimizers_for_many_tensors_are_those_of_some_programs() -> None:
    def apart(framework: str, network: str, precision: str = "fp32", tuned: bool = False) -> bool:
        facts = {"framework": framework, "network": network, "precision": precision}
        return bool(rule("updates_apart", {**facts, "fine_tuned": tuned}))

    assert apart("PyTorch (Gavel)", "resnet18-cifar")
    assert apart("NGC PyTorch", "resnet50")
    assert not apart("PyTorch", "bert-large")
    assert apart("PyTorch", "bert-large", "tf32", tuned=True)
    assert not apart("PyTorch", "bert-large", "fp16-autocast", tuned=True)
    assert not apart("PyTorch", "bart-large", "tf32", tuned=True)
    assert not apart("TensorFlow", "resnet50")
    assert not apart("", "resnet50")


def workspace_of(framework: str, network: str) -> str | None:
    return rule("workspaces", {"framework": framework, "network": network}).get("most")


def stack_of(framework: str, suite: str = "") -> Stack:
    return load_software(rule("software", {"framework": framework, "suite": suite})["software"])


def test_work_space_depends_on_framework_and_network() -> None:
    assert workspace_of("MXNet 1.2.0rc1 cudnn7.0.5", "resnet50") == "256 MiB"
    assert workspace_of("MXNet 1.2.0rc1 cudnn7.0.5", "alexnet-ungrouped") == "1024 MiB"
    assert workspace_of("Chainer", "vgg-a") == "8 MiB"
    assert workspace_of("PyTorch", "resnet50") is None


@pytest.mark.parametrize(
    ("framework", "network", "variant", "xla", "does"),
    [
        ("TensorFlow", "bert-base", "batch size=32 & without xla", "", True),
        ("TensorFlow", "bert-base", "batch size=32 & with xla", "", False),
        ("NGC TensorFlow", "resnet50", "real data & batch size = 224 & withxla", "", False),
        ("TensorFlow2", "electra-base", "", "", False),
        ("TensorFlow2", "electra-base", "", "OFF", True),
        ("TensorFlow2", "transformer-xl-base", "no dropout", "ON", False),
        ("TensorFlow", "transformer-xl-base", "", "", True),
        ("TensorFlow", "transformer-xl-base", "on one node", "7.70x", True),
        ("PyTorch", "transformer-xl-base", "", "", False),
        ("PaddlePaddle", "bert-base", "without xla", "", False),
    ],
)
def test_whether_a_framework_runs_functions_op_by_op(
    framework: str, network: str, variant: str, xla: str, does: bool
) -> None:
    table = MeasuredRow("t.csv", 2, {"variant": variant, "xla": xla})
    facts = {"framework": framework, "network": network, "compiled": steps.compiled(table)}
    assert bool(rule("primitives", facts)) is does


def test_programs_of_bert_copy_heads() -> None:
    assert stack_of("PyTorch").kernels.attention_transpose
    assert stack_of("TensorFlow2", "NVIDIA DeepLearningExamples").kernels.attention_transpose
    assert stack_of("OneFlow").kernels.attention_transpose
    assert not stack_of("Megatron-LM").kernels.attention_transpose
    assert not stack_of("").kernels.attention_transpose


def test_frameworks_by_the_beginning_of_their_name() -> None:
    assert not stack_of("TensorFlow 1.x (May 2017)").overlap.gradients
    assert stack_of("NGC TensorFlow").overlap.gradients
    assert not stack_of("MXNet 1.2.0rc1").host.async_launch
    assert stack_of("llm-foundry/composer").kernels.attention == "flash-1"


@pytest.mark.parametrize(
    ("framework", "network", "precision", "last"),
    [
        ("PyTorch", "resnet50", "fp16-mixed", True),
        ("PyTorch", "nnunet-3d", "fp16-mixed", False),
        ("PyTorch", "resnet50", "tf32", False),
        ("NGC PyTorch", "resnet50", "fp16-mixed", False),
        ("TensorFlow2", "unet", "fp16-mixed", True),
        ("TensorFlow", "resnet50", "tf32", False),
    ],
)
def test_who_keeps_channels_last(framework: str, network: str, precision: str, last: bool) -> None:
    facts = {"framework": framework, "network": network, "precision": precision}
    assert bool(rule("channels_last", facts)) is last


@pytest.mark.parametrize(
    ("suite", "framework", "variant", "times"),
    [
        ("OneFlow DLPerf", "PyTorch", "Use `torch.utils.data.DataLoader`", 2.0),
        ("OneFlow DLPerf", "PyTorch", "Use DALI", 1.0),
        ("OneFlow DLPerf", "PaddlePaddle", "batch size = 224 & without xla", 2.0),
        ("OneFlow DLPerf", "PaddlePaddle", "batch size = 196 & with dali", 1.0),
        ("OneFlow DLPerf", "NGC TensorFlow", "synthetic data & batch size = 224", 0.0),
        ("NVIDIA DeepLearningExamples", "PyTorch", "", 1.0),
    ],
)
def test_who_prepares_images_on_the_host(
    suite: str, framework: str, variant: str, times: float
) -> None:
    facts = {"suite": suite, "framework": framework, "variant": variant}
    assert rule("loaders", facts)["preparing"] == times


def test_augmented_images_are_prepared_pixel_by_pixel_by_so_many_processes() -> None:
    source = "github:NVIDIA/DeepLearningExamples PyTorch/Classification/ConvNets/efficientnet"
    row = {"model": "EfficientNet-B0", "framework": "PyTorch", "data": "real", "source": source}
    row |= {"precision": "fp16", "n_accel": "8", "batch_per_accel": "256", "nodes": "1"}
    wanted = step(**row).stack.input
    assert (wanted.preparing, wanted.pixels, wanted.workers) == (1.5, 0.66, 10)
    bound = 80 * 2.85e9 / ((1.5 + 0.66) * 6.82e6)  # 80 of the 128 cores
    assert prepared_per_s(**row) == pytest.approx(bound)


def test_a_filter_is_no_kernel_of_a_framework() -> None:
    """V-Net has a field for the side of its filters that is called as other networks' kernels."""
    row = {"model": "V-Net", "framework": "TensorFlow", "precision": "fp32"}
    assert step(**row).stack.kernels.fusion == "primitive"
    assert made(**row).predict() > 0


def _row(**values: str) -> MeasuredRow:
    filled = dict.fromkeys((*steps.READS, "seq_len", "data", "note", "system", "nodes"), "")
    basic = {"accelerator": "A100-SXM4-80GB", "n_accel": "1", "batch_per_accel": "32"}
    return MeasuredRow("t.csv", 2, {**filled, **basic, "precision": "tf32", **values})


def step(**values: str) -> Read:
    return read(steps.step_of(_row(**values)))


def made(**values: Any) -> NormalRow:
    table = _row(throughput="1", unit="samples/s", **values)
    return NormalRow.of(MeasuredRow("t.csv", 2, {**table.values, **steps.normal(table)}))


def prepared_per_s(**values: str) -> float:
    result = made(**values).simulate()
    feed = result.details.feed
    assert isinstance(feed, InputPipeline)
    return result.details.plan.global_batch / max(feed.storage_s, feed.decoding_s)


def test_a_loader_bounds_a_node_but_not_one_device() -> None:
    """24 cores of 2.3 GHz, 6.82 million cycles to decode, twice that to prepare."""
    row = {"model": "ResNet-50", "framework": "MxNet", "suite": "OneFlow DLPerf", "data": "real"}
    row |= {"precision": "fp16", "accelerator": "V100-SXM2-16GB", "system": "DGX-1-like"}
    several = {**row, "n_accel": "8", "batch_per_accel": "256", "nodes": "1"}
    assert step(**several).stack.input.preparing == 2.0
    assert prepared_per_s(**several) == pytest.approx(24 * 2.3e9 / (2 * 6.82e6))
    assert made(**row).dataset == ""


@pytest.mark.parametrize(
    ("framework", "library"),
    [
        ("Torch7 cudnn=none", "torch7"),
        ("Torch-7 (native)", "torch7"),
        ("Torch7 cudnn=5.1", None),
        ("Caffe (native)", "caffe"),
        ("Caffe", "caffe"),
        ("Caffe cuDNN v4", None),
        ("Caffe2", None),
        ("CuDNN[R2] *", "cudnn2"),
    ],
)
def test_whose_convolutions_a_framework_has(framework: str, library: str | None) -> None:
    assert stack_of(framework).kernels.conv_library == library


def test_kernels_of_libraries_that_nothing_describes_are_refused() -> None:
    row = {"model": "VGG-16", "accelerator": "Titan X (Maxwell)", "precision": "fp32"}
    assert step(**row, framework="Caffe").stack.kernels.conv_library == "caffe"
    for framework in ("CL-nn (Torch)", "Caffe-CLGreenTea", "cudaconvnet2*"):
        with pytest.raises(RidgelineError, match="are not described"):
            step(**row, framework=framework)


@pytest.mark.parametrize(
    ("word", "usual"),
    [
        ("TF 2.4", "tensorflow 2.4"),
        ("tf2", "tensorflow2"),
        ("Torch 1.8", "pytorch 1.8"),
        ("Apache MXNet 1.5", "MXNet 1.5"),
        ("Torch7 cudnn=none", "Torch7 cudnn=none"),
        ("Torch-7 (native)", "Torch-7 (native)"),
        ("", ""),
    ],
)
def test_other_words_for_frameworks(word: str, usual: str) -> None:
    assert steps.spelled_out(word) == usual


def test_a_table_in_eight_bits_is_not_widened_by_a_framework_that_has_no_such_form() -> None:
    row = {"model": "resnet50", "framework": "torch", "batch_per_accel": "8"}
    assert step(**row, precision="fp8").plan.precision == "fp8-mixed"
    assert step(**row, precision="amp").plan.precision == "fp16-autocast"
