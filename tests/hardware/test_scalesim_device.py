"""SCALE-Sim's configurations as devices: fields, notes, what is unknown, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import load_cluster, load_device, load_energy_table
from ridgeline.hardware.scalesim import KEYS, read_config
from ridgeline.kernels import single_op

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "scalesim"
USER = EXAMPLES / "user.cfg"
LAYERS = EXAMPLES / "layers.csv"
KIB = 1024


def changed(tmp_path: Path, *pairs: tuple[str, str]) -> Path:
    text = USER.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "changed.cfg"
    file.write_text(text)
    return file


def test_fields_of_the_device() -> None:
    device = load_device(str(USER))
    array = device.engines["mesh"].array
    assert array is not None
    assert (array.rows.value, array.columns.value, array.dataflows) == (32, 32, ("os",))
    assert (array.fold, array.edge, array.clock.basis) == ("serial", "full", "assumed")
    sram, dram = device.memory["sram"], device.memory["dram"]
    sizes = {name: room.value for name, room in sram.partitions.items()}
    assert sizes == {"a": 64 * KIB, "b": 64 * KIB, "c": 64 * KIB}
    assert (sram.capacity.value, sram.buffers) == (192 * KIB, "double")
    assert dram.bandwidth is not None
    assert (dram.bandwidth.value, dram.ports) == (10 * array.clock.value, "separate")
    assert dram.capacity.basis == "not stated"


def test_what_the_file_does_not_state_is_unknown_not_zero() -> None:
    said = load_device(str(USER)).unpriced
    for what in ("flop.int8", "sram.l1", "dram.hbm2", "idle power"):
        assert any(what in line and "not stated" in line for line in said)
    priced = load_device(str(USER), {"energy_table": "asic-16nm", "idle_power": "1 W"})
    assert not any("not stated" in line for line in priced.unpriced)
    result = single_op.gemm(64, 64, 64, priced)
    assert result.energy_j["total"] > result.energy_j["static"] > 0


def test_the_table_of_unknown_prices_is_zeros_under_the_names_of_circuit_tables() -> None:
    unknown, circuits = load_energy_table("not-stated"), load_energy_table("asic-16nm")
    assert all(entry.is_unknown for entry in unknown.entries.values())
    assert unknown.entries.keys() <= circuits.entries.keys()
    assert not any(entry.is_unknown for entry in circuits.entries.values())


def test_calc_mode_never_waits_for_long_and_less_bandwidth_takes_longer(tmp_path: Path) -> None:
    times = []
    for bandwidth in (1, 4, 16):
        file = changed(tmp_path, ("Bandwidth : 10", f"Bandwidth : {bandwidth}"))
        times.append(single_op.gemm(256, 256, 256, load_device(str(file))).time_s)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    calc = single_op.gemm(256, 256, 256, load_device(str(changed(tmp_path, (": USER", ": CALC")))))
    assert calc.time_s <= times[-1]


def test_smaller_srams_move_more(tmp_path: Path) -> None:
    moved = []
    for size in (8, 64, 4096):
        file = changed(
            tmp_path, ("SramSzkB:  64", f"SramSzkB:  {size}"), ("SramSzkB: 64", f"SramSzkB: {size}")
        )
        moved.append(single_op.gemm(512, 512, 512, load_device(str(file))).traffic_bytes["dram"])
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1] >= 3 * 512**2


def test_a_configuration_stands_for_a_cluster_too() -> None:
    assert load_cluster(str(USER)).nodes.devices.name == "example-user"


def test_the_device_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", str(USER)]) == 0
    assert "not stated" in capsys.readouterr().out


def test_notes_of_what_is_not_modelled(tmp_path: Path) -> None:
    file = changed(
        tmp_path,
        (
            "UseRamulatorTrace: False",
            "UseRamulatorTrace: True\nSRAM_row_size: 2\nTimeLinearModel: TPUv4",
        ),
        ("IfmapCustomLayout: False", "IfmapCustomLayout: True"),
        ("Bandwidth : 10\n", "Bandwidth : 12, 3\nMemoryBanks: 4\nOnChipMemoryBanks: 1\n"),
    )
    notes = read_config(file).notes
    said = ("UseRamulatorTrace", "SRAM_row_size", "IfmapCustomLayout", "MemoryBanks")
    for key in (*said, "TimeLinearModel"):
        assert any(f": {key}: " in note and f"{file}:" in note for note in notes), key
    assert sum(": Bandwidth: " in note for note in notes) == 2
    assert load_device(str(file)).unpriced[-len(notes) :] == notes
    assert read_config(USER).notes == ()


def test_every_known_key_is_read_and_documented(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "from-scalesim.md").read_text("utf-8")
    for section, keys in KEYS.items():
        assert f"`{section}`" in page
        for key in keys:
            assert f"`{key}`" in page or f"`{key}kB`" in page, key


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("OfmapSramSzkB:", "OfmapSramSizekB:", "cfg:9: OfmapSramSizekB: unknown key; did you mean"),
        ("[layout]", "[layouts]", r"cfg:18: unknown section \[layouts\]; did you mean 'layout'"),
        ("OfmapSramSzkB:  64\n", "", "a device needs the fields OfmapSramSzkB"),
        ("SparsitySupport : false", "SparseRep : coo", "SparseRep: must be ellpack_block or csr"),
    ],
)
def test_errors(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = changed(tmp_path, (old, new))
    with pytest.raises(ConfigError, match=message):
        load_device(str(file))


def test_the_device_is_written_and_priced_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    assert execute(["scalesim", str(USER), "--device", str(mine)]) == 0
    assert mine.read_text().startswith("# Made of SCALE-Sim's configuration")
    same = single_op.gemm(300, 200, 100, str(mine))
    assert same.time_s == single_op.gemm(300, 200, 100, str(USER)).time_s
    assert execute(["gemm", "300", "200", "100", "--device", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert "unknown" in printed
    assert "idle power: not stated" in printed


def test_all_reports_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small.csv"
    small.write_text("Layer, M, N, K,\na, 40, 50, 60,\n")
    out = tmp_path / "new" / "reports"
    assert (
        execute(["scalesim", str(USER), str(small), "--compat", "scalesim", "--out", str(out)]) == 0
    )
    names = {path.name for path in out.iterdir()}
    assert names == {"COMPUTE_REPORT.csv", "BANDWIDTH_REPORT.csv", "DETAILED_ACCESS_REPORT.csv"}
    assert execute(["scalesim", str(USER), str(small), "--out", str(out)]) == 2
    assert "--compat scalesim" in capsys.readouterr().err
    assert execute(["scalesim", str(USER)]) == 2
