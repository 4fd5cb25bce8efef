"""Pictures of networks: where vertices stand, and what their links carry."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.load import LinkLoad
from ridgeline.network.message_schedule import Ints
from ridgeline.network.topology import DEVICE, Floats, Topology
from ridgeline.report.figures.layouts import layout
from ridgeline.report.figures.style import (
    FAINT,
    GRID,
    INK,
    SMALL,
    STAMP,
    TEXT,
    free_axes,
    percent,
    themed,
    wrapped,
)
from ridgeline.report.figures.themes import THEMES, chosen
from ridgeline.report.manifest import topology_fingerprint
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

MOST_VERTICES = 3000
"""More are a smear."""
_LABELLED = 40
_CROWD = 40
"""Links up to which lines are as broad as they can be."""
_THIN = 0.3
_LEGIBLE_PT = 15.0
"""Between vertices that have room for their names."""
_CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_FILL = {"device": "#ffffff", "switch": "#444444", "nic": "#F0E442", "host": "#BBBBBB"}
_BAR_IN = 0.75
"""Height that the bar of colours takes."""
_AREA = {"host": 1.9, "nic": 1.2}
"""Of a marker over that of a device: a name has less room in a triangle than in a circle."""
_MARKER = {"device": "o", "switch": "s", "nic": "D", "host": "^"}


def network(
    topology: Topology, load: LinkLoad | None = None, ax: Axes | None = None, stamp: str = ""
) -> Axes:
    """Draw a network; with a load, links are coloured by how busy their busier direction is.

    Without one they are coloured by class. The width of a line grows with the bandwidth.

    Parameters
    ----------
    stamp
        What is simulated, for a figure of its own; by default that the load alone is.

    Raises
    ------
    RidgelineError
        If there are too many vertices to be told apart.
    """
    if topology.n_vertices > MOST_VERTICES:
        raise RidgelineError(
            f"{topology.name!r} has {topology.n_vertices} vertices; at most {MOST_VERTICES} can be "
            "drawn: draw a smaller one, or fewer devices of it"
        )
    with themed():
        place = layout(topology)
        if ax is None:
            width, height = _size_in(place.xy, len(_keys(topology, load)))
            ax = free_axes(width, height + (_BAR_IN if load is not None else 0.0))
            said = "simulated, not measured; " if load is not None else ""
            drawn = (
                f"{said}{topology.name}, {topology.n_links} links; ridgeline {__version__}, "
                f"network {topology_fingerprint(topology)[:16]}"
            )
            ax.figure.supxlabel(
                stamp or drawn,
                x=0.01, ha="left", fontsize=STAMP, color=FAINT, wrap=True,
            )  # fmt: skip
        ax.set_axis_off()
        ax.set_aspect("equal", adjustable="datalim")
        _links(ax, topology, place.xy, place.bent, load)
        _vertices(ax, topology, place.xy)
        _title(ax, topology, load)
        ax.margins(0.06)
    return ax


def _size_in(xy: Floats, keys: int) -> tuple[float, float]:
    """Return a size that suits the extent: on a screen 7 to 9.5 inches wide, in print a column."""
    wide, high = np.ptp(xy, axis=0) + 1e-9
    width = float(np.clip(4.0 + 0.7 * math.sqrt(len(xy)), 7.0, 9.5))
    width = width if chosen() == THEMES["screen"] else chosen().width_in
    drawn = float(np.clip(width * high / wide, min(1.2, 0.3 * width), 1.15 * width))
    return width, drawn + 0.9 + 0.2 * -(-keys // _legend_columns())


def _legend_columns() -> int:
    return 3 if chosen() == THEMES["screen"] else 2


def _pairs(topology: Topology) -> tuple[Ints, Ints, Ints]:
    """Return every pair of linked vertices once, with the rows of its two directions."""
    forward = np.flatnonzero(topology.source < topology.target)
    n = topology.n_vertices
    names = {name: i for i, name in enumerate(dict.fromkeys(topology.link_class))}
    kind = np.array([names[name] for name in topology.link_class])
    key = (topology.source.astype(np.int64) * n + topology.target) * len(names) + kind
    back = (topology.target.astype(np.int64) * n + topology.source) * len(names) + kind
    order = np.argsort(key, kind="stable")
    return forward, order[np.searchsorted(key[order], back[forward])], kind


def _class_colours(topology: Topology) -> dict[tuple[str, float], str]:
    """Return a colour for every class of links, and every bandwidth in it."""
    each = (topology.bandwidth_bytes_per_s / topology.count).tolist()
    classes = dict.fromkeys(zip(topology.link_class, each, strict=True))
    return dict(zip(classes, cycle(_CLASS_COLOURS), strict=False))


def _links(ax: Axes, topology: Topology, xy: Floats, bent: Floats, load: LinkLoad | None) -> None:
    from matplotlib.collections import LineCollection

    forward, backward, kind = _pairs(topology)
    a, b = xy[topology.source[forward]], xy[topology.target[forward]]
    bandwidth = topology.bandwidth_bytes_per_s[forward]
    # parallel classes between the same vertices stand beside each other
    bend = bent[forward] + 0.05 * kind[forward] * (bent[forward] == 0) * _is_doubled(
        topology, forward
    )
    lines = _curves(a, b, bend)
    crowd = max(1.0, (len(forward) / _CROWD) ** 0.75)
    width = np.maximum((0.8 + 2.4 * np.sqrt(bandwidth / bandwidth.max())) / crowd, _THIN)
    if load is None:
        colour_of, each = _class_colours(topology), topology.bandwidth_bytes_per_s / topology.count
        colours = [colour_of[topology.link_class[i], each[i]] for i in forward.tolist()]
        ax.add_collection(LineCollection(lines, colors=colours, linewidths=width, zorder=1))
        return
    share = np.maximum(load.share[forward], load.share[backward])
    order = np.argsort(share, kind="stable")
    idle = share[order] == 0
    drawn = [lines[i] for i in order]
    ax.add_collection(
        LineCollection(
            [line for line, off in zip(drawn, idle, strict=True) if off],
            colors=GRID,
            linewidths=width[order][idle],
            zorder=1,
        )
    )
    busy = LineCollection(
        [line for line, off in zip(drawn, idle, strict=True) if not off],
        array=share[order][~idle], cmap=_heat(), linewidths=width[order][~idle], zorder=2,
    )  # fmt: skip
    busy.set_clim(0.0, 1.0)
    ax.add_collection(busy)
    bar = ax.figure.colorbar(
        busy, ax=ax, location="bottom", shrink=0.5, pad=0.02, aspect=30, anchor=(0.0, 0.0)
    )
    bar.set_label("share of the time in use, busier direction (grey: idle)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)


def _heat() -> object:
    """Return colours of one order, light to dark, whose lightest is told from idle grey."""
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    shades = matplotlib.colormaps["YlOrRd"](np.linspace(0.25, 1.0, 64))
    return LinearSegmentedColormap.from_list("heat", list(shades))


def _is_doubled(topology: Topology, forward: Ints) -> Floats:
    """Tell which links share their two vertices with one of another class."""
    key = topology.source[forward].astype(np.int64) * topology.n_vertices + topology.target[forward]
    _, inverse, count = np.unique(key, return_inverse=True, return_counts=True)
    doubled: Floats = (count[inverse] > 1).astype(np.float64)
    return doubled


def _curves(a: Floats, b: Floats, bend: Floats) -> list[Floats]:
    """Lines from a to b that leave the straight way by `bend` of their length in the middle."""
    t = np.linspace(0.0, 1.0, 13)[:, None]
    curves = []
    for start, end, by in zip(a, b, bend, strict=True):
        if by == 0.0:
            curves.append(np.stack((start, end)))
            continue
        along = end - start
        middle = (start + end) / 2 + 2 * by * np.array([-along[1], along[0]])
        curves.append((1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end)
    return curves


def _vertices(ax: Axes, topology: Topology, xy: Floats) -> None:
    n = topology.n_vertices
    between_pt = _between_pt(ax, xy)
    labelled = n <= _LABELLED and between_pt >= _LEGIBLE_PT
    spread = float(np.clip(3000 / max(n, 1), 4.0, 430.0 if labelled else 60.0))
    spread = min(spread, max(1.0, (0.7 * between_pt) ** 2))
    kinds = np.array(topology.vertex_kinds)
    for kind in dict.fromkeys(topology.vertex_kinds):
        at = xy[kinds == kind]
        ax.scatter(
            at[:, 0], at[:, 1], s=spread * _AREA.get(kind, 1.0), marker=_MARKER[kind],
            facecolor=_FILL[kind], clip_on=False, edgecolor=INK,
            linewidth=0.8 if n <= 300 else 0.3, zorder=3, label=_plural(kind),
        )  # fmt: skip
    if labelled:
        for vertex, (x, y) in enumerate(xy):
            dark = kinds[vertex] == "switch"
            low = "center_baseline" if kinds[vertex] != "host" else "top"
            ax.text(
                x, y, _short(topology, vertex), ha="center", va=low, zorder=4,
                fontsize=SMALL - 1, color="#ffffff" if dark else INK,
            )  # fmt: skip


def _between_pt(ax: Axes, xy: Floats) -> float:
    """Points between the two vertices that are nearest to each other, about."""
    if len(xy) < 2:
        return math.inf
    figure = ax.get_figure(root=True)
    assert figure is not None
    point = max(np.ptp(xy, axis=0) / (72 * 0.85 * figure.get_size_inches())) + 1e-12
    least = min(
        float(np.hypot(*(xy[i + 1 :] - xy[i]).T).min()) for i in range(min(len(xy) - 1, _LABELLED))
    )
    return least / float(point)


def _plural(kind: str) -> str:
    return {"switch": "switches", "nic": "NICs"}.get(kind, f"{kind}s")


def _short(topology: Topology, vertex: int) -> str:
    """Return the number of a device, and the last letters of anything else."""
    name = topology.vertex_names[vertex].rsplit(".", 1)[-1]
    if topology.vertex_kinds[vertex] == DEVICE:
        return name.lstrip("abcdefghijklmnopqrstuvwxyz") or name[:4]
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
    return (name[:1] + digits) if digits else name[:3]


def _title(ax: Axes, topology: Topology, load: LinkLoad | None) -> None:
    from ridgeline.units import show

    title = [topology.name]
    if load is not None:
        busiest = percent(float(load.share.max(initial=0.0)))
        title.append(f"{load.title}: {show(load.time_s, 's')}, busiest link {busiest} in use")
    width_pt = 0.94 * ax.figure.get_figure(root=True).get_size_inches()[0] * 72
    lines = [part for line in title for part in wrapped(line, TEXT + 1, width_pt, "bold")]
    ax.set_title("\n".join(lines), loc="left")
    ax.legend(
        handles=_keys(topology, load), loc="upper left", bbox_to_anchor=(0.0, 0.0),
        ncols=_legend_columns(),
        fontsize=SMALL, frameon=False, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip


def _keys(topology: Topology, load: LinkLoad | None) -> list[Line2D]:
    """Return the entries of the legend: kinds of vertices, classes of links."""
    from matplotlib.lines import Line2D

    from ridgeline.network.topology_metrics import link_classes
    from ridgeline.units import show

    handles = [
        Line2D([], [], marker=_MARKER[kind], color="none", markerfacecolor=_FILL[kind],
               markeredgecolor=INK, label=_plural(kind))
        for kind in dict.fromkeys(topology.vertex_kinds)
    ]  # fmt: skip
    colour_of = _class_colours(topology)
    for link in link_classes(topology):
        colour = FAINT if load else colour_of[link.name, link.bandwidth_bytes_per_s]
        text = f"{link.n_links:,} × {link.name}, {show(link.bandwidth_bytes_per_s, 'B/s')}"
        handles.append(Line2D([], [], color=colour, label=text))
    return handles
