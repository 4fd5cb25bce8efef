"""``ridgeline train``: a whole training run to its target, with what goes wrong on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.training.input_epochs import InputSummary
    from ridgeline.training.run_study import RunStudy
    from ridgeline.training.training_result import TrainingResult

Figure = Literal["timeline", "costs"]
_DAY_S, _KWH_J = 86400.0, 3.6e6
_LEAST_SHOWN = 5e-5  # of the wall clock


def train_(
    file: str,
    *,
    seeds: Whole = 1,
    set: Annotated[list[str], Parameter(negative="")] = [],  # noqa: B006
    vary: str = "",
    processes: Whole = 1,
    cluster_address: str | None = None,
    plot: str | None = None,
    costs: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Simulate a whole training run: time, energy, cost and carbon to its target.

    Parameters
    ----------
    file
        A file of kind run (docs/training.md).
    seeds
        Runs with other chances; with several, results are medians with 5 and 95 %.
    set
        Replace a field of the file: path=value, such as plan.batch=4096.
    vary
        Run once for each of several values of a field: path=value,value, such as
        plan.batch=1024,2048,4096.
    processes
        Processes on this machine that share the seeds.
    cluster_address
        Address of a Dask scheduler, whose workers share them instead; the answer is the same.
    plot
        File for the timeline of the first seed: .png, .svg or .pdf.
    costs
        File for the figure of what the run costs: .png, .svg or .pdf.
    json
        Print the answer as JSON.
    """
    from ridgeline.cli.assignments import assignments
    from ridgeline.errors import ConfigError
    from ridgeline.report.files import check_writable
    from ridgeline.training.train import train

    if vary and costs is not None:
        raise ConfigError("costs are of one run, without --vary", field="--costs")
    for place in (plot, costs):
        if place is not None:
            check_writable(place)
    overrides = assignments(set)
    if vary:
        from ridgeline.training.run_study import train_over

        field, values = _varied(vary)
        study = train_over(
            file, field, values, seeds=seeds, processes=processes,
            cluster_address=cluster_address, overrides=overrides,
        )  # fmt: skip
        _show_study(study, plot, json)
        return
    found = train(
        file, seeds=seeds, processes=processes, cluster_address=cluster_address,
        overrides=overrides, progress=seeds > 1,
    )  # fmt: skip
    figures: dict[Figure, str | None] = {"timeline": plot, "costs": costs}
    for kind, place in figures.items():
        if place is not None:
            from ridgeline.report.figures.result import save

            save(found.plot(kind), place)
    if json:
        print_json(found.to_dict())
        return
    _print(found)
    for place in (plot, costs):
        if place is not None:
            console().print(f"wrote {place}", soft_wrap=True)


def _varied(text: str) -> tuple[str, list[Any]]:
    """Read path=value,value; values as they would stand in a file."""
    from ridgeline.cli.assignments import assignments
    from ridgeline.errors import ConfigError

    field, equals, listed = text.partition("=")
    values = [part.strip() for part in listed.split(",")]
    if not equals or not all(values):
        raise ConfigError(f"expected path=value,value, found {text!r}", field="--vary")
    return field.strip(), [assignments([f"{field}={value}"])[field.strip()] for value in values]


def _show_study(study: RunStudy, plot: str | None, as_json: bool) -> None:
    from ridgeline.report.tables import plain_table

    if plot is not None:
        from ridgeline.report.figures.result import save

        save(study.plot(), plot)
    if as_json:
        print_json(study.to_dict())
        return
    screen = console()
    best = study.best
    columns = {"samples/s": "samples_per_s", "days": "wall_s", "MWh": "energy_j"}
    table = plain_table({study.field: "left", **dict.fromkeys(columns, "right"), "": "left"})
    scales = {"samples_per_s": 1.0, "wall_s": 1 / _DAY_S, "energy_j": 1 / _KWH_J / 1000}
    for row in study.rows:
        if row.reason:
            table.add_row(f"{row.value}", *("-" for _ in columns), row.reason)
            continue
        marks = ", ".join(word for name, word in _BEST.items() if best[name] is row)
        numbers = (f"{getattr(row, name) * scales[name]:,.5g}" for name in columns.values())
        table.add_row(f"{row.value}", *numbers, marks)
    screen.print(table)
    if plot is not None:
        screen.print(f"wrote {plot}", soft_wrap=True)


_BEST = {
    "samples_per_s": "most samples a second",
    "wall_s": "soonest at the target",
    "energy_j": "least energy",
}


def _print(found: TrainingResult) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(
        f"{found.name}: {found.model} on {found.devices} devices of {found.cluster}, {found.plan}",
        soft_wrap=True,
    )
    screen.print(
        f"{found.steps:,} steps of {show(found.step_time_s, 's', 4)}, undisturbed "
        f"{_days(found.undisturbed_s)}",
        soft_wrap=True,
    )
    if found.amount is not None:
        of = found.amount
        screen.print(
            f"target: {of.amount:.4g} {of.unit} ({of.low:.4g} to {of.high:.4g}) by {of.points} "
            f"measurements at batches of {of.batches[0]:,} to {of.batches[1]:,}",
            soft_wrap=True,
        )
    if found.checkpoint is not None:
        saved = found.checkpoint
        screen.print(
            f"checkpoint: {show(saved.size_bytes, 'B')} every {found.steps_between_saves:,} steps, "
            f"stops training for {show(saved.stall_s, 's')}, read in {show(saved.restore_s, 's')}",
            soft_wrap=True,
        )
    if found.input is not None:
        _print_input(found.input, screen)
    table = plain_table({"": "left", "median": "right", "5 %": "right", "95 %": "right"})
    for name, (unit, scale, of_run) in _QUANTITIES.items():
        spread = found.spread(of_run)
        if spread is not None:
            values = (spread.median, spread.p5, spread.p95)
            table.add_row(f"{name} ({unit})", *(f"{value * scale:,.5g}" for value in values))
    screen.print(table)
    parts = plain_table({"where the time goes": "left", "days": "right", "share": "right"})
    total_s = sum(found.time_s.values())
    for name, time_s in found.time_s.items():
        if time_s > _LEAST_SHOWN * total_s:
            parts.add_row(name, f"{time_s / _DAY_S:.4g}", f"{time_s / total_s:.2%}")
    screen.print(parts)
    if any(found.failures.values()):
        struck = ", ".join(f"{name} {count:.4g}" for name, count in found.failures.items())
        screen.print(f"failures a run: {struck}", soft_wrap=True)
    if found.daly_s is not None:
        screen.print(f"Daly's model of saves and failures alone: {_days(found.daly_s)}")
    if found.tuning_runs:
        screen.print(
            f"with {found.tuning_runs} tuning runs, energy, hours and costs are "
            f"{1 + found.tuning_runs} times as much",
            soft_wrap=True,
        )
    for note in found.notes:
        screen.print(f"note: {note}", soft_wrap=True)


def _print_input(of: InputSummary, screen: Console) -> None:
    from ridgeline.units import show

    stages = ", ".join(f"{name} {show(time_s, 's')}" for name, time_s in of.stages_s.items())
    waits = f"{show(of.wait_s, 's')} a step of {show(of.step_s, 's')}"
    if of.later_wait_s != of.wait_s:
        waits += f", later {show(of.later_wait_s, 's')}"
    screen.print(
        f"input from {of.dataset}: {stages} a mini-batch; {of.limit} sets the pace; steps wait "
        f"{waits}; the first mini-batch comes after {show(of.fill_s, 's')}",
        soft_wrap=True,
    )


def _days(time_s: float) -> str:
    return f"{time_s / _DAY_S:.4g} days" if time_s >= _DAY_S else f"{time_s / 3600:.4g} h"


_QUANTITIES = {
    "time": ("days", 1 / _DAY_S, lambda o: o.wall_s),
    "goodput": ("%", 100.0, lambda o: o.goodput),
    "energy": ("MWh", 1 / _KWH_J / 1000, lambda o: o.footprint.energy_j),
    "device time": ("h", 1.0, lambda o: o.footprint.device_hours),
    "electricity": ("USD", 1.0, lambda o: o.footprint.electricity_usd),
    "rent": ("USD", 1.0, lambda o: o.footprint.rent_usd),
    "carbon": ("kg CO2e", 1.0, lambda o: o.footprint.carbon_kg),
}
"""Name -> unit, its size, and where it stands in the outcome of a run."""
