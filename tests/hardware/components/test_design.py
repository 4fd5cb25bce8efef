"""Devices that take energy, latency, area and leakage from their parts."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import ridgeline as rl
from ridgeline.cli import execute

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "edge-systolic.yaml"


def device(
    tmp_path: Path, change: Any = None, overrides: dict[str, Any] | None = None
) -> rl.Device:
    """Load the example with its data changed, or an override."""
    return rl.load_device(str(written(tmp_path, change)), overrides)


def written(tmp_path: Path, change: Any = None) -> Path:
    yaml = YAML(typ="safe")
    data = yaml.load(EXAMPLE.read_text())
    if change is not None:
        change(data)
    path = tmp_path / "device.yaml"
    with path.open("w") as stream:
        yaml.dump(data, stream)
    return path


def test_a_level_has_what_its_component_has() -> None:
    found = rl.load_device(str(EXAMPLE))
    sram = rl.component("sram", capacity="512 KiB", width="512 bit", cell="itrs-lstp", node="22 nm")
    level = found.memory["sram"]
    assert found.prices.price_j(level.energy, "J/B") == sram.energy_j_per_byte
    assert level.latency is not None
    assert (level.latency.value, level.latency.basis) == (sram.latency_s, "derived")
    part = next(part for part in found.parts if part.place == "memory.sram")
    assert part.count == 4
    assert part.area_m2 == 4 * sram.area_m2
    mesh = found.engines["mesh"]
    mac = rl.component("mac", variant="bf16-fp32", node="22 nm")
    assert found.prices.price_j(mesh.energy["bf16"], "J/FLOP") == pytest.approx(mac.read_j / 2)


def test_area_and_idle_power_are_the_sums() -> None:
    found = rl.load_device(str(EXAMPLE))
    areas = [part.area_m2 for part in found.parts if part.area_m2 is not None]
    assert found.area_m2 == pytest.approx(math.fsum(areas))
    leakage = [part.leakage_w for part in found.parts if part.leakage_w is not None]
    assert found.idle_power.value == pytest.approx(math.fsum(leakage))
    assert (found.idle_power.source, found.idle_power.basis) == ("components", "derived")
    assert "idle power is their leakage" in found.component_notes[0]


def test_what_the_file_states_wins(tmp_path: Path) -> None:
    def state(data: dict[str, Any]) -> None:
        data["idle_power"], data["area"] = "3 W", "40 mm2"
        data["memory"]["sram"] |= {"energy": "9 pJ/B", "latency": "7 ns"}
        data["engines"]["mesh"]["energy"] = {"bf16": "5 pJ/FLOP"}

    found = device(tmp_path, state)
    assert (found.idle_power.value, found.area_m2) == (3.0, 40e-6)
    assert found.prices.price_j(found.memory["sram"].energy, "J/B") == 9e-12
    assert found.memory["sram"].latency.value == 7e-9  # type: ignore[union-attr]
    assert found.prices.price_j(found.engines["mesh"].energy["bf16"], "J/FLOP") == 5e-12
    assert any(part.place == "memory.sram" for part in found.parts)  # its size is still an output


def test_neither_energy_nor_component_is_an_error(tmp_path: Path) -> None:
    for change, message in (
        (lambda d: d["memory"]["sram"].pop("component"), "neither energy nor a component"),
        (lambda d: d["engines"]["mesh"].pop("component"), "no energy entry for bf16"),
    ):
        with pytest.raises(rl.ConfigError, match=message) as caught:
            device(tmp_path, change)
        assert "device.yaml:" in str(caught.value)


def test_without_any_leakage_idle_power_must_be_stated(tmp_path: Path) -> None:
    def bare(data: dict[str, Any]) -> None:
        for engine in data["engines"].values():
            del engine["component"]
            engine["energy"] = dict.fromkeys(engine["rates"], "1 pJ/FLOP")
        for level in data["memory"].values():
            level.pop("component")
            level["energy"] = "1 pJ/B"

    with pytest.raises(rl.ConfigError, match="'idle_power' is missing"):
        device(tmp_path, bare)


@pytest.mark.parametrize(
    ("level", "component", "message"),
    [
        ("sram", "srm", "no component is called 'srm'; did you mean 'sram'"),
        ("sram", {"name": "sram", "ports": "9RW"}, "no ports '9RW'"),
        ("sram", {"name": "sram", "prts": "1RW"}, "unknown field 'prts'"),
        ("sram", {"name": "sram", "width": "64"}, "a number without a unit"),
        ("sram", "wire", "priced per length"),
        ("dram", {"name": "dram", "variant": "hbm9"}, "has no variant 'hbm9'"),
        ("dram", "mac", "publishes no energy per byte"),
    ],
)
def test_a_wrong_component_is_said_with_its_place(
    tmp_path: Path, level: str, component: object, message: str
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["memory"][level]["component"] = component

    with pytest.raises(rl.ConfigError, match=message) as caught:
        device(tmp_path, change)
    assert f"memory.{level}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_format_without_a_row_must_be_priced(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["engines"]["vector"]["rates"]["fp8"] = "128 GFLOP/s"

    with pytest.raises(rl.ConfigError, match="no variant 'fp8'"):
        device(tmp_path, change)

    def priced(data: dict[str, Any]) -> None:
        change(data)
        data["engines"]["vector"]["energy"] = {"fp8": "0.1 pJ/FLOP"}

    assert device(tmp_path, priced).engines["vector"].energy.keys() == {"fp8", "fp32"}


def test_a_stack_brings_its_bandwidth(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["memory"]["dram"] = {
            "kind": "dram", "capacity": "32 GiB", "instances": 2,
            "component": {"name": "dram", "variant": "hbm3"},
        }  # fmt: skip

    assert device(tmp_path, change).memory["dram"].bandwidth.value == 2 * 819e9  # type: ignore[union-attr]


def test_units_of_an_engine_that_nobody_counts_are_left_out_and_said(tmp_path: Path) -> None:
    found = device(tmp_path, lambda d: d["engines"]["vector"].update(component="mac"))
    part = next(part for part in found.parts if part.place == "engines.vector")
    assert part.area_m2 is None
    assert any("component.count" in note for note in found.component_notes)


def test_more_capacity_is_never_free(tmp_path: Path) -> None:
    """The larger design costs more energy an access, area, leakage and latency."""
    found = [
        device(tmp_path, None, {"memory.sram.capacity": size}) for size in ("64 MiB", "64 GiB")
    ]
    small, large = (
        (
            d.prices.price_j(d.memory["sram"].energy, "J/B"), d.area_m2, d.idle_power.value,
            d.memory["sram"].latency.value,  # type: ignore[union-attr]
        )
        for d in found
    )  # fmt: skip
    assert all(more > 2 * less for less, more in zip(small, large, strict=True))


def test_an_override_of_an_array_changes_its_area() -> None:
    small = rl.load_device(str(EXAMPLE))
    large = rl.load_device(str(EXAMPLE), {"engines.mesh.array.rows": 128})
    parts = [next(p for p in d.parts if p.place == "engines.mesh") for d in (small, large)]
    assert parts[1].area_m2 == 2 * parts[0].area_m2
    assert large.area_m2 > small.area_m2


def test_the_thermal_limit_is_a_warning_on_every_result(tmp_path: Path) -> None:
    cool = device(tmp_path)
    assert cool.peak_power_density_w_m2 == cool.peak_power_w / cool.area_m2
    assert not any("thermal limit" in note for note in cool.component_notes)
    hot = device(tmp_path, lambda d: d.update(thermal_limit="0.1 W/mm2"))
    assert "above its thermal limit of 0.1 W/mm2" in hot.component_notes[-1]
    plan = rl.Plan(global_batch=4, precision="bf16-mixed")
    result = rl.simulate("lenet5", str(tmp_path / "device.yaml"), plan, software="ideal")
    assert any("thermal limit" in note for note in result.manifest["notes"])
    gemm = rl.gemm(64, 64, 64, device=str(tmp_path / "device.yaml"))
    assert any("thermal limit" in note for note in gemm.notes)


def test_a_sweep_over_capacity_shows_the_optimum(tmp_path: Path) -> None:
    """Energy per access rises, DRAM traffic falls, and their sum has its least in between."""
    rows = []
    for size in ("256 KiB", "1 MiB", "4 MiB", "64 MiB", "4 GiB"):
        overrides = {"device.memory.sram.capacity": size}
        cluster = rl.load_cluster(str(EXAMPLE), overrides)
        plan = rl.Plan(global_batch=4, precision="bf16-mixed")
        result = rl.simulate("resnet18", cluster, plan, software="ideal")
        joules = result.energy_j
        traffic = result.traffic_bytes
        rows.append(
            (joules["sram"] / traffic["sram"], traffic["dram"], cluster.device.area_m2,
             joules["total"])
        )  # fmt: skip
    per_byte, dram, area, total = zip(*rows, strict=True)
    assert list(per_byte) == sorted(set(per_byte))
    assert list(area) == sorted(set(area))
    assert list(dram) == sorted(dram, reverse=True)
    assert dram[0] > dram[-1]
    assert min(total) < min(total[0], total[-1])


def test_a_device_of_components_can_be_pickled() -> None:
    found = rl.load_device(str(EXAMPLE))
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.parts == found.parts


def test_shipped_devices_have_no_components() -> None:
    """Their results stay as they were."""
    found = rl.load_device("v100-sxm2-16gb")
    assert (found.parts, found.component_notes) == ((), ())


def test_show_prints_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    for said in ("memory.sram", "sram itrs-lstp", "area:", "idle power:", "W/mm2", "note: energy"):
        assert said in out


def test_show_evaluates_a_component(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["show", "sram", "--capacity", "1MiB", "--width", "256bit", "--node", "22nm"]
    assert execute(arguments) == 0
    out = capsys.readouterr().out
    assert "54.63 pJ" in out
    assert "0.8797 mm2" in out
    assert "[cacti]" in out
    assert execute([*arguments, "--json"]) == 0
    assert '"read_j": 5.463' in capsys.readouterr().out
    for wrong, said in (
        (["show", "v100-sxm2-16gb", "--node", "22nm"], "--node is of one component"),
        (["show", "sram", "--capacity", "1MiB"], "needs a node"),
        (["show", "mac", "--variant", "int9", "--node", "22nm"], "did you mean 'int8'"),
    ):
        assert execute(wrong) == 2
        assert said in capsys.readouterr().err
