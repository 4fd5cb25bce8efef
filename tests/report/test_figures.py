"""What figures draw: the numbers, their units, the stamp, and bytes that do not change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.kernels.cost import engine_rate, level_bandwidth
from ridgeline.report.account import union
from ridgeline.report.figures import FIGURES, draw, save
from ridgeline.report.figures_steps import _difference, exposed_communication
from ridgeline.report.result import Result
from ridgeline.report.style import COLOURS
from ridgeline.study.point import Point
from ridgeline.workload.graph import Pass

GIB = 2**30


def by_gid(ax: Axes, gid: str) -> Any:
    (found,) = [artist for artist in ax.get_children() if artist.get_gid() == gid]
    return found


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.findobj(Text)]


def foot(ax: Axes) -> str:
    return " ".join(by_gid(ax, part).get_text().replace("\n", " ") for part in ("caption", "stamp"))


def spans(collection: PolyCollection) -> np.ndarray:
    """Starts and ends of boxes."""
    boxes = [path.vertices[:, 0] for path in collection.get_paths()]
    return np.array([[box.min(), box.max()] for box in boxes])


# time and energy


@pytest.mark.parametrize(("kind", "unit"), [("time", "s"), ("energy", "J")])
def test_bars_have_the_length_of_the_parts(any_result: Result, kind: str, unit: str) -> None:
    ax = draw(kind, any_result)
    parts = {k: v for k, v in getattr(any_result, f"{kind}_{unit.lower()}").items() if k != "total"}
    (bars,) = [c for c in ax.containers if isinstance(c, BarContainer)]
    shown_unit = ax.get_xlabel().rpartition("(")[2].rstrip(")")
    scale = {"": 1.0, "m": 1e-3, "u": 1e-6, "k": 1e3}[shown_unit.removesuffix(unit)]
    assert [bar.get_width() * scale for bar in bars] == pytest.approx(list(parts.values()))
    assert [bar.get_x() for bar in bars] == [0.0] * len(parts)
    assert ax.get_xlim()[0] == 0.0
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        name.replace("_", " ") for name in parts
    ]
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == [COLOURS[n] for n in parts]


def test_bars_are_labelled_with_value_unit_and_share(result: Result) -> None:
    ax = draw("energy", result)
    shown = [text.get_text() for text in ax.texts if isinstance(text, Annotation)]
    for name, value in result.energy_j.items():
        if name != "total":
            label = f"{value:.3g} J  ({value / result.energy_j['total']:.1%})"
            assert label in shown, name


def test_what_rounding_left_over_is_not_shown_as_a_part(result: Result) -> None:
    from dataclasses import replace

    parts = {**result.time_s, "bubble": 1e-17 * result.step_time_s}
    assert "0 ms  (0.0%)" in texts(draw("time", replace(result, time_s=parts)))


# roofline


def test_roofs_and_slopes_are_the_device_s(any_result: Result) -> None:
    ax = draw("roofline", any_result)
    device = any_result.details.cluster.device
    used = {name for cost in any_result.details.lowered.op_costs for name in cost.engine_work}
    bandwidth = level_bandwidth(device, device.far_memory)
    assert bandwidth is not None
    roofs = {g.removeprefix("roof: ") for g in gids(ax) if g.startswith("roof: ")}
    assert roofs == used
    for name in roofs:
        x, y = by_gid(ax, f"roof: {name}").get_data()
        peak = engine_rate(device, name)
        assert list(y) == [peak, peak]
        assert x[0] == pytest.approx(peak / bandwidth)  # the ridge
        assert f"ridge {peak / bandwidth:.3g} FLOP/B" in texts(ax)
        assert any(text.startswith(f"{name} ") and "FLOP/s" in text for text in texts(ax))
    slopes = {g.removeprefix("slope: ") for g in gids(ax) if g.startswith("slope: ")}
    assert slopes == {name for name in device.memory if level_bandwidth(device, name)}
    for name in slopes:
        x, y = by_gid(ax, f"slope: {name}").get_data()
        assert list(y) == pytest.approx([level_bandwidth(device, name) * at for at in x])
        assert y[-1] == pytest.approx(max(engine_rate(device, roof) for roof in roofs))


def test_the_achievable_slope_is_drawn_below_the_peak_and_named(result: Result) -> None:
    ax = draw("roofline", result)
    device = result.details.cluster.device
    far = device.memory[device.far_memory]
    x, y = by_gid(ax, f"achievable: {device.far_memory}").get_data()
    reached = far.bandwidth.value * far.achievable.value
    assert list(y) == pytest.approx([reached * at for at in x])
    assert f"achievable bandwidth, {reached / 1e9:.0f} GB/s" in foot(ax)


def gids(ax: Axes) -> set[str]:
    return {gid for artist in ax.get_children() if (gid := artist.get_gid()) is not None}


def drawn_ops(ax: Axes, pass_: Pass) -> np.ndarray:
    """Intensity, speed and area of the drawn ops of a pass, sorted."""
    cloud = by_gid(ax, f"ops: {pass_.value}")
    table = np.column_stack([np.asarray(cloud.get_offsets()), cloud.get_sizes()])
    return table[np.lexsort(table.T[::-1])]


def test_ops_are_drawn_with_what_the_timeline_and_the_ledger_say(any_result: Result) -> None:
    """Durations are read off the played tasks, FLOPs off the ops, bytes off counted events."""
    details = any_result.details
    program = details.timeline.program
    far = details.cluster.device.far_memory
    expected: dict[Pass, list[tuple[float, float, float]]] = {pass_: [] for pass_ in Pass}
    first_rank = np.flatnonzero(program.stream_rank[program.stream] == 0)
    played = {row.label: row for row in details.timeline.rows(first_rank)}
    times = np.bincount(program.label[first_rank], minlength=len(program.label_names))
    for op in details.lowered.ops:
        flops = op.matrix_flops or op.vector_flops
        row = played[op.name]
        cost = program.cost[row.task]
        events = slice(program.event_ptr[cost], program.event_ptr[cost + 1])
        moved = sum(
            count
            for account, count in zip(
                program.event_account[events], program.event_count[events], strict=True
            )
            if program.accounts[account].place == far
        )
        if flops:
            duration = row.end_s - row.start_s
            share = duration * times[program.label[row.task]] / any_result.step_time_s
            expected[op.pass_].append((flops / moved, flops / duration, max(2500 * share, 4.0)))
    ax = draw("roofline", any_result)
    assert [pass_ for pass_ in Pass if not expected[pass_]] == [Pass.RECOMPUTE]
    for pass_, rows in expected.items():
        table = np.array(rows).reshape(-1, 3)
        drawn = drawn_ops(ax, pass_)
        assert len(drawn) == len(table)
        for column in range(3):
            assert np.sort(drawn[:, column]) == pytest.approx(np.sort(table[:, column]), rel=1e-6)


def test_no_op_is_above_what_bounds_it(any_result: Result) -> None:
    """The slope always bounds; a roof does unless measured kernels do less than is counted."""
    device = any_result.details.cluster.device
    ax = draw("roofline", any_result)
    bandwidth = level_bandwidth(device, device.far_memory)
    assert bandwidth is not None
    top = max(
        engine_rate(device, name)
        for cost in any_result.details.lowered.op_costs
        for name in cost.engine_work
    )
    fastest = max([1.0, *(row.fraction.value for row in device.achievable)])
    above = 0
    for pass_ in Pass:
        x, y, _ = drawn_ops(ax, pass_).T
        assert (y <= bandwidth * x * (1 + 1e-9)).all()
        assert (y <= top * fastest * (1 + 1e-9)).all()
        above += int((y > top * (1 + 1e-9)).sum())
        rings = by_gid(ax, f"ops: {pass_.value}").get_linewidths()
        assert (np.asarray(rings) > 0.5).sum() == (y > top * (1 + 1e-9)).sum()
    assert ("Winograd" in foot(ax)) == (above > 0)
    if not device.achievable:
        assert above == 0


def test_ops_that_are_not_drawn_are_counted(any_result: Result) -> None:
    ax = draw("roofline", any_result)
    bottom = ax.get_ylim()[0]
    below = sum(int((drawn_ops(ax, pass_)[:, 1] < bottom).sum()) for pass_ in Pass)
    assert (f"Below the frame: {below} small ops" in foot(ax)) == (below > 0)


def test_accumulating_gradients_counts_as_ops_without_arithmetic(
    toy: Result, single: Result
) -> None:
    assert "ops without arithmetic" in foot(draw("roofline", toy))
    assert "ops without arithmetic" not in foot(draw("roofline", single))


# timeline


def test_every_task_is_a_box_of_its_length(any_result: Result) -> None:
    ax = draw("timeline", any_result)
    timeline = any_result.details.timeline
    program = timeline.program
    rank = int(program.stream_rank[program.stream[int(np.argmax(timeline.end_s))]])
    streams = np.flatnonzero(program.stream_rank == rank)
    boxes = 0
    for row, stream in enumerate(streams):
        tasks = timeline.tasks_of(stream)
        for kind in np.unique(program.kind[tasks]):
            chosen = tasks[program.kind[tasks] == kind]
            name = program.kind_names[kind]
            drawn = by_gid(ax, f"{program.stream_names[stream]}: {name}")
            expected = np.column_stack([timeline.start_s[chosen], timeline.end_s[chosen]]) * 1e3
            assert spans(drawn) == pytest.approx(expected)
            assert to_hex(drawn.get_facecolor()[0]).upper() == COLOURS[name]
            assert drawn.get_paths()[0].vertices[:, 1].mean() == pytest.approx(row, abs=0.2)
            boxes += len(chosen)
    assert boxes == sum(len(timeline.tasks_of(stream)) for stream in streams)
    assert ax.get_xlim() == pytest.approx((0, timeline.makespan_s * 1e3))


def test_the_rows_are_the_streams_of_one_rank(result: Result, single: Result) -> None:
    names = [label.get_text() for label in draw("timeline", result).get_yticklabels()]
    assert names == ["compute", "network"]
    ax = draw("timeline", single)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["compute"]
    assert "collective" not in texts(ax)
    assert "communication" not in foot(ax)


def test_exposed_communication_is_hatched_for_as_long_as_the_account_says(
    any_result: Result,
) -> None:
    ax = draw("timeline", any_result)
    hatched = [spans(a) for a in ax.get_children() if a.get_gid() == "exposed"]
    drawn_s = sum(float(np.diff(part, axis=1).sum()) for part in hatched) / 1e3
    assert drawn_s == pytest.approx(any_result.time_s["exposed_communication"], abs=1e-12)


def test_exposed_communication_is_there_to_be_seen(result: Result, single: Result) -> None:
    assert result.time_s["exposed_communication"] > 0.1 * result.step_time_s
    assert "exposed communication" in texts(draw("timeline", result))
    assert len(exposed_communication(single.details.timeline, 0)) == 0
    assert "exposed communication" not in texts(draw("timeline", single))


def test_no_collective_is_too_short_to_be_seen() -> None:
    """Boxes are drawn without smoothing: one narrower than a pixel needs a line around it."""
    plan = {"data": 8, "global_batch": 2048, "micro_batch": 16}
    ax = draw("timeline", Point("resnet18", "dgx1-v100", plan).simulate())
    drawn = by_gid(ax, "device0/network: collective")
    lengths = np.diff(spans(drawn), axis=1).ravel()
    lines = np.broadcast_to(drawn.get_linewidth(), lengths.shape)
    pixel = np.diff(ax.get_xlim())[0] / ax.bbox.width
    short = lengths < pixel
    assert short.any()
    assert (lines[short] > 0.5).all()
    assert (lines[lengths > ax.get_xlim()[1] / 100] == 0).all()


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=12)


@given(intervals, intervals)
def test_difference_of_intervals_against_counting_unit_steps(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    def covered(parts: list[tuple[int, int]]) -> set[int]:
        return {moment for start, length in parts for moment in range(start, start + length)}

    def merged(parts: list[tuple[int, int]]) -> np.ndarray:
        table = np.array(parts, np.float64).reshape(-1, 2)
        return union(table[:, 0], table[:, 0] + table[:, 1])

    left = _difference(merged(a), merged(b))
    found = {m for start, end in left.tolist() for m in range(int(start), int(end))}
    assert found == covered(a) - covered(b)
    assert (left[:, 1] > left[:, 0]).all()
    assert (left[1:, 0] > left[:-1, 1]).all()


# memory


def test_layers_of_memory_have_the_area_of_bytes_times_time(any_result: Result) -> None:
    timeline = any_result.details.timeline
    peaks = [rank.peak_bytes for rank in timeline.memory()]
    times, held = timeline.memory_profile(int(np.argmax(peaks)))
    lengths = np.diff(np.append(times, timeline.makespan_s))
    ax = draw("memory", any_result)
    layers = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert len(layers) == len(timeline.program.memory_kinds)
    for layer, kind, sizes in zip(layers, timeline.program.memory_kinds, held.T, strict=True):
        x, y = layer.get_paths()[0].vertices.T
        area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2  # shoelace
        assert area == pytest.approx(np.dot(sizes, lengths) / GIB * 1e3, rel=1e-6, abs=1e-9), kind
        assert to_hex(layer.get_facecolor()[0]).upper() == COLOURS[kind]
    top = max(path.vertices[:, 1].max() for layer in layers for path in layer.get_paths())
    assert top == pytest.approx(any_result.memory_bytes["total"] / GIB)
    (peak_gib,) = by_gid(ax, "peak").get_ydata()
    assert peak_gib == pytest.approx(any_result.memory_bytes["total"] / GIB)


def test_capacity_is_a_line_or_said_to_be_far_above(result: Result, too_large: Result) -> None:
    assert not too_large.fits
    ax = draw("memory", too_large)
    capacity = too_large.memory_bytes["capacity"] / GIB
    assert list(by_gid(ax, "capacity").get_ydata()) == [capacity, capacity]
    assert ax.get_ylim()[1] > too_large.memory_bytes["total"] / GIB > capacity
    assert "does not fit" in ax.get_title(loc="left")
    far = draw("memory", result)
    assert "capacity" not in gids(far)
    assert "capacity 16 GiB (far above this frame)" in texts(far)


# all figures


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_is_stamped_as_simulated_and_has_units(any_result: Result, kind: str) -> None:
    ax = draw(kind, any_result)
    stamp = foot(ax)
    plan = any_result.details.plan
    for part in (
        "simulated, not measured",
        any_result.manifest["model"]["name"],
        any_result.manifest["cluster"]["name"],
        f"global_batch={plan.global_batch}",
        plan.precision,
        any_result.manifest["hash"],
    ):
        assert part in stamp
    assert "(" in ax.get_xlabel()
    numeric = kind in {"roofline", "memory"}  # the other vertical axes carry names
    assert ("(" in ax.get_ylabel()) == numeric
    assert ax.get_title(loc="left")


def visible_texts(ax: Axes) -> list[Text]:
    """All text that is drawn: of tick labels, those within the limits."""
    (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    ticks = {text: left <= text.get_position()[0] <= right for text in ax.get_xticklabels()}
    ticks |= {text: low <= text.get_position()[1] <= high for text in ax.get_yticklabels()}
    minor = {*ax.get_xticklabels(minor=True), *ax.get_yticklabels(minor=True)}
    return [
        text
        for text in ax.findobj(Text)
        if text.get_visible() and text.get_text().strip() and ticks.get(text, text not in minor)
    ]


@pytest.mark.parametrize("kind", FIGURES)
def test_no_text_leaves_the_figure_or_lies_on_other_text(any_result: Result, kind: str) -> None:
    ax = draw(kind, any_result)
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    boxes = [(t, t.get_window_extent().padded(-1)) for t in visible_texts(ax)]
    assert len(boxes) > 8
    for text, box in boxes:
        assert figure.bbox.containsx(box.x0), text
        assert figure.bbox.containsx(box.x1), text
        assert figure.bbox.containsy(box.y0), text
        assert figure.bbox.containsy(box.y1), text
    upright = [(t, b) for t, b in boxes if t.get_rotation() in {0, 90}]  # boxes fit these closely
    for i, (text, box) in enumerate(upright):
        for other_text, other in upright[:i]:
            assert not box.overlaps(other), (text, other_text)


def test_an_unknown_figure_is_refused_with_the_nearest_name(result: Result) -> None:
    with pytest.raises(RidgelineError, match=r"did you mean 'roofline'.*timeline, energy"):
        draw("rofline", result)


@pytest.mark.parametrize("kind", FIGURES)
def test_given_axes_are_drawn_into_and_returned(result: Result, kind: str) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(kind, result, right) is right
    assert figure.axes == [left, right]
    assert not left.texts
    assert not left.collections


def test_drawing_leaves_the_global_settings_alone(result: Result, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for kind in FIGURES:
        save(draw(kind, result), tmp_path / "figure.svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("suffix", "signature", "kinds"),
    [
        ("png", b"\x89PNG", FIGURES),
        ("svg", b"<?xml", FIGURES),
        ("pdf", b"%PDF", ["timeline"]),  # PDF is slow: it embeds the font
    ],
)
def test_equal_figures_make_equal_bytes_without_time_or_version(
    result: Result, tmp_path: Path, suffix: str, signature: bytes, kinds: Iterable[str]
) -> None:
    for kind in kinds:
        paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
        for path in paths:
            save(draw(kind, result), path)
        first, second = (path.read_bytes() for path in paths)
        assert first == second, kind
        assert first.startswith(signature)
        assert matplotlib.__version__.encode() not in first
        assert b"CreationDate" not in first


def test_save_takes_figures_and_axes_and_has_the_size_of_the_figure(
    result: Result, tmp_path: Path
) -> None:
    ax = draw("energy", result)
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    assert isinstance(figure.canvas, FigureCanvasAgg)
    save(ax, tmp_path / "axes.png")
    save(figure, tmp_path / "figure.png")
    header = (tmp_path / "axes.png").read_bytes()
    assert header == (tmp_path / "figure.png").read_bytes()
    width, height = (int.from_bytes(header[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == pytest.approx(figure.get_size_inches() * 150, abs=1)


def test_an_unknown_suffix_is_refused_and_nothing_is_written(
    result: Result, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"'\.bmp' is no format"):
        save(draw("time", result), tmp_path / "figure.bmp")
    assert list(tmp_path.iterdir()) == []


def test_neither_pyplot_nor_a_window_is_asked_for(tmp_path: Path) -> None:
    code = f"""
import sys
import ridgeline, ridgeline.report.result, ridgeline.report.html
assert "matplotlib" not in sys.modules
from ridgeline.study.point import Point
from ridgeline.report.figures import FIGURES, draw, save
result = Point("lenet5", "dgx1-v100", {{"global_batch": 8}}).simulate()
for kind in FIGURES:
    save(draw(kind, result), {str(tmp_path / "figure.png")!r})
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
assert "tkinter" not in sys.modules
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
