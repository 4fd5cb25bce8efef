"""Figure of a run of generation: requests of its steps, and the cache, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.report.figures.style import GRID, SERIES, head, sheet
from ridgeline.study.generation.generate import GenerationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def engine_over_time(found: GenerationResult, ax: Axes | None = None) -> Axes:
    """Draw running and waiting requests of the first replica, and the share of its cache."""
    run, engine = found.runs[0], found.engine
    start = np.array([step.start_s for step in run.steps])
    times = np.append(start, run.makespan_s)

    def over_time(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        values = [float(getattr(step, name)) for step in run.steps]
        return np.array([*values, values[-1]])

    room, most = engine.room_bytes * engine.ranks, engine.rules().most_sequences
    lines = (
        ("running", most, f"running, of at most {most:,}"),
        ("waiting", len(run.records), f"waiting, of {len(run.records):,} requests"),
        ("kv_bytes", room, "taken of the cache"),
    )

    def draw(axes: Axes) -> str:
        handles = [
            axes.step(
                times, over_time(name) / whole, where="post", color=SERIES[k], lw=1.3,
                label=label, gid=name,
            )[0]
            for k, (name, whole, label) in enumerate(lines)
        ]  # fmt: skip
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, run.makespan_s)
        axes.set_xlabel("time, s")
        axes.set_ylabel("share")
        axes.grid(color=GRID, lw=0.6)
        name = f"{engine.prices.model.name} on {engine.devices} x {engine.prices.cluster.name}"
        head(axes, name, handles, columns=3)
        return (
            f"{len(run.records):,} requests of {found.lengths} tokens; the first of"
            f" {found.replicas} replicas."
            if found.replicas > 1
            else f"{len(run.records):,} requests of {found.lengths} tokens."
        )

    return sheet((3.6, 0.8, 0.9, 0.9), draw, "simulated, not measured", ax)
