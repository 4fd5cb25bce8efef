"""The HTML document of a report: landmarks, styles, sections, data and scripts in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.report.html_page.section import Section, script_json, section_html

MOST_BYTES = 15_000_000
"""A report is never larger."""


class Report(NamedTuple):
    """A report: what it is of, its sections, and what it can be checked by.

    Attributes
    ----------
    subtitle
        Network, machine and stack.
    stamp
        That it was simulated, of what, by which version.
    record
        What ``ridgeline verify`` runs again: a result or rows, with manifests, as plain values.
    """

    title: str
    subtitle: str
    stamp: str
    sections: Sequence[Section]
    record: Mapping[str, Any]

    def to_html(self) -> str:
        """Return the document.

        Raises
        ------
        RidgelineError
            If it is larger than a browser should be given.
        """
        shared: set[str] = set()
        body = "\n".join(section_html(one, shared) for one in self.sections)
        links = "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in self.sections)
        text = _PAGE.format(
            title=escape(self.title),
            subtitle=escape(self.subtitle),
            stamp=escape(self.stamp),
            links=links,
            body=body,
            record=script_json(self.record),
            style=_asset("report.css"),
            script=_asset("report.js"),
        )
        if len(text.encode()) > MOST_BYTES:
            raise RidgelineError(
                f"the report would have {len(text.encode()) / 1e6:.0f} MB, at most "
                f"{MOST_BYTES / 1e6:.0f} MB are written: leave rows or columns out"
            )
        return text


def _asset(name: str) -> str:
    return files("ridgeline.report.html_page").joinpath(name).read_text("utf-8")


# Nothing may be fetched: the policy forbids it, should a value ever look like an address.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<div>
<h1>{title}</h1>
<p>{subtitle}</p>
</div>
<button type="button" id="theme" aria-label="Change between light and dark">Theme</button>
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="main">
{body}
</main>
<footer><p>{stamp}</p></footer>
<script type="application/json" id="ridgeline-record">{record}</script>
<script>
{script}</script>
</body>
</html>
"""
