"""Figures of one op: tiles end with the op, cells do all of its multiply-accumulates."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.text import Text

from oracles.tile_events import makespan
from report.drawn import foot, unit_of
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.cell_use import cells_of, systolic_cells
from ridgeline.kernels.single_op import OpResult, conv, gemm, repeat
from ridgeline.kernels.systolic.closed_form import FoldSchedule, layout
from ridgeline.kernels.tile_schedule import TileSchedule, tile_schedule
from ridgeline.report.figures.op import array_utilisation, draw_op, op_gantt
from ridgeline.workload.graph import Conv

# Without shares that programs were measured to reach: the arrays' cycles are all of the time.
SHARES: dict[str, Any] = {"achievable": []}
LATENT = {**SHARES, "memory.hbm.latency": "200 ns"}
TPU = load_device("tpu-v2", LATENT)


def schedule_of(result: OpResult) -> TileSchedule:
    priced = result.priced
    assert priced is not None
    assert priced.cost.mapped is not None
    return tile_schedule(priced.op, *priced.cost.mapped)


def bars(ax: Axes, prefix: str) -> list[tuple[float, float]]:
    """Begin and end in seconds of the bars whose names begin so, in the order of their numbers."""
    seconds = unit_of(ax.get_xlabel())
    found = {p.get_gid(): p for p in ax.patches if (p.get_gid() or "").startswith(prefix)}
    return [
        (seconds * p.get_x(), seconds * (p.get_x() + p.get_width()))
        for _, p in sorted(found.items(), key=lambda item: int(item[0].split()[1]))
    ]


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 3000), n=st.integers(1, 1500), k=st.integers(1, 1500),
    batch=st.integers(1, 2), gb_s=st.sampled_from([5, 60, 700]), double=st.booleans(),
    ports=st.sampled_from(["shared", "separate"]),
)  # fmt: skip
def test_tiles_one_by_one_end_with_the_op(
    m: int, n: int, k: int, batch: int, gb_s: int, double: bool, ports: str
) -> None:
    device = load_device(
        "tpu-v2",
        {
            **LATENT, "memory.hbm.bandwidth": f"{gb_s} GB/s", "memory.vmem.capacity": "600 KiB",
            "memory.vmem.buffers": "double" if double else "single", "memory.hbm.ports": ports,
        },
    )  # fmt: skip
    result = gemm(m, n, k, device, batch=batch, format="bf16")
    try:
        played = schedule_of(result)
    except RidgelineError as error:
        assert "tiles; at most" in str(error)  # noqa: PT017 - few products have so many
        return
    assert result.mapped is not None
    total_s = result.mapped["time_s"]["total"]
    if ports == "shared" or not double:
        assert played.end_s == pytest.approx(total_s, rel=1e-9)
    else:  # the search takes loads, stores and computing in step, which is slower or equal
        assert played.end_s <= total_s * (1 + 1e-9)
    if ports == "shared":  # of separate ports the op still counts one bandwidth for both
        spent_s = result.time_s - result.breakdown_s["launch"]
        assert played.end_s == pytest.approx(spent_s, rel=1e-9, abs=1e-15)
    tiles = played.tiles
    assert tiles[0].load.length_s == pytest.approx(result.mapped["time_s"]["first load"])
    assert tiles[-1].store.length_s == pytest.approx(result.mapped["time_s"]["last store"])
    assert sum(t.compute.length_s for t in tiles) == pytest.approx(
        result.mapped["time_s"]["compute"]
    )


def test_tiles_are_where_an_event_simulation_puts_the_last_one() -> None:
    result = conv(Conv(2, 64, 28, 28, 96, 3, 3, padding=(1, 1)), TPU, format="bf16")
    played = schedule_of(result)
    durations = [
        [getattr(tile, part).length_s for tile in played.tiles]
        for part in ("load", "compute", "store")
    ]
    assert played.end_s == pytest.approx(makespan(*durations, 2, 2, True), rel=1e-12)
    assert played.end_s == pytest.approx(result.time_s - result.breakdown_s["launch"], rel=1e-9)


def test_the_gantt_ends_with_the_op_and_draws_what_was_played() -> None:
    result = gemm(700, 300, 500, TPU, format="bf16")
    played = schedule_of(result)
    ax = op_gantt(result, tiles=len(played.tiles))
    launch_s = result.breakdown_s["launch"]
    assert bars(ax, "store")[-1][1] == pytest.approx(result.time_s, rel=1e-9)
    assert ax.get_xlim()[1] * unit_of(ax.get_xlabel()) == pytest.approx(result.time_s, rel=1e-9)
    computed = [(t.compute.begin_s + launch_s, t.compute.end_s + launch_s) for t in played.tiles]
    assert np.array(bars(ax, "compute")) == pytest.approx(np.array(computed), rel=1e-9)
    port = sorted([*bars(ax, "load"), *bars(ax, "store")])
    assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(port))  # one port
    for number, (begin_s, end_s) in enumerate(bars(ax, "in ")):
        assert begin_s == pytest.approx(played.tiles[number].load.begin_s + launch_s, rel=1e-9)
        assert end_s == pytest.approx(computed[number][1], rel=1e-9)
    assert "simulated, not measured" in foot(ax)


def test_the_first_tiles_alone_are_called_that() -> None:
    result = gemm(4000, 3000, 2000, TPU, format="bf16")
    count = len(schedule_of(result).tiles)
    ax = op_gantt(result, tiles=3)
    assert len(bars(ax, "compute")) == 3
    assert f"The first 3 of {count:,} tiles" in foot(ax)


def test_what_programs_take_beyond_the_arrays_cycles_is_of_the_tiles() -> None:
    """Arrays that are fed in a share of the cycles take longer for every tile: nothing is left."""
    result = gemm(256, 128, 128, "tpu-v2", format="bf16")
    ax = op_gantt(result)
    assert not [p for p in ax.patches if p.get_gid() == "besides"]
    ends = [(p.get_x() + p.get_width()) * unit_of(ax.get_xlabel()) for p in ax.patches]
    assert max(ends) == pytest.approx(result.time_s, rel=1e-9)


def cells(ax: Axes) -> Any:
    (image,) = [image for image in ax.images if image.get_gid() == "cells"]
    return image.get_array()


OPS: dict[str, Callable[[], OpResult]] = {  # functions, so that collecting tests prices nothing
    "tpu-v2": lambda: gemm(1000, 500, 700, TPU, format="bf16"),
    "tpu-v1": lambda: gemm(300, 200, 700, load_device("tpu-v1", SHARES)),
    "gaudi2": lambda: gemm(700, 300, 900, load_device("gaudi2", SHARES), format="bf16"),
    "convolution": lambda: conv(Conv(2, 24, 15, 15, 40, 3, 3), TPU, format="bf16"),
    "weight gradient": lambda: conv(
        Conv(2, 24, 15, 15, 40, 3, 3), TPU, pass_="weight-gradient", format="bf16"
    ),
    "eyeriss": lambda: gemm(64, 50, 70, "eyeriss"),
    "eyeriss convolution": lambda: conv(Conv(1, 3, 13, 13, 8, 3, 3), "eyeriss"),
}


@pytest.mark.parametrize("name", sorted(OPS))
def test_cells_at_work_do_all_multiply_accumulates(name: str) -> None:
    result = OPS[name]()
    priced = result.priced
    assert priced is not None
    use = cells_of(priced.op, priced.cost, priced.device)
    assert 2 * int(use.macs.sum()) == result.flops
    ax = array_utilisation(result)
    drawn = cells(ax)
    cycles = result.time_s / use.cycle_s
    assert drawn.sum() * use.arrays * cycles == pytest.approx(result.flops / 2, rel=1e-9)
    assert drawn.max() <= 1
    assert drawn.mean() == pytest.approx(result.utilisation, rel=1e-9)
    assert f"mean {drawn.mean():.1%}" in foot(ax)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), *[st.integers(1, 30)] * 3),
    dataflow=st.sampled_from(["os", "ws", "is"]), rows=st.integers(1, 7), columns=st.integers(1, 7),
    parts=st.tuples(*[st.integers(1, 3)] * 4),
)  # fmt: skip
def test_cells_against_every_multiplication(
    sizes: tuple[int, int, int, int], dataflow: Any, rows: int, columns: int,
    parts: tuple[int, int, int, int],
) -> None:  # fmt: skip
    """Each (m, n, k) of every array's part falls on the cell of its place in the tile."""
    expected = np.zeros((rows, columns), np.int64)
    each = [-(-size // part) for size, part in zip(sizes, parts, strict=True)]
    grid = np.indices(sizes).reshape(4, -1)
    within = [grid[axis] % each[axis] for axis in range(4)]  # a part's own numbers
    down, across, _ = layout(dataflow, 1, 2, 3)
    np.add.at(expected, (within[down] % rows, within[across] % columns), 1)
    axes = [[(size, 1)] for size in sizes]
    found = systolic_cells(axes, parts, FoldSchedule(dataflow), rows, columns)
    assert (found == expected).all()


def test_idle_edges_are_marked() -> None:
    result = gemm(64, 60, 100, TPU, format="bf16")
    ax = array_utilisation(result)
    marked = {str(line.get_gid()) for line in ax.lines}
    drawn = cells(ax)
    rows, columns = (int(np.flatnonzero(drawn.sum(axis=a))[-1]) + 1 for a in (1, 0))
    expected = {f"edge rows {rows}"} if rows < 128 else set()
    expected |= {f"edge columns {columns}"} if columns < 128 else set()
    assert expected
    assert marked == expected


def test_engines_without_cells_or_buffers_are_refused() -> None:
    with pytest.raises(RidgelineError, match="of kind tensor-core"):
        array_utilisation(gemm(64, 64, 64, "v100-sxm2-16gb"))
    with pytest.raises(RidgelineError, match="with buffers before its farthest memory"):
        op_gantt(gemm(64, 64, 64, "v100-sxm2-16gb"))
    with pytest.raises(RidgelineError, match="did you mean"):
        draw_op("op-gant", OPS["tpu-v1"]())
    with pytest.raises(RidgelineError, match="at least one tile"):
        op_gantt(OPS["tpu-v1"](), tiles=0)


def test_requests_in_json_price_the_same_op_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["gemm", "96", "80", "72", "--device", "tpu-v2", "--sparsity", "2:4"],
        ["conv", "2", "16", "9", "9", "24", "3", "--device", "tpu-v2", "--pass", "weight-gradient"],
    ):
        assert execute([*words, "--json"]) == 0
        text = capsys.readouterr().out
        again = repeat(json.loads(text)["request"])
        assert json.loads(json.dumps(again.to_dict())) == json.loads(text)
        (tmp_path / "op.json").write_text(text)
        for kind in ("op-gantt", "utilisation"):
            out = str(tmp_path / f"{kind}.png")
            assert execute(["plot", kind, str(tmp_path / "op.json"), "--out", out]) == 0
            assert Path(out).stat().st_size > 10_000
        capsys.readouterr()


def test_a_file_that_is_no_op_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.json").write_text("{}")
    out = str(tmp_path / "x.png")
    assert execute(["plot", "op-gantt", str(tmp_path / "no.json"), "--out", out]) == 2
    assert "JSON of ridgeline gemm --json" in capsys.readouterr().err
    (tmp_path / "no.json").write_text('{"request": {"op": "gemm"}}')
    assert execute(["plot", "op-gantt", str(tmp_path / "no.json"), "--out", out]) == 2
    assert "no request of ridgeline gemm or conv" in capsys.readouterr().err


def test_titles_name_op_and_device() -> None:
    ax = op_gantt(OPS["tpu-v1"]())
    said = " ".join(text.get_text() for text in ax.findobj(Text))
    assert "Tiles of gemm 300x200x700 on tpu-v1" in said.replace("\n", " ")
