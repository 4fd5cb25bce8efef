"""The documentation site: pages in its navigation, links, and the reference made from the code."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

import command_line
import file_schemas
import python_names
import ridgeline as rl
from notebook_pages import notebook_index, notebook_page
from repository_pages import (
    HOME,
    ROOT,
    ROOT_PAGES,
    copied_files,
    linked_file,
    local_links,
    notebooks,
    outside_code,
    site_uri,
    with_site_links,
)
from ridgeline.cli import execute
from ridgeline.cli.app import VERBS
from ridgeline.input_files import INPUT_KINDS
from ridgeline.study.validate.suites import SUITES

DOCS = ROOT / "docs"
WRITTEN = [
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "decisions").glob("*.md")),
    *(ROOT / page for page in ROOT_PAGES),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in WRITTEN}
SETTINGS = YAML().load((ROOT / "mkdocs.yml").read_text("utf-8"))
MADE = {
    *ROOT_PAGES.values(),
    "index.md",
    "notebooks/index.md",
    *(f"reference/{part}/index.md" for part in ("command-line", "python", "files")),
}
"""Pages in the navigation that no file of ``docs/`` is."""


def navigation(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for value in entries.values():
            yield from navigation(value)
    else:
        assert isinstance(entries, list)
        for entry in entries:
            yield from navigation(entry)


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub and the site name them."""
    found: Counter[str] = Counter()
    made = set()
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M
    ):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


def test_every_page_is_in_the_navigation_once() -> None:
    listed = Counter(navigation(SETTINGS["nav"]))
    pages = {path.name for path in DOCS.glob("*.md")} | {"decisions/README.md"}
    assert set(listed) == pages | MADE
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("source", TEXTS)
def test_links_lead_to_files_and_headings(source: str) -> None:
    for target in local_links(TEXTS[source]):
        path = linked_file(source, target)
        assert (ROOT / path).exists(), f"{source}: {target}"
        _, mark, anchor = target.partition("#")
        if mark and path in TEXTS:
            assert anchor in anchors(TEXTS[path]), f"{source}: {target}"


def test_addresses_elsewhere_are_whole() -> None:
    found = [url for text in TEXTS.values() for url in re.findall(r"\]\((https?:[^)]*)\)", text)]
    assert len(found) > 3
    for url in found:
        parts = urlsplit(url)
        assert parts.scheme == "https", url
        assert re.fullmatch(r"[\w.-]+\.[a-z]+", parts.netloc), url


@pytest.mark.parametrize("source", TEXTS)
def test_lists_and_tables_stand_after_a_blank_line(source: str) -> None:
    """GitHub does not need it; the site's Markdown would go on with the paragraph."""
    paragraphs = re.split(r"\n\s*\n", outside_code(TEXTS[source], str).replace("\r", ""))
    inside = re.sub(r"^```.*?^```", "", "\n\n".join(paragraphs), flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", inside):
        first, *rest = paragraph.strip("\n").split("\n")
        if re.match(r"(- |\* |\d+\. |\||>|<|#|\s)", first):
            continue
        for line in rest:
            assert not re.match(r"(- |\* |1\. |\|.*\|$)", line), f"{source}: {line}"


def test_links_of_the_home_page_are_of_the_site() -> None:
    pages = {site_uri(source) for source in TEXTS} | MADE
    text = HOME.read_text("utf-8")
    links = list(local_links(text))
    assert len(links) > 20
    for link in links:
        assert link in pages or (DOCS / link).is_file(), link


def test_links_are_rewritten_for_the_site() -> None:
    text = "[a](../notebooks/01_tour.ipynb) [b](x.md#y) `[c](d)` [e](../sim/f.py) [g](https://h.i)"
    assert with_site_links(text, "docs/gallery.md", "gallery.md") == (
        "[a](notebooks/01_tour.md) [b](x.md#y) `[c](d)` [e](repository/sim/f.py.txt)"
        " [g](https://h.i)"
    )
    readme = with_site_links("[p](docs/plans.md) [n](notebooks)", "README.md", "overview.md")
    assert readme == "[p](plans.md) [n](notebooks/index.md)"
    assert copied_files({"docs/gallery.md": text}) == {"sim/f.py"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_a_verb_has_all_that_its_help_has(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([verb, "--help"]) == 0
    said = capsys.readouterr().out
    listed = set(re.findall(r"^│ [* ]*(?:[A-Z][A-Z-]* )?(--[a-z][\w-]*)", said, re.M))
    page = command_line.verb_page(verb, VERBS[verb])
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    names = [re.match(r"\| `([\w-]+)", row)[1] for row in rows]  # type: ignore[index]
    assert all(name in said for name in names)
    made = {name if name[0] == "-" else f"--{name.lower()}" for name in names}
    assert {name for name in listed if not name.startswith("--empty-")} <= made
    for row in rows:
        cells = re.split(r"(?<!\\)\|", row)[1:-1]
        assert len(cells) == 3, row
        assert len(cells[1].strip()) > 5, row
    assert f"$ {VERBS[verb].example}\n" in page
    assert f"[`{verb}`]({verb}.md)" in command_line.command_line_index()


def test_every_public_name_is_on_one_page() -> None:
    names = [name for _, group in python_names.GROUPS.values() for name in group]
    assert sorted(names) == sorted(rl.__all__)
    index = python_names.python_index()
    for page, (_, group) in python_names.GROUPS.items():
        text = python_names.python_page(page)
        for name in group:
            assert f"[`rl.{name}`]({page}.md#" in index
            assert re.search(rf"^(## rl\.{name} |      heading: rl\.{name}$)", text, re.M), name
            assert len(python_names._summary(name)) > 5, name


def test_every_kind_of_file_has_a_page_of_all_fields() -> None:
    index = file_schemas.schema_index()
    for kind in file_schemas.KINDS:
        assert f"[`{kind}`]({kind}.md)" in index
        page = file_schemas.schema_page(kind)
        assert "| field | value | unit | default | meaning |" in page
        assert "Annotated" not in page
    assert (DOCS / file_schemas._MORE["study"]).exists()
    assert set(file_schemas._MORE) == set(file_schemas.KINDS)
    assert {f"{kind}.json" for kind in INPUT_KINDS} == set(file_schemas.schema_files())
    assert "| `global_batch` |" in file_schemas.schema_page("plan")


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_what_it_showed(path: Path) -> None:
    page = notebook_page(path)
    assert page.text.startswith("# ")
    assert page.text.count("data-output=") == len(page.views)
    shown = set(re.findall(r"\]\(([\w-]+\.png)\)", page.text))
    assert shown == set(page.images)
    assert page.images, "a notebook is kept with its outputs: run it in Jupyter and save it"
    assert all(image.startswith(b"\x89PNG") for image in page.images.values())
    assert f"({path.stem}.md)" in notebook_index([path])


def test_concepts_name_every_suite() -> None:
    named = set(re.findall(r"`([\w-]+)`", TEXTS["docs/concepts.md"]))
    assert set(SUITES) <= named


COMMANDS = sorted(
    {
        (source, command)
        for source, text in TEXTS.items()
        if not source.startswith("docs/decisions/") and source != "CHANGELOG.md"
        for command in re.findall(r"(?:^\$ |^|`)(ridgeline [a-z][\w-]*[^`\n]*)", text, re.M)
    }
)


def test_commands_of_pages_have_verbs_and_options_that_exist() -> None:
    everywhere = {"--help", "--quiet", "--verbose", "--plugin"}
    known = {
        verb: {name for each in command_line.arguments(verb) for name in each.names} | everywhere
        for verb in VERBS
    }
    assert len(COMMANDS) > 200
    for source, command in COMMANDS:
        words = shlex.split(command.split("  #")[0].rstrip("\\"))
        if f"--plugin {words[1]}.py" in command:  # a verb of the page's own
            continue
        assert words[1] in known, f"{source}: {command}"
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in known[words[1]], f"{source}: {command}: {option}"
