"""Figures of pipelines, fields, variances and panels; the house style; one function for a kind."""

from __future__ import annotations

import inspect
import math
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ridgeline as rl
from report.drawn import by_gid, foot, gids, texts
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.report.figures.house_style import inline_svg
from ridgeline.report.figures.pipeline import compute_streams, passes
from ridgeline.report.messages import messages
from ridgeline.report.result import Result
from ridgeline.report.sobol import SobolIndices, estimate, of_grid, of_resources
from ridgeline.study.point import Point

ROWS: list[dict[str, Any]] = [
    {"model": "m", "rows": r, "flow": f, "time_s": 1e-3 * (k + 1) * 2.0**r, "energy_j": 9.0 - r + k,
     "time_s.p05": 1e-3 * 2.0**r, "time_s.p95": 9e-3 * 2.0**r, "error": ""}
    for r, (k, f) in product((1, 2, 4), enumerate(("os", "ws")))
]  # fmt: skip


@pytest.fixture(scope="module")
def staged() -> Result:
    plan = {"pipeline": 4, "global_batch": 16, "micro_batch": 2}
    return Point("mlp", "dgx1-v100", plan, software="ideal").simulate()


def test_a_pipeline_shows_every_stage_and_every_message(staged: Result) -> None:
    ax = staged.plot("pipeline")
    played = staged.details.timeline
    streams = compute_streams(played)
    assert len(streams) == len(ax.get_yticks()) == 4
    sent, read = messages(played)
    lines = by_gid(ax, "messages").get_segments()
    assert len(lines) == len(sent) > 0
    unit = played.makespan_s / ax.get_xlim()[1]
    starts = sorted(segment[0][0] * unit for segment in lines)
    assert starts == pytest.approx(sorted(played.start_s[sent].tolist()))
    assert all(played.start_s[read] >= played.start_s[sent])
    for stream in streams:
        shown = sum(float(np.diff(spans).sum()) for spans in passes(played, stream).values())
        busy = float(np.diff(played.busy(stream)).sum())
        assert busy <= shown * (1 + 1e-9) <= busy + played.makespan_s
    assert any("software ideal" in text for text in texts(ax))


def test_titles_name_network_machine_and_stack(staged: Result) -> None:
    for kind in (
        "time",
        "energy",
        "memory",
        "power",
        "roofline",
        "timeline",
        "tornado",
        "pipeline",
    ):
        about = by_gid(staged.plot(kind), "subject").get_text().replace("\n", " ")
        for word in ("mlp", "4 × v100-sxm2-16gb", "dgx1-v100", "ideal, a bound"):
            assert word in about, kind


def ishigami(points: np.ndarray, a: float = 7.0, b: float = 0.1) -> Any:
    x = math.pi * (2 * points - 1)
    return np.sin(x[:, 0]) + a * np.sin(x[:, 1]) ** 2 + b * x[:, 2] ** 4 * np.sin(x[:, 0])


def test_estimated_indices_are_those_of_the_closed_form() -> None:
    """T. Ishigami, T. Homma, ISUMA 1990: indices of the function are known."""
    a, b = 7.0, 0.1
    v1 = 0.5 * (1 + b * math.pi**4 / 5) ** 2
    v2, v13 = a**2 / 8, b**2 * math.pi**8 * 8 / 225
    whole = v1 + v2 + v13
    found = estimate(ishigami, ["x1", "x2", "x3"], samples=4096)
    first = dict(zip(found.inputs, found.first, strict=True))
    total = dict(zip(found.inputs, found.total, strict=True))
    assert first["x1"] == pytest.approx(v1 / whole, abs=0.05)
    assert first["x2"] == pytest.approx(v2 / whole, abs=0.05)
    assert first["x3"] == pytest.approx(0.0, abs=0.05)
    assert total["x1"] == pytest.approx((v1 + v13) / whole, abs=0.05)
    assert total["x3"] == pytest.approx(v13 / whole, abs=0.05)
    assert found.values == 4096 * 5
    assert 0 < found.first_error.max() < 0.05


def test_indices_of_a_grid_are_exact() -> None:
    grid = [(x, y, z) for x in range(4) for y in range(3) for z in range(2)]
    rows = [
        {"x": x, "y": y, "z": z, "sum": 3.0 * x + 5.0 * y, "both": float((x - 1.5) * (y - 1))}
        for x, y, z in grid
    ]
    found = of_grid(rows, ["x", "y", "z"], "sum")
    shares = dict(zip(found.inputs, found.first, strict=True))
    assert shares["x"] == pytest.approx(9 * 1.25 / (9 * 1.25 + 25 * 2 / 3))
    assert found.first == pytest.approx(found.total)
    assert shares["z"] == pytest.approx(0.0)
    assert of_grid(rows, ["x", "y", "z"], "both").first == pytest.approx(0.0)
    assert max(of_grid(rows, ["x", "y", "z"], "both").total) == pytest.approx(1.0)
    with pytest.raises(RidgelineError, match="23 of 24 are there"):
        of_grid(rows[1:], ["x", "y", "z"], "sum")
    with pytest.raises(RidgelineError, match="name all fields"):
        of_grid(rows, ["x", "y"], "sum")
    with pytest.raises(RidgelineError, match="does not vary"):
        of_grid([{**row, "sum": 1.0} for row in rows], ["x", "y", "z"], "sum")


def test_grids_and_estimates_agree() -> None:
    generator = np.random.default_rng(4)
    values = generator.normal(size=(4, 3))

    def function(points: np.ndarray) -> Any:
        return values[(points[:, 0] * 4).astype(int), (points[:, 1] * 3).astype(int)]

    rows = [{"a": i, "b": j, "y": float(values[i, j])} for i in range(4) for j in range(3)]
    exact, near = of_grid(rows, ["a", "b"], "y"), estimate(function, ["a", "b"], 8192)
    assert near.inputs == exact.inputs
    assert near.first == pytest.approx(exact.first, abs=0.05)
    assert near.total == pytest.approx(exact.total, abs=0.05)


def test_estimates_agree_with_salib() -> None:
    sample = pytest.importorskip("SALib.sample.sobol")
    analyze = pytest.importorskip("SALib.analyze.sobol")
    problem = {"num_vars": 3, "names": ["x1", "x2", "x3"], "bounds": [[0, 1]] * 3}
    points = sample.sample(problem, 1024, calc_second_order=False, seed=1)
    theirs = analyze.analyze(problem, ishigami(points), calc_second_order=False, seed=1)
    ours = estimate(ishigami, ["x1", "x2", "x3"], 4096)
    for i, name in enumerate(problem["names"]):
        j = ours.inputs.index(name)
        assert ours.first[j] == pytest.approx(theirs["S1"][i], abs=0.06)
        assert ours.total[j] == pytest.approx(theirs["ST"][i], abs=0.06)


def test_indices_of_a_steps_resources(single: Result) -> None:
    found = of_resources(single, samples=16)
    assert isinstance(found, SobolIndices)
    assert found.total[0] == found.total.max() > 0.3
    assert found.values == 16 * (len(found.inputs) + 2)
    assert np.array_equal(found.total, of_resources(single, samples=16).total)


def test_a_front_goes_in_steps_with_names_where_decades_are_crossed() -> None:
    rows = [{"a": 10.0**k, "b": 1.0 + 3 / (k + 1), "n": f"p{k}"} for k in range(4)] + [
        {"a": 500.0, "b": 4.0, "n": "q"}
    ]
    ax = rl.plot.pareto(rows, x="a", y="b", label="n", title="some net")
    front = by_gid(ax, "front")
    assert front.get_drawstyle() == "steps-post"
    assert np.array_equal(front.get_xdata(), [1, 10, 100, 1000])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert "the horizontal axis is logarithmic" in foot(ax)
    names = [t.get_text() for t in ax.texts if t.get_gid() == "name"]
    assert names
    assert set(names) <= {"p0", "p1", "p2", "p3"}
    assert "some net" in texts(ax)


def test_a_curve_has_a_band_where_rows_state_a_range() -> None:
    ax = rl.plot.curve([row for row in ROWS if row["flow"] == "os"], x="rows", y="time_s")
    band = by_gid(ax, "band").get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(2.0)
    assert band[:, 1].max() == pytest.approx(144.0)
    assert "90 %" in foot(ax)
    plain = [{k: v for k, v in row.items() if not k.endswith("p05")} for row in ROWS]
    assert "band" not in gids(rl.plot.curve(plain, x="rows", y="time_s", by="flow"))


def test_results_are_rows_with_their_plan_and_range(single: Result) -> None:
    ax = rl.plot.curve([single, single], x="plan.global_batch", y="step_time_s")
    assert by_gid(ax, "rows" if "rows" in gids(ax) else "caption") is not None
    assert ax.get_lines()[0].get_xdata()[0] == 64


def test_panels_share_axes_and_say_things_once() -> None:
    ax = rl.plot.curve(ROWS, x="rows", y="time_s", facet="flow", title="a net")
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    panels = [one for one in figure.axes if one.get_title(loc="left")]
    assert [one.get_title(loc="left") for one in panels] == ["os", "ws"]
    assert panels[0].get_ylim() == panels[1].get_ylim()
    stamps = [t for t in figure.findobj() if getattr(t, "get_gid", lambda: None)() == "stamp"]
    assert len(stamps) == 1
    with pytest.raises(RidgelineError, match="too many panels"):
        rl.plot.curve([{**ROWS[0], "n": k} for k in range(13)], x="rows", y="time_s", facet="n")
    with pytest.raises(RidgelineError, match="takes no ax"):
        rl.plot.curve(ROWS, ax, x="rows", y="time_s", facet="flow")


def test_a_heat_map_has_the_values_in_order() -> None:
    ax = rl.plot.heatmap(ROWS, x="rows", y="flow", z="time_s")
    cells = by_gid(ax, "cells").get_array()
    assert cells.tolist() == [[2, 4, 16], [4, 8, 32]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    assert "16" in texts(ax)
    repeated = rl.plot.heatmap(ROWS, x="rows", y="model", z="time_s")
    assert by_gid(repeated, "cells").get_array().tolist() == [[3, 6, 24]]
    assert "median" in foot(repeated)


def test_parallel_coordinates_cross_each_axis_at_the_value() -> None:
    ax = rl.plot.parallel(ROWS, columns="rows,flow", y="time_s")
    lines = by_gid(ax, "rows").get_segments()
    assert len(lines) == len(ROWS)
    crossings = {tuple(np.round(line[:, 1], 6)) for line in lines}
    assert (0.0, 0.0, 0.0) in crossings
    assert (1.0, 1.0, 1.0) in crossings
    assert (round(1 / 3, 6), 0.0, round(2 / 30, 6)) in crossings
    with pytest.raises(RidgelineError, match="2 to 8 columns"):
        rl.plot.parallel(ROWS, columns="time_s", y="time_s")


def test_every_kind_is_a_function_with_described_options() -> None:
    from ridgeline import plot
    from ridgeline.cli.plot_ import plot_
    from ridgeline.study.row_plots import ROW_PLOTS, options_of

    described = inspect.getdoc(plot_) or ""
    known = set(inspect.signature(plot_).parameters)
    for kind, function in plot.KINDS.items():
        assert getattr(plot, kind.replace("-", "_")) is function
        assert function.__doc__
        assert list(inspect.signature(function).parameters)[:2] == ["data", "ax"]
        assert set(options_of(function)) <= known
        assert kind in described
    for kind, function in ROW_PLOTS.items():
        assert options_of(function) == options_of(plot.KINDS[kind])
    for name in known - {"kind", "file"}:
        assert f"\n{name}\n" in described


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["parete", "t.csv"], "did you mean 'pareto'"),
        (["pareto", "t.csv", "--x", "time_s"], "a pareto needs --y"),
        (["pareto", "t.csv", "--x", "rows", "--y", "time_s", "--z", "rows"], "--z is no option"),
        (["roofline", "t.csv", "--x", "rows"], "--x is no option of the figure roofline"),
        (["heatmap", "t.csv", "--x", "rows", "--y", "flow", "--z", "tim"], "no column 'tim'"),
        (["curve", "t.csv", "--x", "rows", "--y", "flow"], "an axis needs numbers"),
        (["sobol", "t.csv", "--y", "time_s"], "need y and by"),
        (["sobol", "t.csv", "--y", "time_s", "--by", "rows"], "name all fields"),
        (["roofline", "t.csv"], "of one result"),
        (["pareto", "t.csv", "--x", "rows", "--y", "time_s", "--load", "x"], "of a network"),
        (["pareto", "t.csv", "--x", "rows", "--y", "time_s", "--model", "x"], "of a saved result"),
        (["run", "t.csv"], "expected a mapping"),
    ],
)  # fmt: skip
def test_mistakes_are_said(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from ridgeline.study.sweep import write_rows

    monkeypatch.chdir(tmp_path)
    write_rows(ROWS, "t.csv")
    assert execute(["plot", *arguments, "--out", "f.png"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not Path("f.png").exists()


def test_the_house_style_ends_with_its_block() -> None:
    before = dict(matplotlib.rcParams)
    with rl.style("dark"):
        assert matplotlib.rcParams["text.color"] == "#e8e8ea"
        assert matplotlib.rcParams["figure.facecolor"] == "none"
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(RidgelineError, match="did you mean 'dark'"):
        rl.style("drak")


def test_figures_in_a_notebook_follow_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[type, Any] = {}
    formatter = SimpleNamespace(for_type=shown.__setitem__, pop=lambda kind, _: shown.pop(kind))
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(8, 24))
    )
    with rl.style():
        assert set(shown) == {Figure, Axes}
        ax = rl.plot.curve(ROWS, x="rows", y="time_s", by="flow")
        text = shown[Axes](ax)
        assert shown[Axes](ax) == inline_svg(ax.get_figure(root=True))  # type: ignore[arg-type]
    assert not shown
    tree = ElementTree.fromstring(text)
    words = "".join(
        "".join(node.itertext()) for node in tree.iter("{http://www.w3.org/2000/svg}text")
    )
    assert "Time over rows" in words
    assert "#222222" not in text
    assert "#ffffff" not in text
    assert "currentColor" in text
    assert tree.attrib["role"] == "img"
    assert "Time over rows" in tree.attrib["aria-label"]
