"""Figures of a result, by name. Each takes a result and axes, and returns the axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.report.figures.bars import energy, time
from ridgeline.report.figures.effects import sobol, tornado, utilisation
from ridgeline.report.figures.embedded import DESCRIPTION, description, of_result, set_origin
from ridgeline.report.figures.links import topology
from ridgeline.report.figures.pipeline import pipeline
from ridgeline.report.figures.roofline import roofline
from ridgeline.report.figures.steps import memory, power, timeline
from ridgeline.report.figures.style import FIGURES, METADATA, FigureFunction, saving
from ridgeline.report.figures.themes import THEMES, theme
from ridgeline.report.files import check_writable, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ridgeline.report.result import Result

__all__ = [
    "FIGURES",
    "PICTURES",
    "draw",
    "energy",
    "memory",
    "pipeline",
    "power",
    "roofline",
    "save",
    "sobol",
    "time",
    "timeline",
    "topology",
    "tornado",
    "utilisation",
]

PICTURES: Mapping[str, FigureFunction] = MappingProxyType({"topology": topology})
"""Without axes that measure anything."""


def draw(kind: str, result: Result, ax: Axes | None = None, look: str | None = None) -> Axes:
    """Draw a figure by name, into the given axes or into a figure of its own in a theme.

    Raises
    ------
    RidgelineError
        If there is no such figure.
    """
    drawn = PICTURES.get(kind) or FIGURES.find(kind)
    if drawn is None:
        known = sorted([*FIGURES, *PICTURES])
        raise RidgelineError(
            f"there is no figure {kind!r}{nearest(kind, known)} (there are: {', '.join(known)})"
        )
    with theme(look):
        made = drawn(result, ax)
    if ax is None:
        set_origin(made, of_result(result, kind))
    return made


def save(drawn: Axes | Figure, path: str | Path) -> None:
    """Write a figure, or the figure that axes belong to, as PNG, SVG or PDF, by the suffix.

    Equal figures make equal bytes: no time and no version of a library is written. The file has a
    record of what it shows (`embedded`).

    Raises
    ------
    ConfigError
        If the suffix is another one, or the file cannot be written.
    """
    suffix = _format(path)
    figure = drawn.get_figure(root=True)
    assert figure is not None  # axes that were removed from their figure
    metadata = {**METADATA[suffix], DESCRIPTION[suffix]: description(figure)}
    with replacing(path) as temporary, saving():
        figure.savefig(temporary, dpi=_dpi(figure), metadata=metadata, format=suffix[1:])


def check_figure(path: str | Path) -> None:
    """Raise ConfigError now, rather than after long work, if a figure cannot be written."""
    _format(path)
    check_writable(path)


def _format(path: str | Path) -> str:
    """Return the suffix of a file for a figure, or raise ConfigError."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise ConfigError(
            f"the suffix {suffix!r} is no format for figures; use {', '.join(METADATA)}",
            file=str(path),
        )
    return suffix


def _dpi(figure: Figure) -> int:
    """Return what a figure's theme wants it to be written with."""
    named = {f"{one.dpi} dpi": one.dpi for one in THEMES.values()}
    return named.get(str(figure.get_gid()), THEMES["screen"].dpi)
