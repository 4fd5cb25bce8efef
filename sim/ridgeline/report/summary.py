"""The answer as text: one screen that a person can read from top to bottom."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.units import show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ridgeline.report.result import Result

_GIB = 2**30


def summary_text(result: Result) -> str:
    """Return the summary of a result as plain text of 100 columns."""
    from rich.console import Console

    stream = io.StringIO()
    print_summary(result, Console(file=stream, width=100, highlight=False))
    return stream.getvalue()


def print_summary(result: Result, screen: Console) -> None:
    """Print headline, time, energy, memory and what bounds the step."""
    plan = result.manifest["plan"]
    device = result.manifest["device"]["name"]
    screen.print(
        f"[bold]{result.manifest['model']['name']}[/bold] on {plan['devices']} x {device} "
        f"({result.manifest['cluster']['name']}), {plan['precision']}, "
        f"batch {plan['global_batch']} ({plan['rank_batch']} a device)",
        soft_wrap=True,
    )
    head = plain_table({"": "left", " ": "right"}, headings=False)
    for name, value in headline(result):
        head.add_row(name, value)
    screen.print(head)
    limits = {**result.limits_s, "total": result.step_time_s}
    memory = {k: float(v) for k, v in result.memory_bytes.items() if k != "capacity"}
    _print_beside(
        screen,
        _shares("where the time went", result.time_s, "ms", 1e3),
        _shares("what limited it", limits, "ms", 1e3),
    )
    _print_beside(
        screen,
        _shares("energy a step by component", result.energy_j, "J", 1.0),
        _shares("peak memory of a device by kind", memory, "GiB", 1 / _GIB),
    )
    print_fit(result, screen)
    screen.print(trust_text(result), soft_wrap=True)


def headline(result: Result) -> list[tuple[str, str]]:
    """Return the few numbers that say it all, as names and values for people."""
    plan, sample = result.manifest["plan"], result.manifest["model"]["sample"]
    energy_j = result.energy_j["total"]
    tokens = [("", f"{result.tokens_per_s:,.0f} tokens/s")] if result.tokens_per_s else []
    return [
        ("step time", f"{result.step_time_s * 1e3:,.2f} ms"),
        ("throughput", f"{result.samples_per_s:,.0f} {sample}/s"),
        *tokens,
        ("useful work", show(float(result.flops_per_step), "FLOP", 4)),
        ("MFU (share of dense peak)", f"{result.mfu:.1%}"),
        ("energy a step, all devices", f"{energy_j:,.1f} J"),
        (f"energy a {sample.removesuffix('s')}", show(energy_j / plan["global_batch"], "J")),
        ("mean power a device", f"{energy_j / result.step_time_s / plan['devices']:,.0f} W"),
        ("bound by", result.bound),
    ]


def print_fit(result: Result, screen: Console) -> None:
    """Say whether the step fits into memory and, if not, which kind is too much and by how much."""
    total, capacity = result.memory_bytes["total"], result.memory_bytes["capacity"]
    if result.fits:
        screen.print(f"fits: {total / _GIB:.2f} of {capacity / _GIB:.2f} GiB")
        return
    kinds = {k: v for k, v in result.memory_bytes.items() if k not in {"total", "capacity"}}
    largest = max(kinds, key=lambda kind: kinds[kind])
    screen.print(
        f"[bold]does not fit[/bold]: {total / _GIB:.2f} GiB needed, {capacity / _GIB:.2f} GiB "
        f"there; {(total - capacity) / _GIB:.2f} GiB too much, most of it {largest} "
        f"({kinds[largest] / _GIB:.2f} GiB)",
        soft_wrap=True,
    )


def trust_text(result: Result) -> str:
    """Say what the numbers rest on."""
    trust = result.manifest["trust"]
    share = trust["calibrated_flop_share"]
    words = [f"{share:.0%} of the FLOPs are priced with measured efficiencies"]
    if share < 1:
        words.append("the rest at the peak rate, which is a bound and not a prediction")
    if trust["unsourced_values"]:
        words.append(f"{len(trust['unsourced_values'])} values of the device have no source")
    if trust["assumed_values"]:
        words.append(f"{len(trust['assumed_values'])} are assumed")
    words.append("input pipeline and accuracy are not modelled")
    return "trust: " + "; ".join(words)


def plain_table(columns: Mapping[str, str], *, headings: bool = True) -> Table:
    """Make a borderless table; `columns` maps headings to "left" or "right"."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD if headings else None, show_header=headings, pad_edge=False)
    for heading, side in columns.items():
        made.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    return made


def _shares(title: str, parts: Mapping[str, float], unit: str, scale: float) -> Table:
    rows = plain_table({title: "left", unit: "right", "share": "right"})
    total = parts["total"]
    for name, value in parts.items():
        if name != "total" and value:
            share = value / total if total else 0.0
            rows.add_row(name.replace("_", " "), f"{value * scale:,.2f}", f"{share:.1%}")
    rows.add_section()
    rows.add_row("total", f"{total * scale:,.2f}", "100.0%")
    return rows


def _print_beside(screen: Console, left: Table, right: Table) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 4))
    grid.add_row(left, right)
    screen.print(grid)
