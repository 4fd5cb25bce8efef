"""What figures draw: the numbers, their units, the stamp, and bytes that do not change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from report.drawn import by_gid, foot, gids, share_of_counted, texts, unit_of
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.kernels.cost import engine_rate, level_bandwidth
from ridgeline.report.figures.result import FIGURES, draw, save
from ridgeline.report.figures.style import COLOURS
from ridgeline.report.result import Result
from ridgeline.workload.graph import Pass
from thoroughly import further, one_in

_drawn: dict[tuple[str, int], Axes] = {}


def shown(kind: str, of: Result) -> Axes:
    """A figure of a result, made once for all tests that only look at it."""
    if (kind, id(of)) not in _drawn:  # results live as long as the session
        _drawn[kind, id(of)] = draw(kind, of)
    return _drawn[kind, id(of)]


# time and energy


@pytest.mark.parametrize(("kind", "unit"), [("time", "s"), ("energy", "J")])
def test_bars_have_the_length_of_the_parts(any_result: Result, kind: str, unit: str) -> None:
    ax = shown(kind, any_result)
    parts = {k: v for k, v in getattr(any_result, f"{kind}_{unit.lower()}").items() if k != "total"}
    (bars,) = [c for c in ax.containers if isinstance(c, BarContainer)]
    scale = unit_of(ax.get_xlabel(), unit)
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
    ax = shown("roofline", any_result)
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


def drawn_ops(ax: Axes, pass_: Pass) -> np.ndarray:
    """Intensity, speed and area of the drawn ops of a pass, sorted."""
    cloud = by_gid(ax, f"ops: {pass_.value}")
    table = np.column_stack([np.asarray(cloud.get_offsets()), cloud.get_sizes()])
    return table[np.lexsort(table.T[::-1])]


def test_ops_are_drawn_with_what_the_timeline_and_the_ledger_say(any_result: Result) -> None:
    """Durations are those of ops alone, FLOPs are read off the ops, bytes off counted events."""
    details = any_result.details
    program = details.timeline.program
    far = details.cluster.device.far_memory
    expected: dict[Pass, list[tuple[float, float, float]]] = {pass_: [] for pass_ in Pass}
    first_rank = np.flatnonzero(program.stream_rank[program.stream] == 0)
    played = {row.label: row for row in details.timeline.rows(first_rank)}
    times = np.bincount(program.label[first_rank], minlength=len(program.label_names))
    for number, op in enumerate(details.lowered.ops):
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
            # Messages beside an op make its task longer; the figure has the op alone.
            duration = details.lowered.op_costs[number].time_s(details.cluster.device)
            assert (1 - 1e-9) * duration < row.end_s - row.start_s < 1.25 * duration
            share = duration * times[program.label[row.task]] / any_result.step_time_s
            expected[op.pass_].append((flops / moved, flops / duration, max(2500 * share, 4.0)))
    ax = shown("roofline", any_result)
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
    ax = shown("roofline", any_result)
    bandwidth = level_bandwidth(device, device.far_memory)
    assert bandwidth is not None
    top = max(
        engine_rate(device, name)
        for cost in any_result.details.lowered.op_costs
        for name in cost.engine_work
    )
    fastest = max([1.0, *(share_of_counted(row) for row in device.achievable)])
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
    ax = shown("roofline", any_result)
    bottom = ax.get_ylim()[0]
    below = sum(int((drawn_ops(ax, pass_)[:, 1] < bottom).sum()) for pass_ in Pass)
    assert (f"Below the frame: {below} small ops" in foot(ax)) == (below > 0)


def test_accumulating_gradients_counts_as_ops_without_arithmetic(
    toy: Result, single: Result
) -> None:
    assert "ops without arithmetic" in foot(shown("roofline", toy))
    assert "ops without arithmetic" not in foot(shown("roofline", single))


# all figures


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_is_stamped_as_simulated_and_has_units(any_result: Result, kind: str) -> None:
    ax = shown(kind, any_result)
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
    numeric = kind in {"roofline", "memory", "power"}  # the other vertical axes carry names
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
    ax = shown(kind, any_result)
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
    with pytest.raises(RidgelineError, match=r"did you mean 'roofline'.*energy, .*, timeline"):
        draw("rofline", result)


@pytest.mark.parametrize("kind", FIGURES)
def test_given_axes_are_drawn_into_and_returned(result: Result, kind: str) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(kind, result, right) is right
    assert figure.axes == [left, right]
    assert not left.texts
    assert not left.collections


@pytest.mark.parametrize("kind", one_in(4, FIGURES))
def test_drawing_leaves_the_global_settings_alone(
    result: Result, tmp_path: Path, kind: str
) -> None:
    before = dict(matplotlib.rcParams)
    save(draw(kind, result), tmp_path / "figure.svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("suffix", "signature", "kinds"),
    [
        ("png", b"\x89PNG", ["roofline"]),
        ("svg", b"<?xml", FIGURES),
        *further(
            ("png", b"\x89PNG", FIGURES), ("pdf", b"%PDF", ["timeline"])
        ),  # it embeds the font
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
import ridgeline, ridgeline.report.result, ridgeline.report.html.result
assert "matplotlib" not in sys.modules
from ridgeline.study.point import Point
from ridgeline.report.figures.result import FIGURES, draw, save
result = Point("lenet5", "dgx1-v100", {{"global_batch": 8}}).simulate()
for kind in FIGURES:
    axes = draw(kind, result)
save(axes, {str(tmp_path / "figure.png")!r})
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
