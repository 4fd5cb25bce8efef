"""What `gemm` and `conv` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.hardware.device import Device
    from ridgeline.kernels.single_op import OpResult
    from ridgeline.kernels.sparsity_break_even import BreakEven


DeviceFields = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)]
"""Words of all ``--set`` of a verb that takes a device."""


def device_with(device: str, set_: Sequence[str]) -> str | Device:
    """Return a device with some of its fields replaced: ``device.memory.hbm.bandwidth=2 TB/s``.

    Raises
    ------
    ConfigError
        If a field is none of a device.
    """
    if not set_:
        return device
    from ridgeline.cli.assignments import assignments
    from ridgeline.errors import ConfigError
    from ridgeline.hardware.load import load_device

    fields = {}
    for path, value in assignments(set_).items():
        within = path.removeprefix("cluster.")
        if not within.startswith("device."):
            raise ConfigError(
                f"{path!r} is no field of a device; they begin with 'device.', for example "
                "'device.tdp=300 W'",
                field="--set",
            )
        fields[within.removeprefix("device.")] = value
    return load_device(device, fields)


def print_op(result: OpResult, json: bool, found: BreakEven | None = None) -> None:
    """Print one op on one device, as a page or as JSON, with its break-even densities if given."""
    if json:
        more = {} if found is None else {"break_even": found._asdict()}
        print_json(result.to_dict() | more)
        return
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(f"{result.op} on {result.device}, {result.format} ({result.engine})")
    head = plain_table({"": "left", " ": "right"}, headings=False)
    head.add_row("time", show(result.time_s, "s", 4))
    head.add_row("work, dense", show(float(result.flops), "FLOP", 4))
    head.add_row("rate, useful", show(result.useful_flops / result.time_s, "FLOP/s", 4))
    head.add_row("utilisation of the peak", f"{result.utilisation:.1%}")
    if result.sparsity != "none":
        head.add_row("zeros", result.sparsity)
        head.add_row("useful work", f"{result.useful_flops / result.flops:.1%} of the dense work")
        head.add_row("issued work", f"{result.issued_flops / result.flops:.1%} of the dense work")
    head.add_row("bound by", result.bound)
    total_j = result.energy_j["total"]
    power_w = total_j / result.time_s
    head.add_row("power", show(power_w, "W") if total_j else "unknown")
    head.add_row(
        "efficiency",
        f"{show(result.useful_flops / total_j, 'FLOP/s')}/W" if total_j else "unknown",
    )
    if result.area_mm2 is not None:
        rate = result.useful_flops / result.time_s / result.area_mm2
        head.add_row(
            "per area", f"{show(rate, 'FLOP/s')}/mm2, {power_w / result.area_mm2:.2g} W/mm2"
        )
    if not result.calibrated:
        head.add_row("", "no measured efficiency: full tiles at the peak, a bound")
    screen.print(head)
    if result.mapped is not None:
        _print_mapped(result.mapped)
    elif result.mapping:
        screen.print(f"mapping  {result.mapping}", soft_wrap=True)
    print_breakdown(result.breakdown_s, result.time_s)
    times = plain_table({"each alone": "left", "time": "right"})
    for name, seconds in result.parts_s.items():
        times.add_row(name, show(seconds, "s", 4))
    screen.print(times)
    moved = plain_table(
        {"traffic": "left", "bytes": "right", "of compulsory": "right", "energy": "right"}
    )
    for name, size in result.traffic_bytes.items():
        share = f"{size / result.compulsory_bytes:.2f}"
        moved.add_row(name, show(size, "B", 4), share, show(result.level_energy_j[name], "J", 4))
    screen.print(moved)
    energy = plain_table({"energy": "left", "joules": "right", "share": "right"})
    for name, joules in result.energy_j.items():
        if not joules:  # no such part, or none that has a price: the notes say which
            continue
        energy.add_row(name, show(joules, "J", 4), f"{joules / (total_j or 1.0):.1%}")
    if total_j:  # else nobody has stated a price, as the notes say
        screen.print(energy)
    if found is not None:
        said = ", ".join(f"{name} {density:.4g}" for name, density in found._asdict().items())
        screen.print(f"break-even density, below which the dense op takes more: {said}")
    for note in result.notes:
        screen.print(f"note: {note}", soft_wrap=True)


def print_breakdown(breakdown_s: Mapping[str, Any], time_s: float) -> None:
    """Print the parts of an op's time that there are; they sum to it."""
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    spent = plain_table({"one after the other": "left", "time": "right", "share": "right"})
    for name, seconds in breakdown_s.items():
        of = {f"stall ({level})": s for level, s in seconds.items()} if name == "stall" else None
        for part, part_s in (of or {name: seconds}).items():
            if of != {} and (part_s or part in ("launch", "total")):
                spent.add_row(part, show(part_s, "s", 4), f"{part_s / time_s:.1%}")
    console().print(spent)


def _print_mapped(mapped: Mapping[str, Any]) -> None:
    """Print a searched mapping: loops, where the time goes, bytes over every border, bounds."""
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    title = f"mapping, {mapped['mapper']}"
    if mapped["objective"] != "time":
        title += f", least {mapped['objective']}"
    loops = plain_table({title: "left", "loops, outermost first": "left"})
    for level in mapped["loops"]["levels"]:
        loops.add_row(level["level"], _loops(level["temporal"]))
    for place in ("rows", "columns"):
        if mapped["first_tile"][place]:
            loops.add_row(place, _loops(mapped["first_tile"][place]))
    if mapped["dataflow"] is not None:
        parts = ", ".join(f"{axis} in {n}" for axis, n in mapped["parts"].items() if n > 1)
        loops.add_row("arrays", mapped["dataflow"] + (f"; {parts}" if parts else ""))
    screen.print(loops)
    spent = plain_table({"of the time": "left", "": "right", "cycles": "right"})
    cycles = mapped["cycles"] or {}
    for name, seconds in mapped["time_s"].items():
        spent.add_row(name, show(seconds, "s", 4), f"{cycles[name]:,.0f}" if cycles else "")
    screen.print(spent)
    moved = plain_table({"over the border": "left", "operand": "left", "bytes": "right"})
    for border, operands in mapped["moved_bytes"].items():
        for operand, size in operands.items():
            moved.add_row(border, operand, show(size, "B", 4))
    moved.add_row("compulsory", "", show(mapped["compulsory_bytes"], "B", 4))
    moved.add_row("least of any mapping", "", show(mapped["lower_bound_bytes"], "B", 4))
    screen.print(moved)


def _loops(loops: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{dim}{factor}" for dim, factor in loops) or "-"
