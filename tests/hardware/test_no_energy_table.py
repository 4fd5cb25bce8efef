"""Devices without an energy table: parts and quantities price everything, entries cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.hardware.templates import device_template

ROOT = Path(__file__).parents[2]


def test_a_machine_of_components_needs_no_table(tmp_path: Path) -> None:
    path = ROOT / "docs" / "examples" / "edge-systolic.yaml"
    text = path.read_text("utf-8")
    assert "energy_table" not in text
    stated = tmp_path / "stated.yaml"
    stated.write_text(f"{text}\nenergy_table: horowitz-45nm\n", "utf-8")
    without, beside = (rl.gemm(512, 512, 512, device=str(file)) for file in (path, stated))
    assert without.energy_j == beside.energy_j
    assert without.energy_j["total"] > 0
    model = rl.load_model("resnet18")
    found = rl.simulate(model, rl.load_cluster(str(path)), rl.Plan(global_batch=2))
    assert "energy: none (of its parts and quantities)" in str(found.summary(verbose=True))


def test_an_entry_without_a_table_is_refused(tmp_path: Path) -> None:
    text = device_template("systolic")
    lines = [line for line in text.splitlines() if not line.startswith("energy_table:")]
    path = tmp_path / "bare.yaml"
    path.write_text("\n".join(lines), "utf-8")
    with pytest.raises(ConfigError, match=r"is an entry of an energy table, but no energy_table"):
        load_device(str(path))
    with pytest.raises(ConfigError, match="there is no energy table to override"):
        load_device(str(path), {"energy_table.reference": "1 pJ/FLOP"})
