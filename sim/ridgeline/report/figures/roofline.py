"""The roofline of a result: its ops against what the device's engines and memory allow.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.lines import Line2D

from ridgeline.kernels.cost import engine_rate, level_bandwidth
from ridgeline.report.figures.line_names import level_name, slope_name
from ridgeline.report.figures.style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    SMALL,
    figure,
    head,
    percent,
    subject,
)
from ridgeline.report.op_times import op_times
from ridgeline.units import show
from ridgeline.workload.graph import Pass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.hardware.device import Device
    from ridgeline.report.result import Result

_AREA = 2500.0  # of a marker that takes the whole step, in square points
_LEAST_AREA = 4.0
_LEAST_SHARE = 1e-3  # ops with less of the step do not stretch the frame


class RooflinePoint(NamedTuple):
    """One op in the roofline's plane.

    Attributes
    ----------
    flop_per_byte
        FLOPs of the op's main engine over its bytes at the farthest memory.
    flop_per_s
        The same FLOPs over the op's time.
    share
        Of the step time, over all micro-batches.
    """

    flop_per_byte: float
    flop_per_s: float
    share: float
    pass_: Pass
    engine: str
    op: str


def points(result: Result) -> list[RooflinePoint]:
    """Return a point for every op that does arithmetic.

    An op with a fused epilogue counts by its main engine alone, whose roof bounds it.
    """
    far = result.details.cluster.device.far_memory
    found = []
    for op, cost, time_s, step_s in op_times(result):
        engine, flops = next(iter(cost.flops.items()), ("", 0.0))
        if flops and cost.traffic_bytes[far]:
            share = step_s / result.step_time_s
            x = flops / cost.traffic_bytes[far]
            found.append(RooflinePoint(x, flops / time_s, share, op.pass_, engine, op.name))
    return found


@figure("roofline", height_in=4.4, left_in=0.72, top_in=0.62, bottom_in=1.22)
def roofline(result: Result, ax: Axes) -> str:
    """Draw FLOP/s over arithmetic intensity: roofs, memory slopes, and the ops of the step."""
    device = result.details.cluster.device
    shown = points(result)
    roofs = {name: engine_rate(device, name) for name in sorted({p.engine for p in shown})}
    _frame(ax, device, shown, roofs)
    _draw_slopes(ax, device, max(roofs.values(), default=0.0))
    _draw_roofs(ax, device, roofs)
    _draw_points(ax, shown, roofs)
    ax.set_xlabel(f"arithmetic intensity (FLOP per byte of {device.far_memory})")
    ax.set_ylabel("speed of an op (FLOP/s)")
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=COLOURS[name], label=name)
        for name in Pass
        if any(p.pass_ is name for p in shown)
    ]
    head(
        ax,
        f"Roofline of {result.manifest['model']['name']} on {device.name}",
        handles,
        subject=subject(result),
    )
    return _caption(result, ax, shown, roofs)


def _caption(result: Result, ax: Axes, shown: list[RooflinePoint], roofs: dict[str, float]) -> str:
    """Say how to read the points, which are not there, and why some are above their roof."""
    device = result.details.cluster.device
    working_s = sum(result.time_s[part] for part in ("compute", "memory_stall", "optimizer"))
    silent = working_s / result.step_time_s - sum(p.share for p in shown)
    below = [p for p in shown if p.flop_per_s < ax.get_ylim()[0]]
    sentences = ["Marker area: share of the step."]
    achievable = device.memory[device.far_memory].achievable.value
    if achievable < 1:
        reached = show(achievable * _far_bandwidth(device), "B/s")
        sentences.append(f"Dashed: achievable bandwidth, {reached}.")
    if any(_is_above(p, roofs) for p in shown):
        sentences.append(
            "Ringed above their roof: convolutions by algorithms with less arithmetic (Winograd) "
            "than the direct one that is counted."
        )
    if silent >= _LEAST_SHARE:
        sentences.append(f"Not drawn: ops without arithmetic, {percent(silent)} of the step.")
    if below:
        share = percent(sum(p.share for p in below))
        sentences.append(f"Below the frame: {len(below)} small ops, {share} of the step.")
    return " ".join(sentences)


def _frame(ax: Axes, device: Device, shown: list[RooflinePoint], roofs: dict[str, float]) -> None:
    """Set whole decades around the points that matter, the ridges and the roofs."""
    bandwidth = _far_bandwidth(device)
    ridges = [peak / bandwidth for peak in roofs.values()] or [1.0]
    across = [p.flop_per_byte for p in shown] + ridges
    up = [p.flop_per_s for p in shown if p.share >= _LEAST_SHARE] + list(roofs.values()) or [1.0]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(decade_below(min(across)), 1 / decade_below(1 / (1.2 * max(across))))
    ax.set_ylim(decade_below(min(up)), 4 * max(up))


def _draw_slopes(ax: Axes, device: Device, top: float) -> None:
    """Draw the bandwidth of every memory level, up to the highest roof."""
    left, _ = ax.get_xlim()
    for name, level in device.memory.items():
        if level.bandwidth is None:
            continue
        peak = level.bandwidth.value
        is_far = name == device.far_memory
        ax.plot(
            [left, top / peak],
            [left * peak, top],
            color=INK if is_far else FAINT,
            linewidth=1.4 if is_far else 0.7,
            linestyle="-" if is_far else (0, (1, 1.5)),
            gid=f"slope: {name}",
        )
        if is_far and level.achievable.value < 1:
            reached = peak * level.achievable.value
            ax.plot(
                [left, top / reached],
                [left * reached, top],
                color=INK,
                linewidth=1.0,
                linestyle=(0, (4, 2)),
                gid=f"achievable: {name}",
            )
        slope_name(ax, peak, f"{name} {show(peak, 'B/s')}", INK if is_far else FAINT)


def _draw_roofs(ax: Axes, device: Device, roofs: dict[str, float]) -> None:
    """Draw the peak of every engine and format in use, and where it meets the memory slope."""
    bandwidth = _far_bandwidth(device)
    (_, right), (bottom, _) = ax.get_xlim(), ax.get_ylim()
    for name, peak in roofs.items():
        ridge = peak / bandwidth
        ax.plot([ridge, right], [peak, peak], color=INK, linewidth=1.4, gid=f"roof: {name}")
        highest = peak == max(roofs.values())  # above it, nothing is in the way left of its ridge
        at = ridge if highest else right
        level_name(ax, f"{name} {show(peak, 'FLOP/s')}", (at, peak))
        ax.plot([ridge, ridge], [bottom, peak], color=FAINT, linewidth=0.7, linestyle=":")
        ax.annotate(
            f"ridge {ridge:.3g} FLOP/B",
            (ridge, bottom),
            xytext=(-2, 4),
            textcoords="offset points",
            rotation=90,
            ha="right",
            fontsize=SMALL,
            color=FAINT,
        )


def _draw_points(ax: Axes, shown: list[RooflinePoint], roofs: dict[str, float]) -> None:
    """Draw one marker for each op, the large ones first."""
    for pass_ in Pass:
        of_pass = sorted((p for p in shown if p.pass_ is pass_), key=lambda p: -p.share)
        ax.scatter(
            [p.flop_per_byte for p in of_pass],
            [p.flop_per_s for p in of_pass],
            s=[max(_AREA * p.share, _LEAST_AREA) for p in of_pass],
            color=COLOURS[pass_.value],
            alpha=0.6,
            edgecolors=[INK if _is_above(p, roofs) else PAPER for p in of_pass],
            linewidths=[0.8 if _is_above(p, roofs) else 0.4 for p in of_pass],
            zorder=3,
            gid=f"ops: {pass_.value}",
        )


def _is_above(point: RooflinePoint, roofs: dict[str, float]) -> bool:
    return point.flop_per_s > roofs[point.engine] * (1 + 1e-9)


def _far_bandwidth(device: Device) -> float:
    bandwidth = level_bandwidth(device, device.far_memory)
    assert bandwidth is not None  # the schema demands it of the farthest memory
    return bandwidth


def decade_below(value: float) -> float:
    """Return the power of ten at or below a value."""
    return float(10.0 ** math.floor(math.log10(value)))
