"""Devices that start from another device's description."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels.single_op import gemm


def device(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(f"kind: device\nname: {name}\n{text}", encoding="utf-8")
    return str(path)


def test_what_is_not_said_is_the_bases(tmp_path: Path) -> None:
    base = load_device("v100-sxm2-16gb")
    derived = load_device(
        device(tmp_path, "mine", "base: v100-sxm2-16gb\nmemory: {hbm: {bandwidth: 1 TB/s}}\n")
    )
    assert derived.engines == base.engines
    assert derived.memory["l2"] == base.memory["l2"]
    assert derived.memory["hbm"].capacity == base.memory["hbm"].capacity
    bandwidth = derived.memory["hbm"].bandwidth
    assert bandwidth is not None
    assert bandwidth.value == 1e12
    assert (derived.name, derived.base) == ("mine", "v100-sxm2-16gb")


def test_a_value_with_its_source_is_replaced_as_one(tmp_path: Path) -> None:
    text = "base: v100-sxm2-16gb\nlaunch_latency: {value: 1 us, source: my stop watch}\n"
    latency = load_device(device(tmp_path, "mine", text)).launch_latency
    assert (latency.value, latency.source, latency.basis) == (1e-6, "my stop watch", "not stated")


def test_null_removes_and_what_is_new_comes_last(tmp_path: Path) -> None:
    new = "{kind: dram, capacity: 8 GiB, bandwidth: 100 GB/s, energy: dram.hbm2}"
    text = f"base: v100-sxm2-16gb\nmemory:\n  hbm: null\n  slow: {new}\n"
    derived = load_device(device(tmp_path, "mine", text))
    assert "hbm" not in derived.memory
    assert derived.far_memory == "slow"


def test_inherited_shares_say_that_they_were_not_measured_here(tmp_path: Path) -> None:
    text = "base: v100-sxm2-16gb\nengines: {cuda-cores: {rates: {fp16: null}}}\n"
    derived = load_device(device(tmp_path, "mine", text))
    assert derived.achievable
    assert {row.fraction.basis for row in derived.achievable} == {"extrapolated"}
    assert all(row.fraction.note.startswith("of v100-sxm2-16gb") for row in derived.achievable)
    assert not gemm(1024, 1024, 1024, derived, format="fp16").calibrated


def test_shares_of_another_device_come_behind_the_own_ones() -> None:
    a100 = load_device("a100-sxm4-80gb")
    own = [row for row in a100.achievable if row.fraction.basis != "extrapolated"]
    assert a100.achievable[: len(own)] == tuple(own)
    assert any(row.format == "bf16" and row.op == "conv2d" for row in a100.achievable)


def test_a_chain_hands_everything_down_once() -> None:
    rows = load_device("titan-xp").achievable
    base = load_device("gtx-1080ti").achievable
    own = [row for row in base if row.fraction.basis != "extrapolated"]
    of_base, handed = (
        [(r.engine, r.format, r.op, r.pass_, r.filter) for r in some] for some in (own, rows)
    )
    assert handed[: len(own)] == of_base
    assert len(set(of_base)) == len(of_base)
    assert len(rows) <= len(base)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: v100-sxm2-16g\n", "did you mean 'v100-sxm2-16gb'"),
        ("base: 3\n", "must name a machine"),
        ("base: mine.yaml\n", "circle"),
        ("achievable_from: v100-sxm2-16gb\n", "expected {device: NAME"),
        ("achievable_from: {device: nowhere}\n", "no device is called 'nowhere'"),
        ("base: v100-sxm2-16gb\nmemory: {hbm: {bandwith: 1 TB/s}}\n", "did you mean 'bandwidth'"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    path = device(tmp_path, "mine", text)
    with pytest.raises(ConfigError) as caught:
        load_device(path)
    assert words in str(caught.value)
    assert "mine.yaml" in str(caught.value)
