"""A result as HTML for notebooks: text and boxes in one fragment, without scripts or links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from ridgeline.report.accounting import limiting
from ridgeline.report.figures.style import COLOURS, DUST, percent, stamp_text, words
from ridgeline.report.html.blocks import FINE, FRAME, box, heading, table
from ridgeline.report.ledger import STATIC
from ridgeline.report.op_times import op_times
from ridgeline.report.summary import headline, plan_text, software_text, trust_text
from ridgeline.units import show

if TYPE_CHECKING:
    from ridgeline.report.result import Result

_GIB = 2.0**30
_TOP = 10


def result_html(result: Result) -> str:
    """Return a result as an HTML fragment: headline, stacked bars, the ops that take longest."""
    plan, given = result.manifest["plan"], result.manifest
    memory = {name: float(size) for name, size in result.memory_bytes.items() if name != "capacity"}
    capacity, total = result.memory_bytes["capacity"], result.memory_bytes["total"]
    verdict = "fits" if result.fits else "does not fit"
    return box(
        FRAME,
        heading(f"{given['model']['name']} on {plan['devices']} x {given['device']['name']}", 15),
        escape(software_text(result)),
        box("", escape(plan_text(result))),
        table(headline(result)),
        heading(f"time of a step: {show(result.step_time_s, 's')}"),
        _stacked_bar(result.time_s, "s"),
        heading(f"energy of a step: {show(result.energy_j['total'], 'J')}"),
        _stacked_bar(result.energy_j, "J"),
        heading(f"memory of a device: {total / _GIB:.3g} of {capacity / _GIB:.4g} GiB, {verdict}"),
        _stacked_bar(memory, "B"),
        heading(f"the {min(_TOP, len(result.details.lowered.ops))} ops that take longest"),
        table(_top_ops(result), ("op", "kind", "pass", "time", "share", "limited by")),
        heading("what takes most energy, idle power apart"),
        table(_top_energy(result), ("op", "kind", "pass", "energy", "share", "most of it in")),
        box("font-size:11px;opacity:.75;margin-top:10px", escape(trust_text(result))),
        box(FINE, escape(stamp_text(result))),
    )


def _top_ops(result: Result) -> list[tuple[str, ...]]:
    """Return the ops that take longest over all micro-batches, as cells."""
    device = result.details.cluster.device
    longest = sorted(op_times(result), key=lambda timed: -timed.step_s)[:_TOP]
    return [
        (
            timed.op.name,
            timed.op.kind,
            timed.op.pass_.value,
            show(timed.step_s, "s"),
            percent(timed.step_s / result.step_time_s),
            limiting(timed.cost, device),
        )
        for timed in longest
    ]


def _top_energy(result: Result) -> list[tuple[str, ...]]:
    """Return the ops and collectives whose events take most energy, as cells."""
    parts: dict[tuple[str, str, str], dict[str, float]] = {}
    named = result.ledger().by("op", "kind", "pass", "component")
    for (op, kind, pass_, component), energy_j in named.items():
        if component != STATIC:
            parts.setdefault((op, kind, pass_), {})[component] = energy_j
    whole_j = result.energy_j["total"] or 1.0
    most = sorted(parts.items(), key=lambda item: -math.fsum(item[1].values()))[:_TOP]
    return [
        (
            *names,
            show(math.fsum(of.values()), "J"),
            percent(math.fsum(of.values()) / whole_j),
            max(of, key=lambda component: of[component]),
        )
        for names, of in most
    ]


def _stacked_bar(parts: Mapping[str, float], unit: str) -> str:
    """Draw the parts of a total as one bar in proportion, and name them below it."""
    total = parts["total"]
    shares = {name: value / total for name, value in parts.items() if name != "total" and total}
    shares = {name: share for name, share in shares.items() if share > DUST}
    labels = {
        name: f"{words(name)} {show(parts[name], unit)} ({percent(share)})"
        for name, share in shares.items()
    }
    bar = [
        f'<div title="{escape(labels[name])}" '
        f'style="width:{share * 100:.4f}%;background:{COLOURS[name]}"></div>'
        for name, share in shares.items()
    ]
    square = "display:inline-block;width:9px;height:9px;margin-right:5px;background:"
    legend = [
        f'<span style="margin-right:14px;white-space:nowrap"><span style="{square}{COLOURS[name]}">'
        f"</span>{escape(label)}</span>"
        for name, label in labels.items()
    ]
    return box("display:flex;height:16px;margin:2px 0 4px", *bar) + box("", *legend)
