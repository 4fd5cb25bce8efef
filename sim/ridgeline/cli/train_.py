"""``ridgeline train``: a whole training run to its target, with what goes wrong on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json
from ridgeline.cli.whole import Whole

if TYPE_CHECKING:
    from ridgeline.training.training_result import TrainingResult

_DAY_S, _KWH_J = 86400.0, 3.6e6
_LEAST_SHOWN = 5e-5  # of the wall clock


def train_(
    file: str,
    *,
    seeds: Whole = 1,
    processes: Whole = 1,
    cluster_address: str | None = None,
    plot: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Simulate a whole training run: time, energy, cost and carbon to its target.

    Parameters
    ----------
    file
        A file of kind run (docs/training.md).
    seeds
        Runs with other chances; with several, results are medians with 5 and 95 %.
    processes
        Processes on this machine that share the seeds.
    cluster_address
        Address of a Dask scheduler, whose workers share them instead; the answer is the same.
    plot
        File for the timeline of the first seed: .png, .svg or .pdf.
    json
        Print the answer as JSON.
    """
    from ridgeline.report.files import check_writable
    from ridgeline.training.train import train

    if plot is not None:
        check_writable(plot)
    found = train(file, seeds=seeds, processes=processes, cluster_address=cluster_address)
    if plot is not None:
        from ridgeline.report.figures.result import save

        save(found.plot(), plot)
    if json:
        print_json(found.to_dict())
        return
    _print(found)
    if plot is not None:
        console().print(f"wrote {plot}", soft_wrap=True)


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
    if found.tuning_runs:
        screen.print(
            f"with {found.tuning_runs} tuning runs, energy, hours and costs are "
            f"{1 + found.tuning_runs} times as much",
            soft_wrap=True,
        )
    for note in found.notes:
        screen.print(f"note: {note}", soft_wrap=True)


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
