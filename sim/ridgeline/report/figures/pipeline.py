"""The pipeline of a step: what every stage computes when, and the messages between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Floats, Ints
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.figures.steps import boxes
from ridgeline.report.figures.style import (
    COLOURS,
    INK,
    SMALL,
    figure,
    head,
    percent,
    subject,
    time_axis,
    words,
)
from ridgeline.report.messages import messages
from ridgeline.units import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.engine.timeline import Timeline
    from ridgeline.report.result import Result

_CLOSE = 1 / 1500  # of the step: ops of one pass that are nearer to each other are one box
_MOST_MESSAGES = 400
_MOST_RANKS = 64


@figure("pipeline", height_in=3.6, left_in=0.95, top_in=0.9, bottom_in=1.0)
def pipeline(result: Result, ax: Axes) -> str:
    """Draw what all simulated ranks compute, a row each, and the messages between them."""
    from matplotlib.patches import Patch

    played = result.details.timeline
    rows = compute_streams(played)
    shown: set[str] = set()
    for row, stream in enumerate(rows):
        for kind, spans in passes(played, stream).items():
            shown.add(kind)
            boxes(
                ax, played, spans, row, facecolor=COLOURS[kind], edgecolor="none", linewidth=0,
                gid=f"{played.program.stream_names[stream]}: {kind}",
            )  # fmt: skip
    unit, unit_s = time_axis(played.makespan_s)
    drawn = _draw_messages(ax, played, rows, unit_s)
    handles = [Patch(facecolor=COLOURS[k], label=words(k)) for k in COLOURS if k in shown]
    stages = result.details.plan.pipeline
    many = f"{stages} stages" if stages > 1 else "one stage"
    head(
        ax, f"Pipeline of {many}: {show(played.makespan_s, 's', 4)} a step", handles, columns=4,
        subject=subject(result),
    )  # fmt: skip
    program = played.program
    names = [program.stream_names[stream].partition("/")[0] for stream in rows]
    step = max(1, -(-len(rows) // 32))
    ax.set_yticks(range(0, len(rows), step), names[::step], fontsize=SMALL)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, played.makespan_s / unit_s or 1.0)
    ax.set_xlabel(f"time since the step began ({unit})")
    idle = percent(result.time_s["bubble"] / result.step_time_s)
    alike = int(program.rank_multiplicity.sum())
    stood = f"{len(rows)} rows stand for {alike} ranks. " if alike > len(rows) else ""
    cut = len(program.rank_multiplicity) - len(rows)
    more = f" {cut} further ranks are not drawn." if cut > 0 else ""
    return f"{stood}Bubble: {idle} of the step. {drawn}{more}".rstrip()


def compute_streams(played: Timeline) -> list[int]:
    """Return the stream of each rank that computes most, at most so many, by rank."""
    program = played.program
    computing = ~np.isin(
        program.kind,
        [i for i, name in enumerate(program.kind_names) if name in {COLLECTIVE, ISSUE}],
    )
    busy = np.bincount(
        program.stream[computing], played.durations_s[computing], len(program.stream_names)
    )
    found = []
    for rank in range(min(len(program.rank_multiplicity), _MOST_RANKS)):
        mine = np.flatnonzero(program.stream_rank == rank)
        found.append(int(mine[np.argmax(busy[mine])]))
    return found


def passes(played: Timeline, stream: int) -> dict[str, Floats]:
    """Return the [n, 2] spans of each pass on a stream; ops that follow closely are one."""
    program = played.program
    tasks = played.tasks_of(stream)
    kinds = program.kind[tasks]
    found = {}
    for kind in np.unique(kinds).tolist():
        name = program.kind_names[kind]
        if name in {COLLECTIVE, ISSUE}:
            continue
        spans = played.busy(stream)[kinds == kind]
        parted = np.append(True, spans[1:, 0] - spans[:-1, 1] > _CLOSE * played.makespan_s)
        first = np.flatnonzero(parted)
        last = np.append(first[1:], len(spans)) - 1
        found[name] = np.stack((spans[first, 0], spans[last, 1]), axis=1)
    return found


def _draw_messages(ax: Axes, played: Timeline, rows: list[int], unit_s: float) -> str:
    """Draw a line from each message's beginning to its first reader; say what they are."""
    from matplotlib.collections import LineCollection

    program = played.program
    sent, read = messages(played)
    rank_of = program.stream_rank[program.stream]
    row_of = {int(program.stream_rank[stream]): row for row, stream in enumerate(rows)}
    both: Ints = np.stack((sent, read), axis=1)
    both = both[[all(int(rank_of[task]) in row_of for task in pair) for pair in both.tolist()]]
    if not len(both):
        return ""
    if len(both) > _MOST_MESSAGES:
        return f"{len(both):,} messages are too many to draw."
    lines = [
        [
            (float(played.start_s[task]) / unit_s, row_of[int(rank_of[task])])
            for task in pair
        ]
        for pair in both.tolist()
    ]  # fmt: skip
    ax.add_collection(
        LineCollection(lines, colors=INK, linewidths=0.5, alpha=0.6, gid="messages"), autolim=False
    )
    return "Lines: messages, from their beginning to the first op that reads them."
