"""Figures of one op: its tiles over time, and what each cell of an array does.

They take a result of ``ridgeline gemm`` or ``conv`` (`kernels.single_op.OpResult`),
which keeps the op
and its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ridgeline.errors import RidgelineError, nearest
from ridgeline.kernels.cell_use import cells_of
from ridgeline.kernels.single_op import OpResult, PricedOp
from ridgeline.kernels.tile_schedule import TileSchedule, TileTimes, tile_schedule
from ridgeline.report.figures.style import COLOURS, FAINT, GRID, SMALL, head, sheet, time_axis
from ridgeline.report.figures.themes import theme
from ridgeline.units import show
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOAD, _COMPUTE, _STORE = COLOURS["dram"], COLOURS["compute"], COLOURS["sram"]
_LAUNCH, _HELD = COLOURS["static"], GRID
_BAR = 0.72  # of a lane
_LEAST_NAMED = 0.03  # of the axis: a tile that is shorter has no number
MOST_TILES = 16
"""So many tiles are drawn unless one says otherwise."""


class OpFigure(Protocol):
    """Draws a result of one op into the given axes, or into a figure of its own."""

    def __call__(self, result: OpResult, ax: Axes | None = None) -> Axes: ...  # noqa: D102


class _Bar(NamedTuple):
    """A rectangle of the chart: lane, begin and length in seconds, colour, and its name."""

    lane: str
    begin_s: float
    length_s: float
    colour: str
    gid: str


def op_gantt(result: OpResult, ax: Axes | None = None, tiles: int | None = None) -> Axes:
    """Draw when each tile of an op is loaded, computed and stored, over port, buffers and engine.

    Parameters
    ----------
    tiles
        How many tiles are drawn, the first ones; None: all if there are at most 16, else 16. With
        all of them the last bar ends with the op.

    Raises
    ------
    RidgelineError
        If the op has no tiles that are buffered, or they cannot be laid out (`tile_schedule`).
    """
    priced = _priced(result)
    if priced.cost.mapped is None:
        raise RidgelineError(
            "tiles are drawn of an op on a device with buffers before its farthest memory, with a "
            f"mapping that is searched for; {result.op} on {result.device} has none"
        )
    if tiles is not None and tiles < 1:
        raise RidgelineError(f"at least one tile is drawn, found {tiles}")
    schedule = tile_schedule(priced.op, *priced.cost.mapped)
    shown = schedule.tiles[: MOST_TILES if tiles is None else tiles]
    is_whole = len(shown) == len(schedule.tiles)
    launch_s = float(result.breakdown_s["launch"])
    end_s = result.time_s if is_whole else launch_s + shown[-1].store.end_s
    bars = [_Bar("launch", 0.0, launch_s, _LAUNCH, "launch")]
    for number, tile in enumerate(shown):
        bars += _bars(schedule, tile, launch_s, result.engine, number)
    besides_s = result.time_s - launch_s - schedule.end_s
    if is_whole and besides_s > 1e-9 * result.time_s:
        bars.append(_Bar("besides", launch_s + schedule.end_s, besides_s, _LAUNCH, "besides"))
    lanes = _lanes(schedule, result.engine, any(bar.lane == "besides" for bar in bars))

    def draw(axes: Axes) -> str:
        from matplotlib.patches import Patch

        unit, seconds = time_axis(end_s)
        for lane, begin_s, length_s, colour, gid in bars:
            if length_s > 0:
                axes.barh(
                    lanes[lane], length_s / seconds, _BAR, begin_s / seconds, color=colour,
                    edgecolor="white", linewidth=0.4,
                )[0].set_gid(gid)  # fmt: skip
        for number, tile in enumerate(shown):
            if tile.compute.length_s > _LEAST_NAMED * end_s:
                middle_s = launch_s + (tile.compute.begin_s + tile.compute.end_s) / 2
                axes.text(
                    middle_s / seconds, lanes[result.engine], str(number + 1), ha="center",
                    va="center", color="white", fontsize=SMALL,
                )  # fmt: skip
        axes.set_yticks(list(lanes.values()), list(lanes))
        axes.set_ylim(len(lanes) - 0.4, -0.6)
        axes.set_xlim(0, end_s / seconds)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"time from the op's launch ({unit})")
        named = {"launch": _LAUNCH, "load": _LOAD, "compute": _COMPUTE, "store": _STORE}
        handles = [Patch(color=colour, label=name) for name, colour in named.items()]
        handles.append(Patch(color=_HELD, label="buffer in use"))
        head(axes, f"Tiles of {result.op} on {result.device}", handles)
        return _gantt_caption(result, len(shown), len(schedule.tiles))

    height_in = 0.7 + 0.3 * len(lanes) + 1.05
    return sheet((height_in, 1.1, 0.7, 1.05), draw, _stamp(result), ax)


def _lanes(schedule: TileSchedule, engine: str, besides: bool) -> dict[str, int]:
    """Name the lanes from above: port or both, input buffers, the engine, output buffers."""
    into, out = _ports(schedule)
    numbers = sorted({tile.into for tile in schedule.tiles})
    names = [
        "launch",
        into,
        *(f"{schedule.near} in {n}" for n in numbers),
        engine,
        *(f"{schedule.near} out {n}" for n in numbers),
        *([] if into == out else [out]),
        *(["besides"] if besides else []),
    ]
    return {name: at for at, name in enumerate(names)}


def _ports(schedule: TileSchedule) -> tuple[str, str]:
    if schedule.shared_port:
        return f"{schedule.far} port", f"{schedule.far} port"
    return f"{schedule.far} loads", f"{schedule.far} stores"


def _bars(
    schedule: TileSchedule, tile: TileTimes, launch_s: float, engine: str, number: int
) -> list[_Bar]:
    """Return a tile's transfers, its computing, and how long it holds a buffer in and one out."""
    into, out = _ports(schedule)
    load, compute, store = tile.load, tile.compute, tile.store
    begin_s, computed_s = launch_s + load.begin_s, launch_s + compute.begin_s
    stored_s = launch_s + store.begin_s
    return [
        _Bar(into, begin_s, load.length_s, _LOAD, f"load {number}"),
        _Bar(
            f"{schedule.near} in {tile.into}", begin_s, compute.end_s - load.begin_s, _HELD,
            f"in {number}",
        ),
        _Bar(engine, computed_s, compute.length_s, _COMPUTE, f"compute {number}"),
        _Bar(
            f"{schedule.near} out {tile.out}", computed_s, store.end_s - compute.begin_s, _HELD,
            f"out {number}",
        ),
        _Bar(out, stored_s, store.length_s, _STORE, f"store {number}"),
    ]  # fmt: skip


def _gantt_caption(result: OpResult, shown: int, tiles: int) -> str:
    named = f"All {tiles} tiles" if shown == tiles else f"The first {shown} of {tiles:,} tiles"
    return f"{named}; the op takes {show(result.time_s, 's', 4)}: {_spent(result)}."


def _spent(result: OpResult) -> str:
    """Say the parts of an op's time as shares of it."""
    named: dict[str, float] = {}
    for name, seconds in result.breakdown_s.items():
        if name == "stall":
            named |= {f"stall ({level})": stall_s for level, stall_s in seconds.items()}
        elif name != "total":
            named[name] = seconds
    return ", ".join(f"{n} {s / result.time_s:.0%}" for n, s in named.items() if s)


def array_utilisation(result: OpResult, ax: Axes | None = None) -> Axes:
    """Draw the share of an op's cycles in which each cell of the array multiplies.

    Raises
    ------
    RidgelineError
        If the op runs on no systolic and no spatial array.
    """
    priced = _priced(result)
    use = cells_of(priced.op, priced.cost, priced.device, priced.given)
    shares = use.utilisation(result.time_s)
    rows, columns = shares.shape
    height_in = min(max(5.0 * rows / columns, 1.6), 5.0)

    def draw(axes: Axes) -> str:
        image = axes.imshow(
            shares, vmin=0.0, vmax=max(float(shares.max()), 1e-12), cmap="viridis", aspect="auto",
            interpolation="nearest", extent=(0, columns, rows, 0),
        )  # fmt: skip
        image.set_gid("cells")
        axes.set_xlabel(f"column of {columns}")
        axes.set_ylabel(f"row of {rows}")
        for edge, along in _edges(use.macs):
            line = axes.axvline if along == "columns" else axes.axhline
            line(edge, color="white", linewidth=0.8, linestyle=":", gid=f"edge {along} {edge}")
        if ax is None:  # with room for the scale
            left, bottom, width, height = axes.get_position().bounds
            axes.set_position((left, bottom, 0.87 * width, height))
        scale = axes.inset_axes((1.02, 0.0, 0.035, 1.0))
        bar = axes.figure.colorbar(image, cax=scale)
        bar.ax.tick_params(labelsize=SMALL, color=FAINT)
        bar.ax.yaxis.set_major_formatter(_as_percent)
        head(axes, f"Cells of {result.device} at work for {result.op}")
        idle = float(np.mean(use.macs == 0))
        many = f", mean of {use.arrays} arrays" if use.arrays > 1 else ""
        return (
            f"Share of the op's {show(result.time_s, 's', 4)} in which a cell multiplies{many}: "
            f"mean {shares.mean():.1%}, from {shares.min():.1%} to {shares.max():.1%}; {idle:.1%} "
            f"of the cells never do. {use.layout}. The time: {_spent(result)}."
        )

    return sheet((0.5 + height_in + 1.2, 0.6, 0.5, 1.2), draw, _stamp(result), ax)


def _as_percent(share: float, _: float) -> str:
    return f"{share:.0%}"


def _edges(macs: np.ndarray) -> list[tuple[int, str]]:
    """Return rows and columns behind which the last ones have nothing to do, if there are such."""
    found = []
    for axis, along in ((1, "rows"), (0, "columns")):
        used = np.flatnonzero(macs.sum(axis=axis))
        behind = int(used[-1]) + 1 if len(used) else 0
        if behind < macs.shape[1 - axis]:
            found.append((behind, along))
    return found


def _priced(result: OpResult) -> PricedOp:
    if result.priced is None:
        raise RidgelineError("this result lacks its price; take one of ridgeline gemm or conv")
    return result.priced


def _stamp(result: OpResult) -> str:
    zeros = "" if result.sparsity == "none" else f", zeros {result.sparsity}"
    return (
        f"simulated, not measured: {result.op} in {result.format}{zeros} on {result.device}, "
        f"engine {result.engine}; ridgeline {__version__}"
    )


OP_FIGURES: Mapping[str, OpFigure] = MappingProxyType(
    {"op-gantt": op_gantt, "utilisation": array_utilisation}
)


def draw_op(
    kind: str,
    result: OpResult,
    ax: Axes | None = None,
    look: str | None = None,
    tiles: int | None = None,
) -> Axes:
    """Draw a figure of one op by name, into the given axes or a figure of its own in a theme.

    Raises
    ------
    RidgelineError
        If there is no such figure.
    """
    if kind not in OP_FIGURES:
        raise RidgelineError(
            f"there is no figure {kind!r} of an op{nearest(kind, OP_FIGURES)} "
            f"(there are: {', '.join(OP_FIGURES)})"
        )
    with theme(look):
        return op_gantt(result, ax, tiles) if kind == "op-gantt" else OP_FIGURES[kind](result, ax)
