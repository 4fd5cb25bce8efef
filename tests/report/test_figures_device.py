"""The hierarchical roofline: what it draws is what the device and the ledger say."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.text import Text

from machines import write_machine
from report.drawn import share_of_counted
from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.cost import engine_rate, level_bandwidth
from ridgeline.kernels.roofline import Mark, peaks, power_density_w_mm2, ridge_points
from ridgeline.kernels.single_op import gemm
from ridgeline.report.figures.device import MARKERS, Load, device_roofline, network, roof_labels
from ridgeline.report.figures.style import SERIES
from ridgeline.report.result import Result
from thoroughly import sample_of

FOLDER = tempfile.TemporaryDirectory()
write_machine(Path(FOLDER.name))
TOY = load_device(str(Path(FOLDER.name) / "device.yaml"))


def by_gid(ax: Axes, gid: str) -> Any:
    (found,) = [artist for artist in ax.get_children() if artist.get_gid() == gid]
    return found


def gids(ax: Axes, prefix: str) -> set[str]:
    every = (artist.get_gid() or "" for artist in ax.get_children())
    return {gid.removeprefix(prefix) for gid in every if gid.startswith(prefix)}


def texts(ax: Axes) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in ax.findobj(Text))


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "h100-sxm5-80gb", "tpu-v2", "lap-dp"])
def test_a_device_alone_shows_every_roof_slope_and_ridge(name: str) -> None:
    device = load_device(name)
    ax = device_roofline(device)
    levels = {n: level_bandwidth(device, n) for n in device.memory if level_bandwidth(device, n)}
    assert gids(ax, "slope: ") == set(levels)
    top = max(peak.flop_per_s for peak in peaks(device))
    for level, bandwidth in levels.items():
        x, y = by_gid(ax, f"slope: {level}").get_data()
        assert bandwidth is not None
        assert list(y) == pytest.approx([bandwidth * at for at in x])
        assert y[-1] == pytest.approx(top)
    assert gids(ax, "roof: ") == {peak.engine for peak in peaks(device)}
    for peak in peaks(device):
        x, y = by_gid(ax, f"roof: {peak.engine}").get_data()
        assert list(y) == [peak.flop_per_s] * 2
        ridges, height = by_gid(ax, f"ridges: {peak.engine}").get_data()
        expected = [r.flop_per_byte for r in ridge_points(device) if r.engine == peak.engine]
        assert sorted(ridges) == pytest.approx(sorted(expected))
        assert x[0] == pytest.approx(min(expected))
        assert set(height) == {peak.flop_per_s}
        left, right = ax.get_xlim()
        assert left < min(ridges)
        assert max(ridges) < right
        assert peak.engine.rpartition(".")[2] in texts(ax)
    assert "simulated, not measured" in texts(ax)


def test_formats_choose_roofs() -> None:
    device = load_device("h100-sxm5-80gb")
    ax = device_roofline(device, formats=["fp8", "bf16"])
    assert gids(ax, "roof: ") == {"tensor-cores.fp8", "tensor-cores.bf16", "cuda-cores.bf16"}
    with pytest.raises(RidgelineError, match="no engine for 'fp4'"):
        device_roofline(device, formats=["fp4"])


def test_roofs_of_one_height_share_a_label() -> None:
    labels = roof_labels({"a.fp16": 100.0, "a.bf16": 100.0, "b.fp32": 99.0, "b.fp64": 10.0})
    assert labels == [("a fp16, bf16; b fp32", 100.0), ("b fp64", 10.0)]


def test_a_network_is_its_flops_over_its_bytes_and_time(single: Result) -> None:
    """Against the totals of the result itself, which come from the played tasks."""
    load = network(single)
    (whole,) = load.marks
    flops = sum(
        amount
        for (_, unit), amount in single.ledger().by("place", "unit", value="amount").items()
        if unit == "FLOP"
    )
    assert whole.flop_per_s == pytest.approx(flops / single.step_time_s)
    for level, intensity in whole.flop_per_byte.items():
        assert intensity == pytest.approx(flops / single.traffic_bytes[level])
    assert sum(part.share for part in load.parts) <= 1 + 1e-9


def test_layers_are_their_ops_together(single: Result) -> None:
    device, load = single.details.cluster.device, network(single, "layer")
    far = device.far_memory
    time_s: dict[str, float] = {}
    flops: dict[str, float] = {}
    for op, cost in zip(single.details.lowered.ops, single.details.lowered.op_costs, strict=True):
        time_s[op.layer] = time_s.get(op.layer, 0.0) + cost.time_s(device)
        flops[op.layer] = flops.get(op.layer, 0.0) + sum(cost.flops.values())
    moved = single.ledger().by("layer", "place", value="amount")
    assert {part.name for part in load.parts} == {name for name, done in flops.items() if done}
    for part in load.parts:
        assert part.flop_per_s == pytest.approx(flops[part.name] / time_s[part.name])
        assert part.flop_per_byte[far] == pytest.approx(flops[part.name] / moved[part.name, far])
        assert part.share == pytest.approx(time_s[part.name] / single.step_time_s)
    assert "small: its layers" in texts(device_roofline(device, [load]))


def test_loads_are_drawn_at_every_level(single: Result) -> None:
    device = single.details.cluster.device
    product = gemm(2048, 2048, 2048, device)
    engine = f"{product.engine}.{product.format}"
    intensities = {
        level: product.flops / size
        for level, size in product.traffic_bytes.items()
        if level_bandwidth(device, level)
    }
    mark = Mark("product", engine, product.flops / product.time_s, intensities)
    loads = [network(single), Load("product", (mark,))]
    ax = device_roofline(device, loads)
    levels = [n for n in reversed(device.memory) if level_bandwidth(device, n)]
    for load, colour in zip(loads, SERIES, strict=False):
        (whole,) = load.marks
        for level in levels:
            drawn = by_gid(ax, f"{load.name}: {level}")
            assert drawn.get_offsets().tolist() == [[whole.flop_per_byte[level], whole.flop_per_s]]
            assert to_hex(drawn.get_facecolor()[0]).upper() == colour
    parts = by_gid(ax, f"ops: {loads[0].name}").get_offsets()
    expected = [[p.flop_per_byte[levels[0]], p.flop_per_s] for p in loads[0].parts]
    assert np.asarray(parts).tolist() == expected
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(names) == sorted(["resnet18", "product", *(f"at {n}" for n in levels)])
    assert len({*MARKERS}) >= len(levels)


sizes = st.integers(1, 4000)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 4), st.sampled_from(["fp16", "fp32"]))
def test_no_product_is_above_a_roof(m: int, n: int, k: int, batch: int, format_: str) -> None:
    result = gemm(m, n, k, TOY, batch=batch, format=format_)
    speed = result.flops / result.time_s
    assert speed <= engine_rate(TOY, f"{result.engine}.{format_}") * (1 + 1e-9)
    for level, size in result.traffic_bytes.items():
        bandwidth = level_bandwidth(TOY, level)
        if bandwidth is not None:
            assert speed <= bandwidth * result.flops / size * (1 + 1e-9)


@pytest.mark.parametrize("name", catalog.names("devices"))
def test_no_product_is_above_a_roof_of_a_shipped_device(name: str) -> None:
    device = load_device(name)
    fastest = max([1.0, *(row.fraction.value for row in device.achievable if row.op == "gemm")])
    for shape in ((16, 16, 16), (512, 512, 512), (64, 4096, 1024), (4096, 4096, 4096)):
        result = gemm(*shape, device)
        speed = result.flops / result.time_s
        assert speed <= fastest * max(peak.flop_per_s for peak in peaks(device)) * (1 + 1e-9)
        for level, size in result.traffic_bytes.items():
            bandwidth = level_bandwidth(device, level)
            if bandwidth is not None and size:  # operands may stay in the elements
                assert speed <= bandwidth * result.flops / size * (1 + 1e-9)


def test_networks_are_below_the_roofs(any_result: Result) -> None:
    device = any_result.details.cluster.device
    load = network(any_result)
    measured = max([1.0, *(share_of_counted(row) for row in device.achievable)])
    for mark in (*load.marks, *load.parts):
        assert mark.flop_per_s <= measured * engine_rate(device, mark.engine) * (1 + 1e-9)
        for level, intensity in mark.flop_per_byte.items():
            bandwidth = level_bandwidth(device, level)
            assert bandwidth is not None
            assert mark.flop_per_s <= bandwidth * intensity * (1 + 1e-9)


def test_more_loads_than_colours_are_refused() -> None:
    loads = [Load(str(n), ()) for n in range(len(SERIES) + 1)]
    with pytest.raises(RidgelineError, match="at most 6 loads"):
        device_roofline(TOY, loads)


def test_peaks_per_power_and_area() -> None:
    device = load_device("v100-sxm2-16gb")
    top = max(peaks(device), key=lambda peak: peak.flop_per_s)
    assert top.flop_per_joule == pytest.approx(125e12 / 300)
    assert top.flop_per_s_mm2 == pytest.approx(125e12 / 815, rel=0.01)
    assert power_density_w_mm2(device) == pytest.approx(300 / 815, rel=0.01)
    assert {p.flop_per_joule for p in peaks(TOY)} == {None}
    assert power_density_w_mm2(TOY) is None


# the command


def test_the_command_prints_ridges_peaks_and_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "roof.svg"
    argv = ["roofline", "v100-sxm2-16gb", "--model", "lenet5", "--model", "mlp", "--gemm",
            "512x512x512", "--format", "fp32", "--batch", "4", "--out", str(figure)]  # fmt: skip
    assert execute([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {r["level"] for r in answer["ridges"]} == {"l1", "l2", "hbm"}
    assert {r["engine"] for r in answer["ridges"]} == {"cuda-cores.fp32"}
    assert [m["name"] for m in answer["marks"]][2:] == ["512x512x512 fp32"]
    assert len(answer["marks"]) == 3
    assert figure.read_text().lstrip().startswith("<?xml")
    assert execute(argv) == 0
    shown = capsys.readouterr().out
    assert "512x512x512 fp32" in shown
    assert re.search(r"ridge FLOP/B", shown)
    assert "W/mm2" in shown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--gemm", "4x4"), "a product is MxNxK"),
        (("--format", "fp4"), "no engine for 'fp4'"),
        (("--model", "lenet6"), "did you mean 'lenet5'"),
        (("--gemm", "64x64x64", "--out", "roof.bmp"), "is no format for figures"),
    ],
)
def test_mistakes_are_one_message(
    more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["roofline", "v100-sxm2-16gb", *more]) == 2
    assert said in capsys.readouterr().err


@sample_of(3, 8, st.floats(0.0, 4.0), st.floats(-1.0, 0.0))
def test_names_of_lines_stand_beside_a_point(along: float, below: float) -> None:
    device = load_device("v100-sxm2-16gb")
    far = device.far_memory
    work = Mark("x", "tensor-cores.fp16", 125e12 * 10**below, {far: 10**along})
    ax = device_roofline(device, [Load("x", (work,), ())])
    place = ax.transData.transform((10**along, work.flop_per_s))
    for text in ax.texts:
        if text.get_rotation() == 0:
            assert not text.get_window_extent().contains(*place), text.get_text()
