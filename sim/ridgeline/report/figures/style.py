"""What all figures and the HTML share: one colour for each concept, type, frame and stamp."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.registry import Registry, takes
from ridgeline.report.figures.themes import chosen
from ridgeline.workload.graph import Pass

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from ridgeline.report.result import Result

INK, FAINT, GRID, PAPER = "#222222", "#767676", "#e4e4e4", "#ffffff"

# Okabe and Ito, "Color Universal Design", 2008: told apart with any common colour blindness.
_ORANGE, _SKY, _GREEN, _YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
_BLUE, _VERMILION, _PURPLE, _GREY = "#0072B2", "#D55E00", "#CC79A7", "#BBBBBB"

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        # the time and the energy of a step; the same word has the same colour in both
        "compute": _BLUE,
        "memory_stall": _ORANGE,
        "exposed_communication": _VERMILION,
        "bubble": _GREY,
        "input": _YELLOW,
        "optimizer": _PURPLE,
        "registers": _SKY,
        "sram": _GREEN,
        "dram": _ORANGE,
        "network": _VERMILION,
        "static": _GREY,
        # what a task does
        Pass.FORWARD.value: _SKY,
        Pass.RECOMPUTE.value: _YELLOW,
        Pass.INPUT_GRADIENT.value: _BLUE,
        Pass.WEIGHT_GRADIENT.value: _GREEN,
        Pass.UPDATE.value: _PURPLE,
        COLLECTIVE: _VERMILION,
        ISSUE: _GREY,
        # what lies in memory
        "weights": _BLUE,
        "gradients": _GREEN,
        "activations": _SKY,
        "workspace": _ORANGE,
    }
)

SERIES = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)
"""Colours of things that have no colour of their own, in order."""

# Sizes in points, for a figure that a paper sets one column wide or a screen shows as it is.
TEXT, SMALL, CAPTION, STAMP = 9.0, 8.0, 7.5, 6.5
_FONT = "DejaVu Sans"  # comes with matplotlib, so it is there everywhere
_RC: Any = MappingProxyType(
    {
        "font.family": _FONT,
        "font.size": TEXT,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.labelsize": TEXT,
        "axes.titlesize": TEXT + 1,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "legend.fontsize": SMALL,
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
    }
)
# What makes the bytes of a file depend on the figure alone.
_SAVE_RC: Any = MappingProxyType(
    {"svg.hashsalt": "ridgeline", "svg.fonttype": "none", "pdf.fonttype": 42}
)
METADATA: Mapping[str, Mapping[str, None]] = MappingProxyType(
    {
        ".png": MappingProxyType({"Software": None}),
        ".svg": MappingProxyType({"Creator": None, "Date": None}),
        ".pdf": MappingProxyType({"Creator": None, "Producer": None, "CreationDate": None}),
    }
)
DUST = 1e-9  # a smaller share is what rounding left over


class FigureFunction(Protocol):
    """Draws a result into the given axes, or into a figure of its own, and returns the axes."""

    def __call__(self, result: Result, ax: Axes | None = None) -> Axes: ...  # noqa: D102


FIGURES: Registry[str, FigureFunction] = Registry("figure of a result", "ridgeline.report.figures")
"""Figures of one result by name."""


def figure(
    name: str,
    *,
    height_in: float = 3.3,
    left_in: float = 1.1,
    top_in: float = 0.75,
    bottom_in: float = 1.05,
) -> Callable[[Callable[[Result, Axes], str]], FigureFunction]:
    """Return a decorator that registers a figure: the function draws and returns a caption.

    Axes, theme and stamp are added.

    Parameters
    ----------
    name
        What ``ridgeline plot`` and `Result.plot` call it.
    height_in
        Height of the figure, if it has to be made, in inches.
    left_in
        Space for the labels of its vertical axis, in inches.
    top_in
        Space for title and legend, in inches.
    bottom_in
        Space for the label of its horizontal axis, caption and stamp, in inches.

    Raises
    ------
    RidgelineError
        If the name is taken, or the function takes other parameters; by the decorator.
    """

    def put(draw: Callable[[Result, Axes], str]) -> FigureFunction:
        takes(draw, f"figure {name!r}", "result", "ax")

        @functools.wraps(draw)
        def drawn(result: Result, ax: Axes | None = None) -> Axes:
            space = (height_in, left_in, top_in, bottom_in)
            return sheet(space, lambda axes: draw(result, axes), stamp_text(result), ax)

        return FIGURES.register(name)(drawn)

    return put


def figure_rc() -> dict[str, Any]:
    """Return matplotlib's settings of letters, labels, titles and legends."""
    return dict(_RC)


def themed() -> Any:
    """Return the context in which figures are drawn."""
    import matplotlib

    return matplotlib.rc_context(dict(_RC))


def free_axes(width_in: float, height_in: float) -> Axes:
    """Return axes of a new figure of any size, for pictures that are not charts of a result."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width_in, height_in), facecolor=PAPER, layout="constrained")
    made.set_gid(f"{chosen().dpi} dpi")  # to be written with
    FigureCanvasAgg(made)
    return made.add_subplot()


def sheet(
    space_in: tuple[float, float, float, float],
    draw: Callable[[Axes], str],
    stamp: str,
    ax: Axes | None = None,
) -> Axes:
    """Draw something that is no result: add axes, theme and stamp, as `figure` does.

    Parameters
    ----------
    space_in
        Height and the spaces at the left, the top and the bottom, as in `figure`.
    draw
        Draws into axes and returns a caption.
    """
    import matplotlib

    with matplotlib.rc_context(dict(_RC)):
        if ax is not None:
            _dress(ax)
            _foot(ax, draw(ax), stamp)
            return ax
        height_in, left_in, top_in, bottom_in = space_in
        while True:
            made = _new_axes(height_in, left_in, top_in, bottom_in)
            _dress(made)
            down_pt = _foot(made, draw(made), stamp)
            more_in = _left_of_figure_in(made)
            if more_in <= 0 or left_in > space_in[1]:
                break
            left_in = min(left_in + more_in, chosen().width_in / 2)  # names at the left need it
        _make_room(made, _above_in(made), down_pt / 72 - bottom_in)
    return made


def _left_of_figure_in(ax: Axes) -> float:
    """Inches by which what stands at the left of the axes is outside of the figure."""
    box = ax.yaxis.get_tightbbox()
    return 0.0 if box is None else float(0.04 - box.x0 / ax.figure.dpi)


def saving() -> Any:
    """Return the context in which figures are written."""
    import matplotlib

    return matplotlib.rc_context(dict(_SAVE_RC))


def words(name: str) -> str:
    """Return the name of a part as a person would write it."""
    return name.replace("_", " ")


def prefixed(largest: float) -> tuple[str, float]:
    """Return the prefix of the unit that values up to the largest are drawn in, and its size."""
    return next((one for one in _PREFIXES if largest >= one[1]), ("", 1.0))


_PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("u", 1e-6))


def time_axis(largest_s: float) -> tuple[str, float]:
    """Return the unit that times up to the largest are drawn in, and its seconds: s, ms or us."""
    prefix, seconds = prefixed(min(largest_s, 1.0))
    return f"{prefix}s", seconds


def stamp_text(result: Result) -> str:
    """Say what a figure shows, from which inputs, and that it was simulated."""
    plan, given = result.details.plan, result.manifest
    fields = {name: value for name, value in plan.chosen.items() if name != "precision"}
    shown = ", ".join(f"{name}={value}" for name, value in fields.items())
    changed = {**given["model"]["overrides"], **given["cluster"]["overrides"]}
    software = given["software"]["name"] + (" (changed)" if given["software"]["overrides"] else "")
    machine = f"{given['cluster']['name']}" + (f" with {len(changed)} changes" if changed else "")
    misfit = "" if result.fits else "DOES NOT FIT INTO MEMORY; "
    return (
        f"{misfit}simulated, not measured: {given['model']['name']} on {machine}, "
        f"{shown}, {plan.precision}, software {software}; ridgeline {given['ridgeline']},"
        f" manifest {given['hash']}"
    )


def subject(result: Result) -> str:
    """Name network, machine and software stack of a result."""
    given, software = result.manifest, result.manifest["software"]
    bound = ", a bound" if software["bound"] else ""
    return (
        f"{given['model']['name']} on {given['plan']['devices']} × {given['device']['name']} "
        f"({given['cluster']['name']}), software {software['name']}{bound}"
    )


def head(
    ax: Axes,
    title: str,
    handles: Sequence[Artist] = (),
    columns: int = 6,
    *,
    subject: str = "",
) -> None:
    """Set the title and, between it and the axes, a legend of `columns` columns.

    Parameters
    ----------
    subject
        Network, machine and stack: a line below the title.
    """
    width_pt = ax.bbox.width / ax.figure.dpi * 72
    for one in handles:  # a name that is longer than a line takes several
        room_pt = width_pt - (_HANDLE + 0.5) * SMALL
        one.set_label("\n".join(wrapped(str(one.get_label()), SMALL, room_pt)))
    columns = _columns(handles, columns, width_pt)
    rows = -(-len(handles) // columns)
    if columns == 1:
        rows = sum(str(one.get_label()).count("\n") + 1 for one in handles)
    lines = wrapped(title, TEXT + 1, width_pt, "bold")
    below_pt = 8 + _LEGEND_ROW * rows
    if subject:
        about = wrapped(subject, SMALL, 0.97 * width_pt)
        ax.annotate(
            "\n".join(about), (0, 1), xycoords="axes fraction", xytext=(0, below_pt - 2),
            textcoords="offset points", va="bottom", fontsize=SMALL, color=FAINT,
            annotation_clip=False, gid="subject",
        )  # fmt: skip
        below_pt += 1.3 * SMALL * len(about)
    ax.set_title("\n".join(lines), pad=below_pt, gid=_TITLE)
    if handles:
        ax.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=columns,
            borderpad=0.2,
            borderaxespad=0.2,
            handlelength=1.0,
            handletextpad=0.5,
            columnspacing=1.2,
        )


_TITLE, _LEGEND_ROW = "title", 13.5
_HANDLE, _SPACING = 1.7, 1.2  # of an entry and between two columns of a legend, in its letters


def _columns(handles: Sequence[Artist], most: int, width_pt: float) -> int:
    """Return how many columns of a legend have room beside each other, at most so many."""
    if any("\n" in str(one.get_label()) for one in handles):
        return 1
    widths = [_HANDLE * SMALL + text_pt(str(one.get_label()), SMALL) for one in handles]
    for columns in range(min(most, max(1, len(widths))), 1, -1):
        held, longer = divmod(len(widths), columns)  # the first columns have one entry more
        ends = [(held + 1) * min(i, longer) + held * max(i - longer, 0) for i in range(columns + 1)]
        used = sum(max(widths[a:b]) for a, b in pairwise(ends))
        if used + (columns - 1) * _SPACING * SMALL <= width_pt:
            return columns
    return 1


def percent(share: float) -> str:
    """Write a share for people; a small one is not rounded to nothing."""
    return "<0.1%" if DUST < share < 0.0005 else f"{share:.1%}"


_RIGHT_IN = 0.2


def _new_axes(height_in: float, left_in: float, top_in: float, bottom_in: float) -> Axes:
    # Agg and no pyplot: no window, no global state, nothing that needs closing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width_in, dpi = chosen()
    made = Figure(figsize=(width_in, height_in), facecolor=PAPER)
    made.set_gid(f"{dpi} dpi")  # to be written with
    FigureCanvasAgg(made)
    width, height = width_in - left_in - _RIGHT_IN, height_in - top_in - bottom_in
    return made.add_axes(
        (left_in / width_in, bottom_in / height_in, width / width_in, height / height_in)
    )


def _dress(ax: Axes) -> None:
    """Theme axes; said to the axes themselves, since ticks are made after the context has ended."""
    ax.set_facecolor(PAPER)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(which="both", labelsize=SMALL, color=FAINT, labelcolor=INK)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(fontsize=TEXT, color=INK)
    ax.set_axisbelow(True)


def _above_in(ax: Axes) -> float:
    """Inches by which what stands above the axes is higher than the figure."""
    made = ax.get_figure(root=True)
    assert made is not None
    tops = [found.get_window_extent().y1 for found in ax.findobj(_is_title)]
    return float(max(tops, default=0.0) / made.dpi + 0.06 - made.get_size_inches()[1])


def _is_title(artist: Artist) -> bool:
    return artist.get_gid() == _TITLE


def _make_room(ax: Axes, above_in: float, below_in: float) -> None:
    """Make a figure higher, so that nothing above and below its axes is cut off."""
    above_in, below_in = max(above_in, 0.0), max(below_in, 0.0)
    if above_in == below_in == 0.0:
        return
    made = ax.get_figure(root=True)
    assert made is not None
    width, height = made.get_size_inches()
    whole = height + above_in + below_in
    made.set_size_inches(width, whole)
    for axes in made.axes:
        x, y, across, up = axes.get_position(original=True).bounds
        axes.set_position((x, (y * height + below_in) / whole, across, up * height / whole))


def _foot(ax: Axes, caption: str, stamp: str) -> float:
    """Write below the axes, where it stays with them among others in one figure.

    Returns
    -------
    float
        Points that are used below the axes.
    """
    width_pt = ax.bbox.width / ax.figure.dpi * 72
    label = wrapped(ax.get_xlabel(), TEXT, width_pt)
    ax.set_xlabel("\n".join(label))
    down_pt = 34.0 + 1.25 * TEXT * (len(label) - 1)
    for name, text, size, colour in (
        ("caption", caption, CAPTION, INK),
        ("stamp", stamp, STAMP, FAINT),
    ):
        lines = wrapped(text, size, 0.96 * width_pt)  # hinted letters are a bit wider
        ax.annotate(
            "\n".join(lines),
            xy=(0, 0),
            xycoords="axes fraction",
            xytext=(0, -down_pt),
            textcoords="offset points",
            va="top",
            fontsize=size,
            color=colour,
            annotation_clip=False,
            gid=name,
        )
        down_pt += 1.25 * size * len(lines) + 3
    return down_pt


def wrapped(text: str, size: float, width_pt: float, weight: str = "normal") -> list[str]:
    """Break text into lines of at most this width, as it is set."""
    lines = [""]
    for word in (part for whole in text.split() for part in _parts(whole, size, width_pt, weight)):
        longer = f"{lines[-1]} {word}".lstrip()
        if not lines[-1] or text_pt(longer, size, weight) <= width_pt:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _parts(word: str, size: float, width_pt: float, weight: str) -> list[str]:
    """Break a word that is wider than a line into parts that are not."""
    parts, width = [""], 0.0
    if text_pt(word, size, weight) <= width_pt:
        return [word]
    for letter in word:
        width += text_pt(letter, size, weight)
        if parts[-1] and width > width_pt:
            parts.append("")
            width = text_pt(letter, size, weight)
        parts[-1] += letter
    return parts


def text_pt(text: str, size: float, weight: str = "normal") -> float:
    """Return how wide a line of text is set, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=_FONT, size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)
