"""The tables of docs/devices.md, from the schema: ``python -m ridgeline.report.schema_page``.

What stands between two marks of the page is written anew; the rest of the page is written by hand.
A mark is ``<!-- fields of Device -->`` (the description and all that stand in it) or
``<!-- file FILE -->`` (a file beside the page), and ends at ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError
from ridgeline.hardware.schema import SCHEMAS, Model, reachable_models, schema_fields
from ridgeline.report.files import write_text

_MARK = re.compile(r"<!-- (fields of|file) (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def field_tables(root: Model, known: set[Model] | None = None) -> str:
    """Write a table of fields for a description and for each that stands in it, as Markdown.

    `known` are descriptions that stand on the page already; those of `root` are added to it.
    """
    known = set() if known is None else known
    parts = []
    for model in reachable_models(root):
        if model in known:
            continue
        known.add(model)
        first = (model.__doc__ or "").strip().split("\n\n")[0]
        rows = [
            "| field | value | unit | default | meaning |",
            "|---|---|---|---|---|",
            *(
                f"| `{field.name}` | {_cell(field.type)} | {field.unit} "
                f"| {_cell(field.default)} | {_cell(field.text)} |"
                for field in schema_fields(model)
            ),
        ]
        parts.append(f"### {model.__name__}\n\n{_cell(first)}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def filled_page(text: str, folder: Path) -> str:
    """Return a page with all that stands between marks written anew.

    Raises
    ------
    ConfigError
        If a mark names no description, or a file that cannot be read.
    """
    known: set[Model] = set()
    roots = {model.__name__: model for model in SCHEMAS.values()}

    def fill(match: re.Match[str]) -> str:
        what, name = match[1], match[2]
        if what == "file":
            inner = f"```yaml\n{read_text(folder / name).strip()}\n```\n"
        elif name in roots:
            inner = f"\n{field_tables(roots[name], known)}\n"
        else:
            raise ConfigError(f"no description is called {name!r} (known: {', '.join(roots)})")
        return f"<!-- {what} {name} -->\n{inner}<!-- end -->"

    return _MARK.sub(fill, text)


def _cell(text: str) -> str:
    """Put a text into one cell of a table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/devices.md")
    write_text(page, filled_page(read_text(page), page.parent))
