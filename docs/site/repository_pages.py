"""Where files of the repository stand on the site, and their links between each other.

Pages are written for the repository: a link from ``docs/gallery.md`` to ``../notebooks/x.ipynb`` is
right there. On the site the notebook is a page, and a file outside of ``docs/`` is a copy of it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the root, and where they stand on the site."""
HOME = Path(__file__).with_name("home.md")
"""First page of the site, whose links are those of the site."""
COPIES = "repository"
"""Folder of the site for files that are not below ``docs/``."""
_CODE = re.compile(r"(^```.*?^```[ ]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ELSEWHERE = re.compile(r"[a-z]+:")


def notebooks() -> list[Path]:
    """Return the notebooks that ship, in the order in which they are read."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def site_uri(path: str) -> str:
    """Return where a file or folder of the repository stands on the site."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path == "notebooks":
        return "notebooks/index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"{COPIES}/{path}.txt"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to Markdown outside of code blocks and of code in lines."""
    parts = _CODE.split(text)
    return "".join(part if odd % 2 else change(part) for odd, part in enumerate(parts))


def local_links(text: str) -> Iterator[str]:
    """Yield the targets of links to other files, with their anchors, outside of code."""
    for part in _CODE.split(text)[::2]:
        for _, target, _ in _LINK.findall(part):
            if not _ELSEWHERE.match(target):
                yield target


def linked_file(source: str, target: str) -> str:
    """Return the file in the repository that a link of `source` leads to."""
    path = target.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source


def with_site_links(text: str, source: str, uri: str) -> str:
    """Return a page of the repository with links that are right on the site.

    Parameters
    ----------
    source
        File of the page in the repository.
    uri
        Where the page stands on the site.
    """

    def replaced(match: re.Match[str]) -> str:
        target = match[2]
        if _ELSEWHERE.match(target) or target.startswith("#"):
            return match[0]
        there = posixpath.relpath(
            site_uri(linked_file(source, target)), posixpath.dirname(uri) or "."
        )
        _, mark, anchor = target.partition("#")
        return f"{match[1]}{there}{mark}{anchor}{match[3]}"

    return outside_code(text, lambda part: _LINK.sub(replaced, part))


def copied_files(pages: dict[str, str]) -> set[str]:
    """Return the files that pages link to and of which the site needs a copy.

    Parameters
    ----------
    pages
        Text of every page by its file in the repository.
    """
    linked = {
        linked_file(source, target)
        for source, text in pages.items()
        for target in local_links(text)
    }
    return {path for path in linked if site_uri(path).startswith(f"{COPIES}/")}
