"""Figures over the time of a step: boxes, hatching and layers have the sizes of what they show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from report.drawn import by_gid, foot, gids, spans, texts, unit_of
from ridgeline.report.accounting import union
from ridgeline.report.figures.result import draw
from ridgeline.report.figures.steps import _difference, _intersection, exposed_communication
from ridgeline.report.figures.style import COLOURS
from ridgeline.report.result import Result
from ridgeline.study.point import Point

GIB = 2**30

# timeline


def test_every_task_is_a_box_of_its_length(any_result: Result) -> None:
    ax = draw("timeline", any_result)
    one_s = unit_of(ax.get_xlabel())
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
            expected = np.column_stack([timeline.start_s[chosen], timeline.end_s[chosen]]) / one_s
            assert spans(drawn) == pytest.approx(expected)
            assert to_hex(drawn.get_facecolor()[0]).upper() == COLOURS[name]
            assert drawn.get_paths()[0].vertices[:, 1].mean() == pytest.approx(row, abs=0.2)
            boxes += len(chosen)
    assert boxes == sum(len(timeline.tasks_of(stream)) for stream in streams)
    assert ax.get_xlim() == pytest.approx((0, timeline.makespan_s / one_s))


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
    hatched = [spans(a) for a in ax.get_children() if a.get_gid() == "exposed" and a.get_paths()]
    boxes = np.concatenate(hatched) if hatched else np.empty((0, 2))
    whole = union(boxes[:, 0], boxes[:, 1])  # of streams that communicate at once
    drawn_s = float(np.diff(whole, axis=1).sum()) * unit_of(ax.get_xlabel())
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
    one_s, one_byte = unit_of(ax.get_xlabel()), unit_of(ax.get_ylabel(), "B")
    whole = np.dot(held.sum(axis=1), lengths) / one_byte / one_s
    layers = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert len(layers) == len(timeline.program.memory_kinds)
    for layer, kind, sizes in zip(layers, timeline.program.memory_kinds, held.T, strict=True):
        x, y = layer.get_paths()[0].vertices.T
        area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2  # shoelace
        assert area == pytest.approx(
            np.dot(sizes, lengths) / one_byte / one_s, rel=1e-6, abs=1e-9 * whole
        ), kind
        assert to_hex(layer.get_facecolor()[0]).upper() == COLOURS[kind]
    top = max(path.vertices[:, 1].max() for layer in layers for path in layer.get_paths())
    assert top == pytest.approx(any_result.memory_bytes["total"] / one_byte)
    (peak,) = by_gid(ax, "peak").get_ydata()
    assert peak == pytest.approx(any_result.memory_bytes["total"] / one_byte)


def test_capacity_is_a_line_or_said_to_be_far_above(result: Result, too_large: Result) -> None:
    assert not too_large.fits
    ax = draw("memory", too_large)
    capacity = too_large.memory_bytes["capacity"] / GIB
    assert list(by_gid(ax, "capacity").get_ydata()) == [capacity, capacity]
    assert ax.get_ylim()[1] > too_large.memory_bytes["total"] / GIB > capacity
    assert "does not fit" in ax.get_title(loc="left").replace("\n", " ")
    far = draw("memory", result)
    assert "capacity" not in gids(far)
    assert "capacity 16 GiB (far above this frame)" in texts(far)


@given(intervals, intervals)
def test_intersection_of_intervals_against_counting_unit_steps(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    def table(parts: list[tuple[int, int]]) -> np.ndarray:
        return np.array([(s, s + n) for s, n in parts], np.float64).reshape(-1, 2)

    def covered(parts: list[tuple[int, int]]) -> set[int]:
        return {moment for start, length in parts for moment in range(start, start + length)}

    other = union(*table(b).T)
    found = _intersection(table(a), other)
    moments = {m for start, end in found.tolist() for m in range(int(start), int(end))}
    assert moments == covered(a) & covered(b)


def test_every_stream_that_communicates_alone_is_hatched_in_its_row() -> None:
    plan = {"data": 2, "tensor": 2, "pipeline": 2, "global_batch": 8, "micro_batch": 2}
    result = Point("bert-base", "dgx1-v100", {**plan, "precision": "fp16-mixed"}).simulate()
    ax = draw("timeline", result)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len([name for name in names if name.startswith("network")]) > 1
    hatched = [a for a in ax.get_children() if a.get_gid() == "exposed" and a.get_paths()]
    rows = {round(a.get_paths()[0].vertices[:, 1].mean()) for a in hatched}
    assert len(rows) > 1
    assert all(names[row].startswith("network") for row in rows)
    boxes = np.concatenate([spans(a) for a in hatched])
    whole = union(boxes[:, 0], boxes[:, 1])
    drawn_s = float(np.diff(whole, axis=1).sum()) * unit_of(ax.get_xlabel())
    assert drawn_s == pytest.approx(result.time_s["exposed_communication"], rel=1e-9)
