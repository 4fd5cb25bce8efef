"""``ridgeline fuse``: which layers of a network are computed together on one device."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.names import DeviceOnly, Network
from ridgeline.cli.number_options import Whole
from ridgeline.cli.ops import DeviceFields, device_with
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.hardware.device import Device
    from ridgeline.kernels.fusion.groups import FusedGroup
    from ridgeline.kernels.fusion.schedule import FusedSchedule

_MOST_ROWS = 8  # of a table, of ops that are not fused


def fuse_(
    model: Network,
    device: DeviceOnly,
    *,
    batch: Whole = 1,
    precision: str | None = None,
    objective: str = "time",
    longest: Whole = 12,
    training: Annotated[bool, Parameter(negative="")] = False,
    set_: DeviceFields = (),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Find which layers of a network are fused, so that rows between stay on chip.

    Groups of consecutive ops are computed some rows at a time, each op behind the one before. Of
    all cuts of the network into groups and single ops the best is found; layer by layer, and whole
    tensors kept on chip between ops, are among them.

    Parameters
    ----------
    model
        Name or file of a network.
    device
        Name or file of a device with an on-chip level that keeps tensors between ops.
    batch
        Number of samples; a group computes them one after the other.
    precision
        Number formats; by default the usual ones of the device.
    objective
        What is minimised: time, energy, or bytes of far memory.
    longest
        Maximum number of ops in a group.
    training
        Fuse a training step; by default inference.
    set_
        Replace one field of the device: "device.memory.l2.capacity=8 MiB". Repeat it for more
        fields.
    json
        Print the answer as JSON.
    """
    from ridgeline.errors import ConfigError
    from ridgeline.hardware.load import load_device
    from ridgeline.kernels.fusion.schedule import fuse
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.files import load_model

    machine = device_with(device, set_)
    machine = load_device(machine) if isinstance(machine, str) else machine
    network = load_model(model)
    if isinstance(network, Execution):
        raise ConfigError("a recorded execution is not divided into layers", file=model)
    found = fuse(
        network, machine, batch=batch, precision=precision or _usual_precision(machine),
        objective=objective, longest=longest, training=training,
    )  # fmt: skip
    if json:
        print_json(found.to_dict())
        return
    _print(found)


def _usual_precision(device: Device) -> str:
    from ridgeline.parallel.executions.costs import usual_format

    format_ = usual_format(device)
    return f"{format_}-true" if format_ in ("bf16", "fp16") else format_


def _print(found: FusedSchedule) -> None:
    from ridgeline.kernels.fusion.groups import together
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(
        f"{found.graph.name} on {found.device.name}, batch {found.graph.batch}, least "
        f"{found.objective}; rows stay in {found.level}, which has room for "
        f"{show(found.room_bytes, 'B')}",
        soft_wrap=True,
    )
    total, apart, whole = found.total, found.layer_by_layer, found.kept_whole
    head = plain_table(
        {
            "": "left", "fused": "right", "layer by layer": "right", "ratio": "right",
            "tensors kept whole": "right", "ratio ": "right",
        }
    )  # fmt: skip
    for name, fused, alone, kept, unit in (
        ("time", total.time_s, apart.time_s, whole.time_s, "s"),
        ("energy", total.energy_j, apart.energy_j, whole.energy_j, "J"),
        (
            f"{found.device.far_memory} traffic", total.far_bytes, apart.far_bytes,
            whole.far_bytes, "B",
        ),
    ):  # fmt: skip
        row = [name, show(fused, unit, 4)]
        for other in (alone, kept):
            row += [show(other, unit, 4), f"{fused / other:.3f}" if other else ""]
        head.add_row(*row)
    screen.print(head)
    table = plain_table(
        {
            "group": "left", "ops": "right", "rows a step": "right", "held": "right",
            "far memory": "right", "time": "right", "bound by": "left", "FLOP/B": "right",
            "of roofline": "right",
        }
    )  # fmt: skip
    for groups in _rows(found):
        group, end = groups[0], groups[-1].end
        ops = found.graph.ops[group.first : end]
        name = ops[0].name if len(ops) == 1 else f"{ops[0].name} .. {ops[-1].name}"
        if len(groups) > 1:
            group = together(groups)
        roof, cost = found.roofline(group), group.cost
        table.add_row(
            name,
            str(len(ops)),
            str(group.rows) if group.rows else "one by one" if len(groups) > 1 else "all",
            show(group.held_bytes, "B") if group.rows else "-",
            show(cost.far_bytes, "B"),
            show(cost.time_s, "s"),
            found.device.far_memory if cost.far_s >= cost.compute_s else "ops",
            f"{roof['flop_per_byte']:,.1f}",
            f"{roof['flop_per_s'] / reach:.1%}" if (reach := roof["attainable_flop_per_s"]) else "",
        )
    screen.print(table)
    for group, why in zip(found.groups, found.ends, strict=True):
        if group.end - group.first > 1:
            last = found.graph.ops[group.end - 1].name
            how = f"{group.halo}, weights {group.weights}"
            if group.cores > 1:
                how = f"{_cores_of(found, group)}, {how}"
            screen.print(f"group to {last}: {how}; ends: {why}", soft_wrap=True)


def _rows(found: FusedSchedule) -> list[list[FusedGroup]]:
    """List the groups of each row of the table: many ops that are not fused share one."""
    rows: list[list[FusedGroup]] = []
    for fused, groups in itertools.groupby(found.groups, lambda group: group.rows > 0):
        each = list(groups)
        rows += [each] if not fused and len(each) > _MOST_ROWS else [[group] for group in each]
    return rows


def _cores_of(found: FusedSchedule, group: FusedGroup) -> str:
    """Say which core computes which ops."""
    names = [op.name for op in found.graph.ops[group.first : group.end]]
    each = []
    for core in range(max(group.core_of) + 1):
        own = [name for name, of in zip(names, group.core_of, strict=True) if of == core]
        each.append(f"{core}: {', '.join(own)}")
    kind = "equal parts of the arrays" if found.device.dies is None else "dies"
    return f"pipeline over {group.cores} {kind}: {'; '.join(each)}"
