"""Hooks of MkDocs: pages that are made while the site is built, and links of the repository."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import command_line
import file_schemas
import python_names
from notebook_pages import NotebookPage, notebook_index, notebook_page
from repository_pages import (
    HOME,
    ROOT,
    ROOT_PAGES,
    copied_files,
    notebooks,
    site_uri,
    with_site_links,
)
from ridgeline.cli.app import VERBS

_LOG = get_plugin_logger("site")
_FETCHED = re.compile(
    r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*"""
)
_ADDRESS_ALONE = re.compile(r'rel="?(?:canonical|alternate)')
_NOTEBOOKS: dict[str, NotebookPage] = {}
"""By where they stand on the site."""
_SOURCES = {uri: source for source, uri in ROOT_PAGES.items()}
_OUTPUT = re.compile(r'<div data-output="(\d+)"></div>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made into the navigation, below the first page of each kind."""
    made = {
        "reference/command-line/index.md": [f"reference/command-line/{name}.md" for name in VERBS],
        "reference/python/index.md": [
            f"reference/python/{page}.md" for page in python_names.GROUPS
        ],
        "reference/files/index.md": [f"reference/files/{kind}.md" for kind in file_schemas.KINDS],
        "notebooks/index.md": [site_uri(f"notebooks/{path.name}") for path in notebooks()],
    }
    _extend(config.nav, made)
    return config


def _extend(nav: Any, made: dict[str, list[str]]) -> None:
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                for first in value[:1]:
                    value.extend(made.get(first, ()) if isinstance(first, str) else ())
                _extend(value, made)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from the code, notebooks, pages of the root, and files that pages link to."""
    for uri, text in _texts().items():
        files.append(File.generated(config, uri, content=text))
    for notebook in notebooks():
        page = notebook_page(notebook)
        uri = site_uri(f"notebooks/{notebook.name}")
        _NOTEBOOKS[uri] = page
        files.append(File.generated(config, uri, content=page.text))
        files.append(
            File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook))
        )
        for name, image in page.images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=image))
    sources = [*ROOT_PAGES, *(f"docs/{file.src_uri}" for file in files if _is_written(file))]
    texts = {source: (ROOT / source).read_text("utf-8") for source in sources}
    for path in sorted(copied_files(texts)):
        if (ROOT / path).is_file():
            files.append(File.generated(config, site_uri(path), abs_src_path=str(ROOT / path)))
    return files


def _is_written(file: File) -> bool:
    return file.is_documentation_page() and file.generated_by is None


def _texts() -> dict[str, str]:
    """Return the text of pages by where they stand."""
    texts = {uri: (ROOT / source).read_text("utf-8") for uri, source in _SOURCES.items()}
    texts["index.md"] = HOME.read_text("utf-8")
    texts["notebooks/index.md"] = notebook_index(notebooks())
    texts["reference/command-line/index.md"] = command_line.command_line_index()
    for name, verb in VERBS.items():
        texts[f"reference/command-line/{name}.md"] = command_line.verb_page(name, verb)
    texts["reference/python/index.md"] = python_names.python_index()
    for page in python_names.GROUPS:
        texts[f"reference/python/{page}.md"] = python_names.python_page(page)
    texts["reference/files/index.md"] = file_schemas.schema_index()
    for kind in file_schemas.KINDS:
        texts[f"reference/files/{kind}.md"] = file_schemas.schema_page(kind)
    for name, text in file_schemas.schema_files().items():
        texts[f"reference/files/{name}"] = text
    return texts


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links of the site."""
    uri = page.file.src_uri
    if uri in _SOURCES:
        return with_site_links(markdown, _SOURCES[uri], uri)
    if page.file.generated_by is None:
        return with_site_links(markdown, f"docs/{uri}", uri)
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the views of results, which are HTML already, into the pages of notebooks."""
    notebook = _NOTEBOOKS.get(page.file.src_uri)
    if notebook is None:
        return html
    return _OUTPUT.sub(lambda match: notebook.views[int(match[1])], html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn of what a browser would fetch from elsewhere: pages have to work without a network."""
    for tag in _FETCHED.findall(output):
        if not _ADDRESS_ALONE.search(tag):
            _LOG.warning("%s fetches from elsewhere: %s", page.file.src_uri, tag[:100])
    return output
