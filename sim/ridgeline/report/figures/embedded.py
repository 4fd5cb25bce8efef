"""The record in a figure's file: what it shows, as numbers, and how it is made again.

Every PNG and SVG that `figures.result.save` writes has one, as JSON in its description, so that
``ridgeline lint`` can judge the figure and ``ridgeline verify`` can repeat it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RECORD = "ridgeline_figure"
"""Key by which a record is known; its value is the version of its form."""
_VERSION = 1
_MOST_POINTS = 256  # of a series whose numbers stand in the record; longer ones have a hash alone
_MOST_SERIES = 64
_DIGITS = 12
DESCRIPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
"""Field of the metadata of each format that the record stands in."""

_origins: WeakKeyDictionary[Figure, dict[str, Any]] = WeakKeyDictionary()


def set_origin(ax: Axes, origin: Mapping[str, Any]) -> None:
    """Remember what a figure was made from; a later call adds to an earlier one.

    Parameters
    ----------
    origin
        Plain values: ``repeat`` (what makes it again), ``simulated``, ``result`` (manifest and main
        numbers), ``states`` (more of what the rules of honesty ask for).
    """
    figure = ax.get_figure(root=True)
    if figure is not None:
        _origins[figure] = {**_origins.get(figure, {}), **origin}


def of_result(result: Any, kind: str) -> dict[str, Any]:
    """Return the origin of a figure of one result."""
    return {
        "simulated": True,
        "repeat": {"of": "result", "kind": kind},
        "result": {
            "step_time_s": result.step_time_s,
            "samples_per_s": result.samples_per_s,
            "energy_j": {"total": result.energy_j["total"]},
            "manifest": dict(result.manifest),
        },
    }


def record_of(figure: Figure) -> dict[str, Any]:
    """Return the record of a figure: its origin, its axes with their numbers, and its text."""
    drawn = [axes_record(ax) for ax in figure.axes if ax.get_visible()]
    return {
        RECORD: _VERSION,
        "ridgeline": __version__,
        **_origins.get(figure, {}),
        "axes": drawn,
        "texts": texts_of(figure),
    }


def description(figure: Figure) -> str:
    """Return the record as the text that stands in a file."""
    return json.dumps(record_of(figure), sort_keys=True, separators=(",", ":"), default=str)


def texts_of(figure: Figure) -> list[str]:
    """Return every text that stands in a figure, but for the labels of ticks."""
    from matplotlib.text import Text

    ticks = {
        id(label)
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
    }
    found = [
        " ".join(one.get_text().split())
        for one in figure.findobj(Text)
        if id(one) not in ticks and one.get_visible()
    ]
    return list(dict.fromkeys(text for text in found if text))


def axes_record(ax: Axes) -> dict[str, Any]:
    """Return what axes show: labels, scales, limits, and the numbers of each series.

    Cells of a table have their numbers as text, and what they stand for as the names of patches.
    """
    from matplotlib.container import BarContainer, ErrorbarContainer

    lines = [line for line in ax.get_lines() if line.get_visible()]
    names = [str(line.get_gid() or line.get_label()).lower() for line in lines]
    bars = [c for c in ax.containers if isinstance(c, BarContainer)]
    series = [
        _series(str(line.get_label()), line.get_xdata(orig=False), line.get_ydata(orig=False))
        for line in lines
    ]
    for collection in ax.collections:
        x, y = _drawn_by(collection)
        if len(x):
            series.append(_series(str(collection.get_label()), x, y))
    if ax.patches:
        boxes = np.array([_bounds(patch) for patch in ax.patches])
        series.append(_series("patches", boxes[:, :2].ravel(), boxes[:, 2:].ravel()))
    errors = any(isinstance(c, ErrorbarContainer) for c in ax.containers)
    made: dict[str, Any] = {
        "title": ax.get_title(loc="left") or ax.get_title(),
        "x_label": ax.get_xlabel(),
        "y_label": ax.get_ylabel(),
        "x_scale": ax.get_xscale(),
        "y_scale": ax.get_yscale(),
        "x_limits": _rounded(ax.get_xlim()),
        "y_limits": _rounded(ax.get_ylim()),
        "ideal_line": any("ideal" in name or "linear" in name for name in names),
        "linear_inset": any(
            inner.get_yscale() == inner.get_xscale() == "linear" for inner in ax.child_axes
        ),
        "series": series[:_MOST_SERIES],
    }
    if errors:
        made["error_bars"] = True
    if bars:
        made["plot_kind"] = "bar"
    written = [t for t in ax.texts if t.get_visible() and t.get_transform() == ax.transData]
    if written:
        made["written"] = [t.get_text() for t in written[:_MOST_POINTS]]
    if any(patch.get_gid() for patch in ax.patches):
        made["patches"] = [str(patch.get_gid() or "") for patch in ax.patches[:_MOST_POINTS]]
    return made


def _drawn_by(collection: Any) -> tuple[Any, Any]:
    """Return the points, the corners or, of a mesh, the places and values of a collection."""
    from matplotlib.collections import LineCollection, PolyCollection, QuadMesh

    if isinstance(collection, QuadMesh) and collection.get_array() is not None:
        values = np.ma.filled(np.ma.asarray(collection.get_array(), np.float64), np.nan).ravel()
        return np.arange(len(values)), values
    if isinstance(collection, LineCollection | PolyCollection):
        corners = [np.asarray(path.vertices, np.float64) for path in collection.get_paths()]
        points = np.concatenate([np.empty((0, 2)), *corners])
    else:
        points = np.asarray(collection.get_offsets(), np.float64)
    return points[:, 0], points[:, 1]


def _bounds(patch: Any) -> tuple[float, float, float, float]:
    """Return a patch's corner and size in the units of its axes."""
    box = patch.get_path().get_extents(patch.get_patch_transform())
    return box.x0, box.y0, box.width, box.height


def _series(label: str, x: Any, y: Any) -> dict[str, Any]:
    """Return a series' numbers where they are few, and their hash."""
    columns = [np.asarray(values, np.float64).ravel() for values in (x, y)]
    texts = [[f"{value:.{_DIGITS}g}" for value in column] for column in columns]
    hashed = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    made: dict[str, Any] = {"label": label, "points": len(columns[0]), "hash": hashed}
    if len(columns[0]) <= _MOST_POINTS:
        made |= {"x": [_finite(t) for t in texts[0]], "y": [_finite(t) for t in texts[1]]}
    return made


def _finite(text: str) -> float | str:
    value = float(text)
    return value if np.isfinite(value) else text


def _rounded(ends: tuple[float, float]) -> list[float]:
    return [float(f"{end:.{_DIGITS}g}") for end in ends]
