"""What `gemm` and `conv` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.kernels.break_even import BreakEven
    from ridgeline.kernels.single import OpResult


def print_op(result: OpResult, json: bool, found: BreakEven | None = None) -> None:
    """Print one op on one device, as a page or as JSON, with its break-even densities if given."""
    if json:
        more = {} if found is None else {"break_even": found._asdict()}
        print_json(result.to_dict() | more)
        return
    from ridgeline.report.summary import plain_table
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
    power_w = result.energy_j["total"] / result.time_s
    head.add_row("power", show(power_w, "W"))
    head.add_row(
        "efficiency", f"{show(result.useful_flops / result.energy_j['total'], 'FLOP/s')}/W"
    )
    if result.area_mm2 is not None:
        rate = result.useful_flops / result.time_s / result.area_mm2
        head.add_row(
            "per area", f"{show(rate, 'FLOP/s')}/mm2, {power_w / result.area_mm2:.2g} W/mm2"
        )
    if not result.calibrated:
        head.add_row("", "no measured efficiency: the time is a bound")
    screen.print(head)
    times = plain_table({"each alone": "left", "time": "right"})
    for name, seconds in result.parts_s.items():
        times.add_row(name, show(seconds, "s", 4))
    screen.print(times)
    moved = plain_table({"traffic": "left", "bytes": "right", "of compulsory": "right"})
    for name, size in result.traffic_bytes.items():
        moved.add_row(name, show(size, "B", 4), f"{size / result.compulsory_bytes:.2f}")
    screen.print(moved)
    energy = plain_table({"energy": "left", "joules": "right", "share": "right"})
    for name, joules in result.energy_j.items():
        energy.add_row(name, show(joules, "J", 4), f"{joules / result.energy_j['total']:.1%}")
    screen.print(energy)
    if found is not None:
        said = ", ".join(f"{name} {density:.4g}" for name, density in found._asdict().items())
        screen.print(f"break-even density, below which the dense op takes more: {said}")
    for note in result.notes:
        screen.print(f"note: {note}", soft_wrap=True)
