"""What rows of training steps mean: how many share an update, and what stands beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.study.validate import multi_device, steps
from ridgeline.study.validate.frameworks import framework_of
from ridgeline.study.validate.names import unequal_of, update_batch_of
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import Row

CONVNETS = "NVIDIA/DeepLearningExamples@729963d PyTorch/Classification/ConvNets/README.md L1"


def row(line: int = 2, **fields: str) -> Row:
    values = {
        "suite": "any", "framework": "PyTorch", "model": "lenet5", "variant": "",
        "accelerator": "V100-SXM2-16GB", "system": "DGX-1", "n_accel": "1", "nodes": "1",
        "batch_per_accel": "256", "grad_accum": "", "seq_len": "", "precision": "fp32", "xla": "",
        "data": "synthetic", "throughput": "1", "unit": "images/s", "note": "", "source": "any",
    }  # fmt: skip
    return Row("table.csv", line, {**values, **fields})


@pytest.mark.parametrize(
    ("network", "precision", "source", "batch"),
    [
        ("resnet50", "fp16-autocast", CONVNETS, 2048),
        ("resnet50", "fp32", CONVNETS, 896),
        ("resnext101-32x4d", "tf32", CONVNETS, 1024),
        ("efficientnet-widese-b4", "tf32", CONVNETS, 4096),
        ("gnmt", "fp32", "PyTorch/Translation/GNMT/README.md", 1024),
        ("resnet50", "fp32", CONVNETS.replace("PyTorch", "TensorFlow"), 0),
        ("gnmt", "fp32", "TensorFlow/Translation/GNMT/README.md", 0),
        ("mobilenet", "fp32", CONVNETS, 0),
    ],
)
def test_programs_that_fix_the_batch_of_an_update(
    network: str, precision: str, source: str, batch: int
) -> None:
    assert update_batch_of(network, precision, source) == batch


@pytest.mark.parametrize(("devices", "batches"), [("1", 8), ("4", 2), ("8", 1), ("64", 1)])
def test_fewer_devices_share_an_update_among_more_batches(devices: str, batches: int) -> None:
    fields = {"model": "resnet50", "precision": "amp", "n_accel": devices, "source": CONVNETS}
    wanted = steps.configuration(row(**fields))
    assert (wanted.batches, wanted.micro_batches, wanted.batch) == (batches, 1, 256)
    assert steps.configuration(row(**{**fields, "source": "any"})).batches == 1


def step_s(read: Row, wanted: steps.Configuration) -> float:
    return wanted.batch * wanted.devices / steps.predicted_throughput(read, wanted)[0]


@pytest.mark.parametrize("devices", ["1", "8"])
def test_batches_that_share_an_update_add_up_gradients_instead(devices: str) -> None:
    fields = {"framework": "a framework whose host is never waited for", "n_accel": devices}
    read, bare = row(**fields), row(**fields, data="no update")
    wanted = steps.configuration(read)
    result = steps.simulated(wanted)
    assert step_s(read, wanted) == pytest.approx(result.step_time_s)
    assert step_s(bare, wanted) == pytest.approx(result.step_time_s - result.time_s["optimizer"])
    adding = steps.simulated(replace(wanted, batches=8))
    for batches in (8, 16):
        expected = adding.step_time_s - (1 - 1 / batches) * result.time_s["optimizer"]
        shared = replace(wanted, batches=batches)
        assert step_s(read, shared) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("devices", ["1", "8"])
def test_the_more_batches_share_an_update_the_shorter_is_each(precision: str, devices: str) -> None:
    read = row(precision=precision, n_accel=devices)
    bare = row(precision=precision, n_accel=devices, data="no update")
    wanted = steps.configuration(read)
    shared = [step_s(read, replace(wanted, batches=k)) for k in (1, 8, 16, 10**6)]
    assert shared == sorted(shared, reverse=True)
    assert step_s(bare, wanted) <= shared[-1] * (1 + 1e-9)


def test_gradients_are_checked_where_half_precision_scales_them() -> None:
    assert steps.configuration(row(precision="amp")).checks
    assert not steps.configuration(row(precision="fp32")).checks
    in_tensorflow = row(precision="amp", framework="TensorFlow")
    assert steps.configuration(in_tensorflow).checks
    values = {"model": "ResNet-50", "source": "TensorFlow/Classification/ConvNets/README.md"}
    fixed = replace(in_tensorflow, values={**in_tensorflow.values, **values})
    assert not steps.configuration(fixed).checks
    assert not framework_of("OneFlow").checks


def test_tensorflow_updates_weights_by_ops_of_its_graph_unless_it_is_compiled() -> None:
    def how(**fields: str) -> str:
        return steps.configuration(row(**fields)).updates

    assert how(framework="TensorFlow") == "graph"
    assert how(framework="TensorFlow", xla="on") == "together"
    assert how(framework="PyTorch") == "apart"


def test_only_ranks_whose_sentences_differ_wait_for_each_other() -> None:
    gavel, fairseq = "gavel@c4fa400", "PyTorch/Translation/Transformer/README.md"
    assert unequal_of("transformer-multi30k", gavel, 16) > unequal_of(
        "transformer-multi30k", gavel, 256
    )
    assert unequal_of("transformer-big", fairseq, 320) == pytest.approx(0.059, abs=1e-3)
    assert unequal_of("transformer-big", gavel, 320) == 0.0
    assert unequal_of("resnet50", gavel, 16) == 0.0


def test_a_row_is_compared_within_its_own_table() -> None:
    table = [
        row(2, throughput="100", source="first"),
        row(3, throughput="150", n_accel="2", source="first"),
        row(4, throughput="200", source="second"),
        row(5, throughput="380", n_accel="2", source="second"),
        row(6, throughput="300", n_accel="2", source="third"),
    ]
    found = list(multi_device.predict(table))
    assert all(isinstance(made, Outcome) for made in found)
    measured = {made.line: made.measured for made in found if isinstance(made, Outcome)}
    assert measured == pytest.approx({3: 0.75, 5: 0.95, 6: 0.75})
