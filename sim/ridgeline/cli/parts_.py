"""``ridgeline parts``: a network whose parts have plans, and devices, of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.assignments import assignments
from ridgeline.cli.number_options import Count
from ridgeline.cli.output import console, print_json
from ridgeline.cli.searched import ClusterName, Json, ModelName, Precision
from ridgeline.cli.software import Software, one_stack

if TYPE_CHECKING:
    from ridgeline.study.parts.parts_result import PartsResult


def parts_(
    model: ModelName,
    cluster: ClusterName,
    *,
    batch: Count,
    parts: str,
    plan: str = "",
    precision: Precision = None,
    software: Software = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", consume_multiple=False, show_default=False)
    ] = (),
    unfolded: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> None:
    """Simulate a step of a network whose parts have plans, and devices, of their own.

    Parameters
    ----------
    batch
        Samples of one step, which every part goes through.
    parts
        Plan of each part: "vision: data=8,frozen; projector: data=4", or a YAML file of them. A
        part is a tower of the network, projector, or a pattern of layers; frozen leaves its weights
        as they are, colocated puts it on the devices of the rest (docs/parts.md).
    plan
        Plan of the rest of the network: data=8,tensor=4 ...
    set_
        Replace one field of the machine, model or software, as in ``ridgeline run``. Repeat it for
        more fields.
    unfolded
        Simulate every rank, not one of each kind: messages between parts then share links with what
        parts send inside.
    """
    from ridgeline.study.parts.parts_result import simulate_parts
    from ridgeline.study.point import Point

    more = {"global_batch": batch, "precision": precision}
    point = Point.parse(model, cluster, plan, more, assignments(set_), one_stack(software))
    found, machine, of_rest = (point.load(name) for name in ("model", "cluster", "plan"))
    choice = point.choice(found, machine, of_rest)
    result = simulate_parts(
        found, machine, of_rest, parts, software=choice.stack, fold=not unfolded
    )
    result = replace(result, chosen_by=choice.text)
    if json:
        print_json(result.to_dict())
    else:
        _print(result)


def _print(found: PartsResult) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    rate = f"{found.samples_per_s:.4g} samples/s"
    if found.tokens_per_s:
        rate += f", {found.tokens_per_s:,.0f} tokens/s"
    screen.print(
        f"{found.model} in {len(found.parts)} parts on {found.devices} devices of {found.cluster}:"
        f" {show(found.step_time_s, 's', 4)} a step, {rate}, MFU {found.mfu:.1%}",
        soft_wrap=True,
    )
    right = ("devices", "rounds", "alone", "FLOPs", "energy", "memory", "of GiB")
    table = plain_table({"part": "left", **dict.fromkeys(right, "right"), "": "left"})
    for part in found.parts:
        words = [word for word in ("frozen", "colocated") if getattr(part, word)]
        words += [] if part.fits else ["does not fit"]
        first, last = part.first_device, part.first_device + part.devices - 1
        memory = part.memory_bytes
        table.add_row(
            part.name,
            f"{first}-{last}" if part.devices > 1 else str(first),
            str(part.micro_batches),
            show(part.alone_s, "s", 4),
            f"{part.flops_per_step:.3g}",
            show(part.energy_j, "J", 3),
            f"{memory['total'] / 2**30:.1f}",
            f"{memory['capacity'] / 2**30:.0f}",
            ", ".join(words),
        )
    screen.print(table)
    spent = [
        name for name in found.parts[0].shares if any(p.shares[name] > 5e-4 for p in found.parts)
    ]
    shares = plain_table({"time of": "left", **dict.fromkeys(spent, "right")})
    for part in found.parts:
        shares.add_row(part.name, *(f"{part.shares[name]:.1%}" for name in spent))
    screen.print(shares)
    screen.print(
        f"between parts: {show(found.sent_bytes, 'B', 4)} a step; energy:"
        f" {show(found.energy_j['total'], 'J', 4)} a step, of which"
        f" {show(found.energy_j['static'], 'J', 4)} of devices at rest",
        soft_wrap=True,
    )
    screen.print(found.chosen_by, soft_wrap=True)
    for part in found.parts:
        for note in part.notes:
            screen.print(f"{part.name}: {note}", soft_wrap=True)
