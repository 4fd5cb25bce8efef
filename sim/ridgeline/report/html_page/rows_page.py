"""The report of many results: front, parallel coordinates and a table over one selection of rows.

Rows are flat mappings with the columns of ``Result.to_row``, as a sweep writes them, or any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.column_axes import column_name, said
from ridgeline.report.figures.study import stamp
from ridgeline.report.html_page.document import Report
from ridgeline.report.html_page.section import DataColumn, DataTable, ReportSection
from ridgeline.report.manifest import digest
from ridgeline.units import quantity, unprefixed

Row = Mapping[str, Any]
MOST_ROWS = 100_000
_MOST_CELLS = 1_500_000
"""Of numbers in a table; columns beyond are left out, and named."""
_MOST_AXES = 8
_FIRST_RESULTS = ("step_time_s", "time_s", "wall_s")
"""The columns of a sweep before the first of these are what the study varied."""
_AIMS = (
    "step_time_s", "time_s", "wall_s", "energy_j.total", "energy_j", "samples_per_s",
    "tokens_per_s", "busbw_bytes_per_s", "mfu", "memory_bytes.total", "area_mm2", "cost_usd",
)  # fmt: skip
_HIGH_ENDINGS = ("_per_s", "mfu", "hfu", "goodput", "efficiency", "_per_w", "_per_j")
_USUAL = frozenset(
    {
        "step_time_s",
        "samples_per_s",
        "tokens_per_s",
        "flops_per_step",
        "mfu",
        "hfu",
        "bound",
        "fits",
    }
)
"""Columns that every result has; those beside them a study derived."""
_NO_NUMBERS = frozenset({"manifest_hash", "error", "bound"})


def rows_report(rows: Sequence[Row], name: str) -> Report:
    """Return the report of the rows of a study.

    Parameters
    ----------
    name
        Of the file that they stand in.

    Raises
    ------
    RidgelineError
        If there is no row that can be drawn, there are too many, or none has two columns of
        numbers that differ.
    """
    if len(rows) > MOST_ROWS:
        raise RidgelineError(
            f"{name} has {len(rows):,} rows, a report takes at most {MOST_ROWS:,}: choose some"
            " (ridgeline top), or draw them (ridgeline plot)"
        )
    failed = [row for row in rows if isinstance(row.get("error"), str) and row["error"]]
    whole = [row for row in rows if not (isinstance(row.get("error"), str) and row["error"])]
    if not whole:
        raise RidgelineError(f"{name} has no row to report: all {len(rows)} have errors")
    names = list(dict.fromkeys(column for row in whole for column in row if column != "error"))
    constant = {n: whole[0].get(n) for n in names if len({_key(row.get(n)) for row in whole}) == 1}
    varied = set(_varied(names))
    columns, left_out = _columns(whole, [n for n in names if n not in constant], varied)
    numeric = sum(map(_is_numeric, columns))
    if numeric < 2:
        raise RidgelineError(
            f"{name} has {numeric} columns of numbers that differ; a report needs two"
        )
    across, up = _aims(columns, varied)
    table = DataTable("points", columns)
    axes = _axes(columns, varied, across, up)
    sections = [
        _summary(whole, failed, columns, constant, left_out),
        ReportSection(
            "front",
            "Pareto front",
            "Every point over two columns that you choose, and those that no other beats in both. "
            "The line goes in steps: between two points of the front the worse value of each "
            "holds. An axis is logarithmic where its values cross decades, and says so.",
            figure={"type": "front", "label": "Pareto front.", "x": across, "y": up},
            table=table,
            command=f"ridgeline plot pareto {name} --x {across} --y {up} --out front.svg",
        ),
        ReportSection(
            "coordinates",
            "Parallel coordinates",
            f"A line for each point, from the lowest value of a column to its highest; the colour "
            f"is {column_name(up)}, dark is low. Rows that the filter of a table excludes are "
            "faint; a range that you drag along an axis goes for the front and the tables, too.",
            figure={"type": "parallel", "label": "Parallel coordinates.", "columns": axes,
                    "colour": up},
            table=table,
            command=f"ridgeline plot parallel {name} --columns {','.join(axes)} --y {up}"
            " --out parallel.svg",
        ),
        ReportSection(
            "points",
            "All points",
            "A filter is words that a row has to contain, or conditions: mfu>0.4 "
            "global_batch=2048. Conditions are in the unit of the heading.",
            table=table,
            command=f"ridgeline top {name} --by {up} --n 20",
            open_table=True,
        ),
    ]  # fmt: skip
    if failed:
        sections.append(_failures(failed, varied))
    return Report(
        title=f"Study of {len(rows):,} points",
        subtitle=_subtitle(name, constant),
        stamp=stamp(whole),
        sections=sections,
        record={
            "kind": "rows",
            "file": name,
            "rows": len(rows),
            "digest": digest([row.get("manifest_hash") or digest(dict(row)) for row in whole]),
        },
    )


def _subtitle(name: str, constant: Mapping[str, Any]) -> str:
    known = [str(constant[key]) for key in ("model", "cluster", "software") if key in constant]
    return ", ".join([name, *known])


def _key(value: Any) -> str:
    return f"{type(value).__name__}:{value!r}"


def _varied(names: Sequence[str]) -> list[str]:
    first = next((names.index(one) for one in _FIRST_RESULTS if one in names), 0)
    return list(names[:first])


def _better(name: str) -> str:
    return "high" if name.endswith(_HIGH_ENDINGS) and name not in _NO_NUMBERS else ""


def _columns(
    rows: Sequence[Row], names: Sequence[str], varied: set[str]
) -> tuple[list[DataColumn], list[str]]:
    """Return columns with quantities as numbers, and the names of those that were left out."""
    most = max(2, _MOST_CELLS // len(rows))
    ranked = sorted(names, key=lambda n: (n not in varied, n not in _AIMS, n == "manifest_hash"))
    kept = set(ranked[:most])
    shown = [name for name in names if name in kept]
    return [_column(name, rows, name in varied) for name in shown], [
        name for name in names if name not in kept
    ]


def _column(name: str, rows: Sequence[Row], is_varied: bool) -> DataColumn:
    values = [row.get(name) for row in rows]
    values = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
    label = column_name(name)
    first = next((value for value in values if isinstance(value, str)), "")
    unit = unprefixed(first.partition(" ")[2]) if " " in first else ""
    if unit:
        try:
            numbers = [None if value is None else quantity(value) for value in values]
        except (ConfigError, ValueError, TypeError):
            pass
        else:
            return DataColumn(name, label, numbers, _better(name), is_varied, unit)
    return DataColumn(name, label, values, _better(name), is_varied)


def _is_numeric(column: DataColumn) -> bool:
    found = [value for value in column.values if value is not None]
    return bool(found) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in found
    )


def _aims(columns: Sequence[DataColumn], varied: set[str]) -> tuple[str, str]:
    """Choose the columns of the first front: of time and another aim, those that conflict most."""
    numeric = {one.name: one for one in columns if _is_numeric(one)}
    results = [name for name in numeric if name not in varied]
    aims = [name for name in _AIMS if name in results]
    derived = [name for name in results if "." not in name and name not in _USUAL]
    up, *others = dict.fromkeys([*aims, *derived, *results, *numeric])
    among = [name for name in others if name in {*aims, *derived}] or others
    return max(among, key=lambda name: front_size(numeric[name], numeric[up])), up


def front_size(across: DataColumn, up: DataColumn) -> int:
    """Return how many points no other beats in two columns."""
    signs = [-1.0 if one.better == "high" else 1.0 for one in (across, up)]
    both = sorted(
        (signs[0] * x, signs[1] * y)
        for x, y in zip(across.values, up.values, strict=True)
        if x is not None and y is not None
    )
    least, found = math.inf, 0
    for _, y in both:
        if y < least:
            least, found = y, found + 1
    return found


def _axes(columns: Sequence[DataColumn], varied: set[str], *aims: str) -> list[str]:
    fields = [one.name for one in columns if one.name in varied]
    wanted = [*fields[: _MOST_AXES - len(aims)], *aims]
    more = [
        one.name
        for one in columns
        if one.name in _AIMS and one.name not in wanted and _is_numeric(one)
    ]
    return [*wanted, *more][:_MOST_AXES]


def _summary(
    rows: Sequence[Row], failed: Sequence[Row], columns: Sequence[DataColumn],
    constant: Mapping[str, Any], left_out: Sequence[str],
) -> ReportSection:  # fmt: skip
    """Say how many points there are, and the best one by each aim."""
    boxes = [("points", f"{len(rows):,}", f"{len(failed):,} more have errors" if failed else "")]
    fits = [row.get("fits") for row in rows]
    if False in fits:
        boxes.append(("do not fit into memory", f"{fits.count(False):,}", "they are drawn, too"))
    fields = [one for one in columns if one.varied]
    for aim in (one for one in columns if one.name in _AIMS and _is_numeric(one)):
        pick = max if aim.better == "high" else min
        known = [i for i, value in enumerate(aim.values) if value is not None]
        best = pick(known, key=lambda i: aim.values[i])
        where = ", ".join(f"{one.label} {said(rows[best].get(one.name), one.name)}"
                          for one in fields)  # fmt: skip
        word = "largest" if aim.better == "high" else "smallest"
        boxes.append((f"{word} {aim.label}", said(float(aim.values[best]), aim.name), where))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        + (f"<small>{escape(more)}</small>" if more else "")
        + "</dd></div>"
        for name, value, more in boxes
    )
    same = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(said(value, name))}</td></tr>"
        for name, value in constant.items()
        if value not in {None, ""}
    )
    body = f'<dl class="headline">{cells}</dl>'
    if same:
        body += (
            f"<details><summary>{len(constant)} columns that are the same in every row</summary>"
            f'<div class="scroll" role="region" tabindex="0" aria-label="Constant columns">'
            f"<table><tbody>{same}</tbody></table></div></details>"
        )
    note = f" Left out for their size: {', '.join(left_out)}." if left_out else ""
    fields_said = ", ".join(one.label for one in fields)
    return ReportSection(
        "headline",
        "Headline",
        (f"Varied: {fields_said}." if fields_said else "Rows of a table.") + note,
        body=body,
    )


def _failures(failed: Sequence[Row], varied: set[str]) -> ReportSection:
    names = [name for name in dict.fromkeys(n for row in failed for n in row) if name in varied]
    columns = [DataColumn(n, column_name(n), [str(row.get(n)) for row in failed]) for n in names]
    errors = DataColumn("error", "error", [str(row["error"]) for row in failed])
    return ReportSection(
        "errors",
        "Points that could not be simulated",
        f"{len(failed):,} points, each with its reason.",
        table=DataTable("errors", [errors, *columns]),
        open_table=True,
    )
