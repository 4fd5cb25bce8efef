"""HTML blocks of all views in notebooks: tables, headings and boxes, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

FRAME = "font-size:13px;line-height:1.45;max-width:760px"
FINE = "font-size:11px;opacity:.75"


def table_html(headings: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> str:
    """Return some rows of a larger table as an HTML fragment, with what the table is below it."""
    cells = [[f"{c:.6g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    note = box(FINE, escape(f"{caption}; the first {len(rows)} rows"))
    return box("font-size:12px;line-height:1.4", table(cells, headings), note)


def table(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """Set rows of text as a table, with all text escaped."""
    style = 'style="text-align:left;padding:1px 18px 1px 0;background:none;border:none"'
    lines = [("th", headings)] if headings else []
    lines += [("td", row) for row in rows]
    body = "".join(
        '<tr style="background:none">'
        + "".join(f"<{tag} {style}>{escape(cell)}</{tag}>" for cell in cells)
        + "</tr>"
        for tag, cells in lines
    )
    return f'<table style="border-collapse:collapse;border:none;margin:2px 0">{body}</table>'


def heading(text: str, size_px: int = 13) -> str:
    """Return a line of bold text, escaped."""
    return box(f"font-weight:600;font-size:{size_px}px;margin:10px 0 2px", escape(text))


def box(style: str, *inner: str) -> str:
    """Put HTML into a block."""
    return f'<div style="{style}">{"".join(inner)}</div>'
