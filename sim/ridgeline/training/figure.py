"""Figures of whole runs: what the job does over time, and what is best over a field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.report.figures.style import COLOURS, GRID, SERIES, head, sheet
from ridgeline.training import goodput
from ridgeline.training.run_study import RunStudy
from ridgeline.training.training_result import TrainingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DAY_S = 86400.0
_BINS = 150
_SPACE_IN = (3.4, 0.9, 0.95, 1.05)
_OTHER = COLOURS["bubble"]


def run_timeline(found: TrainingResult, ax: Axes | None = None) -> Axes:
    """Draw the share of each stretch of time that the first seed's job spends on what.

    Time that training spends on steps which a failure undoes is counted as lost in the caption; it
    looks like training here, as it did to the job.
    """
    edges, shares = binned(found)
    unit, unit_s = ("days", _DAY_S) if edges[-1] > 2 * _DAY_S else ("hours", 3600.0)

    def draw(axes: Axes) -> str:
        names = [name for name in shares if shares[name].max() > 0]
        stops = [name for name in names if name != goodput.PRODUCTIVE]
        stops.sort(key=lambda name: -shares[name].sum())
        shown, rest = stops[:4], stops[4:]
        layers = {goodput.PRODUCTIVE: shares[goodput.PRODUCTIVE]}
        layers |= {name: shares[name] for name in shown}
        if rest:
            layers["other stops"] = np.sum([shares[name] for name in rest], axis=0)
        colours = [*SERIES[: 1 + len(shown)], _OTHER][: len(layers)]
        bottom = np.zeros(len(edges) - 1)
        handles = []
        for (name, values), colour in zip(layers.items(), colours, strict=True):
            steps = axes.stairs(
                bottom + values, edges / unit_s, baseline=bottom, fill=True,
                color=colour, linewidth=0, label=name, gid=name,
            )  # fmt: skip
            handles.append(steps)
            bottom = bottom + values
        axes.set_xlim(0.0, edges[-1] / unit_s)
        axes.set_ylim(0.0, 1.0)
        axes.set_xlabel(f"{unit} since the start of the run")
        axes.set_ylabel("share of the time")
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        head(axes, f"{found.name}: what the job does", handles)
        first = found.outcomes[0]
        lost = first.time_s[goodput.LOST_WORK] / first.wall_s
        return (
            f"Seed {first.seed}: {sum(first.failures.values())} failures, goodput "
            f"{first.goodput:.1%}, work lost to failures {lost:.1%}."
        )

    stamp = f"simulated, not measured: {found.model} on {found.devices} devices of {found.cluster}"
    return sheet(_SPACE_IN, draw, stamp, ax)


def run_costs(found: TrainingResult, ax: Axes | None = None) -> Axes:
    """Draw what a run costs by category, in the mean over its seeds, largest first."""
    costs = found.costs()
    totals = {name: sum(of[name] for of in costs.values()) for name in goodput.CATEGORIES}
    whole = sum(totals.values())
    names = sorted(
        (name for name, cost in totals.items() if cost > _LEAST_COST * whole),
        key=lambda name: totals[name],
    )
    unit = "device-hours" if "device time" in costs else "USD"

    def draw(axes: Axes) -> str:
        left = np.zeros(len(names))
        handles = []
        for (kind, of), colour in zip(costs.items(), SERIES, strict=False):
            values = np.array([of[name] for name in names])
            bars = axes.barh(names, values, left=left, color=colour)
            bars[0].set_label(kind)
            handles.append(bars[0])
            left = left + values
        for place, name in enumerate(names):
            axes.annotate(
                f"{totals[name] / whole:.1%}", (left[place], place), xytext=(3, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xlim(0.0, 1.15 * max(left))
        axes.set_xlabel(unit)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        head(axes, f"{found.name}: what it costs", handles)
        runs = 1 + found.tuning_runs
        more = f" With {found.tuning_runs} tuning runs {runs * whole:,.4g}." if runs > 1 else ""
        return f"One run {whole:,.4g} {unit}, the mean over {len(found.outcomes)} seeds.{more}"

    stamp = f"simulated, not measured: {found.model} on {found.devices} devices of {found.cluster}"
    return sheet(_SPACE_IN, draw, stamp, ax)


_LEAST_COST = 1e-3  # of the whole


def run_study_figure(study: RunStudy, ax: Axes | None = None) -> Axes:
    """Draw throughput, time and energy over the values of a field, each over that of its best.

    Throughput counts as time a sample, so that less is better for all three.
    """
    known = study.known
    best = study.best
    curves = {
        "time a sample": [best["samples_per_s"].samples_per_s / row.samples_per_s for row in known],
        "time to the target": [row.wall_s / best["wall_s"].wall_s for row in known],
        "energy to the target": [row.energy_j / best["energy_j"].energy_j for row in known],
    }

    def draw(axes: Axes) -> str:
        handles = []
        places = range(len(known))
        for (label, values), colour in zip(curves.items(), SERIES, strict=False):
            (line,) = axes.plot(places, values, "o-", color=colour, label=label, markersize=4)
            at = int(np.argmin(values))
            axes.plot([at], [values[at]], "o", color=colour, markersize=9, fillstyle="none")
            handles.append(line)
        axes.set_xticks(places, [f"{row.value}" for row in known])
        axes.set_xlabel(study.field)
        axes.set_ylabel("over the best")
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        head(axes, f"{study.name}: what is best depends on what is asked", handles)
        left_out = len(study.rows) - len(known)
        more = f" Left out, as nothing is known there: {left_out}." if left_out else ""
        return f"Rings: the best of each. Medians over seeds.{more}"

    stamp = f"simulated, not measured: {study.name}"
    return sheet(_SPACE_IN, draw, stamp, ax)


def binned(found: TrainingResult) -> tuple[Floats, dict[str, Floats]]:
    """Return edges in time, (n + 1,), and the share of every bin by category, (n,) each."""
    end_s = found.spans[-1].end_s
    edges = np.linspace(0.0, end_s, _BINS + 1)
    shares = {name: np.zeros(_BINS) for name in goodput.CATEGORIES}
    width_s = end_s / _BINS
    for span in found.spans:
        first = min(int(span.start_s / width_s), _BINS - 1)
        last = min(int(span.end_s / width_s), _BINS - 1)
        for k in range(first, last + 1):
            inside_s = min(span.end_s, edges[k + 1]) - max(span.start_s, edges[k])
            share = max(inside_s, 0.0) / width_s
            shares[span.category][k] += share * (1.0 - span.waiting_share)
            shares[goodput.DATA_LOADING][k] += share * span.waiting_share
    return edges, shares
