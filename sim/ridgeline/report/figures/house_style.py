"""The house style for figures that a notebook draws by hand, on light and on dark pages.

In a notebook, figures become inline SVG with real text: what is ink takes the colour of the page's
text, and there is no paper, so that a figure follows a light or a dark theme.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import AbstractContextManager
from html import escape
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError, nearest
from ridgeline.report.figures.style import (
    FAINT,
    GRID,
    INK,
    METADATA,
    PAPER,
    SERIES,
    SMALL,
    TEXT,
    figure_rc,
    saving,
)

if TYPE_CHECKING:
    from types import TracebackType

    from matplotlib.figure import Figure

LOOKS = {
    "auto": (INK, FAINT, GRID, "none"),
    "light": (INK, FAINT, GRID, PAPER),
    "dark": ("#e8e8ea", "#a4a8af", "#3a3f46", "none"),
}
"""Ink, faint ink, grid and paper by look."""
_ON_PAGE = {
    INK: "currentColor",
    FAINT: "color-mix(in srgb, currentColor 68%, transparent)",
    GRID: "color-mix(in srgb, currentColor 18%, transparent)",
    PAPER: "none",
}
"""What an inline SVG has in place of a colour."""


class Style(AbstractContextManager["Style"]):
    """The house style, which holds from when it is made to the end of the `with` block, if any."""

    def __init__(self, look: str) -> None:
        from cycler import cycler

        ink, faint, grid, paper = LOOKS[look]
        wanted: dict[str, Any] = {
            **figure_rc(),
            "text.color": ink,
            "axes.labelcolor": ink,
            "axes.titlecolor": ink,
            "axes.edgecolor": faint,
            "axes.facecolor": paper,
            "figure.facecolor": paper,
            "savefig.facecolor": paper,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.prop_cycle": cycler(color=SERIES),
            "grid.color": grid,
            "grid.linewidth": 0.6,
            "lines.linewidth": 1.3,
            "lines.markersize": 4,
            "xtick.color": faint,
            "ytick.color": faint,
            "xtick.labelcolor": ink,
            "ytick.labelcolor": ink,
            "xtick.labelsize": SMALL,
            "ytick.labelsize": SMALL,
            "axes.titlesize": TEXT + 1,
            "svg.fonttype": "none",
        }
        self._before = {name: _settings()[name] for name in wanted}
        _settings().update(wanted)
        self._shown = show_in_notebook() if look == "auto" else []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore what held before."""
        _settings().update(self._before)
        for formatter, type_ in self._shown:
            formatter.pop(type_, None)


def _settings() -> Any:
    """Return matplotlib's settings, whose names are literals to a type checker."""
    import matplotlib

    return matplotlib.rcParams


def style(look: str = "auto") -> Style:
    """Draw what follows in the house style: letters, colours, frames.

    ``rl.style()`` at the head of a notebook holds for all of it; ``with rl.style():`` for a block.

    Parameters
    ----------
    look
        "auto": figures in a notebook follow its theme; "light"; or "dark", for a dark page or slide
        (the paper is transparent).

    Raises
    ------
    ConfigError
        If there is no such look.
    """
    if look not in LOOKS:
        raise ConfigError(
            f"there is no look {look!r}{nearest(look, LOOKS)} (there are: {', '.join(LOOKS)})",
            field="look",
        )
    return Style(look)


def show_in_notebook() -> list[tuple[Any, type]]:
    """Show figures and axes as inline SVG where IPython runs; return what was registered."""
    if "IPython" not in sys.modules:
        return []
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return []
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(Figure, inline_svg)
    formatter.for_type(Axes, lambda axes: inline_svg(axes.get_figure(root=True)))
    return [(formatter, Figure), (formatter, Axes)]


def inline_svg(figure: Figure) -> str:
    """Return a figure as SVG for an HTML page: real text, the page's colour as ink, no paper."""
    stream = io.StringIO()
    with saving():
        figure.savefig(stream, format="svg", metadata=METADATA[".svg"])
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for colour, on_page in _ON_PAGE.items():
        text = re.sub(rf"{colour}\b", on_page, text, flags=re.IGNORECASE)
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    name = escape(" ".join(filter(None, titles)).replace("\n", ", ") or "figure")
    look = 'style="max-width:100%;height:auto" fill="currentColor"'
    return text.replace("<svg", f'<svg role="img" aria-label="{name}" {look}', 1)
