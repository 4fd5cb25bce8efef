"""Notebooks as pages: their cells and the outputs that they were saved with; nothing is run."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_MOST_LINES = 60  # of one printed output: a page is read, not searched


class NotebookPage(NamedTuple):
    """A notebook as Markdown.

    Attributes
    ----------
    text
        Markdown, in which ``<div data-output="N"></div>`` stands for `views[N]`.
    views
        Outputs that are HTML already.
    images
        Figures by file name.
    """

    text: str
    views: list[str]
    images: dict[str, bytes]


def notebook_page(path: Path) -> NotebookPage:
    """Write a notebook as a page, with a link to the file itself beside it."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts: list[str] = []
    views: list[str] = []
    images: dict[str, bytes] = {}
    for number, cell in enumerate(cells):
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        if source:
            parts.append(f"```python\n{source}\n```")
        for kind, value in _outputs(cell):
            if kind == "image/png":
                name = f"{path.stem}-{number}-{len(images)}.png"
                images[name] = base64.b64decode(value)
                parts.append(f"![Output of the cell above]({name})")
            elif kind == "text/html":
                parts.append(f'<div data-output="{len(views)}"></div>')
                views.append(f'<div class="notebook-view">{value}</div>')
            else:
                parts.append(f'```text title="Output"\n{_shortened(value)}\n```')
    first, *rest = parts
    link = f"[{path.name}]({path.name}) is this notebook, to run it yourself."
    return NotebookPage("\n\n".join([first, link, *rest]) + "\n", views, images)


def title_of(path: Path) -> str:
    """Return the heading of a notebook."""
    first = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
    return first.split("\n", 1)[0].lstrip("# ")


def notebook_index(paths: list[Path]) -> str:
    """Write the page that lists the notebooks, with the first paragraph of each."""
    parts = [
        "# Notebooks",
        "Each teaches one subject by doing. `pip install 'ridgeline[notebook]'` installs what they"
        " need; the tests run all of them.",
    ]
    for path in paths:
        cell = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
        paragraphs = cell.split("\n\n")
        summary = " ".join(paragraphs[1].split()) if len(paragraphs) > 1 else ""
        parts.append(f"**[{title_of(path)}]({path.stem}.md)** {summary}".rstrip())
    return "\n\n".join(parts) + "\n"


def _outputs(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the best form of every output: a figure, else HTML, else text."""
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            yield "text/plain", "".join(output["text"])
            continue
        data = output.get("data", {})
        kind = next(kind for kind in ("image/png", "text/html", "text/plain") if kind in data)
        yield kind, "".join(data[kind])


def _shortened(text: str) -> str:
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).rstrip().split("\n")
    if len(lines) <= _MOST_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines"])
