"""Figures of parts that add up: where the time and the energy of a step go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.report.figures.style import (
    COLOURS,
    DUST,
    GRID,
    INK,
    SMALL,
    figure,
    head,
    percent,
    prefixed,
    subject,
    text_pt,
    words,
)
from ridgeline.units import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.report.result import Result


@figure("time", height_in=3.3, left_in=1.62, top_in=0.4, bottom_in=1.05)
def time(result: Result, ax: Axes) -> str:
    """Draw where the wall clock of a step goes: one bar for each part of ``time_s``."""
    _bars(ax, result.time_s, "s", "time on the critical rank")
    head(ax, f"Time of a step: {show(result.time_s['total'], 's')}", subject=subject(result))
    return "" if result.manifest["io_modelled"] else "Reading of input is not modelled."


@figure("energy", height_in=3.3, left_in=0.85, top_in=0.4, bottom_in=1.05)
def energy(result: Result, ax: Axes) -> str:
    """Draw where the energy of a step goes: one bar for each part of ``energy_j``."""
    _bars(ax, result.energy_j, "J", "energy of all devices in use")
    head(ax, f"Energy of a step: {show(result.energy_j['total'], 'J')}", subject=subject(result))
    return f"Scope: {result.manifest['energy_scope']}."


def _bars(ax: Axes, parts: Mapping[str, float], unit: str, label: str) -> None:
    """Draw every part but the total as a bar from zero, with its value and its share."""
    names = [name for name in parts if name != "total"]
    total = parts["total"]
    prefix, scale = prefixed(total)
    values = [parts[name] / scale for name in names]
    bars = ax.barh(
        [words(name) for name in names],
        values,
        height=0.68,
        color=[COLOURS[name] for name in names],
    )
    shares = [parts[name] / total if total else 0.0 for name in names]
    labels = [
        f"{value if share > DUST else 0.0:.3g} {prefix}{unit}  ({percent(share)})"
        for value, share in zip(values, shares, strict=True)
    ]
    ax.bar_label(bars, labels, padding=4, fontsize=SMALL, color=INK)
    ax.invert_yaxis()
    width_pt = ax.bbox.width / ax.figure.dpi * 72
    beside = [
        value * width_pt / max(width_pt - text_pt(text, SMALL) - 12, width_pt / 4)
        for value, text in zip(values, labels, strict=True)
    ]
    ax.set_xlim(0, max(beside) or 1.0)
    ax.set_xlabel(f"{label} ({prefix}{unit})")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
