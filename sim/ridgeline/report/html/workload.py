"""A model and a plan as HTML for notebooks: layers with their sizes, degrees with their devices."""

from __future__ import annotations

from html import escape

from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.report.figures.style import COLOURS
from ridgeline.report.html.blocks import FINE, FRAME, box, heading, table
from ridgeline.report.html.svg import block, drawing, text
from ridgeline.units import show
from ridgeline.workload.model import Model
from ridgeline.workload.summary import layer_table

_SCROLL = "max-height:420px;overflow:auto"
_WIDTH = 620.0
_MOST_ACROSS, _MOST_DOWN = 12, 6
_MOST_LAYERS = 200
"""Rows of a table of layers: a notebook keeps every view that it has shown."""


def model_html(model: Model) -> str:
    """Return a model as an HTML fragment: its layers with parameters, FLOPs and bytes.

    Of a forward pass of the smallest batch that the network has.
    """
    graph = model.forward(model.network.smallest_batch)
    layers = layer_table(graph)
    rows = [
        (
            layer.name,
            layer.kind,
            " x ".join(str(n) for n in layer.output_shape),
            f"{layer.parameters:,}" if layer.parameters else "",
            show(float(layer.forward_flops), "FLOP", 4) if layer.forward_flops else "",
            show(float(layer.activation_bytes), "B", 4) if layer.activation_bytes else "",
        )
        for layer in layers
    ]
    if (left := len(rows) - _MOST_LAYERS) > 0:
        last = _MOST_LAYERS // 4
        between = (f"… {left:,} layers between", "", "", "", "", "")
        rows = [*rows[: _MOST_LAYERS - last], between, *rows[-last:]]
    held = sum(layer.activation_bytes for layer in layers)
    total = (
        f"{graph.parameters:,} parameters; forward pass of {graph.batch} in {graph.precision}: "
        f"{show(float(graph.flops()), 'FLOP', 4)}, {show(float(held), 'B', 4)} of activations"
    )
    return box(
        FRAME,
        heading(f"model {model.name}: {model.title}", 15),
        escape(total),
        box(
            _SCROLL,
            table(rows, ("layer", "kind", "output", "parameters", "forward", "activations")),
        ),
        box(FINE, escape(model.citation)),
    )


def plan_html(plan: Plan) -> str:
    """Return a plan as an HTML fragment: who works on what, and the fields that were chosen."""
    title = f"plan for {counted(plan.devices, 'device')}"
    chosen, decided, notes = plan.model_dump(exclude_defaults=True), {}, ""
    if isinstance(plan, ResolvedPlan):
        title += f", run by {plan.stack}"
        chosen, decided, notes = plan.chosen, dict(plan.decided), "; ".join(plan.notes)
    batch = (
        f"{counted(plan.global_batch, 'sample')} = {counted(plan.data, 'replica')} x "
        f"{counted(plan.micro_batches, 'micro-batch')} x {plan.micro_batch_size}"
    )
    return box(
        FRAME,
        heading(title, 15),
        escape(batch),
        _grid(plan),
        table(
            [
                (name, str(value), f"by {decided[name]}" if name in decided else "")
                for name, value in chosen.items()
            ]
        ),
        box(FINE, escape(notes)),
    )


def counted(number: int, what: str) -> str:
    """Say how many there are: 1 batch, 2 batches."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number} {what}{ending}"


def _grid(plan: Plan) -> str:
    """Draw replicas as rows of stages; what shares a stage is written into it."""
    across, down = min(plan.pipeline, _MOST_ACROSS), min(plan.data, _MOST_DOWN)
    left, gap, tall = 74.0, 6.0, 26.0
    wide = min(120.0, (_WIDTH - left) / across - gap)
    shared = plan.sharing
    inside = counted(shared, "device") if wide > 60 else f"x {shared}"
    parts = []
    for row in range(down):
        y = 22 + row * (tall + gap)
        is_cut = row == down - 1 and down < plan.data
        number = plan.data - 1 if is_cut else row
        parts.append(text(0, y + 17, f"{'… ' if is_cut else ''}replica {number}", "start"))
        parts += [
            block(left + i * (wide + gap), y, wide, tall, COLOURS["compute"], inside)
            for i in range(across)
        ]
    for i in range(across):
        is_cut = i == across - 1 and across < plan.pipeline
        number = plan.pipeline - 1 if is_cut else i
        name = f"… {number}" if is_cut else (f"stage {number}" if wide > 60 else str(number))
        parts.append(text(left + i * (wide + gap) + wide / 2, 14, name))
    high = 26 + down * (tall + gap)
    return drawing(_WIDTH, high, f"{plan.pipeline} stages of {plan.data} replicas", *parts)
