"""Figures of the rows of a sweep or a validation, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ridgeline.report.figures.choice import choice
from ridgeline.report.figures.search import hypervolume_curves
from ridgeline.report.figures.study import bars, curve, pareto_front, residuals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_FIGURES: Mapping[str, Callable[..., Axes]] = MappingProxyType(
    {
        "curve": curve,
        "pareto": pareto_front,
        "choice": choice,
        "hypervolume": hypervolume_curves,
        "residuals": residuals,
        **dict.fromkeys(("time", "energy", "memory"), bars),
    }
)
