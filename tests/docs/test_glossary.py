"""The glossary names modules that exist, and no two public classes share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"


def test_every_module_of_the_glossary_exists() -> None:
    named = re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", PAGE.read_text("utf-8").split("##", 1)[1])
    assert len(named) > 80
    assert not [name for name in named if not (PACKAGE / name).exists()]


def test_public_class_names_are_unique() -> None:
    """A reader who searches for a name lands in one place."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}
