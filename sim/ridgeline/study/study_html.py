"""A study as HTML for notebooks: what stays, what varies, and what is asked."""

from __future__ import annotations

from html import escape
from typing import Any

from ridgeline.report.html.blocks import FRAME, box, heading, table
from ridgeline.study.study_file import Study, ValueSpan

_MOST_VALUES = 8


def study_html(study: Study) -> str:
    """Return a study as an HTML fragment: number of points, fields, conditions and columns."""
    named = {name: getattr(study, name) for name in ("model", "cluster", "software")}
    given = {**named, **study.fixed}
    stays = [(name, str(value)) for name, value in given.items() if value != ""]
    asked = [
        *(("left out unless", text) for text in study.where),
        *((f"best is the {side}", name) for name, side in _objectives(study)),
        *((f"column {name}", text) for name, text in study.columns.items()),
        *(("feasible if", text) for text in study.require),
    ]
    return box(
        FRAME,
        heading(f"study {study.name}: {_points(study)}", 15),
        escape(study.description),
        heading("what varies"),
        table(_varied(study), ("field", "how", "values")),
        heading("what stays"),
        table(stays),
        *((heading("what is asked"), table(asked)) if asked else ()),
    )


def _points(study: Study) -> str:
    if study.is_endless:
        return "a search"
    return f"{'at most ' if study.where else ''}{study.grid_size:,} points"


def _objectives(study: Study) -> list[tuple[str, str]]:
    return list(study.search.objectives.items()) if study.search else []


def _varied(study: Study) -> list[tuple[str, str, str]]:
    """Return every varied field, how it is combined with the others, and its values."""
    rows = [(name, "grid", said(values)) for name, values in study.vary.items()]
    for number, group in enumerate(study.zip, 1):
        rows += [(name, f"together {number}", said(values)) for name, values in group.items()]
    if study.sample is not None:
        how = f"{study.sample.method}, {study.sample.count:,}"
        rows += [(name, how, said(values)) for name, values in study.sample.over.items()]
    return rows


def said(values: ValueSpan | list[Any]) -> str:
    """Write the values of a field in a line, however many there are."""
    if isinstance(values, ValueSpan):
        steps = f", {values.steps:,} values" if values.steps else ""
        return f"{values.start} to {values.end}{steps}, {values.scale}"
    shown = ", ".join(str(value) for value in values[:_MOST_VALUES])
    left = len(values) - _MOST_VALUES
    return f"{shown}, … {left:,} more" if left > 0 else shown
