"""Whole runs on ImageNet: rows become simulations, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from row_tables import made

from ridgeline.study.import_rows.imagenet import SourceFacts, _device, _grouped, _precision, told
from ridgeline.study.import_rows.machines import machine_of

IMAGENET = (
    "id,model,accelerator,n_accel,nodes,interconnect,batch,epochs,precision,time_s,images_per_s,"
    "source\n"
)


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
    assert all("global_batch=256," in o.configuration for o in found.outcomes)
    assert len(found.outcomes) == 2
    assert [row.reason for row in found.skipped] == ["no description of the optimizer K-FAC"]
    assert machine_of("v100-sxm2-16gb", 8, 2, "V100 (ABCI) 2x EDR")[0] == "abci-edr"


def test_what_is_known_of_a_run_changes_its_time(tmp_path: Path) -> None:
    """FireCaffe without cuDNN and by a tree; DAWNBench without validation."""
    columns = IMAGENET.replace("id,", "id,ref,")
    rows = "".join(
        f"{i},{ref},GoogLeNet,K20 (Titan),32,32,Cray Gemini,1024,90,fp32,1000,,s\n"
        for i, ref in enumerate(["FireCaffe", "someone", "DAWNBench someone"])
    )
    tree, fast, unvalidated = made(tmp_path, "imagenet", columns, rows).outcomes
    assert tree.predicted > 2 * fast.predicted
    images = 1_281_167
    assert unvalidated.predicted / fast.predicted == pytest.approx(images / (images + 50_000 / 3))


def test_what_sources_say_of_whole_runs() -> None:
    assert told("Das 2016").grouped == "fc*"
    assert not told("Akiba 2017 (PFN)").overlap
    assert "fp16" in told("Jia 2018 (Tencent)").formats
    assert told("Ying 2018") == told("") == SourceFacts()
    assert told("Das 2016").source


def test_a_network_for_small_images_is_not_trained_on_photographs(tmp_path: Path) -> None:
    rows = "a,ResNet56,P100,8,,,256,90,fp32,1000,,s\n"
    (row,) = made(tmp_path, "imagenet", IMAGENET, rows).skipped
    assert row.reason == "ResNet56 is known as resnet-cifar-56, no network for photographs"


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("128 nodes with Xeon Platinum 8", "xeon-platinum-8124m-2s"),
        ("P100 (Big Basin, NVLink)", "p100-sxm2"),
        ("8 K80 / 488 GB / 32 CPU (Amazon)", "k80"),
        ("Lambda GPU Cloud - 4x GTX 1080", "gtx-1080"),
        ("KNL 7250 (Stampede2)", "xeon-phi-7250"),
        ("8 nodes with InfiniBand (8*P100 for each node)", "p100-sxm2"),
    ],
)
def test_devices_in_words(text: str, device: str) -> None:
    assert _device(text) == device


def test_a_note_completes_a_machine_that_is_cut_off_and_names_the_framework(tmp_path: Path) -> None:
    head = IMAGENET.replace("source\n", "source,note\n")
    rows = "".join(
        f"a,ResNet-50,8 nodes (8*{cell},64,,,2048,90,fp32,1000,,s,{note}\n"
        for cell, note in (
            ("P10", "8 nodes (8*P100 each); framework Caffe2"),
            ("P10", "8 nodes (8*P100 each)"),
            ("P100)", ""),
        )
    )
    waits, named, whole = made(tmp_path, "imagenet", head, rows).outcomes
    assert waits.predicted > named.predicted == whole.predicted
    (row,) = made(tmp_path, "imagenet", head, rows.splitlines()[0].split(";")[0] + "x\n").outcomes
    assert row.predicted == named.predicted


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


@pytest.mark.parametrize(
    ("formats", "device", "precision"),
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
    formats: str, device: str, precision: str
) -> None:
    assert _precision(formats, device) == precision


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
