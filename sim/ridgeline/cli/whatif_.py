"""``ridgeline whatif``: a step with some of its rates and latencies scaled, nothing built anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.names import MachineIfAny, Network
from ridgeline.cli.number_options import Count, Whole
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.study.whatif import WhatIf

_SHOWN = 8


def whatif_(
    result: Network,
    cluster: MachineIfAny = None,
    *,
    scale: Annotated[tuple[str, ...], Parameter(consume_multiple=False)],
    plan: str = "",
    batch: Whole | None = None,
    precision: str | None = None,
    points: Count = 100,
    model: str | None = None,
    described_cluster: Annotated[str | None, Parameter(name="--cluster")] = None,
    software: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Scale rates and latencies of a simulated step: step time and critical path, before and after.

    Parameters
    ----------
    result
        JSON of ``ridgeline run --json`` or ``--out``; or a model, if a cluster follows.
    cluster
        Machine of the model, as in ``ridgeline run``.
    scale
        Resource and factor: "link.nvlink 2x", hbm.bandwidth=1.2x, tensor-cores=2x, latency=0.5x;
        or a range, hbm=0.5x..2x, of which each point is replayed. Repeat it for more.
    plan
        With a model: its plan, as in ``ridgeline run``.
    batch
        With a model: samples of one step over all devices.
    precision
        With a model: its precision, as in ``ridgeline run``.
    points
        Number of points of a range.
    model
        With a result: its model file, if the model is not in the catalogue.
    described_cluster
        With a result: its machine file, if the machine is not in the catalogue.
    software
        With a result: its stack file, if the stack is not in the catalogue. With a model: its
        software stack.
    json
        Print the answer as JSON.
    """
    from ridgeline.study.whatif import read_scaling, saved_step, what_if

    scalings = [read_scaling(text) for text in scale]
    if cluster is None:
        step = saved_step(result, model, described_cluster, software)
    else:
        from ridgeline.study.point import Point

        more = {"global_batch": batch, "precision": precision}
        step = Point.parse(result, cluster, plan, more, {}, software or "").simulate()
    found = what_if(step, scalings, points)
    if json:
        print_json(found.to_dict())
    else:
        _print(found)


def _print(found: WhatIf) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    levers = ", ".join(f"{lever} {factor:g}x" for lever, factor in found.scales.items())
    screen.print(
        f"{levers}: {show(found.before_s, 's', 4)} -> {show(found.after_s, 's', 4)}"
        f" ({found.before_s / found.after_s:.3f} x as fast)",
        soft_wrap=True,
        markup=False,
    )
    if len(found.alone_s) > 1:
        for lever, time_s in found.alone_s.items():
            screen.print(f"  {lever} alone: {show(time_s, 's', 4)}", markup=False)
    headings = {"critical path": "left", "before": "right", "after": "right"}
    table = plain_table(headings)
    parts = list(dict.fromkeys([*found.path_before_s, *found.path_after_s]))
    for part in parts[:_SHOWN]:
        before, after = (of.get(part, 0.0) for of in (found.path_before_s, found.path_after_s))
        table.add_row(part, show(before, "s", 4), show(after, "s", 4))
    screen.print(table)
    if found.times_s:
        step = max(1, (len(found.times_s) - 1) // 10)
        shown = list(zip(found.factors, found.times_s, strict=True))[::step]
        screen.print(
            f"range, {len(found.times_s)} points, {found.replays_per_s:,.0f} replays a second: "
            + ", ".join(f"{share:.0%} {show(time_s, 's', 4)}" for share, time_s in shown),
            soft_wrap=True,
        )
