"""What programs of frameworks do, as tables name them."""

from __future__ import annotations

import math

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.study.validate import steps
from ridgeline.study.validate.frameworks import framework_of, spelled_out
from ridgeline.study.validate.names import (
    keeps_channels_last,
    loader_of,
)
from ridgeline.study.validate.programs import (
    has_primitives,
    run_of,
    updates_apart,
    workspace_of,
)
from ridgeline.study.validate.rows import Row


def test_optimizers_for_many_tensors_are_those_of_some_programs() -> None:
    def apart(framework: str, network: str, precision: str = "fp32", tuned: bool = False) -> bool:
        return updates_apart(framework, network, precision, fine_tuned=tuned)

    assert apart("PyTorch (Gavel)", "resnet18-cifar")
    assert apart("NGC PyTorch", "resnet50")
    assert not apart("PyTorch", "bert-large")
    assert apart("PyTorch", "bert-large", "tf32", tuned=True)
    assert not apart("PyTorch", "bert-large", "fp16-autocast", tuned=True)
    assert not apart("PyTorch", "bart-large", "tf32", tuned=True)
    assert not apart("TensorFlow", "resnet50")
    assert not apart("", "resnet50")


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
    assert has_primitives(framework, network, variant, xla) is does


def test_what_sources_say_of_whole_runs() -> None:
    assert run_of("Das 2016").grouped == "fc*"
    assert not run_of("Akiba 2017 (PFN)").overlap
    assert "fp16" in run_of("Jia 2018 (Tencent)").precision
    assert run_of("Ying 2018") == run_of("")
    assert run_of("").overlap


def test_programs_of_bert_copy_heads() -> None:
    assert framework_of("PyTorch").heads_copied
    assert framework_of("TensorFlow2", "NVIDIA DeepLearningExamples").heads_copied
    assert framework_of("OneFlow").heads_copied
    assert not framework_of("Megatron-LM").heads_copied
    assert not framework_of("").heads_copied


def test_frameworks_by_the_beginning_of_their_name() -> None:
    assert not framework_of("TensorFlow 1.x (May 2017)").overlap
    assert framework_of("NGC TensorFlow").overlap
    assert not framework_of("MXNet 1.2.0rc1").issue_ahead
    assert framework_of("llm-foundry/composer").attention == "flash-1"


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
    assert keeps_channels_last(framework, network, precision) is last


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
    assert loader_of(suite, framework, variant).preparing == times


def test_augmented_images_are_prepared_pixel_by_pixel_by_so_many_processes() -> None:
    source = "github:NVIDIA/DeepLearningExamples PyTorch/Classification/ConvNets/efficientnet"
    loader = loader_of("NVIDIA DeepLearningExamples", "PyTorch", "", source, "efficientnet-b4")
    assert (loader.preparing, loader.pixels, loader.processes) == (1.5, 0.66, 10)
    row = {"model": "EfficientNet-B0", "framework": "PyTorch", "data": "real", "source": source}
    row |= {"precision": "fp16", "n_accel": "8", "batch_per_accel": "256", "nodes": "1"}
    wanted = steps.configuration(_row(**row))
    assert wanted.preparing == pytest.approx(1.5 + 0.66)
    bound = 80 * 2.85e9 / (wanted.preparing * 6.82e6)  # 80 of the 128 cores
    assert steps.prepared_per_s(wanted) == pytest.approx(bound)


def test_a_filter_is_no_kernel_of_a_framework() -> None:
    """V-Net has a field for the side of its filters that is called as other networks' kernels."""
    row = {"model": "V-Net", "framework": "TensorFlow", "precision": "fp32"}
    wanted = steps.configuration(_row(**row))
    assert wanted.functions == "primitive"
    assert steps.simulated(wanted).samples_per_s > 0


def _row(**values: str) -> Row:
    filled = dict.fromkeys((*steps.COLUMNS, "seq_len", "data", "note", "system", "nodes"), "")
    basic = {"accelerator": "A100-SXM4-80GB", "n_accel": "1", "batch_per_accel": "32"}
    return Row("t.csv", 2, {**filled, **basic, "precision": "tf32", **values})


def test_a_loader_bounds_a_node_but_not_one_device() -> None:
    """24 cores of 2.3 GHz, 6.82 million cycles to decode, twice that to prepare."""
    row = {"model": "ResNet-50", "framework": "MxNet", "suite": "OneFlow DLPerf", "data": "real"}
    row |= {"precision": "fp16", "accelerator": "V100-SXM2-16GB", "system": "DGX-1-like"}
    several = steps.configuration(_row(**row, n_accel="8", batch_per_accel="256", nodes="1"))
    assert several.preparing == 2.0
    assert steps.prepared_per_s(several) == pytest.approx(24 * 2.3e9 / (2 * 6.82e6))
    assert steps.prepared_per_s(steps.configuration(_row(**row))) == math.inf


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
    assert framework_of(framework).library == library


def test_kernels_of_libraries_that_nothing_describes_are_refused() -> None:
    row = {"model": "VGG-16", "accelerator": "Titan X (Maxwell)", "precision": "fp32"}
    assert steps.configuration(_row(**row, framework="Caffe")).framework.library == "caffe"
    for framework in ("CL-nn (Torch)", "Caffe-CLGreenTea", "cudaconvnet2*"):
        with pytest.raises(RidgelineError, match="are not described"):
            steps.configuration(_row(**row, framework=framework))


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
    assert spelled_out(word) == usual


def test_a_table_in_eight_bits_is_not_widened_by_a_framework_that_has_no_such_form() -> None:
    row = {"model": "resnet50", "framework": "torch", "batch_per_accel": "8"}
    assert steps.configuration(_row(**row, precision="fp8")).precision == "fp8-mixed"
    assert steps.configuration(_row(**row, precision="amp")).precision == "fp16-autocast"
