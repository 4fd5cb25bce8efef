"""Figures of rows: lines told apart, quantities in one unit, and what is best where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from report.drawn import texts
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.report.figures.choice import choice
from ridgeline.report.figures.column_axes import ColumnScale, said, si_label, valued
from ridgeline.report.figures.study import bars, curve, pareto_front, residuals
from ridgeline.report.figures.style import sheet
from ridgeline.study.sweep import write_rows
from ridgeline.units import quantity, unprefixed
from thoroughly import sample_of

Row = dict[str, Any]
ROWS: list[Row] = [
    {"cluster": cluster, "collective.size": size, "algorithm": name, "time_s": time_s, "error": ""}
    for cluster, size, name, time_s in [
        ("A", "1 kB", "ring", 3e-6), ("A", "1 kB", "tree", 1e-6),
        ("A", "1 MB", "ring", 20e-6), ("A", "1 MB", "tree", 50e-6),
        ("B", "1 kB", "ring", 2e-6), ("B", "1 MB", "ring", 7e-3),
    ]
]  # fmt: skip


def cells(ax: Axes) -> dict[tuple[int, int], str]:
    """Names of what is best, by line and column."""
    found = [a.get_gid().rsplit(" ", 2) for a in ax.findobj(Rectangle) if a.get_gid()]
    return {(int(i), int(j)): name for name, i, j in found}


def written(ax: Axes, i: int, j: int) -> list[str]:
    return [
        t.get_text() for t in ax.texts if int(t.get_position()[0]) == j
        and i <= t.get_position()[1] < i + 1
    ]  # fmt: skip


def test_a_cell_has_the_best_its_value_and_how_much_the_next_one_takes() -> None:
    ax = choice(ROWS, "collective.size", "time_s", ["algorithm", "cluster"])
    assert cells(ax) == {(0, 0): "tree", (0, 1): "ring", (1, 0): "ring", (1, 1): "ring"}
    assert written(ax, 0, 0) == ["1 us", "×3.00"]
    assert written(ax, 0, 1) == ["20 us", "×2.50"]
    assert written(ax, 1, 1) == ["7 ms"]  # there is no other
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1 kB", "1 MB"]
    colours = {
        a.get_gid().rsplit(" ", 2)[0]: to_hex(a.get_facecolor())
        for a in ax.findobj(Rectangle) if a.get_gid()
    }  # fmt: skip
    assert len(set(colours.values())) == len(colours) == 2
    assert {"tree", "ring"} <= set(texts(ax))


def test_of_a_rate_the_largest_is_best_and_other_columns_join_a_line() -> None:
    rows = [{**row, "busbw_bytes_per_s": 1 / row["time_s"]} for row in ROWS]
    of_rate = cells(choice(rows, "collective.size", "busbw_bytes_per_s", ["algorithm", "cluster"]))
    assert of_rate == cells(choice(rows, "collective.size", "time_s", ["algorithm", "cluster"]))
    together = choice(ROWS, "collective.size", "time_s", ["cluster"])
    assert cells(together) == {(0, 0): "A", (0, 1): "A"}


@sample_of(7, 25, st.dictionaries(
    st.tuples(st.sampled_from("pqr"), st.integers(1, 4), st.sampled_from("xyz")),
    st.floats(1e-6, 1e3), min_size=1,
))  # fmt: skip
def test_no_choice_beats_the_one_drawn(table: dict[tuple[str, int, str], float]) -> None:
    rows = [
        {"line": line, "n": n, "name": name, "step_time_s": value, "error": ""}
        for (line, n, name), value in table.items()
    ]
    drawn = cells(choice(rows, "n", "step_time_s", ["name", "line"]))
    lines, places = list(dict.fromkeys(line for line, _, _ in table)), {n for _, n, _ in table}
    assert set(drawn) == {
        (lines.index(line), sorted(places).index(n)) for line, n, _ in table
    }  # fmt: skip
    for (i, j), name in drawn.items():
        at = {k[2]: v for k, v in table.items() if k[:2] == (lines[i], sorted(places)[j])}
        assert at[name] == min(at.values())


def test_more_than_can_be_read_is_refused() -> None:
    rows = [{**ROWS[0], "collective.size": f"{n} kB"} for n in range(1, 20)]
    with pytest.raises(RidgelineError, match=r"19 values of .* are too many"):
        choice(rows, "collective.size", "time_s", ["algorithm"])
    rows = [{**ROWS[0], "collective.size": f"{n} kB", "algorithm": f"a{n}"} for n in range(1, 9)]
    with pytest.raises(RidgelineError, match="8 choices"):
        choice(rows, "collective.size", "time_s", ["algorithm"])


def test_two_columns_are_told_by_colour_and_by_dashes() -> None:
    rows = [
        {"plan.global_batch": n, "bandwidth": f"{gb} GB/s", "count": count, "time_s": n / gb}
        for n in (1, 2, 4) for gb in (450, 900) for count in (2, 4)
    ]  # fmt: skip
    ax = curve(rows, "plan.global_batch", "time_s", ["bandwidth", "count"])
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in ax.get_lines()}
    assert len(looks) == 4
    assert len(set(looks.values())) == 4
    assert len({colour for colour, _ in looks.values()}) == 2
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "bandwidth 450 GB/s", "bandwidth 900 GB/s", "count 2", "count 4",
    ]  # fmt: skip
    for line in ax.get_lines():
        gb = float(str(line.get_label()).split()[1])
        assert list(line.get_ydata()) == pytest.approx([1e3 * n / gb for n in (1, 2, 4)])
    assert ax.get_ylim()[0] == 0


def test_a_line_joins_the_medians_of_rows_that_differ_in_something_else() -> None:
    rows = [{"n": n, "other": k, "time_s": n * k} for n in (1, 2, 4) for k in (1.0, 2.0, 6.0)]
    ax = curve(rows, "n", "time_s")
    (line,) = ax.get_lines()
    assert list(line.get_xdata()) == [1, 2, 4]
    assert list(line.get_ydata()) == pytest.approx([2e3, 4e3, 8e3])  # ms
    (points,) = ax.collections
    assert len(points.get_offsets()) == 9
    said = " ".join(text.get_text() for text in ax.figure.findobj(Text))
    assert "lines join medians" in " ".join(said.split())


def test_quantities_stand_in_one_unit_whatever_their_prefixes() -> None:
    rows = [{"s": "1 MB"}, {"s": "500 kB"}, {"s": "0.002 GB"}]
    scale = ColumnScale.of("s", rows)
    assert [scale.number(row) for row in rows] == pytest.approx([1.0, 0.5, 2.0])
    assert scale.label == "s (MB)"
    ax = curve([{**row, "time_s": 1.0} for row in ROWS], "collective.size", "time_s")
    ax.figure.canvas.draw()
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert {"1 kB", "1 MB"} <= set(ticks)
    assert ax.get_xlabel() == "size"  # each tick has its unit
    (line,) = ax.get_lines()
    assert sorted(set(line.get_xdata())) == pytest.approx([1, 1000])


@pytest.mark.parametrize(
    ("unit", "bare"),
    [("GB/s", "B/s"), ("us", "s"), ("s", "s"), ("min", "min"), ("GiB", "B"), ("mm2", "m2"),
     ("pJ/bit", "J/bit"), ("TFLOP/s", "FLOP/s"), ("h", "h")],
)  # fmt: skip
def test_a_unit_without_its_prefix(unit: str, bare: str) -> None:
    assert unprefixed(unit) == bare
    assert quantity(f"1 {bare}") > 0


def test_values_that_say_little_stand_with_their_column() -> None:
    assert valued("plan.data", 4) == "data 4"
    assert valued("cluster.device.memory.hbm.bandwidth", "1800 GB/s") == "hbm bandwidth 1.8 TB/s"
    assert valued("plan.precision", "fp16-mixed") == "fp16-mixed"
    assert said("Ring(4, 1 GB/s, 1 us)", "cluster") == "Ring(4, 1 GB/s, 1 us)"


@pytest.mark.parametrize("theme", ["screen", "print"])
def test_the_command_draws_a_choice_whose_words_fit(
    tmp_path: Any, theme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.report.figures.themes import theme as themed

    with themed(theme):
        ax = choice(ROWS, "collective.size", "time_s", ["algorithm", "cluster"])
    figure = ax.figure
    figure.canvas.draw()
    for text in ax.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
    write_rows(ROWS, tmp_path / "rows.csv")
    out = tmp_path / "choice.png"
    asked = ["plot", "choice", str(tmp_path / "rows.csv"), "--x", "size", "--y", "time_s"]
    assert execute([*asked, "--by", "algorithm,cluster", "--out", str(out), "--theme", theme]) == 0
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert execute([*asked, "--out", str(out)]) == 2
    assert "--by" in capsys.readouterr().err


def test_rows_that_do_not_fit_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"batch": n, "step_time_s": n * 1e-3, "feasible": n < 4} for n in (1, 2, 4)]
    write_rows(rows, tmp_path / "rows.csv")
    asked = ["plot", "curve", str(tmp_path / "rows.csv"), "--x", "batch", "--y", "step_time_s"]
    assert execute([*asked, "--out", str(tmp_path / "a.png")]) == 0
    assert "1 of 3 rows" in capsys.readouterr().err
    write_rows(rows[:2], tmp_path / "rows.csv")
    assert execute([*asked, "--out", str(tmp_path / "a.png")]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "values", "label", "numbers"),
    [
        ("step_time_s", [2e-6, 4e-6], "step time (us)", [2, 4]),
        ("step_time_s", [0.002, 4.0], "step time (ms)", [2, 4000]),
        ("step_time_s", [5e6, 1.0], "step time (s)", [5e6, 1]),
        ("energy_j.total", [3e-5, 1e-9], "energy total (uJ)", [30, 0.001]),
        ("energy_j.total", [-2e9], "energy total (MJ)", [-2000]),
        ("memory_bytes.total", [2.0**21], "memory total (MiB)", [2]),
        ("bandwidth_bytes_per_s", [0.0], "bandwidth (GB/s)", [0]),
    ],
)
def test_a_unit_is_chosen_in_which_the_largest_value_can_be_read(
    column: str, values: list[float], label: str, numbers: list[float]
) -> None:
    rows = [{column: value} for value in values]
    scale = ColumnScale.of(column, rows)
    assert scale.label == label
    assert [scale.number(row) for row in rows] == pytest.approx(numbers)


def test_words_are_no_numbers_of_an_axis() -> None:
    with pytest.raises(RidgelineError, match="cluster is 'A' in a row: an axis needs numbers"):
        curve(ROWS, "cluster", "time_s")


def test_values_below_zero_are_drawn_and_zero_is_marked() -> None:
    rows = [{"n": n, "saved": saved} for n, saved in ((-2, -3.0), (1, 0.5), (4, 2.0))]
    ax = curve(rows, "n", "saved")
    assert ax.get_ylim()[0] < -3.0
    assert [line.get_gid() for line in ax.get_lines()].count("zero") == 1
    assert any("horizontal line is at 0" in text for text in texts(ax))
    ax = pareto_front(rows, rows[:1], "n", "saved")
    assert ax.get_xlim()[0] < -2
    assert ax.get_ylim()[0] < -3
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["front", "beaten by another row"]


def test_values_over_decades_are_drawn_on_a_logarithmic_axis_beside_a_linear_one() -> None:
    rows = [{"n": n, "name": name, "time_s": 1e-3 * 10**n} for n in range(5) for name in "ab"]
    ax = curve(rows, "n", "time_s", "name")
    assert ax.get_yscale() == "log"
    (inner,) = ax.child_axes
    assert inner.get_yscale() == "linear"
    assert inner.get_ylim()[0] == 0
    assert [list(line.get_ydata()) for line in inner.get_lines()] == [
        list(line.get_ydata()) for line in ax.get_lines()
    ]
    assert any("logarithmic; small frame" in text for text in texts(ax))
    assert curve(rows[:6], "n", "time_s", "name").get_yscale() == "linear"


def test_long_names_are_broken_and_stay_inside() -> None:
    long = "a-cluster-with-a-name-that-is-much-longer-than-a-figure-for-a-column-of-a-paper-is-wide"
    rows = [
        {"cluster": f"{long}-{i}", "n": n, "time_s.compute": 1.0, "time_s.total": 1.0, "time_s": n}
        for i in range(2) for n in (1, 2)
    ]  # fmt: skip
    drawn = (
        bars(rows, "time", ["cluster", "n"]), curve(rows, "n", "time_s", "cluster"),
        sheet((3, 1, 1, 1), lambda axes: long, "stamp"),
    )  # fmt: skip
    for ax in drawn:
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.canvas.draw()
        outside = set(ax.get_xticklabels())  # ticks beyond the frame are not drawn
        for text in set(figure.findobj(Text)) - outside:
            if text.get_text() and text.get_visible():
                box = text.get_window_extent()
                assert box.x0 >= 0, text
                assert box.x1 <= figure.bbox.width, text


def test_residuals_name_their_unit_and_what_cannot_be_drawn() -> None:
    rows: list[Row] = [
        {"measured": m, "predicted": p, "quantity": "step_time_s"}
        for m, p in ((1.0, 1.2), (0.0, 1.0), (2.0, 0.0), (3.0, 3.0))
    ]
    ax = residuals(rows)
    assert ax.get_xlabel() == "measured step time (s)"
    (points,) = (line for line in ax.get_lines() if line.get_gid() == "rows")
    assert list(points.get_xdata()) == [1.0, 3.0]
    assert any("Not drawn: 2 with a value" in text for text in texts(ax))
    with pytest.raises(RidgelineError, match="above 0"):
        residuals(rows[1:3])
    assert si_label("samples_per_s") == "throughput (samples/s)"
    assert si_label("bubble rate") == "bubble rate"
    several = residuals([{**rows[0], "quantity": name} for name in "abc"])
    assert several.get_ylabel() == "predicted values of 3 quantities (SI units)"


@pytest.mark.parametrize("names", [("cells", "step_time_s"), ("time_s", "cells")])
def test_large_numbers_at_an_axis_are_whole_and_apart(names: tuple[str, str]) -> None:
    rows = [{names[0]: 2**n, names[1]: 1.0 / n} for n in range(12, 23)]
    for ax in (curve(rows, *names), pareto_front(rows, rows, *names)):
        ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        shown = [
            label for value, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
            if low <= value <= high
        ]  # fmt: skip
        assert len(shown) >= 3
        assert not any("e" in label.get_text() for label in shown)
        assert ax.xaxis.get_offset_text().get_text() == ""
        boxes = [label.get_window_extent() for label in shown]
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_bars_write_large_numbers_in_full() -> None:
    rows: list[Row] = [
        {"plan.global_batch": batch, "time_s.compute": 3000.0, "time_s.total": 3000.0}
        for batch in (65536, 1048576)
    ]
    ax = bars(rows, "time", ["plan.global_batch"])
    assert "2,800" in {label.get_text() for label in ax.get_xticklabels()}
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["global batch 65,536", "global batch 1,048,576"]
