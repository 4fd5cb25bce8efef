"""Scaling curves and the distributed roofline: what a device attains for what it sends."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.report.figures.line_names import Marks, level_name, slope_name
from ridgeline.report.figures.scaling_points import Curve, Roof, write_numbers
from ridgeline.report.figures.style import (
    FAINT,
    GRID,
    INK,
    PAPER,
    SERIES,
    SMALL,
    head,
    sheet,
)
from ridgeline.units import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_MARKERS = "osD^vP"
_SPACE = (4.2, 0.75, 0.7, 1.0)
_SEEN = 1.03  # a cap that is closer to its point is not drawn


def scaling_curves(
    curves: Sequence[Curve], *, title: str, stamp: str, ax: Axes | None = None
) -> Axes:
    """Draw throughput over devices with the ideal line of each strategy's smallest run.

    On logarithmic axes, where equal shares of the ideal are equal distances; and in a small frame
    on linear ones, which show how much is lost.
    """

    def draw(axes: Axes) -> str:
        from matplotlib.ticker import (
            FixedLocator,
            LogLocator,
            NullFormatter,
            NullLocator,
            ScalarFormatter,
        )

        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({n for curve in curves for n in curve.devices})
        handles = [
            axes.plot(
                curve.devices, curve.samples_per_s, color=SERIES[k % len(SERIES)],
                label=curve.name, gid=curve.name, **_look(k, curve),
            )[0]
            for k, curve in enumerate(curves)
        ]  # fmt: skip
        handles += _ideals(axes, curves, ticks[-1])[:1]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(_thousands)
        low, high = axes.get_ylim()
        if high < 2 * low:  # one rate alone would fill the axis with its last digits
            low, high = low / 2, 2 * high
        axes.set_ylim(low, high * (high / low) ** 0.12)  # the small frame is above the curves
        axes.grid(color=GRID, lw=0.6)
        axes.set_xlabel("devices, logarithmic")
        axes.set_ylabel("samples/s, logarithmic")
        head(axes, title, handles)
        if len(ticks) > 1:
            _linear(axes, curves, ticks[-1])
        return (
            "Dashed: ideal, in proportion to the devices, from the smallest number on which a"
            " strategy runs. Small frame: the same on linear axes from zero."
        )

    return sheet(_SPACE, draw, stamp, ax)


def _ideals(axes: Axes, curves: Sequence[Curve], most: int) -> list[Line2D]:
    """Draw one line for each rate of a smallest run, above everything else; equal ones once."""
    rates: dict[float, int] = {}
    for curve in curves:
        rate = float(f"{curve.samples_per_s[0] / curve.devices[0]:.6g}")
        rates[rate] = min(rates.get(rate, most), curve.devices[0])
    lines = []
    for rate, first in sorted(rates.items(), key=lambda pair: pair[1]):
        ends = [first, most]
        lines += axes.plot(
            ends, [rate * n for n in ends], color=INK, lw=1.1, ls=(0, (5, 2)), zorder=5,
            label="ideal", gid=f"ideal from {first}",
        )  # fmt: skip
    return lines


def _linear(axes: Axes, curves: Sequence[Curve], most: int) -> None:
    """Draw the curves once more, in a small frame with linear axes."""
    from matplotlib.ticker import MaxNLocator

    inner = axes.inset_axes((0.11, 0.55, 0.34, 0.4), zorder=6)
    inner.set_gid("linear")
    inner.patch.set_alpha(0.94)
    for k, curve in enumerate(curves):
        look = {**_look(k, curve), "lw": 3.5 if curve.is_best else 1.2, "ms": 3, "mew": 0.4}
        inner.plot(curve.devices, curve.samples_per_s, color=SERIES[k % len(SERIES)], **look)
    for line in _ideals(inner, curves, most):
        line.set_linewidth(0.8)
    inner.set_xlim(0, most * 1.04)
    inner.set_ylim(0, None)
    inner.spines[["top", "right"]].set_visible(False)
    inner.spines[["left", "bottom"]].set_color(FAINT)
    inner.tick_params(labelsize=SMALL - 1.5, color=FAINT, labelcolor=INK, length=2, pad=1.5)
    inner.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    inner.yaxis.set_major_locator(MaxNLocator(4))
    inner.yaxis.set_major_formatter(_thousands)
    inner.set_title("linear", fontsize=SMALL - 1, loc="left", pad=2, fontweight="normal", color=INK)


def _thousands(value: float, place: float = 0.0) -> str:
    """Write the number of a tick: 200, 20k, 2M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def distributed_roofline(
    curves: Sequence[Curve], roof: Roof, *, title: str, stamp: str, ax: Axes | None = None
) -> Axes:
    """Draw attained FLOP/s of a device over useful FLOPs for each byte that it sends."""

    def draw(axes: Axes) -> str:
        from matplotlib.ticker import LogLocator, NullFormatter

        _frame(axes, curves, roof)
        bind = {name for curve in curves for name in curve.binding}
        _roofs(axes, roof, bind, [mark for curve in curves for mark in curve.marks])
        slowest = min(bind, key=lambda name: roof.links[name])
        handles = [_trajectory(axes, k, curve, slowest) for k, curve in enumerate(curves)]
        for k, curve in enumerate(curves):
            _caps(axes, k, curve)
            _latency(axes, roof, k, curve)
        write_numbers(axes, curves, roof)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, place: show(value, "FLOP/s").split("LOP")[0])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("useful FLOPs for each byte that a device sends")
        axes.set_ylabel("useful FLOP/s of a device")
        head(axes, title, handles, columns=4)
        less = (
            " Above direct convolution: kernels that do less arithmetic than is counted (Winograd)."
            if roof.less_arithmetic > _SEEN else ""
        )  # fmt: skip
        return (
            "Numbers: devices. Slopes: what a device can send at each level of the network (grey:"
            " binds no point); open markers: a faster level binds than the lowest slope. Caps: what"
            " a plan's work alone, or its messages alone, would allow. Dashed: what memory allows."
            f" Short bars: what the fixed times of messages would allow.{less}"
        )

    return sheet(_SPACE, draw, stamp, ax)


def _frame(ax: Axes, curves: Sequence[Curve], roof: Roof) -> None:
    x = [v for curve in curves for v in curve.flop_per_byte]
    y = [v for curve in curves for v in curve.flop_per_s]
    ridges = [roof.top_flop_per_s / bandwidth for bandwidth in roof.links.values()]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min([*x, *ridges]) / 3, max([*x, *ridges]) * 3)
    ax.set_ylim(min(min(y) / 2.5, roof.peak_flop_per_s / 30), 2.2 * roof.top_flop_per_s)


def _roofs(ax: Axes, roof: Roof, bind: Set[str], marks: Marks) -> None:
    """Shade what no device can reach, and name each ceiling; grey: links that bind nothing."""
    left, right = ax.get_xlim()
    bottom, top = ax.get_ylim()
    peak = roof.top_flop_per_s
    fastest = max(roof.links.values())
    ax.fill_between(
        [left, peak / fastest, right], [left * fastest, peak, peak], top, color=GRID, lw=0, zorder=0
    )
    ax.plot([min(peak / fastest, right), right], [peak, peak], color=INK, lw=1.6, gid="compute")
    level_name(ax, f"compute {show(peak, 'FLOP/s')}", (right, peak), marks=marks)
    if roof.less_arithmetic > _SEEN:
        direct = roof.peak_flop_per_s
        ax.plot([min(direct / fastest, right), right], [direct] * 2, color=FAINT, lw=1.0)
        said = f"direct convolution {show(direct, 'FLOP/s')}"
        level_name(ax, said, (right, direct), FAINT, marks=marks, below=True)
    if roof.memory_flop_per_s < peak:
        ax.axhline(roof.memory_flop_per_s, color=FAINT, lw=1.0, ls=(0, (4, 2)), gid="memory")
        said = f"memory {show(roof.memory_flop_per_s, 'FLOP/s')}"
        level_name(ax, said, (right, roof.memory_flop_per_s), FAINT, marks=marks)
    by_bandwidth: dict[float, list[str]] = {}
    for name, bandwidth in roof.links.items():
        by_bandwidth.setdefault(float(f"{bandwidth:.3g}"), []).append(name)
    for bandwidth, names in by_bandwidth.items():
        ends = [max(left, bottom / bandwidth), peak / bandwidth]
        colour, width = (FAINT, 0.8) if bind.isdisjoint(names) else (INK, 1.4)
        link = f"link: {', '.join(sorted(names))}"
        ax.plot(ends, [x * bandwidth for x in ends], color=colour, lw=width, gid=link)
    decade = ax.bbox.height * 72 / ax.figure.dpi / np.log10(top / bottom)
    for close in side_by_side(list(by_bandwidth), 10 ** (1.5 * SMALL / decade)):
        words = [f"{', '.join(sorted(by_bandwidth[b]))} {show(b, 'B/s')}" for b in close]
        binds = any(not bind.isdisjoint(by_bandwidth[b]) for b in close)
        colour = INK if binds else FAINT
        slope_name(ax, close[0], ", ".join(words), colour, marks=marks, until=peak)


def side_by_side(bandwidths: Sequence[float], ratio: float) -> list[list[float]]:
    """Return slopes, the steepest first, with those together that one line of text stands on."""
    found: list[list[float]] = []
    for bandwidth in sorted(bandwidths, reverse=True):
        if found and found[-1][0] < ratio * bandwidth:
            found[-1].append(bandwidth)
        else:
            found.append([bandwidth])
    return found


def _look(k: int, curve: Curve) -> dict[str, Any]:
    marker = _MARKERS[k % len(_MARKERS)]
    if curve.is_best:
        return {"lw": 6, "alpha": 0.35, "marker": "", "solid_capstyle": "round", "zorder": 2}
    return {"lw": 1.5, "marker": marker, "ms": 6, "mec": PAPER, "mew": 0.8, "zorder": 3}


def _trajectory(ax: Axes, k: int, curve: Curve, slowest: str) -> Line2D:
    """Draw one strategy as devices grow; open markers where another link than the slowest binds."""
    colour = SERIES[k % len(SERIES)]
    (line,) = ax.plot(
        curve.flop_per_byte, curve.flop_per_s, color=colour, label=curve.name,
        gid=f"points: {curve.name}", **_look(k, curve),
    )  # fmt: skip
    for x, y, name in zip(curve.flop_per_byte, curve.flop_per_s, curve.binding, strict=True):
        if name != slowest and not curve.is_best:
            ax.plot(
                [x], [y], marker=line.get_marker(), ms=6, mfc=PAPER, mec=colour, mew=1.3, zorder=4
            )
    return line


def _caps(ax: Axes, k: int, curve: Curve) -> None:
    """Mark what the plan of each point would attain if its work and its messages were together."""
    above = np.array(curve.envelope) > _SEEN * np.array(curve.flop_per_s)
    x, low, high = (
        np.array(values)[above]
        for values in (curve.flop_per_byte, curve.flop_per_s, curve.envelope)
    )
    colour = SERIES[k % len(SERIES)]
    ax.vlines(x, low, high, color=colour, lw=0.8, alpha=0.6, zorder=1)
    ax.plot(
        x, high, ls="", marker="_", ms=8, mew=1.4, color=colour, gid=f"caps: {curve.name}", zorder=3
    )


def _latency(ax: Axes, roof: Roof, k: int, curve: Curve) -> None:
    """Mark what the fixed times of the largest run's messages would allow."""
    if (bar := roof.fixed(curve)) is None:
        return
    x, ceiling = bar
    if ax.get_ylim()[0] < ceiling < min(roof.top_flop_per_s, x * max(roof.links.values())):
        ax.plot(
            [x / 1.35, x * 1.35], [ceiling, ceiling], color=SERIES[k % len(SERIES)], lw=2.2,
            solid_capstyle="butt", gid=f"latency: {curve.name}",
        )  # fmt: skip
