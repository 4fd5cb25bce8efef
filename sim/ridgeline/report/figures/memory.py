"""What one device holds while the ops of a step run (`parallel.memory.liveness_profile`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.report.figures.style import COLOURS, FAINT, INK, SMALL, head, sheet, words
from ridgeline.workload.graph import Pass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.parallel.memory.liveness_profile import StepMemory

_SPACE_IN = (3.4, 0.7, 0.62, 1.05)
_GIB = 2.0**30


def held(memory: StepMemory, ax: Axes | None = None) -> Axes:
    """Draw the bytes of each kind while each op runs, the ops side by side in their order."""
    graph = memory.graph
    said = [f"{graph.name}", f"batch {graph.batch}", graph.precision, "one device", "not simulated"]
    return sheet(_SPACE_IN, lambda axes: _draw(memory, axes), " · ".join(said), ax)


def _draw(memory: StepMemory, ax: Axes) -> str:
    ops = memory.graph.ops
    edges = np.arange(len(ops) + 1)
    gib = np.concatenate((memory.held_bytes, memory.held_bytes[-1:])) / _GIB
    layers = ax.stackplot(
        edges,
        gib.T,
        labels=[words(kind) for kind in memory.kinds],
        colors=[COLOURS[kind] for kind in memory.kinds],
        step="post",
        linewidth=0,
    )
    peak = memory.peak["total"] / _GIB
    at = memory.fullest + 0.5
    ax.plot([at], [peak], marker="v", markersize=5, color=INK, linestyle="none", gid="peak")
    top = 1.15 * peak
    for name, first in _begins(memory).items():
        ax.axvline(first, color=FAINT, linewidth=0.8, linestyle=":", gid=f"begin: {name}")
        ax.annotate(
            name, (first, top), xytext=(3, -3), textcoords="offset points", va="top",
            fontsize=SMALL, color=INK,
        )  # fmt: skip
    ax.set_xlim(0, len(ops))
    ax.set_ylim(0, top)
    ax.set_xlabel("ops of a step, in order")
    ax.set_ylabel("memory of a device (GiB)")
    head(ax, f"Memory of {memory.graph.name}: at most {peak:.3g} GiB", layers)
    return (
        f"Triangle: the fullest moment, while {ops[memory.fullest].name} runs. Not counted: "
        "alignment and fragmentation of the allocator, workspaces of libraries."
    )


def _begins(memory: StepMemory) -> dict[str, int]:
    """Where the passes begin."""
    passes = [op.pass_ for op in memory.graph.ops]
    backward = (i for i, p in enumerate(passes) if p not in {Pass.FORWARD, Pass.UPDATE})
    update = (i for i, p in enumerate(passes) if p is Pass.UPDATE)
    found = {"forward": 0, "backward": next(backward, -1), "update": next(update, -1)}
    return {name: at for name, at in found.items() if at >= 0}
