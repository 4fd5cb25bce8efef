"""The report of one step: headline, roofline, timeline, memory, power, energy, links, ops."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.engine.program import Floats, Ints
from ridgeline.kernels.cost import engine_rate
from ridgeline.report.accounting import limiting
from ridgeline.report.figures.links import loads
from ridgeline.report.figures.roofline import points
from ridgeline.report.figures.style import COLOURS, DUST, SERIES, percent, stamp_text, words
from ridgeline.report.html_page.document import Report
from ridgeline.report.html_page.section import DataColumn, DataTable, Section, stacked_bar
from ridgeline.report.html_page.timeline_figure import timeline_figure
from ridgeline.report.op_times import op_times
from ridgeline.report.power_track import power_track
from ridgeline.report.run_command import run_command
from ridgeline.report.sensitivity import sensitivity
from ridgeline.report.summary import (
    binary_size,
    headline,
    plan_text,
    remarks,
    software_text,
    trust_text,
)
from ridgeline.units import show

if TYPE_CHECKING:
    from ridgeline.report.result import Result

_MOST_MOMENTS = 3000
"""Of a curve over time. More are thinned to the largest of each stretch."""
_MOST_OPS = 5000
_MOST_REPLAYED = 200_000
"""Tasks up to which every resource is doubled and halved."""
_SAVED = "result.json"


def result_report(result: Result) -> Report:
    """Return the report of a step."""
    given, plan = result.manifest, result.manifest["plan"]
    sections = [
        _headline(result),
        _time(result),
        _timeline(result),
        _roofline(result),
        _ops(result),
        _memory(result),
        _power(result),
        _energy(result),
        *_links(result),
        *_sensitivity(result),
        _provenance(result),
    ]
    return Report(
        title=f"{given['model']['name']} on {plan['devices']} × {given['device']['name']}",
        subtitle=f"{given['cluster']['name']}, {plan['precision']}, batch "
        f"{plan['global_batch']:,}, software {given['software']['name']}",
        stamp=stamp_text(result),
        sections=sections,
        record={"kind": "result", "result": result.to_dict()},
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plot(kind: str) -> str:
    return f"ridgeline plot {kind} {_SAVED} --out {kind}.svg"


def _headline(result: Result) -> Section:
    cells: list[tuple[str, list[str]]] = []
    for name, value in headline(result):
        if name:
            cells.append((name, [value]))
        else:
            cells[-1][1].append(value)
    fit = "fits" if result.fits else "does not fit"
    memory = result.memory_bytes
    cells.append(
        ("memory", [f"{binary_size(memory['total'])} of {binary_size(memory['capacity'])}", fit])
    )
    boxes = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(values[0])}"
        + "".join(f"<small>{escape(more)}</small>" for more in values[1:])
        + "</dd></div>"
        for name, values in cells
    )
    notes = "".join(f'<p class="remark">{escape(note)}</p>' for note in remarks(result))
    if not result.fits:
        notes = '<p class="remark">The step does not fit into memory.</p>' + notes
    return Section(
        "headline",
        "Headline",
        f"{_sentence(software_text(result))} {_sentence(plan_text(result))}",
        body=f'<dl class="headline">{boxes}</dl>{notes}',
        command=f"{run_command(result)} --json > {_SAVED}",
    )


def _shares(parts: Mapping[str, float], unit: str) -> tuple[list[DataColumn], str]:
    """Return the parts of a total as columns, and the sentence that names them."""
    total = parts["total"]
    names = [name for name in parts if name != "total"]
    shares = [parts[name] / total if total else 0.0 for name in names]
    said = ", ".join(
        f"{words(name)} {percent(share)}"
        for name, share in zip(names, shares, strict=True)
        if share > DUST
    )
    columns = [
        DataColumn("part", "part", [words(name) for name in names]),
        DataColumn(f"value_{unit}", "value", [float(parts[name]) for name in names]),
        DataColumn("share", "share", shares),
    ]
    return columns, said


def _bar(parts: Mapping[str, float], label: str) -> str:
    shown = {name: value for name, value in parts.items() if name != "total" and value > 0}
    bar = stacked_bar(shown, COLOURS, label)
    legend = "".join(
        f'<li><span class="swatch" style="background:{COLOURS[name]}"></span>{escape(words(name))}'
        f" {percent(value / parts['total'])}</li>"
        for name, value in shown.items()
    )
    return f'{bar}<ul class="legend">{legend}</ul>'


def _time(result: Result) -> Section:
    columns, said = _shares(result.time_s, "s")
    limits = ", ".join(
        f"{name} {percent(value / result.step_time_s)}"
        for name, value in list(result.limits_s.items())[:6]
    )
    return Section(
        "time",
        "Where the time goes",
        f"Of {show(result.step_time_s, 's', 4)} on the critical rank. What limits it: {limits}.",
        body=_bar(result.time_s, f"Time of a step: {said}"),
        table=DataTable("time", columns),
        command=_plot("time"),
    )


def _timeline(result: Result) -> Section:
    timeline = result.details.timeline
    figure, note = timeline_figure(timeline)
    ranks = timeline.program.rank_multiplicity
    stood = ""
    if int(ranks.max(initial=1)) > 1:
        stood = (
            f" {len(ranks)} simulated ranks stand for {int(ranks.sum())} that are alike in groups."
        )
    arrows = " Lines are messages between ranks, drawn where at most 400 are in view."
    return Section(
        "timeline",
        "Timeline of all ranks",
        f"What every stream of every simulated rank does when.{stood}"
        f"{arrows if 'messages' in figure else ''} Zoomed out, the height of a colour is its share "
        f"of the time. {note}".rstrip(),
        figure=figure,
        keys="Up and down choose a stream; [ and ] step from task to task.",
        command=_plot("timeline"),
    )


def _roofline(result: Result) -> Section:
    device = result.details.cluster.device
    found = points(result)
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None  # a device without one is no device
    series: list[dict[str, Any]] = []
    xs = [one.flop_per_byte for one in found] or [1.0]
    left, right = min(xs) / 2, max(xs) * 2
    roofs = {name: engine_rate(device, name) for name in sorted({p.engine for p in found})}
    reached = far.bandwidth.value * far.achievable.value
    for name, peak in roofs.items():
        ridge = peak / far.bandwidth.value
        ends = [min(left, ridge / 2), ridge, max(right, 2 * ridge)]
        series.append(
            {
                "kind": "line",
                "name": "",
                "x": ends,
                "y": [ends[0] * far.bandwidth.value, peak, peak],
                "note": f"{name}: {show(peak, 'FLOP/s', 3)}",
            }
        )
    if roofs and reached < far.bandwidth.value:
        top = max(roofs.values())
        series.append(
            {
                "kind": "line",
                "x": [left, top / reached],
                "y": [left * reached, top],
                "dash": [5, 4],
                "note": f"achievable {device.far_memory}: {show(reached, 'B/s', 3)}",
                "noteAt": "start",
            }
        )
    for pass_ in dict.fromkeys(one.pass_ for one in found):
        mine = sorted((one for one in found if one.pass_ is pass_), key=lambda one: -one.share)
        series.append(
            {
                "kind": "points",
                "name": words(pass_.value),
                "color": COLOURS[pass_.value],
                "x": [one.flop_per_byte for one in mine],
                "y": [one.flop_per_s for one in mine],
                "size": [2.5 + 22 * math.sqrt(max(one.share, 0.0)) for one in mine],
                "text": [f"{one.op}, {percent(one.share)} of the step" for one in mine],
            }
        )
    columns = [
        DataColumn("op", "op", [one.op for one in found]),
        DataColumn("pass", "pass", [one.pass_.value for one in found]),
        DataColumn("engine", "engine", [one.engine for one in found]),
        DataColumn("flop_per_byte", "FLOP per byte", [one.flop_per_byte for one in found]),
        DataColumn("speed_flop_per_s", "FLOP/s", [one.flop_per_s for one in found]),
        DataColumn("share", "share", [one.share for one in found]),
    ]
    return Section(
        "roofline",
        "Roofline",
        f"Each op's speed over its arithmetic intensity; {device.far_memory} of {device.name} moves"
        f" {show(far.bandwidth.value, 'B/s', 3)}. Area of a point: its share of the step. Both axes"
        " are logarithmic.",
        figure={
            "type": "xy",
            "label": f"Roofline with {len(found)} ops.",
            "height": 420,
            "x": {"label": f"FLOP per byte of {device.far_memory}", "unit": "", "log": True},
            "y": {"label": "speed of an op", "unit": "FLOP/s", "log": True},
            "series": series,
        },
        table=DataTable("roofline", columns),
        command=_plot("roofline"),
    )


def _ops(result: Result) -> Section:
    device = result.details.cluster.device
    timed = sorted(op_times(result), key=lambda one: -one.step_s)
    shown = timed[:_MOST_OPS]
    cut = f" The {_MOST_OPS:,} longest of {len(timed):,}." if len(timed) > len(shown) else ""
    columns = [
        DataColumn("op", "op", [one.op.name for one in shown]),
        DataColumn("pass", "pass", [one.op.pass_.value for one in shown]),
        DataColumn("step_time_s", "time in the step", [one.step_s for one in shown]),
        DataColumn("share", "share", [one.step_s / result.step_time_s for one in shown]),
        DataColumn("limited_by", "limited by", [limiting(one.cost, device) for one in shown]),
        DataColumn("kind", "kind", [one.op.kind for one in shown]),
        DataColumn("layer", "layer", [one.op.layer for one in shown]),
        DataColumn("flop", "FLOP", [math.fsum(one.cost.flops.values()) for one in shown]),
        DataColumn(
            "far_bytes",
            f"bytes at {device.far_memory}",
            [float(one.cost.traffic_bytes.get(device.far_memory, 0.0)) for one in shown],
        ),
    ]
    return Section(
        "ops",
        "Ops",
        "Time of every op over all micro-batches, on a device that runs it; FLOP and bytes are of "
        f"one execution.{cut}",
        table=DataTable("ops", columns),
        command=f"{run_command(result)} --ops 20",
        open_table=True,
    )


def largest_of_stretches(values: Floats, most: int) -> Ints:
    """Return the indices of the first value, the last and the largest of each of many stretches."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most + 1).astype(np.int64)
    largest = [int(a + np.argmax(values[a:b])) for a, b in pairwise(edges.tolist())]
    return np.unique([0, *largest, len(values) - 1])


def _memory(result: Result) -> Section:
    played = result.details.timeline
    ranks = played.memory()
    rank = max(range(len(ranks)), key=lambda r: ranks[r].peak_bytes)
    times, held = played.memory_profile(rank)
    kept = largest_of_stretches(held.sum(axis=1).astype(np.float64), _MOST_MOMENTS)
    moments = np.append(times[kept], max(played.makespan_s, float(times[-1])))
    layers = np.concatenate((held[kept], held[kept[-1:]]))
    stacked = np.concatenate((np.zeros((len(layers), 1)), np.cumsum(layers, axis=1)), axis=1)
    kinds = played.program.memory_kinds
    series: list[dict[str, Any]] = [
        {
            "kind": "area",
            "name": words(kind),
            "color": COLOURS.get(kind, SERIES[k % len(SERIES)]),
            "x": moments,
            "y": stacked[:, k + 1],
            "low": stacked[:, k],
            "value": layers[:, k],
        }
        for k, kind in enumerate(kinds)
        if layers[:, k].any()
    ]
    capacity = result.memory_bytes["capacity"]
    near = capacity <= 4 * ranks[rank].peak_bytes  # else it would press all onto the axis
    if near:
        series.append(
            {
                "kind": "line",
                "name": "capacity",
                "x": [0.0, float(moments[-1])],
                "y": [capacity, capacity],
                "dash": [6, 4],
            }
        )
    thinned = f" {len(kept):,} of {len(times):,} moments." if len(kept) < len(times) else ""
    columns = [
        DataColumn("time_s", "time", moments.tolist()),
        *(
            DataColumn(f"{kind}_bytes", words(kind), layers[:, k].tolist())
            for k, kind in enumerate(kinds)
        ),
        DataColumn("total_bytes", "total", layers.sum(axis=1).tolist()),
    ]
    return Section(
        "memory",
        "Memory over time",
        f"Of the fullest rank: at most {binary_size(ranks[rank].peak_bytes)} at "
        f"{show(ranks[rank].peak_s, 's', 4)}, of {binary_size(capacity)}"
        f"{'' if near else ' (far above this frame)'}. Not counted: alignment and fragmentation of "
        f"the allocator, workspaces of libraries.{thinned}",
        figure={
            "type": "xy",
            "label": "Memory by kind over the step, stacked.",
            "x": {"label": "time since the step began", "unit": "s", "min": 0},
            "y": {"label": "memory of a device", "unit": "B", "min": 0},
            "series": series,
        },
        table=DataTable("memory", columns),
        command=_plot("memory"),
    )


def _power(result: Result) -> Section:
    details, played = result.details, result.details.timeline
    devices = details.plan.devices
    track = power_track(played, details.cluster.device.idle_power.value, devices)
    power_w = track.power_w / devices
    edges = _edges(track.times_s, _MOST_MOMENTS)
    width = np.diff(track.times_s)
    spans = list(pairwise(edges.tolist()))
    mean = [
        float(power_w[a:b] @ width[a:b] / (width[a:b].sum() or 1.0)) if b > a else 0.0
        for a, b in spans
    ]
    top = [float(power_w[a:b].max(initial=0.0)) for a, b in spans]
    moments = track.times_s[edges].tolist()
    whole_w = track.energy_j / (played.makespan_s or 1.0) / devices
    span = [0.0, moments[-1]]
    series: list[dict[str, Any]] = [
        {
            "kind": "step",
            "name": "mean of each stretch" if len(edges) < len(track.times_s) else "power",
            "color": COLOURS["compute"],
            "x": moments,
            "y": [*mean, mean[-1]] if mean else [0.0],
        },
        {"kind": "line", "name": "mean of the step", "x": span, "y": [whole_w] * 2, "dash": [3, 3]},
    ]
    if len(edges) < len(track.times_s):
        series.append(
            {
                "kind": "step",
                "name": "largest of each stretch",
                "color": COLOURS["dram"],
                "width": 1,
                "x": moments,
                "y": [*top, top[-1]],
            }
        )
    limit = details.cluster.device.board_limit
    if limit is not None:
        series.append(
            {
                "kind": "line",
                "name": "limit of the board",
                "x": span,
                "y": [limit.value] * 2,
                "dash": [8, 4],
            }
        )
    columns = [
        DataColumn("time_s", "from", moments[:-1]),
        DataColumn("mean_power_w", "mean power", mean),
        DataColumn("peak_power_w", "largest power", top),
    ]
    return Section(
        "power",
        "Power over time",
        f"Of a device, in the mean {whole_w:,.1f} W. A task draws its energy evenly from its start "
        "to its end; idle power is drawn throughout.",
        figure={
            "type": "xy",
            "label": "Power of a device over the step.",
            "height": 280,
            "x": {"label": "time since the step began", "unit": "s", "min": 0},
            "y": {"label": "power of a device", "unit": "W", "min": 0},
            "series": series,
        },
        table=DataTable("power", columns),
        command=_plot("power"),
    )


def _edges(times_s: Floats, most: int) -> Ints:
    """Return indices of moments that part a track into stretches of about equal duration."""
    if len(times_s) <= most:
        return np.arange(len(times_s))
    wanted = np.linspace(times_s[0], times_s[-1], most)
    return np.unique(np.append(np.searchsorted(times_s, wanted[:-1]), len(times_s) - 1))


def _energy(result: Result) -> Section:
    rows = result.ledger().by("op", "kind", "pass", "component")
    total_j = result.energy_j["total"] or 1.0
    most = sorted(rows.items(), key=lambda item: -item[1])[:_MOST_OPS]
    columns = [
        *(
            DataColumn(name, name, [key[i] for key, _ in most])
            for i, name in enumerate(("op", "kind", "pass", "component"))
        ),
        DataColumn("energy_j", "energy", [energy_j for _, energy_j in most]),
        DataColumn("share", "share", [energy_j / total_j for _, energy_j in most]),
    ]
    _, said = _shares(result.energy_j, "j")
    cut = f" The {_MOST_OPS:,} largest of {len(rows):,} rows." if len(rows) > len(most) else ""
    return Section(
        "energy",
        "Energy",
        f"{show(result.energy_j['total'], 'J', 4)} a step, all devices: {said}. Scope: "
        f"{result.manifest['energy_scope']}.{cut}",
        body=_bar(result.energy_j, f"Energy of a step: {said}"),
        table=DataTable("energy", columns),
        command=_plot("energy"),
    )


def _links(result: Result) -> list[Section]:
    """Return what every link carries, if something is sent."""
    program = result.details.lowered.program
    carried = loads(program)
    used = [r for r in np.flatnonzero(carried > 0).tolist() if "->" in program.resource_names[r]]
    if not used:
        return []
    split = [program.resource_names[r].rpartition(" (") for r in used]
    share = [float(carried[r] / program.capacity[r] / result.step_time_s) for r in used]
    columns = [
        DataColumn("link", "link", [way for way, _, _ in split]),
        DataColumn("class", "class", [kind.rstrip(")") for _, _, kind in split]),
        DataColumn("carried_bytes", "carried in a step", [float(carried[r]) for r in used]),
        DataColumn(
            "bandwidth_bytes_per_s", "bandwidth", [float(program.capacity[r]) for r in used]
        ),
        DataColumn("share", "share of the time in use", share),
    ]
    busiest = int(np.argmax(share))
    return [
        Section(
            "links",
            "Links",
            f"{len(used)} directions of links carry something; {split[busiest][0]} "
            f"({split[busiest][2].rstrip(')')}) is in use for {percent(share[busiest])} of the "
            "step. Ranks that are alike are simulated once: a link may stand for several.",
            table=DataTable("links", columns),
            command=f"ridgeline plot topology {_SAVED} --out topology.svg",
            open_table=True,
        )
    ]


def _sensitivity(result: Result) -> list[Section]:
    """Return what twice and half of each resource do to the step, if the step is small enough."""
    if result.details.timeline.program.n_tasks > _MOST_REPLAYED:
        return []
    found = sensitivity(result)
    columns = [
        DataColumn("resource", "resource", [one.resource for one in found]),
        DataColumn("twice_s", "with twice as much", [one.more_s for one in found]),
        DataColumn("half_s", "with half as much", [one.less_s for one in found]),
        DataColumn(
            "gain.share", "saved by twice", _relative(result, [o.more_s for o in found], -1)
        ),
        DataColumn("loss.share", "added by half", _relative(result, [o.less_s for o in found], 1)),
    ]
    best = min(found, key=lambda one: one.more_s)
    return [
        Section(
            "sensitivity",
            "Sensitivity",
            f"Step time with twice and half of each resource (of latencies: half and twice). "
            f"{best.resource} helps most: {show(best.more_s, 's', 4)} a step. The same program is "
            "replayed: tilings, algorithms and the plan stay.",
            table=DataTable("sensitivity", columns),
            command=_plot("tornado"),
            open_table=True,
        )
    ]


def _relative(result: Result, times_s: Sequence[float], sign: int) -> list[float]:
    return [sign * (time_s / result.step_time_s - 1.0) for time_s in times_s]


def _provenance(result: Result) -> Section:
    manifest = json.dumps(result.to_dict()["manifest"], indent=2)
    return Section(
        "provenance",
        "What it rests on",
        trust_text(result).replace("\n", " "),
        body="<details><summary>Manifest: everything that repeats this result</summary>"
        f"<pre>{escape(manifest)}</pre></details>",
        command=run_command(result),
    )
