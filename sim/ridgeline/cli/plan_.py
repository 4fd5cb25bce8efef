"""``ridgeline plan``: the best way to distribute a step over so many devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.searched import (
    ClusterName,
    DeviceName,
    Json,
    Limit,
    ModelName,
    Precision,
    with_device,
)
from ridgeline.cli.software import Software, one_stack

if TYPE_CHECKING:
    from ridgeline.study.planner import SearchResult, SimulatedPlan


def plan_(
    model: ModelName,
    cluster: ClusterName,
    *,
    devices: Whole,
    batch: Whole,
    device: DeviceName = None,
    objective: Literal["time", "energy", "cost"] = "time",
    precision: Precision = None,
    software: Software = None,
    context: bool | None = None,
    grids: Annotated[bool, Parameter(negative="")] = False,
    spatial: Annotated[bool, Parameter(negative="")] = False,
    limit: Limit = 4,
    proof: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Find the best plan: screen all by a lower bound, play the candidates on the engine.

    Parameters
    ----------
    devices
        Number of devices that the plan uses.
    batch
        Samples of one step over all devices.
    objective
        What is minimised: time of a step, energy of a step, or cost (price of the devices times
        time).
    context
        Also try context parallelism: devices share the positions of a sequence; by default for
        sequences of 16,384 and more.
    grids
        Also try tensor parallelism on grids of rows and columns, in each of three modes.
    spatial
        Also try spatial parallelism: devices share the rows and columns of images.
    proof
        Simulate as many plans as a proof of the best one needs.
    """
    import sys

    from ridgeline.study.planner import search

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[Kplaying {text[:90]}", end="", file=sys.stderr, flush=True)

    found = search(
        model, with_device(cluster, device), devices, batch,
        objective=objective, precision=precision, limit=None if proof else limit,
        progress=progress, context=context, grids=grids, spatial=spatial,
        software=one_stack(software) or None,
    )  # fmt: skip
    progress("")
    if json:
        print_json(found.to_dict())
    else:
        _print(found)
    return 0


def _print(found: SearchResult) -> None:
    from ridgeline.parallel.plan.stack_choice import BOUND, choice_text

    screen = console()
    best = found.best
    screen.print(
        f"{found.model} on {found.devices} devices of {found.cluster}, batch"
        f" {best.plan.global_batch:,}: the least {found.objective}"
    )
    bound = found.software == BOUND
    screen.print(choice_text(found.software, found.chosen_by, bound=bound), soft_wrap=True)
    screen.print(f"best plan: {best.shown}", soft_wrap=True)
    front = found.pareto()
    _table("played, the best first", found.replays[:9], best)
    _table("none better in time, energy and memory at once, of those played", front, best)
    screen.print(
        f"{found.n_plans:,} legal plans; {found.n_dropped:,} cannot fit, or be cut so; "
        f"{len(found.replays) + found.n_too_full} played"
        + (f", {found.n_unplayable} could not be played" if found.n_unplayable else "")
        + f"; screened at {found.screen_plans_per_s:,.0f} plans/s; {found.seconds:.1f} s in all"
    )
    if found.proven:
        screen.print("proven: the lower bound of every other plan is above the best")
    else:
        screen.print(
            f"gap: a plan that was not played could be better by {found.gap:.1%} at most (--proof,"
            " or a greater --limit, plays more)"
        )
    for note in found.notes:
        screen.print(f"note: {note}", soft_wrap=True)


def _table(title: str, replays: tuple[SimulatedPlan, ...], best: SimulatedPlan) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    table = plain_table(
        {title: "left", "step": "right", "bound": "right", "energy": "right", "GiB": "right"}
    )
    for replay in replays:
        table.add_row(
            replay.shown,
            show(replay.step_time_s, "s", 4),
            f"{replay.bound_s / replay.step_time_s:.0%}",
            show(replay.energy_j, "J", 4),
            f"{replay.memory_bytes / 2**30:.1f}",
        )
    console().print(table)
