"""Figure of jobs that share a fabric: the slow-down of each, by placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.report.figures.style import GRID, INK, SERIES, SMALL, head, sheet
from ridgeline.study.jobs.neighbours import Neighbours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_IN = 0.17  # height of a bar


def slowdowns(found: Mapping[str, Neighbours], ax: Axes | None = None) -> Axes:
    """Draw how many times as long the steps of each job take beside its neighbours.

    Parameters
    ----------
    found
        By placement.
    """
    names = [job.name for job in next(iter(found.values())).jobs]
    one = next(iter(found.values()))

    def draw(axes: Axes) -> str:
        width = 0.8 / len(found)
        handles = []
        for k, (placement, of) in enumerate(found.items()):
            places = [i - 0.4 + (k + 0.5) * width for i in range(len(names))]
            values = [job.slowdown for job in of.jobs]
            bars = axes.barh(
                places, [round(value - 1.0, 9) for value in values], width, left=1.0,
                color=SERIES[k % len(SERIES)], label=placement, linewidth=0, gid=placement,
            )  # fmt: skip
            labels = [f"{value:.2f}" for value in values]
            axes.bar_label(bars, labels, padding=3, fontsize=SMALL, color=INK)
            handles.append(bars)
        most = max(job.slowdown for of in found.values() for job in of.jobs)
        axes.set_xlim(1.0, 1.0 + max(0.1, (most - 1.0) * 1.15))
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_xlabel("step time beside the others, over alone")
        head(axes, f"Jobs that share {one.cluster}", handles)  # type: ignore[arg-type]
        fair = ", ".join(f"{placement} {of.fairness:.3f}" for placement, of in found.items())
        return f"Alone: on the same devices, nothing else on the fabric. Jain's index: {fair}."

    height_in = 1.7 + len(names) * (len(found) + 1) * _BAR_IN
    stamp = f"simulated, not measured: {one.name}; {one.level}"
    return sheet((height_in, 0.9, 0.6, 1.0), draw, stamp, ax)
