"""``ridgeline plan``: the best way to distribute a step over devices, or the best machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.amounts import count_of, dollars_of, seconds_of, share_of
from ridgeline.cli.assignments import assignments
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
from ridgeline.errors import ConfigError
from ridgeline.verbosity import is_quiet

if TYPE_CHECKING:
    from ridgeline.study.planner import SearchResult, SimulatedPlan
    from ridgeline.study.planner.machines import MachineChoice
    from ridgeline.study.planner.result import SearchProgress
    from ridgeline.study.point import Point

_ALTERNATIVES = 3


def plan_(
    model: ModelName,
    cluster: ClusterName,
    *others: str,
    batch: Whole,
    devices: str | None = None,
    device: DeviceName = None,
    objective: Literal["time", "energy", "cost", "tokens-per-joule", "cost-per-token"]
    | None = None,
    precision: Precision = None,
    software: Software = None,
    fix: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")] = (),
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", consume_multiple=False, negative="")
    ] = (),
    memory_margin: str = "0%",
    context: bool | None = None,
    grids: Annotated[bool, Parameter(negative="")] = False,
    spatial: Annotated[bool, Parameter(negative="")] = False,
    limit: Limit = 4,
    gap: str = "0%",
    time_limit: str | None = None,
    proof: Annotated[bool, Parameter(negative="")] = False,
    tokens: str | None = None,
    deadline: str | None = None,
    budget: str | None = None,
    price: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")] = (),
    energy_price: float = 0.0,
    json: Json = False,
) -> int:
    """Find the best plan: screen all by a lower bound, play the candidates on the engine.

    The best so far is told on stderr. Ctrl-C, or --time-limit, ends the search with the best so far
    and how much better any other plan could be. With --tokens, find the machine for a job: of all
    clusters that are named, and numbers of devices of each, the cheapest that ends by the deadline,
    or the fastest within the budget.

    Parameters
    ----------
    others
        Further clusters, with --tokens.
    devices
        Number of devices that the plan uses; with --tokens several numbers: 256,512 (by default a
        node, twice as many, up to all).
    batch
        Samples of one step over all devices.
    objective
        What is minimised: time of a step (the default); energy of a step; price of the devices
        times time; energy of a token; rent of the devices and price of the energy of a token. With
        --tokens: of the whole job, by which machines are ordered (by default its cost, or its time
        within a budget alone).
    fix
        Fields of the plan that must have a value, one of some, or one of a range: tensor=8,
        pipeline=4..16, micro_batch=1,2, recompute=core_attn+mlp. May be given several times.
    set_
        Replace a field of the model, the cluster or the software, as model.layers=8. May be given
        several times.
    memory_margin
        Share of each device's memory that a plan leaves free, as 10%.
    context
        Also try context parallelism: devices share the positions of a sequence; by default for
        sequences of 16,384 and more.
    grids
        Also try tensor parallelism on grids of rows and columns, in each of three modes.
    spatial
        Also try spatial parallelism: devices share the rows and columns of images.
    gap
        End when no other plan can be better by a greater share, as 5%.
    time_limit
        End after so much time, as 60s or 5min.
    proof
        Simulate as many plans as a proof of the best one needs.
    tokens
        Tokens of the whole run, as 15T; samples, of a model without sequences.
    deadline
        The run ends within so much time, as 5d or 12h.
    budget
        The run costs so many dollars at most, as 1M$.
    price
        Rent of a device an hour, as h100=2.5, in place of the cited one. May be given several
        times.
    energy_price
        Dollars of a kWh, where the rent does not have it.
    """
    from ridgeline.study.planner.objectives import Prices, parse_prices

    prices = Prices(parse_prices(price), energy_price)
    margin, most_gap = share_of(memory_margin, "--memory-margin"), share_of(gap, "--gap")
    seconds = None if time_limit is None else seconds_of(time_limit, "--time-limit")
    fields = assignments(set_)
    named = [with_device(name, device) for name in (cluster, *others)]
    points = [_point(model, name, fields, one_stack(software)) for name in named]
    told = _Told()
    common: dict[str, Any] = {
        "precision": precision, "fix": _fixes(fix), "memory_margin": margin, "prices": prices,
        "context": context, "grids": grids, "spatial": spatial,
    }  # fmt: skip
    if tokens is None:
        for name, value in (("deadline", deadline), ("budget", budget), ("others", others or None)):
            if value is not None:
                what = "clusters" if name == "others" else f"--{name}"
                raise ConfigError(f"{what}: a job needs --tokens, as 15T", field="--tokens")
        if devices is None or len(_numbers(devices)) != 1:
            raise ConfigError("expected one number of devices", field="--devices")
        from ridgeline.study.planner import search

        found = search(
            points[0].load("model"), points[0].load("cluster"), _numbers(devices)[0], batch,
            objective=objective or "time", limit=None if proof else limit, gap=most_gap,
            time_limit_s=seconds, alternatives=_ALTERNATIVES, progress=told.plan,
            software=_stack(points[0], one_stack(software)), **common,
        )  # fmt: skip
        told.end()
        if json:
            print_json(found.to_dict())
        else:
            _print(found)
        return 0
    from ridgeline.study.planner.frontier import SearchLimits
    from ridgeline.study.planner.machines import Job, choose_machine

    job = Job(
        batch,
        count_of(tokens, "--tokens"),
        None if deadline is None else seconds_of(deadline, "--deadline"),
        None if budget is None else dollars_of(budget, "--budget"),
        objective,
    )
    choice = choose_machine(
        points[0].load("model"), [one.load("cluster") for one in points], job,
        devices=() if devices is None else _numbers(devices),
        software=_stack(points[0], one_stack(software)), progress=told.machine,
        limits=SearchLimits(
            None if proof else limit, most_gap or (0.0 if proof else 0.05), seconds or 60.0
        ),
        **common,
    )  # fmt: skip
    told.end()
    if json:
        print_json(choice.to_dict())
    else:
        _print_machines(choice)
    return 0


def _numbers(text: str) -> list[int]:
    """Read ``256,512``."""
    try:
        return [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"expected a whole number, or some as 256,512, found {text!r}", field="--devices"
        ) from None


def _fixes(words: tuple[str, ...]) -> dict[str, str]:
    from ridgeline.study.planner.steering import fixed_texts

    return fixed_texts(words)


def _point(model: str, cluster: str, fields: Mapping[str, Any], software: str) -> Point:
    """Return a model and a machine with fields replaced.

    Raises
    ------
    ConfigError
        If a field of the plan is among them, which ``--fix`` takes.
    """
    from ridgeline.study.point import Point, check_path

    for path in fields:
        if check_path(path)[0] == "plan":
            raise ConfigError(
                f"plans are sought here: --fix {path.removeprefix('plan.')}=... fixes a field",
                field="--set",
            )
    return Point(model, cluster, {}, fields, software)


def _stack(point: Point, software: str) -> Any:
    """Return the stack with its settings replaced, its name, or None for the usual one."""
    if not point.replaced("software"):
        return software or None
    from ridgeline.parallel.plan.plan import Plan

    return point.choice(point.load("model"), point.load("cluster"), Plan(global_batch=1)).stack


class _Told:
    """Tells on stderr how a search goes: a line for every new best plan, a status on a terminal."""

    def __init__(self) -> None:
        self.best: object = None
        self.said_at = 0.0
        self.live = sys.stderr.isatty()

    def plan(self, told: SearchProgress, where: str = "") -> None:
        """Tell of one search."""
        from ridgeline.units import show

        if told.best is not None and told.best is not self.best:
            self.best = told.best
            best = f"{where}{told.best.shown}: {show(told.best.step_time_s, 's', 4)} a step"
            gap = f", at most {told.gap:.1%} from the best" if told.open_bound > 0 else ""
            self._say(f"{told.seconds:6.1f} s  best so far {best}{gap}", ends=True)
        if self.live and (told.doing == "playing" or told.seconds - self.said_at > 0.2):
            self.said_at = told.seconds
            priced = f"{told.priced:,} of {told.families:,} kinds of plans priced"
            gap = f"; gap {told.gap:.1%}" if told.best is not None else ""
            doing = f"playing {told.plan}" if told.doing == "playing" else priced
            self._say(f"{told.seconds:6.1f} s  {where}{doing[:70]}{gap}")

    def machine(self, where: str, told: SearchProgress) -> None:
        """Tell of the search on one of several machines."""
        self.plan(told, f"{where}: ")

    def end(self) -> None:
        """Clear the status."""
        if self.live:
            self._say("")

    def _say(self, text: str, *, ends: bool = False) -> None:
        if is_quiet():
            return
        begin = "\r\x1b[K" if self.live else ""
        print(f"{begin}{text}", end="\n" if ends else "", file=sys.stderr, flush=True)


def _print(found: SearchResult) -> None:
    from ridgeline.parallel.plan.stack_choice import BOUND, choice_text
    from ridgeline.study.planner.objectives import OBJECTIVES

    screen = console()
    best = found.best
    unit, least = OBJECTIVES[found.objective]
    screen.print(
        f"{found.model} on {found.devices} devices of {found.cluster}, batch"
        f" {best.plan.global_batch:,}: the least {found.objective} ({least}: {best.objective:.5g}"
        f" {unit})",
        soft_wrap=True,
    )
    bound = found.software == BOUND
    screen.print(choice_text(found.software, found.chosen_by, bound=bound), soft_wrap=True)
    screen.print(f"best plan: {best.shown}", soft_wrap=True)
    _table("played, the best first", found.replays[:9], best)
    _table("none better in time, energy and memory at once, of those played", found.pareto(), best)
    others = found.alternatives()
    if others:
        screen.print("other plans, the best of each shape, and what they spend more on:")
        for other in others[:6]:
            more = f"{other.objective / best.objective - 1:+.1%}"
            screen.print(f"  {more} {other.shown}: {other.loses_by(best)}", soft_wrap=True)
    screen.print(
        f"{found.n_plans:,} legal plans; {found.n_dropped:,} cannot fit, or be cut so; "
        f"{len(found.replays) + found.n_too_full} played"
        + (f", {found.n_unplayable} could not be played" if found.n_unplayable else "")
        + f"; screened at {found.screen_plans_per_s:,.0f} plans/s; {found.seconds:.1f} s in all"
        + (f"; ended by {found.stopped}" if found.stopped else "")
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


def _print_machines(choice: MachineChoice) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    best = choice.best
    screen.print(
        f"{choice.model}: {choice.job.tokens:.4g} tokens are {choice.steps:,} steps of"
        f" {choice.job.global_batch:,} samples",
        soft_wrap=True,
    )
    assert best.plan is not None
    screen.print(
        f"best: {best}, {best.seconds / 86400:.3g} days, ${best.usd:,.0f}: {best.plan.shown}",
        soft_wrap=True,
    )
    columns = ("devices", "step", "days", "dollars", "energy", "gap")
    table = plain_table({"machine": "left", **dict.fromkeys(columns, "right"), "plan": "left"})
    for one in choice.offers:
        if one.plan is None:
            table.add_row(one.cluster, f"{one.devices:,}", "", "", "", "", "", one.reason)
            continue
        table.add_row(
            one.cluster,
            f"{one.devices:,}",
            show(one.plan.step_time_s, "s", 4),
            f"{one.seconds / 86400:.3g}",
            f"{one.usd:,.0f}",
            show(one.joules, "J", 4),
            f"{one.gap:.1%}",
            one.plan.shown,
        )
    screen.print(table)
    for note in choice.notes:
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
