"""The answer on one screen: 24 lines of 80 columns, of which the longer summary says more."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from ridgeline.report import summary
from ridgeline.units import show

if TYPE_CHECKING:
    from ridgeline.report.result import Result

COLUMNS, LINES = 80, 24
_LABEL = 13
_MOST_SHARES = 4
_WORTH_NAMING = 0.005
_MOST_OF_TEXT = 2  # lines
_GAP = "    "


def short_summary(result: Result, after: Sequence[str] = (), *, more: str = "") -> list[str]:
    """Return headline, bound, where the time went, memory, energy and what it rests on.

    Parameters
    ----------
    after
        What is to be said below it: how it compares with measurements, what would fit.
    more
        How to see all of it.

    Returns
    -------
    list of str
        At most `LINES` lines of at most `COLUMNS` columns, as long as `after` is a line or two.
        Shares of energy and limits are left out where there is no room, and notes are counted.
    """
    texts = (summary.heading_text(result), summary.software_text(result), summary.plan_text(result))
    head = [line for text in texts for line in _wrapped(text)]
    tables = _beside(
        _columns("where the time went", result.time_s, summary.TIME),
        _columns("peak memory", _kinds_of_memory(result), summary.MEMORY),
    )
    said = (summary.fit_text(result), f"trust: {summary.ground_text(result)}", *after)
    foot = [line for text in said for line in _wrapped(text)]
    hint = [more] if more else []
    notes = summary.remarks(result)
    room = LINES - sum(map(len, (head, tables, foot, hint))) - (1 if notes else 0)
    facts = _facts(result)
    if sum(map(len, facts.values())) > room:
        facts = {name: lines[:1] for name, lines in facts.items()}
    lines = [line for of in facts.values() for line in of]
    return [*head, *lines, *tables, *foot, *_notes(notes, room + 1 - len(lines)), *hint]


def _kinds_of_memory(result: Result) -> dict[str, float]:
    return {k: float(v) for k, v in result.memory_bytes.items() if k != "capacity"}


def summary_text(result: Result, *, verbose: bool = False) -> str:
    """Return the summary of a result as plain text: one screen, or all of it in 100 columns."""
    if not verbose:
        return short_text(result)
    from rich.console import Console

    stream = io.StringIO()
    summary.print_summary(result, Console(file=stream, width=100, highlight=False))
    return stream.getvalue()


def short_text(result: Result) -> str:
    """Return the short summary as text, for people in a notebook or a log."""
    return "\n".join(short_summary(result, more="summary(verbose=True) says more")) + "\n"


def _facts(result: Result) -> dict[str, list[str]]:
    """Return the few numbers that say it all by name, as lines; those after the first may go."""
    plan, sample = result.manifest["plan"], result.manifest["model"]["sample"]
    energy_j = result.energy_j["total"]
    watts = summary.watts(energy_j / result.step_time_s / plan["devices"])
    tokens = f", {result.tokens_per_s:,.0f} tokens/s" if result.tokens_per_s else ""
    step, energy = show(result.step_time_s, "s", 5), show(energy_j, "J", 4)
    rate = f"{summary.rate(result.samples_per_s)} {sample}/s{tokens}"
    facts = {
        "step time": (f"{step}, {summary.range_text(result, 'step_time_s', 's')}",),
        "throughput": (f"{rate}, MFU {result.mfu:.1%}",),
        "energy a step": (
            f"{energy}, {summary.range_text(result, 'energy_j', 'J')}; {watts} a device",
            _shares(result.energy_j),
        ),
        "bound by": (result.bound, _shares({**result.limits_s, "total": result.step_time_s})),
    }
    return {
        name: [line for text in texts for line in _labelled(name, text, is_first=text == texts[0])]
        for name, texts in facts.items()
    }


def _shares(parts: Mapping[str, float]) -> str:
    """Name the largest parts of a total with their shares."""
    total = parts["total"]
    large = sorted((part for part in parts.items() if part[0] != "total"), key=lambda p: -p[1])
    named = [part for part in large[:_MOST_SHARES] if part[1] >= _WORTH_NAMING * total > 0]
    return ", ".join(f"{name.replace('_', ' ')} {value / total:.0%}" for name, value in named)


def _labelled(name: str, text: str, *, is_first: bool) -> list[str]:
    lines = textwrap.wrap(text, COLUMNS - _LABEL - 1)
    labels = [name if is_first else "", *[""] * len(lines)]
    return [f"{label:<{_LABEL}} {line}" for label, line in zip(labels, lines, strict=False)]


def _wrapped(text: str, most: int = _MOST_OF_TEXT) -> list[str]:
    """Break a text into lines; what is beyond the last one is cut, and the cut is seen."""
    return textwrap.wrap(
        text, COLUMNS, subsequent_indent="  ", max_lines=most, placeholder=" ...",
        break_on_hyphens=False,
    )  # fmt: skip


def _columns(title: str, parts: Mapping[str, float], units: Mapping[str, float]) -> list[str]:
    """Tabulate parts of a total in lines of equal length."""
    unit, rows = summary.share_rows(parts, units)
    cells = [(title, unit, "share"), *rows]
    first, second, third = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [f"{a:<{first}}  {b:>{second}}  {c:>{third}}" for a, b, c in cells]


def _beside(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Put two tables side by side, or one below the other where both have no room."""
    if len(left[0]) + len(_GAP) + len(right[0]) > COLUMNS:
        return [*left, *right]
    blank = " " * len(left[0])
    pairs = zip_longest(left, right)
    return [f"{a or blank}{_GAP}{b or ''}".rstrip() for a, b in pairs]


def _notes(notes: Sequence[str], room: int) -> list[str]:
    """Return the notes for which there is room, one line each, and how many are left."""
    shown = len(notes) if len(notes) <= room else max(room - 1, 0)
    lines = [line for note in notes[:shown] for line in _wrapped(f"note: {note}", 1)]
    left = len(notes) - shown
    return [*lines, *([f"and {left} notes" if shown == 0 else f"and {left} more"] if left else [])]
