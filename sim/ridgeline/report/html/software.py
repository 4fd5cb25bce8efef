"""A software stack as HTML for notebooks: what it can run, and every setting with its source."""

from __future__ import annotations

from html import escape

from ridgeline.report.html.blocks import FINE, FRAME, box, heading, table
from ridgeline.software.described import setting_rows
from ridgeline.software.stack import Stack

_SCROLL = "max-height:420px;overflow:auto"


def stack_html(stack: Stack) -> str:
    """Return a stack as an HTML fragment: settings that files say; defaults are counted."""
    rows = list(setting_rows(stack))
    said = [
        (row.path, row.text, row.stack, row.basis, stack.sources.get(row.source, row.source))
        for row in rows
        if not row.is_default
    ]
    bound = "a bound, no program" if stack.bound else f"family {stack.family}"
    since = f", {stack.year}" if stack.year else ""
    base = f", starts from {stack.base}" if stack.base else ""
    return box(
        FRAME,
        heading(f"software stack {stack.name}", 15),
        escape(stack.description),
        box("", escape(f"{bound}{since}{base}; {supports_text(stack)}")),
        box(_SCROLL, table(said, ("setting", "value", "said by", "basis", "source"))),
        box(FINE, escape(f"{len(rows) - len(said)} settings are defaults of the schema")),
    )


def supports_text(stack: Stack) -> str:
    """Say what a stack can run."""
    can = stack.supports
    parts = {
        "networks": can.networks,
        "devices of": can.vendors,
        "parallelism": can.plan,
        "precisions": can.precisions,
    }
    said = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
    return "runs " + ("; ".join(said) if said else "everything")
