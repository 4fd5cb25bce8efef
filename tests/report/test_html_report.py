"""Reports: what stands in the file, without a browser; and in one, where one is installed."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.report.html_page import timeline_figure as tf
from ridgeline.report.html_page.document import MOST_BYTES, Report
from ridgeline.report.html_page.packed import packed, smallest
from ridgeline.report.html_page.result_page import largest_of_stretches
from ridgeline.report.html_page.rows_page import front_size, rows_report
from ridgeline.report.html_page.section import DataColumn, DataTable, Section, script_json
from ridgeline.report.result import Result
from ridgeline.study.ranking import pareto

ROOT = Path(__file__).parents[2]
HBM = ROOT / "docs" / "examples" / "hbm.csv"
RUN = ROOT / "docs" / "examples" / "runs" / "resnet50-dgx1.yaml"
VOID = {"meta", "link", "input", "br", "img", "hr"}
TYPES = {"i4": np.int32, "u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "f4": np.float32}


def unpacked(column: dict[str, str]) -> Any:
    """Undo `packed`, as report.js does."""
    kind = np.dtype(TYPES[column["type"]])
    planes = np.frombuffer(zlib.decompress(base64.b64decode(column["data"])), np.uint8)
    return planes.reshape(kind.itemsize, -1).T.copy().view(kind).ravel()


class Page(HTMLParser):
    """A document as tags with their attributes; tags that do not close are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append((self.tags[-1][1], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def json(self, **wanted: str) -> Any:
        found = [text for attributes, text in self.scripts if wanted.items() <= attributes.items()]
        return [json.loads(text) for text in found]


@pytest.fixture(scope="module")
def step(result: Result) -> str:
    return rl.report(result)


@pytest.fixture(scope="module")
def study() -> str:
    return rl.report(HBM)


@pytest.fixture(scope="module")
def run() -> str:
    return rl.report(RUN, seeds=2)


@pytest.fixture(params=["step", "study", "run"])
def text(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_it_is_one_file_that_fetches_nothing(text: str) -> None:
    page = Page(text)
    assert not page.all("link")
    assert not [a for _, a in page.tags if "src" in a or "srcset" in a]
    addresses = [a["href"] or "" for _, a in page.tags if "href" in a]
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    policy = next(a for a in page.all("meta") if "http-equiv" in a)
    assert (policy["content"] or "").startswith("default-src 'none'")
    code = "".join(source for attributes, source in page.scripts if "type" not in attributes)
    style = text[text.index("<style>") : text.index("</style>")]
    for word in ("http:", "https:", "fetch(", "XMLHttpRequest", "import(", "@import", "url("):
        assert word not in code + style


def test_landmarks_and_names_for_screen_readers(text: str) -> None:
    page = Page(text)
    assert page.all("html")[0]["lang"] == "en"
    for tag in ("header", "nav", "main", "footer", "h1", "title"):
        assert len(page.all(tag)) == 1, tag
    identities = [a["id"] for _, a in page.tags if "id" in a]
    assert len(identities) == len(set(identities))
    for section in page.all("section"):
        assert section["aria-labelledby"] in identities
    for link in page.all("a"):
        assert (link["href"] or "#")[1:] in identities
    for tag, attributes in page.tags:
        if attributes.get("role") in {"img", "region"}:
            assert attributes.get("aria-label"), (tag, attributes)


def test_every_figure_has_its_data_and_its_command(text: str) -> None:
    page = Page(text)
    figures = page.json(**{"class": "figure"})
    kinds = {one["type"] for one in figures if "type" in one}
    assert kinds
    assert kinds <= {"xy", "timeline", "front", "parallel"}
    tables = {a["id"] for a, _ in page.scripts if (a.get("id") or "").startswith("table-")}
    for one in figures:
        assert one.get("type") == "timeline" or f"table-{one['table']}" in tables
    assert len(page.all("code")) >= len(figures)


def test_the_numbers_are_those_of_the_result(result: Result, step: str) -> None:
    page = Page(step)
    record = page.json(id="ridgeline-record")[0]
    assert record == {"kind": "result", "result": result.to_dict()}
    parts = page.json(id="table-time")[0]["columns"]
    values = dict(zip(parts[0]["values"], parts[1]["values"], strict=True))
    assert values["compute"] == pytest.approx(result.time_s["compute"], rel=1e-6)
    energy = page.json(id="table-energy")[0]["columns"][4]["values"]
    assert math.fsum(energy) == pytest.approx(result.energy_j["total"], rel=1e-5)
    memory = page.json(id="table-memory")[0]["columns"][-1]["values"]
    assert max(memory) == result.memory_bytes["total"]
    power = {c["name"]: c["values"] for c in page.json(id="table-power")[0]["columns"]}
    widths = np.diff([*power["time_s"], result.details.timeline.makespan_s])
    joules = float(np.array(power["mean_power_w"]) @ widths) * result.details.plan.devices
    assert joules == pytest.approx(result.energy_j["total"], rel=1e-4)


def test_the_timeline_has_every_task_of_every_stream(result: Result, step: str) -> None:
    timeline = result.details.timeline
    figure = next(f for f in Page(step).json(**{"class": "figure"}) if f.get("type") == "timeline")
    of = {k: unpacked(v) for k, v in figure["packed"].items() if k != "ptr"}
    busy = np.zeros(len(timeline.program.kind_names))
    np.add.at(busy, of["kind"], of["duration"].astype(np.float64))
    expected = np.zeros_like(busy)
    for stream in range(len(timeline.program.stream_names)):
        tasks = timeline.tasks_of(stream)
        np.add.at(expected, timeline.program.kind[tasks], timeline.durations_s[tasks])
    assert busy / tf.TICKS * timeline.makespan_s == pytest.approx(expected, rel=1e-5)
    ends = np.cumsum(of["gap"].astype(np.int64) + of["duration"])
    assert ends[figure["packed"]["ptr"][1] - 1] <= tf.TICKS


def test_thinned_timelines_keep_busy_times_and_places() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        streams, each = int(generator.integers(1, 5)), int(generator.integers(1, 200))
        begin, end = [], []
        for _ in range(streams):
            knots = np.sort(generator.integers(0, tf.TICKS, 2 * each))
            begin.append(knots[::2])
            end.append(knots[1::2])
        kind = generator.integers(0, 3, streams * each)
        tasks = tf._Tasks(
            np.arange(streams + 1) * each, np.concatenate(begin), np.concatenate(end), kind, kind
        )
        thinned, counts = tf.thin(tasks, bins := 2 ** int(generator.integers(3, 12)))
        assert counts.sum() == len(kind)
        assert len(thinned.ptr) == streams + 1
        for row in range(streams):
            a, b = (slice(*of.ptr[row : row + 2]) for of in (tasks, thinned))
            for k in range(3):
                of_kind = [
                    (o.end - o.begin)[s][o.kind[s] == k].sum()
                    for o, s in ((tasks, a), (thinned, b))
                ]
                assert of_kind[0] == of_kind[1]
            nearest = np.abs(thinned.begin[b][:, None] - tasks.begin[a]).min(axis=1)
            assert nearest.max(initial=0) <= tf.TICKS // bins


def test_many_tasks_stay_within_the_size(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, note = tf.timeline_figure(result.details.timeline)
    assert not note
    monkeypatch.setattr(tf, "MOST_TASKS_BYTES", tf._size(whole["packed"]) - 1)
    smaller, note = tf.timeline_figure(result.details.timeline)
    assert "drawn as one" in note
    assert tf._size(smaller["packed"]) < tf._size(whole["packed"])


def test_packed_numbers_come_back() -> None:
    generator = np.random.default_rng(1)
    for kind in TYPES.values():
        values = generator.integers(0, 200, 1000).astype(kind)
        assert np.array_equal(unpacked(packed(values)), values)
    assert [smallest(np.array([n])).dtype.itemsize for n in (255, 256, 65535, 65536)] == [
        1,
        2,
        2,
        4,
    ]


def test_nothing_in_the_data_ends_a_script_or_a_text() -> None:
    evil = "</script><script>alert(1)</script><!-- & \u2028"
    assert "<" not in script_json({evil: [evil]})
    assert json.loads(script_json({evil: [evil, math.inf]})) == {evil: [evil, None]}
    rows = [{evil: k, "model": evil, "b": k * k, "error": ""} for k in range(3)]
    page = Page(rows_report(rows, evil).to_html())
    assert len(page.all("main")) == 1
    assert not any(
        "alert(1)" in code for attributes, code in page.scripts if "type" not in attributes
    )


def test_columns_of_quantities_and_many_rows() -> None:
    rows = [
        {"bandwidth": f"{k + 1} TB/s", "name": f"n{k % 3}", "time_s": 1.0 / (k + 1)}
        for k in range(2500)
    ]
    columns = Page(rows_report(rows, "x.csv").to_html()).json(id="table-points")[0]["columns"]
    bandwidth, name, time = columns
    assert bandwidth["unit"] == "B/s"
    assert unpacked(bandwidth["values"])[4] == np.float32(5e12)
    assert [name["words"][i] for i in unpacked(name["values"])[:4]] == ["n0", "n1", "n2", "n0"]
    assert time["unit_shown"] == "ms"
    assert bandwidth["varied"]


def test_the_first_front_is_the_one_with_most_points() -> None:
    generator = np.random.default_rng(5)
    for _ in range(30):
        rows = [
            dict(zip("xy", map(float, generator.integers(0, 9, 2)), strict=True)) for _ in range(20)
        ]
        x, y = (DataColumn(name, name, [row[name] for row in rows]) for name in "xy")
        distinct = {(row["x"], row["y"]) for row in pareto(rows, ["x", "y"])}
        assert front_size(x, y) == len(distinct)


def test_curves_keep_their_largest_values() -> None:
    values = np.random.default_rng(2).normal(size=10_000)
    kept = largest_of_stretches(values, 100)
    assert len(kept) <= 102
    assert values[kept].max() == values.max()
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1


def test_a_report_is_never_larger_than_a_browser_takes() -> None:
    table = DataTable("t", [DataColumn("a", "a", ["x" * MOST_BYTES])])
    with pytest.raises(RidgelineError, match="at most 15 MB"):
        Report("t", "", "", [Section("s", "S", table=table)], {}).to_html()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "x", "a report is of a result"),
        ("a.json", "3", "expected a result"),
        ("a.json", "[1, 2]", "a list with a int in it"),
        ("a.json", "[]", "no row in it"),
        ("a.json", "{", "a.json"),
        ("a.json", '{"outcomes": [], "name": "n"}', "it is no run"),
        ("a.json", '{"manifest": {}, "step_time_s": 1}', "no manifest of a simulated step"),
        ("a.json", '[{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]', "1 columns of numbers that differ"),
        ("a.csv", "a,b,error\n1,2,no\n", "all 1 have errors"),
        ("a.yaml", "kind: study\nname: s\n", "ridgeline sweep"),
        ("a.yaml", "kind: nonsense\n", "kind"),
        ("missing.csv", None, "missing.csv"),
    ],
)
def test_mistakes_are_said(
    name: str, content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    out = tmp_path / "r.html"
    assert execute(["report", str(tmp_path / name), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_options_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    assert execute(["report", str(HBM), "--out", str(tmp_path / "a.pdf")]) == 2
    assert execute(["report", str(HBM), "--seeds", "3", "--out", str(tmp_path / "a.html")]) == 2
    assert execute(["report", str(HBM), "--model", "m", "--out", str(tmp_path / "a.html")]) == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(RidgelineError, match="seeds"):
        rl.report([{"a": 1}], seeds=3)


def test_the_verb_writes_what_python_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert execute(["report", str(HBM), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["size_bytes"] == out.stat().st_size
    assert out.read_text("utf-8") == rl.report(str(HBM))


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_have_the_contrast_that_wcag_asks_for(study: str) -> None:
    blocks = re.findall(r"--paper: [^}]*", study[study.index("<style>") :])
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for word in ("ink", "faint", "accent"):
            for ground in ("paper", "panel"):
                assert _contrast(colours[word], colours[ground]) >= 4.5, (word, ground)
        assert _contrast(colours["ink"], colours["bar"]) >= 4.5


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("step", 500),
        ("study", 1280),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("run", 500), ("step", 1280))
        ),
    ],
)
def test_a_browser_draws_it_without_a_complaint(
    name: str, width: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Headless: all figures are ready, the console is clean, nothing is wider than the screen."""
    text: str = request.getfixturevalue(name)
    wide = "document.body.dataset.wide = document.documentElement.scrollWidth - innerWidth"
    check = f"<script>addEventListener('load', () => setInterval(() => {{ {wide} }}, 50))</script>"
    page = tmp_path / "r.html"
    page.write_text(text.replace("</body>", f"{check}</body>"), "utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            "--v=0", f"--window-size={width},900", "--virtual-time-budget=20000",
            "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints
    drawn = Page(done.stdout)
    assert drawn.all("html")[0].get("data-ready") == "yes"
    plots = [a for _, a in drawn.tags if a.get("class") == "plot"]
    assert plots
    assert all(a.get("data-ready") == "yes" for a in plots)
    assert int(drawn.all("body")[0].get("data-wide") or 1) <= 0
    assert len(drawn.all("canvas")) == len(plots)
