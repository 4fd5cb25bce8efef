"""Figures over the time of a step: what runs on every stream, and what lies in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ridgeline.engine.program import Floats
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.accounting import critical_rank, union
from ridgeline.report.figures.style import (
    COLOURS,
    INK,
    PAPER,
    SMALL,
    figure,
    head,
    percent,
    subject,
    time_axis,
    words,
)
from ridgeline.report.power_track import power_track
from ridgeline.units import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.engine.timeline import Timeline
    from ridgeline.report.result import Result

_LABELS = {ISSUE: "launches of the host"}
_SIZES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_FAR = 4.0  # a capacity of more peaks than this is written, not drawn
_BAR = 0.64  # of a row's height
_HAIR = 0.6  # points around a short collective, so that none is too short to be seen
_FEW = 150  # tasks of a stream that are parted from each other; more would be a grey wash
_WIDE = 1 / 250  # of the step: the least task that is parted from the one before


@figure("timeline", height_in=2.9, left_in=0.85, top_in=0.8, bottom_in=0.98)
def timeline(result: Result, ax: Axes) -> str:
    """Draw what runs when on each stream of the rank that finishes last, coloured by pass.

    Communication is hatched while the rank's other streams are idle: nothing hides it.
    """
    from matplotlib.patches import Patch

    played = result.details.timeline
    program = played.program
    rank = critical_rank(played)
    streams = np.flatnonzero(program.stream_rank == rank).tolist()
    shown: set[str] = set()
    for row, stream in enumerate(streams):
        shown |= _draw_stream(ax, played, stream, row)
    handles = [
        Patch(facecolor=COLOURS[kind], label=_LABELS.get(kind, words(kind)))
        for kind in COLOURS
        if kind in shown
    ]
    exposed = exposed_communication(played, rank)
    if len(exposed):
        for row, stream in enumerate(streams):
            talk = _intersection(_spans(played, stream, collectives=True), exposed)
            hatched = {"facecolor": "none", "edgecolor": PAPER, "hatch": "//////", "linewidth": 0}
            boxes(ax, played, talk, row, **hatched, gid="exposed")
        handles.append(
            Patch(
                facecolor=COLOURS[COLLECTIVE],
                edgecolor=PAPER,
                hatch="//////",
                linewidth=0,
                label="exposed communication",
            )
        )
    device = program.stream_names[streams[0]].partition("/")[0]
    alike = int(program.rank_multiplicity[rank])
    title = f"One step on {device}" + (f", one of {alike} alike" if alike > 1 else "")
    head(
        ax,
        f"{title}: {show(played.makespan_s, 's')}",
        handles,
        columns=4 if len(handles) <= 4 else 3,
        subject=subject(result),
    )
    names = [program.stream_names[stream].rpartition("/")[2] for stream in streams]
    ax.set_yticks(range(len(streams)), [name.replace("-to-", "\nto ") for name in names])
    ax.set_ylim(len(streams) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    unit, unit_s = time_axis(played.makespan_s)
    ax.set_xlim(0, played.makespan_s / unit_s or 1.0)
    ax.set_xlabel(f"time since the step began ({unit})")
    idle, exposed_s = (result.time_s[part] for part in ("bubble", "exposed_communication"))
    caption = f"Idle: {percent(idle / result.step_time_s)} of the step"
    if COLLECTIVE in shown:
        caption += f"; communication that nothing hides: {percent(exposed_s / result.step_time_s)}"
    return caption + "."


def exposed_communication(played: Timeline, rank: int) -> Floats:
    """Return the [n, 2] intervals in which a rank communicates and computes nothing."""
    streams = np.flatnonzero(played.program.stream_rank == rank).tolist()
    work, talk = (
        np.concatenate([_spans(played, stream, collectives=wanted) for stream in streams])
        for wanted in (False, True)
    )
    return _difference(union(talk[:, 0], talk[:, 1]), union(work[:, 0], work[:, 1]))


def _spans(played: Timeline, stream: int, *, collectives: bool) -> Floats:
    """Return the [n, 2] intervals of a stream's collectives, or those of its ops."""
    program = played.program
    wanted = np.array(
        [
            (name == COLLECTIVE) if collectives else name not in {COLLECTIVE, ISSUE}
            for name in program.kind_names
        ]
    )
    tasks = played.tasks_of(stream)
    chosen = tasks[wanted[program.kind[tasks]]]
    return np.stack((played.start_s[chosen], played.end_s[chosen]), axis=1)


@figure("memory", height_in=3.5, left_in=0.7, top_in=0.62, bottom_in=1.1)
def memory(result: Result, ax: Axes) -> str:
    """Draw the memory of the fullest rank over a step, by kind, below the capacity."""
    played = result.details.timeline
    ranks = played.memory()
    rank = max(range(len(ranks)), key=lambda r: ranks[r].peak_bytes)
    times, held = played.memory_profile(rank)
    kinds = played.program.memory_kinds
    unit, unit_s = time_axis(played.makespan_s)
    moments = np.append(times, max(played.makespan_s, times[-1])) / unit_s
    of, of_bytes = next((one for one in _SIZES if ranks[rank].peak_bytes >= one[1]), _SIZES[-1])
    layered = np.concatenate((held, held[-1:])) / of_bytes
    layers = ax.stackplot(
        moments,
        layered.T,
        labels=[words(kind) for kind in kinds],
        colors=[COLOURS[kind] for kind in kinds],
        step="post",
        linewidth=0,
    )
    peak, capacity = ranks[rank].peak_bytes / of_bytes, result.memory_bytes["capacity"] / of_bytes
    at = ranks[rank].peak_s / unit_s
    ax.plot([at], [peak], marker="v", markersize=5, color=INK, linestyle="none", gid="peak")
    capacity_gib = result.memory_bytes["capacity"] / 2**30
    # A capacity far above would press all that there is to see onto the axis.
    far = capacity > _FAR * peak
    top = 1.3 * peak if far else 1.15 * max(peak, capacity)
    if not far:
        ax.axhline(capacity, color=INK, linestyle="--", linewidth=1, gid="capacity")
    ax.annotate(
        f"capacity {capacity_gib:.4g} GiB" + (" (far above this frame)" if far else ""),
        (0, top if far else capacity),
        xytext=(4, -3 if far else 3),
        textcoords="offset points",
        va="top" if far else "bottom",
        fontsize=SMALL,
    )
    ax.set_xlim(0, moments[-1] or 1.0)
    ax.set_ylim(0, top or 1.0)
    ax.set_xlabel(f"time since the step began ({unit})")
    ax.set_ylabel(f"memory of a device ({of})")
    verdict = "fits" if result.fits else "does not fit"
    title = f"Memory over a step: at most {peak:.4g} {of} of {capacity_gib:.4g} GiB, {verdict}"
    head(ax, title, layers, subject=subject(result))
    return (
        f"Triangle: the fullest moment, at {show(ranks[rank].peak_s, 's')}. Not counted: alignment "
        "and fragmentation of the allocator, workspaces of libraries."
    )


def _draw_stream(ax: Axes, played: Timeline, stream: int, row: int) -> set[str]:
    """Draw the tasks of a stream, one collection for each kind; return the kinds."""
    program = played.program
    tasks = played.tasks_of(stream)
    spans, kinds = played.busy(stream), program.kind[tasks]
    wide = spans[:, 1] - spans[:, 0] >= _WIDE * played.makespan_s
    shown = {program.kind_names[kind]: kind for kind in np.unique(kinds).tolist()}
    for name, kind in shown.items():
        boxes(
            ax,
            played,
            spans[kinds == kind],
            row,
            facecolor=COLOURS[name],
            edgecolor=COLOURS[name],
            linewidth=np.where(wide[kinds == kind] | (name != COLLECTIVE), 0.0, _HAIR),
            antialiased=False,
            gid=f"{program.stream_names[stream]}: {name}",
        )
    if len(tasks) <= _FEW:
        parted = np.append(False, spans[1:, 0] <= spans[:-1, 1]) & wide
        starts = spans[parted, 0] / time_axis(played.makespan_s)[1]
        ax.vlines(starts, row - _BAR / 2, row + _BAR / 2, PAPER, linewidth=0.6)
    return set(shown)


def boxes(ax: Axes, played: Timeline, spans_s: Floats, row: int, **style: Any) -> None:
    """Draw [n, 2] starts and ends as boxes in a row."""
    from matplotlib.collections import PolyCollection

    spans = spans_s / time_axis(played.makespan_s)[1]
    low, high = np.full(len(spans), row - _BAR / 2), np.full(len(spans), row + _BAR / 2)
    start, end = spans[:, 0], spans[:, 1]
    corners = np.stack(
        [np.stack(pair, axis=1) for pair in ((start, low), (end, low), (end, high), (start, high))],
        axis=1,
    )
    ax.add_collection(PolyCollection(list(corners), **style), autolim=False)


def _difference(a: Floats, b: Floats) -> Floats:
    """Return the parts of intervals `a` that `b` leaves open; both disjoint and in order."""
    knots = np.unique(np.concatenate((a.ravel(), b.ravel())))
    middle = (knots[1:] + knots[:-1]) / 2
    left = _inside(middle, a) & ~_inside(middle, b)
    return union(knots[:-1][left], knots[1:][left])


def _intersection(a: Floats, b: Floats) -> Floats:
    """Return the parts that intervals `a`, in any order, and `b` have in common."""
    whole = union(a[:, 0], a[:, 1])
    return _difference(whole, _difference(whole, b))


def _inside(moments: Floats, intervals: Floats) -> npt.NDArray[np.bool_]:
    started = np.searchsorted(intervals[:, 0], moments, "right")
    ended = np.searchsorted(intervals[:, 1], moments, "right")
    return started > ended


@figure("power", height_in=3.5, left_in=0.7, top_in=0.62, bottom_in=1.1)
def power(result: Result, ax: Axes) -> str:
    """Draw the mean power of a device over a step, below its limit."""
    details, played = result.details, result.details.timeline
    devices = details.plan.devices
    track = power_track(played, details.cluster.device.idle_power.value, devices)
    unit, unit_s = time_axis(played.makespan_s)
    drawn_w = track.power_w / devices
    edges = track.times_s / unit_s
    ax.stairs(drawn_w, edges, fill=True, color=COLOURS["compute"], gid="power")
    mean_w = track.energy_j / (played.makespan_s or 1.0) / devices
    ax.axhline(mean_w, color=INK, linewidth=1, gid="mean")
    limit = details.cluster.device.board_limit
    top_w = float(drawn_w.max(initial=0.0))
    if limit is not None:
        ax.axhline(limit.value, color=INK, linestyle="--", linewidth=1, gid="limit")
        top_w = max(top_w, limit.value)
    ax.set_xlim(0, track.times_s[-1] / unit_s or 1.0)
    ax.set_ylim(0, 1.1 * top_w or 1.0)
    ax.set_xlabel(f"time since the step began ({unit})")
    ax.set_ylabel("power of a device (W)")
    title = f"Power over a step: {mean_w:,.0f} W a device in the mean"
    head(ax, title, subject=subject(result))
    limited = "" if limit is None else f" Dashed: the limit of the board, {show(limit.value, 'W')}."
    return f"Line: the mean. A task draws its energy evenly from start to end.{limited}"
