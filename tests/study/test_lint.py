"""``lint``: fixtures by code, forms of input, overrides, stamps, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.report.figures.result import save
from ridgeline.report.honesty.pictures import figure_evidence, read_record
from ridgeline.report.honesty.rules import RULES, order_of
from ridgeline.study.lint import lint

DATA = Path(__file__).parents[1] / "data" / "lint"
DISHONEST = sorted((DATA / "dishonest").iterdir())
HONEST = sorted((DATA / "honest").iterdir())


@pytest.fixture(scope="module")
def result() -> rl.Result:
    return rl.simulate("lenet5", "v100-sxm2-16gb", rl.Plan(global_batch=32))


@pytest.mark.parametrize("file", DISHONEST, ids=lambda f: f.name)
def test_a_dishonest_file_is_caught_by_exactly_its_code(file: Path) -> None:
    report = lint(file)
    assert report.codes == (file.name.partition("-")[0],), str(report)
    (finding,) = report.findings
    assert finding.found
    assert finding.say
    assert finding.severity in {"warn", "refuse"}


def test_every_rule_has_its_fixture_and_its_trigger() -> None:
    codes = [file.name.partition("-")[0] for file in DISHONEST]
    assert set(codes) == set(RULES)
    known = [f"H{i}" for i in range(1, 13)] + [f"C{i}" for i in range(1, 7)]
    known += [f"P{i}" for i in range(1, 7)]
    assert sorted(RULES, key=order_of) == known
    for code, rule in RULES.items():
        assert rule.trigger, code
        assert set(rule.covers) <= set(RULES) - {code}


@pytest.mark.parametrize("file", HONEST, ids=lambda f: f.name)
def test_an_honest_file_is_left_alone(file: Path) -> None:
    report = lint(file)
    assert (report.codes, report.unread) == ((), ""), str(report)


def test_rows_mappings_frames_and_results_are_read_as_files_are(result: rl.Result) -> None:
    import polars

    rows = [
        {"gpus": 1, "global_batch": 64, "speedup": 1.0, "step_ms": 80, "scaling": "weak"},
        {"gpus": 8, "global_batch": 512, "speedup": 7.9, "step_ms": 81, "scaling": "weak"},
    ]
    assert lint(rows).codes == lint(polars.DataFrame(rows)).codes == ("H1",)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert lint(columns).codes == ("H1",)
    assert lint({"title": "x", "data": rows}).codes == ("H1",)
    assert lint(result).codes == ()


def test_a_table_on_its_side_and_one_with_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "quantity,A,B\nyear,2012,2018\nimages/s,40,900\ntop1,75,75\nprecision,fp32,fp32\n"
    )
    assert lint(file).codes == ("H4",)
    file.write_text("system;year;images/s;top1\nA;2012;40;75\nB;2018;900;75\n")
    assert lint(file).codes == ("H4",)


def test_the_words_of_a_result_count(result: rl.Result) -> None:
    saved = result.to_dict()
    assert lint({**saved, "title": "Step time measured on a V100"}).codes == ("P6",)
    assert lint({**saved, "claim": "End-to-end training time"}).codes == ("H6",)
    assert lint({**saved, "claim": "Simulated step time"}).codes == ()


def test_an_override_no_longer_refuses_and_is_said() -> None:
    file = DATA / "dishonest" / "H1-more-gpus-larger-batch.csv"
    assert lint(file).refused
    report = lint(file, override="h1")
    assert not report.refused
    assert report.codes == ("H1",)
    assert report.stamp.startswith("overridden: H1 (")
    assert not lint(file, override=["H2"]).stamp


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_has_a_record_and_keeps_it_under_a_stamp(
    result: rl.Result, tmp_path: Path, suffix: str
) -> None:
    file, stamped = tmp_path / f"time{suffix}", tmp_path / f"stamped{suffix}"
    save(result.plot("time"), file)
    record = read_record(file)
    assert record is not None
    assert record["result"]["manifest"] == result.manifest
    assert record["repeat"] == {"of": "result", "kind": "time"}
    codes = lint(file).codes
    assert codes == lint(result.plot("time")).codes
    for code in codes or ("P4",):
        status = execute(["lint", str(file), "--override", code, "--out", str(stamped)])
        assert status == (0 if codes else 2)
    if codes:
        assert read_record(stamped) == record
        if suffix == ".svg":
            assert "overridden: " in stamped.read_text()
        else:
            with Image.open(file) as before, Image.open(stamped) as after:
                assert after.width == before.width
                assert after.height > before.height


def test_a_figure_whose_stamp_was_cut_off_is_refused(result: rl.Result, tmp_path: Path) -> None:
    file = tmp_path / "time.svg"
    save(result.plot("time"), file)
    text = file.read_text()
    assert "P6" not in lint(file).codes
    file.write_text(re.sub(r"<text[^>]*>[^<]*simulated[^<]*</text>", "", text))
    assert "P6" in lint(file).codes


def drawn(**look: Any) -> Figure:
    figure = Figure()
    ax = figure.add_subplot()
    ax.errorbar([1, 8, 64], [1, 7, 40], yerr=0.1)
    ax.set_xlabel("GPUs")
    ax.set_ylabel("Speedup")
    ax.set_title("strong scaling; one GPU takes 80 ms")
    ax.set(**look)
    return figure


@pytest.mark.parametrize("fonts", ["path", "none"])
def test_svg_of_matplotlib_is_read_with_letters_and_with_outlines(
    tmp_path: Path, fonts: str
) -> None:
    import matplotlib

    file = tmp_path / "f.svg"
    with matplotlib.rc_context({"svg.fonttype": fonts}):
        drawn().savefig(file)
        assert lint(file).codes == ()
        drawn(yscale="log").savefig(file)
        assert lint(file).codes == ("P1",)
        drawn(ylim=(30, 41)).savefig(file)
        assert lint(file).codes == ("P2",)
        facts = {s.meaning.concept: s.value for s in figure_evidence(file).facts}
    assert facts["y_limits"] == pytest.approx([30, 41], abs=0.05)
    assert facts["error_bars"] is True


SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="250">'
SAID = "<title>95 % CI; 1 GPU: 80 ms, strong</title>"
LABELS = """<text transform="translate(9,120) rotate(-90)">Speedup</text>
<text x="60" y="220">1</text><text x="120" y="220">8</text><text x="180" y="220">64</text>
<text x="110" y="240">GPUs</text></svg>"""


def test_svg_of_other_programs_is_read_by_where_text_stands(tmp_path: Path) -> None:
    def axis(values: list[str]) -> str:
        ticks = "".join(f'<text x="30" y="{200 - 40 * i}">{v}</text>' for i, v in enumerate(values))
        return SVG + SAID + ticks + LABELS

    file = tmp_path / "f.svg"
    file.write_text(axis(["0", "10", "20", "30"]))
    assert lint(file).codes == ()
    file.write_text(axis(["1", "10", "100", "1000"]))
    assert lint(file).codes == ("P1",)
    file.write_text(axis(["30", "31", "32", "33"]))
    assert lint(file).codes == ("P2",)


def test_pixels_alone_are_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "f.png"
    Image.new("RGB", (8, 8)).save(file)
    report = lint(file)
    assert report.unread
    assert not report.codes


MISTAKES = {
    "a.csv": ("", "no table"),
    "b.csv": ("a,b\n1\n", "1 fields"),
    "c.json": ("{", "JSON"),
    "d.yaml": ("a: [1, 2", "not YAML"),
    "e.svg": ("<svg", "not SVG"),
    "f.svg": ("<html></html>", "not SVG"),
    "g.png": ("no picture", "not a PNG"),
    "h.pdf": ("%PDF", "allowed are"),
    "i.svg": ('<!DOCTYPE svg [<!ENTITY a "b">]><svg/>', "entities"),
    "j.yaml": ("kind: study\nname: x\nvary: {pln.data: [1]}\n", "pln.data"),
    "k.csv": ("a,a\n1,2\n", "each once"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_and_status_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, says = MISTAKES[name]
    file = tmp_path / name
    file.write_text(content)
    assert execute(["lint", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err
    assert name in err


def test_mistakes_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(HONEST[0])
    for arguments, says in (
        ([], "at least one file"),
        ([good, "--override", "H13"], "no rule 'H13'"),
        ([good, "--out", "x.svg"], "needs --override"),
        ([good, "--override", "H1", "--out", "x.svg"], "none of the overridden"),
        ([str(tmp_path / "none.csv")], "cannot be read"),
        ([str(tmp_path)], "allowed are"),
    ):
        assert execute(["lint", *arguments]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected a file"):
        lint(3.0)


def test_the_verb_prints_and_its_status_tells(capsys: pytest.CaptureFixture[str]) -> None:
    refused = str(DATA / "dishonest" / "H2-training-accuracy.json")
    warned = str(DATA / "dishonest" / "C2-best-of-twenty.json")
    assert execute(["lint", warned]) == 0
    assert "C2 warn" in capsys.readouterr().out
    assert execute(["lint", refused, warned, "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert [report["findings"][0]["code"] for report in read] == ["H2", "C2"]


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        ("accuracy_train", {"H2", "H12"}),
        ("train_top1", {"H2", "H12"}),
        ("accuracy_train,accuracy_test", set()),
        ("accuracy", set()),
    ],
)
def test_an_accuracy_of_the_training_set_is_none_beside_the_state_of_the_art(
    columns: str, codes: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "table.csv"
    values = ",".join("0.8" for _ in columns.split(","))
    file.write_text(
        f"# title: 4.1x state of the art training speedup\nsystem,step_ms,{columns}\n"
        f"ours,10,{values}\nbaseline,41,{values}\n"
    )
    found = lint(file)
    assert {"H2", "H12"} & set(found.codes) == codes
    if codes:
        assert "training set alone" in next(f.found for f in found.findings if f.code == "H12")
