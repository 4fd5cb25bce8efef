"""The whole answer as text, that a person can read from top to bottom."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.parallel.plan.stack_choice import choice_text
from ridgeline.report.tables import plain_table, print_beside
from ridgeline.units import show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ridgeline.report.execution import ExecutionResult
    from ridgeline.report.result import Result

_IN_HEADING = frozenset({"global_batch", "precision"})
_NEGLIGIBLE = 1e-9  # rounding, not a part
_WHOLE_WATTS = 10.0  # from which on a power is shown without decimals
TIME = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ENERGY = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9}
MEMORY = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0}


def execution_text(result: ExecutionResult) -> str:
    """Return the answer of a played execution as plain text of 100 columns."""
    from rich.console import Console

    stream = io.StringIO()
    print_execution(result, Console(file=stream, width=100, highlight=False))
    return stream.getvalue()


def software_text(result: Result) -> str:
    """Say which software stack runs the step, and who chose it."""
    software = result.manifest["software"]
    return choice_text(software["name"], software["chosen_by"], bound=software["bound"])


def plan_text(result: Result) -> str:
    """Return the plan as it was run, with the fields that the stack decided."""
    plan, software = result.details.plan, result.manifest["software"]
    values = {**plan.chosen, **{name: plan.strategy[name] for name in software["decided"]}}
    own = ",".join(f"{k}={v}" for k, v in values.items() if k not in _IN_HEADING)
    decided = ", ".join(f"{name}={plan.strategy[name]}" for name in software["decided"])
    by = f" ({decided} by {software['name']})" if decided else ""
    return f"plan as run: {own or 'data=1'}{by}"


def _of_one(plan: Mapping[str, Any]) -> str:
    """Say how many samples a device works on, alone or with those that share them."""
    if plan.get("replicas"):
        return f"micro-batches of {plan['micro_batch_size']}, stages of {plan['replicas']} devices"
    alone = plan["devices"] == plan["data"]
    return f"{plan['rank_batch']} a {'device' if alone else 'replica'}"


def heading_text(result: Result) -> str:
    """Say what was simulated: network, devices, cluster, precision and batch."""
    plan = result.manifest["plan"]
    devices = " and ".join(f"{kind['count']} x {kind['name']}" for kind in _kinds(result))
    return (
        f"{result.manifest['model']['name']} on {devices} "
        f"({result.manifest['cluster']['name']}), {plan['precision']}, "
        f"batch {plan['global_batch']} ({_of_one(plan)})"
    )


def _kinds(result: Result) -> list[Mapping[str, Any]]:
    alone = {"name": result.manifest["device"]["name"], "count": result.manifest["plan"]["devices"]}
    return list(result.manifest.get("devices") or [alone])


def print_summary(result: Result, screen: Console) -> None:
    """Print headline, time, energy, memory and what bounds the step."""
    from ridgeline.report.critical_path import path_text

    kinds = _kinds(result)
    screen.print(heading_text(result), soft_wrap=True, markup=False)
    screen.print(software_text(result), soft_wrap=True)
    screen.print(plan_text(result), soft_wrap=True)
    head = plain_table({"": "left", " ": "right"}, headings=False)
    for name, value in headline(result):
        head.add_row(name, value)
    screen.print(head)
    limits = {**result.limits_s, "total": result.step_time_s}
    memory = {k: float(v) for k, v in result.memory_bytes.items() if k != "capacity"}
    print_beside(
        screen,
        _shares("where the time went", result.time_s, TIME),
        _shares("what limited it", limits, TIME),
    )
    print_beside(
        screen,
        _shares("energy a step by component", result.energy_j, ENERGY),
        _shares("peak memory of a device by kind", memory, MEMORY),
    )
    if len(kinds) > 1:
        each = ", ".join(f"{kind['name']} {show(kind['energy_j'], 'J', 4)}" for kind in kinds)
        screen.print(f"energy by kind of device, without links: {each}", soft_wrap=True)
    screen.print(path_text(result), soft_wrap=True)
    if result.kept_bytes:
        screen.print(kept_text(result), soft_wrap=True)
    screen.print(fit_text(result), soft_wrap=True, style="" if result.fits else "bold")
    screen.print(trust_text(result), soft_wrap=True)


def kept_text(result: Result) -> str:
    """Say how many bytes each memory level kept from op to op, so that none behind passed them."""
    far = result.details.cluster.device.far_memory
    passed, kept = result.traffic_bytes.get(far, 0.0), math.fsum(result.kept_bytes.values())
    levels = ", ".join(f"{name} {show(size, 'B', 4)}" for name, size in result.kept_bytes.items())
    share = kept / (kept + passed)
    text = f"kept on chip between ops: {levels} a step; {share:.1%} of what {far} would pass"
    staying = result.details.lowered.staying_bytes
    weights = ", ".join(f"{show(size, 'B', 4)} in {name}" for name, size in staying.items())
    return f"{text}; weights that stay over all micro-batches: {weights}" if weights else text


def headline(result: Result) -> list[tuple[str, str]]:
    """Return the few numbers that say it all, as names and values for people."""
    plan, sample = result.manifest["plan"], result.manifest["model"]["sample"]
    energy_j = result.energy_j["total"]
    power_w = energy_j / result.step_time_s
    tokens = [("", f"{result.tokens_per_s:,.0f} tokens/s")] if result.tokens_per_s else []
    return [
        ("step time", show(result.step_time_s, "s", 5)),
        ("", range_text(result, "step_time_s", "s")),
        ("throughput", f"{rate(result.samples_per_s)} {sample}/s"),
        *tokens,
        ("useful work", show(float(result.flops_per_step), "FLOP", 4)),
        ("MFU (share of dense peak)", f"{result.mfu:.1%}"),
        ("energy a step, all devices", show(energy_j, "J", 4)),
        *([("", range_text(result, "energy_j", "J"))] if result.uncertainty else []),
        (f"energy {_one(sample)}", show(energy_j / plan["global_batch"], "J")),
        ("mean power a device", watts(power_w / plan["devices"])),
        *_of_a_node(result),
        ("efficiency", _efficiency(result.flops_per_step, energy_j)),
        *_per_area(result, power_w),
        ("bound by", result.bound),
    ]


def _efficiency(flops: float, energy_j: float) -> str:
    return f"{show(flops / energy_j, 'FLOP/s', 3)}/W" if energy_j else "unknown"


def _one(samples: str) -> str:
    """Return the name of one sample with its article: an image, a sequence."""
    return f"{'an' if samples[0] in 'aeiou' else 'a'} {samples.removesuffix('s')}"


def watts(power_w: float) -> str:
    """Write a power, without decimals if it is large."""
    return f"{power_w:,.0f} W" if power_w >= _WHOLE_WATTS else show(power_w, "W")


def range_text(result: Result, quantity: str, unit: Literal["s", "J"]) -> str:
    """Say between which figures the truth is expected in nine of ten cases, if that is known."""
    if result.uncertainty is None:
        return "no range is stated"
    interval = result.uncertainty[quantity]
    return f"90 % between {show(interval['p05'], unit, 3)} and {show(interval['p95'], unit, 3)}"


def _of_a_node(result: Result) -> list[tuple[str, str]]:
    """Power of a node from the wall by part, where its file states them, and of the facility."""
    from ridgeline.report.power import facility_power_w, stated_node_power

    power_w = stated_node_power(result)
    if power_w is None:
        return []
    total_w = power_w.pop("total")
    parts = ", ".join(f"{name} {watts:,.0f} W" for name, watts in power_w.items())
    rows = [("of a node, from the wall", f"{total_w:,.0f} W"), ("", parts)]
    pue = result.details.cluster.pue.value
    if pue != 1.0:
        rows.append((f"of the facility, PUE {pue:g}", show(facility_power_w(result), "W")))
    return rows


def _per_area(result: Result, power_w: float) -> list[tuple[str, str]]:
    """Rate and power per area of silicon, where the device's file says how large it is."""
    area_mm2 = result.manifest["device"]["area_mm2"]
    if area_mm2 is None:
        return []
    silicon_mm2 = area_mm2 * result.manifest["plan"]["devices"]
    rate = result.flops_per_step / result.step_time_s / silicon_mm2
    return [("per area", f"{show(rate, 'FLOP/s')}/mm2, {power_w / silicon_mm2:.2g} W/mm2")]


def print_ledger(result: Result, screen: Console) -> None:
    """Print the energy of the ledger by pass and component, with sums that are the result's."""
    energy = result.ledger().by("pass", "component")
    components = [name for name, value in result.energy_j.items() if name == "total" or value]
    unit, size = next((u, s) for u, s in ENERGY.items() if result.energy_j["total"] >= s)
    table = plain_table({f"energy a step, {unit}": "left", **dict.fromkeys(components, "right")})
    for pass_ in dict.fromkeys(name for name, _ in energy):
        parts = {name: energy.get((pass_, name), 0.0) for name in components}
        parts["total"] = math.fsum(parts.values())
        table.add_row(pass_, *(_number(parts[name] / size) for name in components))
    table.add_section()
    table.add_row("total", *(_number(result.energy_j[name] / size) for name in components))
    screen.print(table)


def rate(value: float) -> str:
    """Write a rate, without decimals if it is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def print_execution(result: ExecutionResult, screen: Console) -> None:
    """Print headline, time and energy of a played execution."""
    execution, times = result.manifest["execution"], result.manifest["times"]
    screen.print(
        f"[bold]{execution['name']}[/bold]: {execution['tasks']} tasks of {execution['ranks']} "
        f"ranks on {result.manifest['device']['name']} ({result.manifest['cluster']['name']}), "
        f"times {times}",
        soft_wrap=True,
    )
    head = plain_table({"": "left", " ": "right"}, headings=False)
    head.add_row("time", show(result.step_time_s, "s"))
    head.add_row("first rank ends", show(min(result.rank_time_s), "s"))
    head.add_row("bound by", result.bound)
    if result.mfu is not None:
        head.add_row("stated FLOPs over peak", f"{result.mfu:.1%}")
    screen.print(head)
    limits = {**result.limits_s, "total": result.step_time_s}
    print_beside(
        screen,
        _shares("where the time went", result.time_s, TIME),
        _shares("what limited it", limits, TIME),
    )
    if result.energy_j is not None:
        screen.print(_shares("energy by component", result.energy_j, ENERGY))
    else:
        screen.print("energy: not counted, since the trace does not say what its kernels do")
    for note in result.manifest["notes"]:
        screen.print(f"note: {note}", soft_wrap=True)


def fit_text(result: Result) -> str:
    """Say whether the step fits into memory and, if not, which kind is too much and by how much."""
    total, capacity = result.memory_bytes["total"], result.memory_bytes["capacity"]
    if result.fits:
        return f"fits: {binary_size(total)} of {binary_size(capacity)}"
    kinds = {k: v for k, v in result.memory_bytes.items() if k not in {"total", "capacity"}}
    largest = max(kinds, key=lambda kind: kinds[kind])
    return (
        f"does not fit: {binary_size(total)} needed, {binary_size(capacity)} there; "
        f"{binary_size(total - capacity)} too much, "
        f"most of it {largest} ({binary_size(kinds[largest])})"
    )


def binary_size(size_bytes: float) -> str:
    """Write a size in the largest binary unit that it fills."""
    unit, size = next(((u, s) for u, s in MEMORY.items() if size_bytes >= s), ("B", 1.0))
    return f"{size_bytes / size:.2f} {unit}"


def trust_text(result: Result) -> str:
    """Say what the numbers rest on, and what is strange about them."""
    return "\n".join(
        [f"trust: {basis_text(result)}", *(f"note: {text}" for text in remarks(result))]
    )


def ground_text(result: Result) -> str:
    """Say what share of the arithmetic rests on measurements, and what is said of the rest."""
    share = result.manifest["trust"]["calibrated_flop_share"]
    rest = (
        "" if share == 1
        else "; the rest with full tiles at the peak rate, which is a bound and not a prediction"
    )  # fmt: skip
    return f"{share:.0%} of the matrix FLOPs at measured efficiencies, or counted by cycle{rest}"


def basis_text(result: Result) -> str:
    """Say what the numbers rest on."""
    trust = result.manifest["trust"]
    words = [ground_text(result)]
    device = result.manifest["device"]
    if trust["unsourced_values"]:
        many = len(trust["unsourced_values"])
        verb = "value of {} has" if many == 1 else "values of {} have"
        words.append(f"{many} {verb.format(device['name'])} no source")
    if trust["assumed_values"]:
        words.append(f"assumed: {', '.join(trust['assumed_values'])}")
    words.append(f"range: {trust['uncertainty']}")
    scopes = ", ".join(device["energy_scopes"]) or "of its parts and quantities"
    words.append(f"energy: {device['energy_table']} ({scopes})")
    words.append(f"not modelled: {', '.join(result.manifest['not_modelled'])}")
    return "; ".join(words)


def remarks(result: Result) -> list[str]:
    """Say what a reader of this result must be told beside the numbers."""
    found = [str(note) for note in result.manifest["notes"]]
    changed = {**result.manifest["model"]["overrides"], **result.manifest["cluster"]["overrides"]}
    replaced = result.manifest["software"]["overrides"]
    changed |= {f"software.{path}": value for path, value in replaced.items()}
    if changed:
        found.append("changed: " + ", ".join(f"{path}={value}" for path, value in changed.items()))
    if result.mfu > 1:
        found.append(
            "MFU above 100 %: some convolutions do less arithmetic (Winograd) than is counted"
        )
    devices = result.manifest["plan"]["devices"]
    power_w = result.energy_j["total"] / result.step_time_s / devices
    tdp_w = result.manifest["device"]["tdp_w"]
    limited = result.details.cluster.device.board_limit is not None
    if tdp_w is not None and power_w > tdp_w and not limited:
        found.append(
            f"mean power {power_w:,.0f} W a device is above its {tdp_w:,.0f} W: it would lower its "
            "clock, which is modelled where device.power_limit is set"
        )
    return found


def share_rows(
    parts: Mapping[str, float], units: Mapping[str, float]
) -> tuple[str, list[tuple[str, str, str]]]:
    """Return a unit of which the total has at least one, and each part, its number and its share.

    The last row is the total.
    """
    total = parts["total"]
    unit, size = next(((u, s) for u, s in units.items() if total >= s), list(units.items())[-1])
    rows = [
        (name.replace("_", " "), _number(value / size), f"{value / total if total else 0.0:.1%}")
        for name, value in parts.items()
        if name != "total" and value > _NEGLIGIBLE * total
    ]
    return unit, [*rows, ("total", _number(total / size), "100.0%")]


def _shares(title: str, parts: Mapping[str, float], units: Mapping[str, float]) -> Table:
    """Tabulate parts of a total."""
    unit, (*rows, total) = share_rows(parts, units)
    table = plain_table({title: "left", unit: "right", "share": "right"})
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*total)
    return table


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 1e9 else f"{value:.4g}"
