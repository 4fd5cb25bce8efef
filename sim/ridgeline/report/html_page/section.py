"""Sections of a report: a heading, what it says, a figure with its data and its command."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from ridgeline.report.figures.column_axes import readable_unit, si_unit
from ridgeline.report.figures.style import prefixed
from ridgeline.report.html_page.packed import packed, smallest

_PACKED_FROM = 2000
"""Rows from which on numbers are packed, with seven digits each."""
_BAR_COLUMNS = frozenset({"share", "mfu", "hfu"})


@dataclass(frozen=True)
class DataColumn:
    """A column of the data of a figure.

    Attributes
    ----------
    name
        As in JSON and CSV, with the SI unit at its end: ``step_time_s``.
    label
        As people call it.
    values
        SI numbers, words or None.
    better
        "low" or "high", where one of them is.
    varied
        Whether it is a field that the study varied.
    unit
        SI unit of the values, where the name does not end in it.
    """

    name: str
    label: str
    values: Sequence[Any]
    better: str = ""
    varied: bool = False
    unit: str = ""


@dataclass(frozen=True)
class DataTable:
    """The data of one figure, or of several: columns of equal length."""

    id: str
    columns: Sequence[DataColumn]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``report.js`` reads."""
        return {"columns": [_column(one) for one in self.columns]}


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes
    ----------
    id
        Of the element, and the name of its CSV file.
    text
        What a reader has to know, before the figure.
    body
        HTML that needs no scripts.
    figure
        What ``report.js`` draws; its key ``type`` names the class there.
    table
        Data of the figure. Sections may share one.
    command
        Prints or draws the same.
    keys
        What the keyboard does in the figure, beyond panning and zooming.
    open_table
        Whether the table is shown at once.
    """

    id: str
    title: str
    text: str = ""
    body: str = ""
    figure: Mapping[str, Any] = field(default_factory=dict)
    table: DataTable | None = None
    command: str = ""
    keys: str = ""
    open_table: bool = False


def script_json(value: Any) -> str:
    """Return JSON that may stand in a ``<script>``: no ``<``, so that nothing ends or opens there.

    Numbers that are not finite, which JSON has not, are null.
    """
    text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def section_html(section: Section, shared: set[str]) -> str:
    """Return a section as HTML; `shared` are the tables that stand in the page already."""
    parts = [f'<h2 id="{section.id}-title">{escape(section.title)}</h2>']
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    parts.append(section.body)
    figure: dict[str, Any] = dict(section.figure)
    if section.table is not None:
        figure["table"] = section.table.id
        if section.table.id not in shared:
            shared.add(section.table.id)
            parts.append(_data_script(f'id="table-{section.table.id}"', section.table.to_dict()))
    if figure:
        parts.append(_data_script('class="figure"', figure))
    if "type" in figure:
        parts.append(
            f'<div class="plot" id="{section.id}-plot">'
            f"<noscript><p>The figure needs scripts; its text and its command stand here.</p>"
            f"</noscript></div>"
        )
        keys = f"Keys: arrows move, + and − zoom, 0 shows all. {section.keys}"
        pointer = "Pointer: drag to move; Ctrl and wheel, or two fingers, to zoom."
        parts.append(
            f'<p class="keys" id="{section.id}-plot-keys">{escape(keys)} {escape(pointer)}</p>'
        )
    if section.command:
        parts.append(
            f'<div class="command"><code>{escape(section.command)}</code>'
            '<button type="button" class="copy">Copy the command</button>'
            + ('<button type="button" class="csv">Data as CSV</button>' if figure else "")
            + "</div>"
        )
    if figure:
        shown = " open" if section.open_table else ""
        parts.append(
            f'<details class="data"{shown}><summary>Data of “{escape(section.title)}” as a table'
            '</summary><div class="table"></div></details>'
        )
    inner = "\n".join(part for part in parts if part)
    return f'<section id="{section.id}" aria-labelledby="{section.id}-title">\n{inner}\n</section>'


def _data_script(attribute: str, value: Any) -> str:
    return f'<script type="application/json" {attribute}>{script_json(value)}</script>'


def stacked_bar(parts: Mapping[str, float], colours: Mapping[str, str], label: str) -> str:
    """Draw parts of a total as one bar in proportion; the table beside it has the numbers."""
    total = math.fsum(parts.values())
    cells = "".join(
        f'<div style="width:{100 * value / total:.4f}%;background:{colours[name]}"></div>'
        for name, value in parts.items()
        if total and value > 0
    )
    return f'<div class="parts" role="img" aria-label="{escape(label)}">{cells}</div>'


def _column(column: DataColumn) -> dict[str, Any]:
    values = list(column.values)
    numeric = all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    ) and any(value is not None for value in values)
    made: dict[str, Any] = {
        "name": column.name,
        "label": column.label,
        "numeric": numeric,
        "varied": column.varied,
    }
    if column.better:
        made["better"] = column.better
    if numeric:
        known = [value for value in values if value is not None]
        shown, scale = readable_unit(column.name, known)
        if column.unit:
            prefix, scale = prefixed(max(abs(value) for value in known))
            shown = f"{prefix}{column.unit}"
        unit = column.unit or si_unit(column.name)
        made |= {"unit": unit, "unit_shown": shown, "scale": scale}
        if column.name.rpartition(".")[2] in _BAR_COLUMNS:
            made["bar"] = True
        if len(values) < _PACKED_FROM:
            return {**made, "values": [_short(value) for value in values]}
        numbers = np.array([math.nan if value is None else value for value in values], np.float32)
        return {**made, "values": packed(numbers)}
    words = ["" if value is None else str(value) for value in values]
    if len(words) < _PACKED_FROM:
        return {**made, "values": words}
    code_of = {word: i for i, word in enumerate(dict.fromkeys(words))}
    codes = smallest(np.array([code_of[word] for word in words], np.int64))
    return {**made, "words": list(code_of), "values": packed(codes)}


def _short(value: float | None) -> float | int | None:
    """Return a number with seven digits, as many as packed ones have; whole ones stay whole."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None
