"""The index of decisions names each once, by its title; pages link few of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("[0-9]*.md"))}
INDEX = (FOLDER / "README.md").read_text("utf-8")
MOST_LINKS = 4  # of one page of docs/: a reader is not sent through a history


def test_the_index_has_every_decision_once_with_its_title() -> None:
    listed = re.findall(r"^- \[(\d{4})\]\(([\w.-]+)\) (.+)$", INDEX, re.MULTILINE)
    assert sorted(file for _, file, _ in listed) == list(PAGES)
    for number, file, title in listed:
        first = PAGES[file].split("\n", 1)[0]
        assert file.startswith(number)
        assert first == f"# {number}: {title}"
    assert INDEX.count("\n## ") > 8


def test_pages_link_few_decisions() -> None:
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path.name in {
            "validation.md",
            "concepts.md",
        }:  # each residual, each model with its reason
            continue
        links = re.findall(r"\(decisions/\d{4}", path.read_text("utf-8"))
        assert len(links) <= MOST_LINKS, f"{path.name}: {len(links)} links to decisions"
