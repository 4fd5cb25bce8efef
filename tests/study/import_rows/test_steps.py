"""What rows of training steps mean: how many share an update, and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ridgeline.report.result import Result
from ridgeline.study.import_rows import imported, steps
from ridgeline.study.import_rows.rules import rule
from ridgeline.study.validate import multi_device
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import Read, read

CONVNETS = "NVIDIA/DeepLearningExamples@729963d PyTorch/Classification/ConvNets/README.md L1"


def row(line: int = 2, **fields: str) -> MeasuredRow:
    values = {
        "suite": "any", "framework": "PyTorch", "model": "lenet5", "variant": "",
        "accelerator": "V100-SXM2-16GB", "system": "DGX-1", "n_accel": "1", "nodes": "1",
        "batch_per_accel": "256", "grad_accum": "", "seq_len": "", "precision": "fp32", "xla": "",
        "data": "synthetic", "throughput": "1", "unit": "images/s", "note": "", "source": "any",
    }  # fmt: skip
    return MeasuredRow("table.csv", line, {**values, **fields})


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
    facts = {"network": network, "precision": precision, "source": source}
    assert rule("update_batches", facts).get("batch", 0) == batch


def step(**fields: str) -> Read:
    return read(steps.step_of(row(**fields)))


@pytest.mark.parametrize(("devices", "batches"), [("1", 8), ("4", 2), ("8", 1), ("64", 1)])
def test_fewer_devices_share_an_update_among_more_batches(devices: str, batches: int) -> None:
    fields = {"model": "resnet50", "precision": "amp", "n_accel": devices, "source": CONVNETS}
    made = step(**fields)
    assert made.stack.gradients.update_interval == batches
    assert (made.plan.micro_batches, made.plan.rank_batch) == (1, 256)
    assert step(**{**fields, "source": "any"}).stack.gradients.update_interval == 1


def simulated(made: NormalRow, interval: int) -> Result:
    """Simulate a row with batches that share an update; 0: without update."""
    said = [*filter(None, made.overrides.split(";")), f"gradients.update_interval={interval}"]
    return replace(made, overrides=";".join(said)).simulate()


def normal(**fields: str) -> NormalRow:
    read = row(**fields)
    return NormalRow.of(MeasuredRow("t.csv", 2, {**read.values, **steps.normal(read)}))


@pytest.mark.parametrize("devices", ["1", "8"])
def test_batches_that_share_an_update_add_up_gradients_instead(devices: str) -> None:
    made = normal(framework="a framework whose host is never waited for", n_accel=devices)
    result = made.simulate()
    update_s = result.time_s["optimizer"]
    bare = simulated(made, 0)
    assert bare.step_time_s == pytest.approx(result.step_time_s - update_s)
    assert bare.time_s["optimizer"] == pytest.approx(0.0, abs=1e-12)
    assert normal(data="no update").simulate().time_s["optimizer"] < update_s
    eight, sixteen = simulated(made, 8), simulated(made, 16)
    assert eight.step_time_s - sixteen.step_time_s == pytest.approx(update_s / 16, rel=1e-6)
    assert eight.step_time_s > bare.step_time_s + update_s / 8  # what adds gradients up


@pytest.mark.parametrize("interval", [0, 1, 8])
def test_parts_of_a_shared_update_sum_to_the_whole(interval: int) -> None:
    result = simulated(normal(precision="amp", n_accel="8"), interval)
    for parts in (result.time_s, result.energy_j):
        assert math.fsum(v for k, v in parts.items() if k != "total") == pytest.approx(
            parts["total"], rel=1e-12
        )
        assert min(parts.values()) >= 0
    assert math.fsum(result.limits_s.values()) == pytest.approx(result.step_time_s, rel=1e-9)
    assert result.samples_per_s == pytest.approx(8 * 256 / result.step_time_s)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("devices", ["1", "8"])
def test_the_more_batches_share_an_update_the_shorter_is_each(precision: str, devices: str) -> None:
    made = normal(precision=precision, n_accel=devices)
    shared = [simulated(made, k).step_time_s for k in (1, 8, 16, 10**6)]
    assert shared == sorted(shared, reverse=True)
    assert simulated(made, 0).step_time_s <= shared[-1] * (1 + 1e-9)


def test_gradients_are_checked_where_half_precision_scales_them() -> None:
    assert step(precision="amp").stack.optimizer.loss_scale_check
    assert not step(precision="fp32").stack.optimizer.loss_scale_check
    fields = {"precision": "amp", "framework": "TensorFlow"}
    assert step(**fields).stack.optimizer.loss_scale_check
    fields |= {"model": "ResNet-50", "source": "TensorFlow/Classification/ConvNets/README.md"}
    assert not step(**fields).stack.optimizer.loss_scale_check
    assert not step(precision="amp", framework="OneFlow").stack.optimizer.loss_scale_check


def test_tensorflow_updates_weights_by_ops_of_its_graph_unless_it_is_compiled() -> None:
    def how(**fields: str) -> str:
        return step(**fields).stack.optimizer.impl

    assert how(framework="TensorFlow") == "graph"
    assert how(framework="TensorFlow", xla="on") == "foreach"
    assert how(framework="PyTorch") == "per-tensor"


def test_only_ranks_whose_sentences_differ_wait_for_each_other() -> None:
    gavel, fairseq = "gavel@c4fa400", "PyTorch/Translation/Transformer/README.md"

    def unequal(model: str, source: str, batch: int) -> float:
        made = step(model=model, source=source, batch_per_accel=str(batch))
        return made.plan.sequence_length_std

    few, many = (unequal("Transformer Multi30k", gavel, batch) for batch in (16, 256))
    assert few > many > 0
    assert unequal("Transformer", fairseq, 10240) == pytest.approx(0.059, abs=1e-3)
    assert unequal("Transformer", gavel, 10240) == 0.0
    assert unequal("ResNet-50", gavel, 16) == 0.0


def test_a_row_is_compared_within_its_own_table() -> None:
    table = [
        row(2, throughput="100", source="first"),
        row(3, throughput="150", n_accel="2", source="first"),
        row(4, throughput="200", source="second"),
        row(5, throughput="380", n_accel="2", source="second"),
        row(6, throughput="300", n_accel="2", source="third"),
    ]
    found = list(multi_device.predict(imported("multi-device", table)))
    assert all(isinstance(made, Outcome) for made in found)
    measured = {made.line: made.measured for made in found if isinstance(made, Outcome)}
    assert measured == pytest.approx({3: 0.75, 5: 0.95, 6: 0.75})
