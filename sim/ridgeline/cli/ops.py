"""What `gemm` and `conv` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.kernels.single import OpResult


def print_op(result: OpResult, json: bool) -> None:
    """Print one op on one device, as a page or as JSON."""
    if json:
        print_json(result.to_dict())
        return
    from ridgeline.report.summary import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(f"{result.op} on {result.device}, {result.format} ({result.engine})")
    head = plain_table({"": "left", " ": "right"}, headings=False)
    head.add_row("time", show(result.time_s, "s", 4))
    head.add_row("work", show(float(result.flops), "FLOP", 4))
    head.add_row("rate", show(result.flops / result.time_s, "FLOP/s", 4))
    head.add_row("utilisation of the peak", f"{result.utilisation:.1%}")
    head.add_row("bound by", result.bound)
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
