"""The timeline of a report: every task of every stream, in few bytes.

Times are whole ticks: 2**30 of them are the step. A stream's tasks are stored as the gap before
each and its length. Steps of so many tasks that the file would be too large are thinned: tasks of
one kind that begin within a fraction of the step become one, as long as they are together, so that
busy times stay exact; the fraction is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ridgeline.engine.program import Floats, Ints
from ridgeline.report.figures.style import COLOURS, FAINT, words
from ridgeline.report.html_page.packed import packed, smallest
from ridgeline.report.messages import messages
from ridgeline.units import show

if TYPE_CHECKING:
    from ridgeline.engine.timeline import Timeline

TICKS = 2**30
MOST_TASKS_BYTES = 8_000_000
"""Of all packed tasks together."""
_MOST_MESSAGES = 20_000
_FEWEST_BINS = 2**10


class _Tasks(NamedTuple):
    """Tasks of all streams, one stream after the other: [n] each, `ptr` [streams + 1]."""

    ptr: Ints
    begin: Ints
    end: Ints
    kind: Ints
    label: Ints


def timeline_figure(timeline: Timeline) -> tuple[dict[str, Any], str]:
    """Return the figure as ``report.js`` reads it, and what has to be said beside it."""
    program = timeline.program
    order = np.lexsort((np.arange(len(program.stream_rank)), program.stream_rank))
    found = _tasks(timeline, order)
    arrays, note, names = _fitting(found, timeline)
    kinds = [
        {"name": words(name), "color": COLOURS.get(name, FAINT)} for name in program.kind_names
    ]
    rows, last = [], -1
    for stream in order.tolist():
        rank = int(program.stream_rank[stream])
        device, _, name = program.stream_names[stream].rpartition("/")
        alike = int(program.rank_multiplicity[rank])
        rows.append({"group": device, "alike": alike, "name": name, "first": rank != last})
        last = rank
    figure: dict[str, Any] = {
        "type": "timeline",
        "label": f"Timeline of {len(rows)} streams over {show(timeline.makespan_s, 's', 4)}.",
        "axis": "time since the step began",
        "kinds": kinds,
        "rows": rows,
        "labels": names,
        "span_s": timeline.makespan_s,
        "ticks": TICKS,
        "packed": arrays,
    }
    arrows = _messages(timeline, order)
    if arrows:
        figure["messages"] = arrows
    return figure, note


def _ticks(times_s: Floats, makespan_s: float) -> Ints:
    return np.rint(times_s * (TICKS / (makespan_s or 1.0))).astype(np.int64)


def _tasks(timeline: Timeline, order: Ints) -> _Tasks:
    ptr, of_stream = timeline.tasks_by_stream
    tasks = np.concatenate([of_stream[ptr[s] : ptr[s + 1]] for s in order.tolist()])
    counts = (ptr[1:] - ptr[:-1])[order]
    program = timeline.program
    return _Tasks(
        np.concatenate(([0], np.cumsum(counts))),
        _ticks(timeline.start_s[tasks], timeline.makespan_s),
        _ticks(timeline.end_s[tasks], timeline.makespan_s),
        program.kind[tasks].astype(np.int64),
        program.label[tasks].astype(np.int64),
    )


def _fitting(tasks: _Tasks, timeline: Timeline) -> tuple[dict[str, Any], str, list[str]]:
    """Pack the tasks; with fewer and fewer bins until they are small enough."""
    names = list(timeline.program.label_names)
    arrays, note, bins = _packed(tasks), "", 2**18
    while _size(arrays) > MOST_TASKS_BYTES and bins >= _FEWEST_BINS:
        thinned, counts = thin(tasks, bins)
        several = sorted(set(counts[counts > 1].tolist()))
        label = {count: len(names) + i for i, count in enumerate(several)}
        renamed = thinned._replace(
            label=np.where(
                counts > 1, np.array([label.get(c, 0) for c in counts.tolist()]), thinned.label
            )
        )
        arrays = _packed(renamed)
        note = (
            f"Of {len(tasks.begin):,} tasks, those of one kind that begin within "
            f"{show(timeline.makespan_s / bins, 's', 2)} of each other are drawn as one."
        )
        if _size(arrays) <= MOST_TASKS_BYTES or bins // 4 < _FEWEST_BINS:
            return arrays, note, [*names, *(f"{count} tasks" for count in several)]
        bins //= 4
    return arrays, note, names


def thin(tasks: _Tasks, bins: int) -> tuple[_Tasks, Ints]:
    """Join tasks of one stream and kind that follow each other and begin in the same bin.

    Returns
    -------
    tasks
        With the summed length of those that were joined.
    counts
        [n] How many each stands for.
    """
    stream = np.repeat(np.arange(len(tasks.ptr) - 1), np.diff(tasks.ptr))
    place = tasks.begin // (TICKS // bins)
    parted = np.ones(len(stream), np.bool_)
    parted[1:] = np.diff(stream) | np.diff(tasks.kind) | np.diff(place)
    first = np.flatnonzero(parted)
    length = np.add.reduceat(tasks.end - tasks.begin, first)
    begin = tasks.begin[first]
    counts = np.diff(np.append(first, len(stream)))
    ptr = np.searchsorted(first, tasks.ptr)
    return _Tasks(ptr, begin, begin + length, tasks.kind[first], tasks.label[first]), counts


def _packed(tasks: _Tasks) -> dict[str, Any]:
    before = np.concatenate(([0], tasks.end[:-1]))
    before[tasks.ptr[:-1][tasks.ptr[:-1] < len(before)]] = 0  # a stream begins at 0
    return {
        "ptr": tasks.ptr.tolist(),
        "gap": packed((tasks.begin - before).astype(np.int32)),
        "duration": packed((tasks.end - tasks.begin).astype(np.int32)),
        "kind": packed(smallest(tasks.kind)),
        "label": packed(smallest(tasks.label)),
    }


def _size(arrays: dict[str, Any]) -> int:
    return sum(len(one["data"]) for one in arrays.values() if isinstance(one, dict))


def _messages(timeline: Timeline, order: Ints) -> dict[str, Any]:
    """Return where messages begin and where they are read, in rows and ticks; at most some."""
    sent, read = messages(timeline)
    if not 0 < len(sent) <= _MOST_MESSAGES:
        return {}
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    streams, makespan_s = timeline.program.stream, timeline.makespan_s
    return {
        "from": row_of[streams[sent]].tolist(),
        "to": row_of[streams[read]].tolist(),
        "begin": _ticks(timeline.start_s[sent], makespan_s).tolist(),
        "end": _ticks(timeline.start_s[read], makespan_s).tolist(),
    }
