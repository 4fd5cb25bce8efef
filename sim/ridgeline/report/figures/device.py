"""The hierarchical roofline of a device: every memory level and format, with or without work on it.

As C. Yang, T. Kurth, S. Williams, "Hierarchical roofline analysis for GPUs", Concurrency and
Computation 32(20), 2020: work has one marker for each memory level, at the intensity that it has
there. Each is under the slope of its own level and under the roof of its engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from matplotlib.lines import Line2D

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import level_bandwidth
from ridgeline.kernels.roofline import Mark, mark, together
from ridgeline.report.figures.line_names import Marks, level_name, slope_name
from ridgeline.report.figures.roofline import decade_below
from ridgeline.report.figures.style import FAINT, INK, PAPER, SERIES, head, sheet
from ridgeline.report.op_times import OpTime, op_times
from ridgeline.units import show
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.report.result import Result

MARKERS = ("o", "D", "^", "s", "v", "P")
"""Of the memory levels, from the farthest on."""
_AXES_IN, _LEFT_IN, _TITLE_IN, _ROW_IN, _BOTTOM_IN = 2.75, 0.72, 0.42, 0.19, 1.05
_LETTERS = 84  # of labels in a row of the legend, with room for its lines and gaps
_STAMP_LETTERS, _STAMP_ROW_IN = 95, 0.12
_FRAMED = 0.98  # of the time of a network's ops; the others do not stretch the frame
_SIZE, _LEAST, _AREA = 42.0, 5.0, 400.0  # of a marker, in square points
_OPS = 400  # of a network, the ones that take longest
_SAME_PEAK = 0.02  # roofs that are nearer to each other have one label


class Load(NamedTuple):
    """Work that is drawn in one colour.

    Attributes
    ----------
    marks
        With a marker for each memory level: an op, or a network as a whole.
    parts
        Ops or layers of a network, with one small marker each, at the farthest level.
    what
        What the parts are.
    stamp
        What was simulated, for whoever wants to do it again.
    """

    name: str
    marks: tuple[Mark, ...]
    parts: tuple[Mark, ...] = ()
    what: str = "ops"
    stamp: str = ""


def network(result: Result, by: Literal["op", "layer"] = "op") -> Load:
    """Return a network's step on one device as a load: the whole, and its ops or its layers.

    A layer is all ops of its forward and backward pass and of its update.
    """
    details, name = result.details, result.manifest["model"]["name"]
    device = details.cluster.device
    timed = op_times(result)
    whole = together(name, [(t.cost, t.step_s / t.time_s) for t in timed if t.time_s], device)
    if by == "layer":
        parts = _layers(timed, device, result.step_time_s)
    else:
        longest = sorted(timed, key=lambda t: -t.step_s)[:_OPS]
        parts = [mark(t.op.name, t.cost, device, t.step_s / result.step_time_s) for t in longest]
    marks = () if whole is None else (whole,)
    plan, given = details.plan, result.manifest
    stamp = (
        f"{name} with batch {plan.global_batch} in {plan.precision}, software"
        f" {plan.stack.name}, manifest {given['hash']}"
    )
    return Load(name, marks, tuple(part for part in parts if part is not None), f"{by}s", stamp)


def _layers(timed: Sequence[OpTime], device: Device, step_time_s: float) -> list[Mark | None]:
    """Put the ops of every layer together, each as often as it is played."""
    of_layer: dict[str, list[OpTime]] = {}
    for t in timed:
        if t.time_s:
            of_layer.setdefault(t.op.layer, []).append(t)
    return [
        together(
            layer,
            [(t.cost, t.step_s / t.time_s) for t in ops],
            device,
            sum(t.step_s for t in ops) / step_time_s,
        )
        for layer, ops in of_layer.items()
    ]


def shown_roofs(device: Device, loads: Sequence[Load], formats: Sequence[str]) -> dict[str, float]:
    """Choose the engines and formats whose roofs are drawn: those asked for, or those in use.

    Raises
    ------
    RidgelineError
        If no engine of the device has one of the formats.
    """
    every = {
        f"{name}.{format_}": rate.value
        for name, engine in device.engines.items()
        for format_, rate in engine.rates.items()
    }
    known = {name.rpartition(".")[2] for name in every}
    for format_ in formats:
        if format_ not in known:
            raise RidgelineError(
                f"{device.name} has no engine for {format_!r} (it has: {', '.join(sorted(known))})"
            )
    used = {m.engine for load in loads for m in (*load.marks, *load.parts)}
    if formats:
        return {n: r for n, r in every.items() if n.rpartition(".")[2] in formats or n in used}
    return {name: rate for name, rate in every.items() if not used or name in used}


def device_roofline(
    device: Device,
    loads: Sequence[Load] = (),
    formats: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw the roofs and slopes of a device, and loads under them.

    Parameters
    ----------
    loads
        What runs on it; at most six.
    formats
        Number formats whose roofs are drawn besides those in use; none and no loads: all.

    Raises
    ------
    RidgelineError
        If there are more loads than colours, or the device lacks a format.
    """
    if len(loads) > len(SERIES):
        raise RidgelineError(f"a roofline shows at most {len(SERIES)} loads, found {len(loads)}")
    roofs = shown_roofs(device, loads, formats)
    levels = [n for n in reversed(device.memory) if level_bandwidth(device, n) is not None]

    parts = [f"{device.name}, dense peaks", *(load.stamp for load in loads if load.stamp)]
    stamp = f"simulated, not measured: {'; '.join(parts)}; ridgeline {__version__}"
    handles, columns = _legend(loads, levels)
    rows = -(-len(handles) // columns)
    top_in = _TITLE_IN + rows * _ROW_IN
    bottom_in = _BOTTOM_IN + len(stamp) // _STAMP_LETTERS * _STAMP_ROW_IN
    space_in = (top_in + _AXES_IN + bottom_in, _LEFT_IN, top_in, bottom_in)

    def draw(axes: Axes) -> str:
        _frame(axes, device, loads, roofs, levels)
        marks = [
            (x, m.flop_per_s)
            for load in loads
            for m in load.marks
            for x in m.flop_per_byte.values()
        ]
        _draw_levels(axes, device, levels, max(roofs.values()), marks)
        _draw_roofs(axes, device, roofs, marks)
        for load, colour in zip(loads, SERIES, strict=False):
            _draw_load(axes, load, levels, colour)
        axes.set_xlabel("arithmetic intensity (FLOP per byte of the memory level)")
        axes.set_ylabel("speed (FLOP/s)")
        head(axes, f"Roofline of {device.name}", handles, columns=columns)
        return _caption(axes, loads, device, levels)

    return sheet(space_in, draw, stamp, ax)


def _frame(
    ax: Axes, device: Device, loads: Sequence[Load], roofs: dict[str, float], levels: list[str]
) -> None:
    bandwidths = [level_bandwidth(device, name) or 1.0 for name in levels]
    ridges = [peak / bandwidth for peak in roofs.values() for bandwidth in bandwidths]
    marks = [m for load in loads for m in load.marks]
    marks += [m for load in loads for m in _longest(load.parts)]
    across = ridges + [x for m in marks for x in m.flop_per_byte.values()]
    up = [*(m.flop_per_s for m in marks), *roofs.values(), min(roofs.values()) / 10]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(decade_below(0.5 * min(across)), 1 / decade_below(1 / (1.5 * max(across))))
    ax.set_ylim(decade_below(min(up)), 4 * max(up))


def _longest(parts: Sequence[Mark]) -> list[Mark]:
    """Return the fewest ops that take nearly all of the time of all."""
    ordered = sorted(parts, key=lambda part: -part.share)
    covered = list(accumulate(part.share for part in ordered))
    return [
        part
        for part, before in zip(ordered, [0.0, *covered], strict=False)
        if before < _FRAMED * covered[-1]
    ]


def _draw_levels(ax: Axes, device: Device, levels: list[str], top: float, marks: Marks) -> None:
    """Draw the slope of every level up to the highest roof."""
    left, _ = ax.get_xlim()
    for position, name in enumerate(levels):
        peak = level_bandwidth(device, name)
        assert peak is not None
        colour = INK if position == 0 else FAINT
        ax.plot(
            [left, top / peak],
            [left * peak, top],
            color=colour,
            linewidth=1.4 if position == 0 else 1.0,
            linestyle="-" if position == 0 else (0, (4, 1 + 1.5 * position)),
            gid=f"slope: {name}",
        )
        slope_name(ax, peak, f"{name} {show(peak, 'B/s')}", colour, marks=marks, until=top)


def _draw_roofs(ax: Axes, device: Device, roofs: dict[str, float], marks: Marks) -> None:
    """Draw every roof from its leftmost slope on; roofs of one height share a label."""
    (_, right), bandwidths = ax.get_xlim(), []
    for name in device.memory:
        bandwidth = level_bandwidth(device, name)
        if bandwidth is not None:
            bandwidths.append(bandwidth)
    for name, peak in roofs.items():
        ax.plot([peak / max(bandwidths), right], [peak, peak], color=INK, linewidth=1.2,
                gid=f"roof: {name}")  # fmt: skip
        ax.plot(
            [peak / bandwidth for bandwidth in bandwidths],
            [peak] * len(bandwidths),
            linestyle="none",
            marker="o",
            markersize=3.2,
            markerfacecolor=PAPER,
            markeredgecolor=INK,
            markeredgewidth=0.8,
            gid=f"ridges: {name}",
        )
    for label, peak in roof_labels(roofs):
        level_name(ax, f"{label} {show(peak, 'FLOP/s')}", (right, peak), marks=marks)


def roof_labels(roofs: dict[str, float]) -> list[tuple[str, float]]:
    """Name the roofs from the top: those of nearly one height together, by engine and formats."""
    groups: list[tuple[float, list[str]]] = []
    for name, peak in sorted(roofs.items(), key=lambda item: -item[1]):
        if groups and groups[-1][0] / peak <= 1 + _SAME_PEAK:
            groups[-1][1].append(name)
        else:
            groups.append((peak, [name]))
    labels = []
    for peak, names in groups:
        engines: dict[str, list[str]] = {}
        for name in names:
            engine, _, format_ = name.rpartition(".")
            engines.setdefault(engine, []).append(format_)
        said = "; ".join(f"{engine} {', '.join(f)}" for engine, f in engines.items())
        labels.append((said, peak))
    return labels


def _draw_load(ax: Axes, load: Load, levels: list[str], colour: str) -> None:
    far = levels[0]
    parts = [part for part in load.parts if far in part.flop_per_byte]
    ax.scatter(
        [part.flop_per_byte[far] for part in parts],
        [part.flop_per_s for part in parts],
        s=[max(_AREA * part.share, _LEAST) for part in parts],
        color=colour,
        alpha=0.45,
        linewidths=0,
        zorder=2.5,
        gid=f"ops: {load.name}",
    )
    for m in load.marks:
        across = [m.flop_per_byte[level] for level in levels if level in m.flop_per_byte]
        ax.plot(across, [m.flop_per_s] * len(across), color=colour, linewidth=0.8, zorder=3)
    for level, shape in zip(levels, MARKERS, strict=False):
        there = [m for m in load.marks if level in m.flop_per_byte]
        ax.scatter(
            [m.flop_per_byte[level] for m in there],
            [m.flop_per_s for m in there],
            s=_SIZE,
            marker=shape,
            color=colour,
            edgecolors=PAPER,
            linewidths=0.7,
            zorder=3.5,
            gid=f"{load.name}: {level}",
        )


def _legend(loads: Sequence[Load], levels: list[str]) -> tuple[list[Line2D], int]:
    """Return what the legend shows, to be read row by row, and its number of columns."""
    made = [
        Line2D([], [], color=colour, linewidth=4, solid_capstyle="butt", label=load.name)
        for load, colour in zip(loads, SERIES, strict=False)
    ]
    if loads:
        made += [
            Line2D([], [], marker=shape, linestyle="none", color=FAINT, markersize=5,
                   label=f"at {level}")
            for level, shape in zip(levels, MARKERS, strict=False)
        ]  # fmt: skip
    if not made:
        return [], 1
    longest = max(len(str(handle.get_label())) for handle in made)
    columns = max(1, min(len(made), _LETTERS // (longest + 6)))
    return [made[i] for first in range(columns) for i in range(first, len(made), columns)], columns


def _caption(ax: Axes, loads: Sequence[Load], device: Device, levels: list[str]) -> str:
    sentences = ["Circles: ridge points."]
    if loads:
        sentences.append("Work has a marker for each memory level, at its intensity there.")
    what = " and ".join(dict.fromkeys(load.what for load in loads if load.parts))
    if what:
        sentences.append(
            f"Large: a whole step; small: its {what}, at {levels[0]}, by their share of the step."
        )
    (left, _), (bottom, _) = ax.get_xlim(), ax.get_ylim()
    outside = sum(
        part.flop_per_s < bottom or part.flop_per_byte.get(levels[0], left) < left
        for load in loads
        for part in load.parts
    )
    if outside:
        sentences.append(f"Outside the frame: {outside} small {what}.")
    left_out = [name for name in device.memory if name not in levels]
    if left_out:
        sentences.append(f"Not drawn, without a stated bandwidth: {', '.join(left_out)}.")
    return " ".join(sentences)
