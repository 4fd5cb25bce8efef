"""Figures of what would help: the effect of each resource, and how busy the arithmetic is."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.kernels.cost import engine_rate
from ridgeline.report.figures.fields import draw_sobol
from ridgeline.report.figures.style import (
    COLOURS,
    GRID,
    INK,
    SMALL,
    figure,
    head,
    percent,
    subject,
    text_pt,
    time_axis,
    words,
)
from ridgeline.report.sensitivity import LATENCIES, sensitivity
from ridgeline.report.sobol import of_resources
from ridgeline.units import show
from ridgeline.workload.graph import Pass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.report.result import Result

_SHOWN = 8
_LABELLED = 24  # layers up to which each has its name
_PASSES = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)


@figure("tornado", height_in=3.0, left_in=1.5, top_in=0.6, bottom_in=1.05)
def tornado(result: Result, ax: Axes) -> str:
    """Draw how a step's time changes with twice and with half of each resource."""
    found = sensitivity(result)[:_SHOWN]
    base_s = result.step_time_s
    changes = [abs(time_s - base_s) for one in found for time_s in (one.more_s, one.less_s)]
    unit, unit_s = time_axis(max(changes, default=base_s))
    for i, one in enumerate(found):
        for time_s, colour in ((one.more_s, COLOURS["compute"]), (one.less_s, COLOURS["dram"])):
            ax.barh(i, (time_s - base_s) / unit_s, 0.66, color=colour, linewidth=0)
    from matplotlib.patches import Patch

    head(
        ax,
        f"Sensitivity of a step of {show(base_s, 's')}",
        [
            Patch(color=COLOURS["compute"], label="twice (half the latency)"),
            Patch(color=COLOURS["dram"], label="half (twice the latency)"),
        ],
        columns=2,
        subject=subject(result),
    )
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(found)), [one.resource for one in found])
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.set_xlabel(f"change of the step's time ({unit})")
    best = min(found, key=lambda one: one.more_s)
    return (
        f"{_more_of(best.resource)}: {show(best.more_s, 's')} a step. The same program is "
        "replayed: tilings, algorithms and the plan stay."
    )


def _more_of(resource: str) -> str:
    what = f"the latency of {resource}" if resource == LATENCIES else f"the {resource}"
    return f"{'Half' if resource == LATENCIES else 'Twice'} {what}"


@figure("sobol", height_in=3.0, left_in=1.5, top_in=0.75, bottom_in=1.05)
def sobol(result: Result, ax: Axes) -> str:
    """Draw what share of the variance of a step's time each resource explains, within halves."""
    found = of_resources(result)
    caption = (
        f"Each resource independently between half and twice, uniform in its logarithm; "
        f"{found.values:,} replays of the program, lines are standard errors."
    )
    title = f"Sensitivity of a step of {show(result.step_time_s, 's')}, all resources at once"
    return draw_sobol(ax, found, title, caption, subject(result))


class LayerUtilization(NamedTuple):
    """Layers with matrix work, and the share of the peak rate that each pass of them reaches.

    Attributes
    ----------
    share
        [layers, 3] FLOPs that are issued over peak rate and time; NaN where there is no such pass.
    time_s
        [layers] of one micro-batch.
    """

    layers: tuple[str, ...]
    share: Floats
    time_s: Floats


def busy(result: Result) -> LayerUtilization:
    """Return how busy the engines of matrix work are, by layer and pass."""
    device = result.details.cluster.device
    lowered = result.details.lowered
    done: dict[tuple[str, Pass], float] = defaultdict(float)
    most: dict[tuple[str, Pass], float] = defaultdict(float)
    times: dict[str, float] = {}
    for op, cost in zip(lowered.ops, lowered.op_costs, strict=True):
        if op.loops is None or op.pass_ not in _PASSES or not cost.flops:
            continue
        engine = next(iter(cost.flops))
        time_s = cost.time_s(device)
        done[op.layer, op.pass_] += op.matrix_flops * cost.issued
        most[op.layer, op.pass_] += engine_rate(device, engine) * time_s
        times[op.layer] = times.get(op.layer, 0.0) + time_s
    share = np.full((len(times), len(_PASSES)), np.nan)
    for i, layer in enumerate(times):
        for j, pass_ in enumerate(_PASSES):
            if (layer, pass_) in most:
                share[i, j] = done[layer, pass_] / most[layer, pass_]
    return LayerUtilization(tuple(times), share, np.array(list(times.values())))


@figure("utilisation", height_in=2.75, left_in=1.15, top_in=0.75, bottom_in=1.1)
def utilisation(result: Result, ax: Axes) -> str:
    """Draw how busy the arithmetic is in each layer and pass, a column a layer."""
    found = busy(result)
    columns = len(found.layers)
    from matplotlib.patches import Patch

    drawn = ax.pcolormesh(
        np.arange(columns + 1), np.arange(4), found.share.T, vmin=0, vmax=1, cmap="viridis",
        edgecolors="white", linewidth=0.3 if columns <= 80 else 0,
    )  # fmt: skip
    ax.invert_yaxis()
    ax.set_yticks(np.arange(3) + 0.5, [words(pass_.value) for pass_ in _PASSES], fontsize=SMALL)
    width_pt = ax.bbox.width / ax.figure.dpi * 72
    room = int(width_pt / text_pt(f"{columns}  ", SMALL - 1))
    step = max(1, -(-columns // min(room, _LABELLED)))
    at = np.arange(0, columns, step)
    ax.set_xticks(at + 0.5, [str(i + 1) for i in at], fontsize=SMALL - 1)
    ax.set_xlabel("layer with matrix work (number, in the order of the network)")
    ax.tick_params(length=0)
    shades = [Patch(color=drawn.cmap(level / 5), label=f"{20 * level} %") for level in range(6)]
    head(ax, "Share of the engine's peak rate", shades, subject=subject(result))
    weights = found.time_s
    whole = np.nansum(np.nanmean(found.share, axis=1) * weights) / weights.sum()
    lowest = int(np.nanargmax((1 - np.nanmean(found.share, axis=1)) * weights))
    return (
        f"Over all of them {percent(whole)}, weighted by time; most is lost in layer {lowest + 1}, "
        f"{found.layers[lowest]}. White: no such pass."
    )
