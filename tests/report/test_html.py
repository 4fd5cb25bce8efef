"""The notebook view: well-formed, self-contained, escaped, and with the right numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ridgeline.report.figures.style import COLOURS, percent
from ridgeline.report.html.result import result_html
from ridgeline.report.op_times import op_times
from ridgeline.report.result import Result
from ridgeline.report.summary import headline
from ridgeline.units import show


class Reader(HTMLParser):
    """Checks that tags are closed in order and keeps text, tags and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def test_it_is_one_closed_fragment_without_scripts_or_outside_resources(
    any_result: Result,
) -> None:
    html = result_html(any_result)
    reader = Reader(html)
    assert {tag for tag, _ in reader.tags} == {"div", "span", "table", "tr", "td", "th"}
    assert {name for _, attributes in reader.tags for name in attributes} == {"style", "title"}
    assert "url(" not in html
    assert "http" not in html
    assert html == any_result._repr_html_()


def test_it_says_what_the_summary_says(any_result: Result) -> None:
    text = Reader(result_html(any_result)).text
    for name, value in headline(any_result):
        assert name in text
        assert value in text
    assert "simulated, not measured" in text
    assert any_result.manifest["hash"] in text
    assert ("does not fit" in text) == (not any_result.fits)


def test_bars_are_in_proportion_and_full(any_result: Result) -> None:
    reader = Reader(result_html(any_result))
    found: list[tuple[str, str, float]] = []  # label, colour, width in percent
    for tag, attributes in reader.tags:
        style = attributes["style"] or ""
        if tag == "div" and (width := re.fullmatch(r"width:([\d.]+)%;background:(.*)", style)):
            found.append((attributes["title"] or "", width[2], float(width[1])))
    memory = {k: v for k, v in any_result.memory_bytes.items() if k != "capacity"}
    for parts in (any_result.time_s, any_result.energy_j, memory):
        shares = {name: value / parts["total"] for name, value in parts.items() if name != "total"}
        for name, share in shares.items():
            if share < 1e-9:
                continue
            label, colour, width = found.pop(0)
            assert label.startswith(name.replace("_", " "))
            assert colour == COLOURS[name]
            assert width == pytest.approx(100 * share, abs=1e-4)
            assert label in reader.text
    assert found == []


def test_the_ops_that_take_longest_are_listed_with_their_time(toy: Result) -> None:
    """Over all micro-batches; played tasks are longer by what messages beside them take."""
    timeline = toy.details.timeline
    total_s: dict[str, float] = {}
    for row in timeline.rows(timeline.tasks_of(0)):
        total_s[row.label] = total_s.get(row.label, 0.0) + row.end_s - row.start_s
    alone_s = {timed.op.name: timed.step_s for timed in op_times(toy)}
    for name, time_s in alone_s.items():
        assert (1 - 1e-9) * time_s < total_s[name] < 1.1 * time_s
    longest_s = sorted(alone_s.values(), reverse=True)[:10]
    cells = Reader(result_html(toy)).words
    first = cells.index("limited by") + 1
    rows = [cells[first + 6 * i : first + 6 * i + 6] for i in range(10)]
    assert len({row[0] for row in rows}) == 10
    assert [alone_s[row[0]] for row in rows] == pytest.approx(longest_s, rel=1e-9)  # some tie
    for row in rows:
        assert row[4] == f"{alone_s[row[0]] / toy.step_time_s:.1%}"
        assert row[3] == show(alone_s[row[0]], "s")


def test_what_takes_most_energy_is_what_the_ledger_says(toy: Result) -> None:
    table = toy.ledger()
    energy_j = {
        key: value for key, value in table.by("op", "kind", "pass").items() if key[0] != "static"
    }
    cells = Reader(result_html(toy)).words
    first = cells.index("most of it in") + 1
    n = min(10, len(energy_j))
    rows = [cells[first + 6 * i : first + 6 * i + 6] for i in range(n)]
    most = sorted(energy_j, key=lambda key: -energy_j[key])[:n]
    assert sorted(energy_j[tuple(row[:3])] for row in rows) == pytest.approx(
        sorted(energy_j[key] for key in most)
    )
    for row in rows:
        share = energy_j[tuple(row[:3])] / toy.energy_j["total"]
        assert row[4] == percent(share)
        assert row[5] in {"compute", "registers", "sram", "dram", "network"}


def test_text_from_outside_is_escaped(result: Result) -> None:
    hostile = '<script>alert("&")</script>'
    named = replace(result.details.graph, name=hostile)
    details = replace(result.details, graph=named)
    html = result_html(replace(result, details=details, bound=hostile))
    assert "<script" not in html
    assert hostile in Reader(html).text


def test_equal_results_have_equal_html(result: Result) -> None:
    assert result_html(result) == result_html(result)
