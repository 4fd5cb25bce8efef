"""The report of a whole run: what it takes, what the job does over time, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.report.figures.column_axes import column_name
from ridgeline.report.figures.style import FAINT, SERIES, percent
from ridgeline.report.html_page.document import Report
from ridgeline.report.html_page.section import DataColumn, DataTable, Section, stacked_bar
from ridgeline.training import goodput
from ridgeline.training.figure import binned
from ridgeline.training.training_result import TrainingResult
from ridgeline.units import show
from ridgeline.version import __version__

_DAY_S, _HOUR_S, _KWH_J = 86400.0, 3600.0, 3.6e6
_SHOWN: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "wall_s": ("time", {"days": _DAY_S, "h": _HOUR_S}),
    "goodput": ("goodput", {"%": 0.01}),
    "energy_j": ("energy", {"MWh": 1000 * _KWH_J, "kWh": _KWH_J}),
    "device_hours": ("device time", {"h": 1.0}),
    "electricity_usd": ("electricity", {"USD": 1.0}),
    "rent_usd": ("rent", {"USD": 1.0}),
    "carbon_kg": ("carbon", {"kg CO2e": 1.0}),
}
"""Quantities by name: what they are called, and units, the largest first."""
_COLOURS = dict(
    zip(goodput.CATEGORIES, (*SERIES, *("#8c6d31", "#7d7d7d", "#843c39")) * 2, strict=False)
)


def run_report(run: TrainingResult | Mapping[str, Any], command: str = "") -> Report:
    """Return the report of a whole run.

    Parameters
    ----------
    run
        The run, or what its ``to_dict`` gave, which has no timeline.
    command
        Simulates it again.

    Raises
    ------
    ConfigError
        If a mapping is not whole.
    """
    given = run.to_dict() if isinstance(run, TrainingResult) else run
    try:
        sections: list[Section | None] = [_headline(given, command), _time(given, command)]
        if isinstance(run, TrainingResult):
            sections.insert(1, _timeline(run, command))
        sections += [_outcomes(given, command), _failures(given)]
        name = str(given["name"])
        where = f"{given['model']} on {given['devices']} devices of {given['cluster']}"
        subtitle = f"{where}, {given['plan']}, software {given['software']}"
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(f"it is no run, JSON of ridgeline train --json: {error!r}") from error
    return Report(
        title=name,
        subtitle=subtitle,
        stamp=f"simulated, not measured: {where}; ridgeline {__version__}",
        sections=[one for one in sections if one is not None],
        record={"kind": "run", "result": given},
    )


def _headline(given: Mapping[str, Any], command: str) -> Section:
    cells = []
    for name, (label, units) in _SHOWN.items():
        spread = given[name]
        if spread is None:
            continue
        fitting = (one for one in units.items() if spread["median"] >= one[1])
        unit, scale = next(fitting, list(units.items())[-1])
        middle, low, high = (spread[key] / scale for key in ("median", "p5", "p95"))
        cells.append(
            f"<div><dt>{escape(label)}</dt><dd>{middle:,.4g} {escape(unit)}<small>5 % "
            f"{low:,.4g}, 95 % {high:,.4g}</small></dd></div>"
        )
    notes = "".join(f'<p class="remark">{escape(str(note))}</p>' for note in given["notes"])
    seeds = len(given["outcomes"])
    without = "" if seeds > 1 else " One seed has no spread: give --seeds for more."
    tuning = ""
    if given["tuning_runs"]:
        tuning = f" With {given['tuning_runs']} tuning runs, totals are so many times more."
    return Section(
        "headline",
        "Headline",
        f"{given['steps']:,} steps of {show(given['step_time_s'], 's', 4)}, "
        f"{given['samples_per_s']:,.4g} samples/s; medians over {seeds} seeds.{without}{tuning}",
        body=f'<dl class="headline">{"".join(cells)}</dl>{notes}',
        command=command,
    )


def _time(given: Mapping[str, Any], command: str) -> Section:
    parts = {name: value for name, value in given["time_s"].items() if value > 0}
    total_s = sum(parts.values())
    said = ", ".join(f"{name} {percent(value / total_s)}" for name, value in parts.items())
    names = list(given["time_s"])
    columns = [
        DataColumn("category", "category", names),
        DataColumn("mean_time_s", "mean time", [float(given["time_s"][n]) for n in names]),
        DataColumn("share", "share", [given["time_s"][n] / total_s for n in names]),
    ]
    return Section(
        "time",
        "Where the time goes",
        f"Mean over the seeds: {said}.",
        body=stacked_bar(parts, _COLOURS, f"Time of the run: {said}"),
        table=DataTable("time", columns),
        command=command,
        open_table=True,
    )


def _timeline(run: TrainingResult, command: str) -> Section:
    edges, shares = binned(run)
    shown = {name: values for name, values in shares.items() if values.max() > 0}
    below = 0.0 * edges[:-1]
    series = []
    for name, values in shown.items():
        series.append(
            {
                "kind": "area",
                "name": name,
                "color": _COLOURS.get(name, FAINT),
                "x": edges,
                "y": [*(below + values), float((below + values)[-1])],
                "low": [*below, float(below[-1])],
                "value": [*values, float(values[-1])],
            }
        )
        below = below + values
    columns = [
        DataColumn("from_s", "from", edges[:-1].tolist()),
        *(DataColumn(name, name, values.tolist()) for name, values in shown.items()),
    ]
    first = run.outcomes[0]
    return Section(
        "timeline",
        "The run over time",
        f"Share of each stretch that the job of seed {first.seed} spends on what. Work that a "
        "failure undoes looks like training here, as it did to the job; where the time goes counts"
        " it as lost.",
        figure={
            "type": "xy",
            "label": "What the job does over the run, stacked shares.",
            "x": {"label": "time since the start of the run", "unit": "duration", "min": 0},
            "y": {"label": "share of the time", "unit": "", "min": 0, "max": 1},
            "series": series,
        },
        table=DataTable("timeline", columns),
        command=f"{command} --plot run.svg" if command else "",
    )


def _outcomes(given: Mapping[str, Any], command: str) -> Section:
    outcomes = given["outcomes"]
    prints = [one["footprint"] for one in outcomes]
    columns = [
        DataColumn("seed", "seed", [one["seed"] for one in outcomes]),
        DataColumn("wall_s", "time", [one["wall_s"] for one in outcomes]),
        DataColumn("restarts", "restarts", [one["restarts"] for one in outcomes]),
        DataColumn("saves", "saves", [one["saves"] for one in outcomes]),
        DataColumn("lost_steps", "steps done again", [one["lost_steps"] for one in outcomes]),
        *(
            DataColumn(name, column_name(name), [one[name] for one in prints])
            for name in prints[0]
            if all(isinstance(one[name], int | float | None) for one in prints)
        ),
    ]
    return Section(
        "outcomes",
        "Energy, cost and carbon by seed",
        "Each seed is a run with other chances.",
        table=DataTable("outcomes", columns),
        command=command,
        open_table=True,
    )


def _failures(given: Mapping[str, Any]) -> Section | None:
    struck = {name: count for name, count in given["failures"].items() if count}
    if not struck:
        return None
    columns = [
        DataColumn("cause", "cause", list(struck)),
        DataColumn("mean_count", "failures a run, mean", list(struck.values())),
    ]
    return Section(
        "failures",
        "Failures",
        f"{sum(struck.values()):.4g} a run in the mean over the seeds.",
        table=DataTable("failures", columns),
        open_table=True,
    )
