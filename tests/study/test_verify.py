"""``verify``: results, comparisons, scaling studies, figures, rows and reports are repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.report.figures.result import FIGURES, save
from ridgeline.report.honesty.stamping import stamp_figure
from ridgeline.study.compare import compare
from ridgeline.study.sweep import load_study, run_sweep, write_rows
from ridgeline.study.verify import verify

STUDY = """kind: study
name: batches
model: lenet5
cluster: v100-sxm2-16gb
vary: {plan.global_batch: [8, 16]}
"""


@pytest.fixture(scope="module")
def result() -> rl.Result:
    return rl.simulate("lenet5", "v100-sxm2-16gb", rl.Plan(global_batch=32))


def written(file: Path, content: Any) -> Path:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"software": "ideal"},
        {"dataset": "imagenet"},
        {"fold": False},
        {"most_micro_batches": 4},
    ],
)
def test_the_manifest_of_a_result_suffices(tmp_path: Path, options: dict[str, Any]) -> None:
    model, plan = "lenet5", rl.Plan(data=2, global_batch=64, micro_batch=2)
    if "dataset" in options:
        model, plan = "resnet18", rl.Plan(data=2, global_batch=64)
    made = rl.simulate(model, "dgx1-v100", plan, **options)
    file = tmp_path / "r.json"
    made.to_json(file)
    found = verify(file)
    assert (found.verdict, found.differences) == ("equal", ()), str(found)
    assert found.compared > 100
    manifest = made.manifest
    assert ("most_micro_batches" in manifest) == ("most_micro_batches" in options)


def test_fields_that_were_replaced_and_faults_are_repeated(tmp_path: Path) -> None:
    cluster = rl.load_cluster("dgx1-v100", {"node.device.launch_latency": "9 us",
                                            "faults": ["rank 1 slow 1.5"]})  # fmt: skip
    model = rl.load_model("lenet5")
    file = tmp_path / "r.json"
    rl.simulate(model, cluster, rl.Plan(data=2, global_batch=64)).to_json(file)
    assert verify(file).verdict == "equal"


def test_a_number_that_was_changed_is_found(result: rl.Result, tmp_path: Path) -> None:
    saved = result.to_dict()
    saved["step_time_s"] *= 0.9
    found = verify(written(tmp_path / "r.json", saved))
    assert found.verdict == "differs"
    (one,) = found.differences
    assert one.place == "step_time_s"
    assert one.share == pytest.approx(0.1)
    assert verify(tmp_path / "r.json", tolerance=0.2).verdict == "equal"


def test_another_machine_cannot_be_repeated(result: rl.Result, tmp_path: Path) -> None:
    saved = result.to_dict()
    saved["manifest"]["cluster"]["fingerprint"] = "0" * 16
    found = verify(written(tmp_path / "r.json", saved))
    assert found.verdict == "cannot be repeated"
    assert "is not the one of this result" in found.reason


@pytest.mark.parametrize("missing", ["model", "software", "plan", "cluster"])
def test_a_manifest_that_is_not_whole(result: rl.Result, tmp_path: Path, missing: str) -> None:
    saved = result.to_dict()
    del saved["manifest"][missing]
    assert verify(written(tmp_path / "r.json", saved)).verdict == "cannot be repeated"
    saved["manifest"][missing] = {"name": 3}
    assert verify(written(tmp_path / "r.json", saved)).verdict == "cannot be repeated"


@pytest.mark.parametrize("kind", ["time", "memory", "timeline"])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_is_drawn_again(result: rl.Result, tmp_path: Path, kind: str, suffix: str) -> None:
    assert kind in FIGURES
    file = tmp_path / f"f{suffix}"
    save(result.plot(kind), file)
    assert verify(file).verdict == "equal"
    stamped = tmp_path / f"s{suffix}"
    stamp_figure(file, stamped, "overridden: P4 (no uncertainty)")
    assert verify(stamped).verdict == "equal"


def test_a_bar_that_was_lengthened_is_found(result: rl.Result, tmp_path: Path) -> None:
    file = tmp_path / "f.svg"
    axes = result.plot("energy")
    axes.patches[0].set_width(2 * axes.patches[0].get_width())
    save(axes, file)
    found = verify(file)
    assert found.verdict == "differs"
    assert found.differences[0].place.startswith("axes[0]")


def test_a_comparison_and_its_figure(result: rl.Result, tmp_path: Path) -> None:
    other = rl.simulate("lenet5", "v100-sxm2-16gb", rl.Plan(global_batch=64))
    made = compare(result, other)
    made.to_json(tmp_path / "c.json")
    save(made.plot(), tmp_path / "c.png")
    assert verify(tmp_path / "c.json").verdict == "equal"
    assert verify(tmp_path / "c.png").verdict == "equal"
    saved = made.to_dict()
    saved["ratios"][0]["ratios"]["samples_per_s"] *= 2
    found = verify(written(tmp_path / "d.json", saved))
    assert [d.place for d in found.differences] == ["ratios[0].ratios.samples_per_s"]


def test_a_scaling_study_and_its_figure(tmp_path: Path) -> None:
    from ridgeline.study.scaling import scaling

    made = scaling("lenet5", "dgx1-v100", [1, 2], strategies=["data"], batch=64, limit=1)
    file = written(tmp_path / "s.json", made.to_dict())
    assert verify(file).verdict == "equal"
    save(made.plot(), tmp_path / "s.svg")
    assert verify(tmp_path / "s.svg").verdict == "equal"


def test_rows_need_their_study_and_figures_of_rows_their_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = written(tmp_path / "study.yaml", STUDY)
    write_rows(run_sweep(load_study(study)), "rows.csv")
    assert verify("rows.csv").verdict == "cannot be repeated"
    assert verify("rows.csv", study=study).verdict == "equal"
    asked = ["plot", "curve", "rows.csv", "--x", "global_batch", "--y", "step_time_s"]
    assert execute([*asked, "--out", "f.png"]) == 0
    assert verify("f.png", study=study).verdict == "equal"
    text = Path("rows.csv").read_text()
    written(tmp_path / "other.csv", text.replace("\n8,", "\n9,", 1))
    assert verify("f.png", data="other.csv").verdict == "differs"
    Path("rows.csv").unlink()
    found = verify("f.png")
    assert (found.verdict, "--data" in found.reason) == ("cannot be repeated", True)


TIMES = [
    {"rows": rows, "flow": flow, "time_s": k * 1e-3 * 2.0**rows, "joule": 9.0 - rows}
    for rows in (1, 2, 4)
    for k, flow in enumerate(("os", "ws"), 1)
]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("heatmap", {"x": "rows", "y": "flow", "z": "time_s", "title": "some net"}),
        ("parallel", {"columns": "rows,flow", "y": "time_s"}),
        ("sobol", {"y": "time_s", "by": ["rows", "flow"]}),
        ("curve", {"x": "rows", "y": "time_s", "facet": "flow"}),
        ("pareto", {"x": "time_s", "y": "joule", "label": "rows"}),
        ("choice", {"x": "rows", "y": "time_s", "by": "flow"}),
    ],
)
def test_every_figure_of_rows_is_drawn_again_with_its_options(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """It is equal; with one value changed in the table, the drawing differs, not the hash alone."""
    write_rows(TIMES, tmp_path / "rows.csv")
    save(rl.plot.draw(kind, tmp_path / "rows.csv", **options), tmp_path / "f.svg")
    assert verify(tmp_path / "f.svg").verdict == "equal"
    changed = {**TIMES[0], "time_s": 4 * TIMES[0]["time_s"]}
    write_rows([changed, *TIMES[1:]], tmp_path / "other.csv")
    found = verify(tmp_path / "f.svg", data=tmp_path / "other.csv")
    assert found.verdict == "differs"
    assert any(one.place.startswith("axes[") for one in found.differences)


def test_a_heat_map_that_was_retouched_is_found(tmp_path: Path) -> None:
    write_rows(TIMES, tmp_path / "rows.csv")
    axes = rl.plot.heatmap(tmp_path / "rows.csv", x="rows", y="flow", z="time_s")
    cells = axes.collections[0]
    values = cells.get_array()
    assert values is not None
    cells.set_array(values * 1.1)
    save(axes, tmp_path / "f.png")
    assert verify(tmp_path / "f.png").verdict == "differs"


def test_the_results_in_a_report(result: rl.Result, tmp_path: Path) -> None:
    def page(saved: dict[str, Any]) -> str:
        data = json.dumps({"sections": [{"data": saved}]})
        return f'<html><script type="application/json" id="a">{data}</script></html>'

    saved = result.to_dict()
    assert verify(written(tmp_path / "r.html", page(saved))).verdict == "equal"
    saved["mfu"] = 0.99
    assert verify(written(tmp_path / "r.html", page(saved))).verdict == "differs"
    assert verify(written(tmp_path / "e.html", "<html></html>")).verdict == "cannot be repeated"


def test_an_op(tmp_path: Path) -> None:
    saved = rl.gemm(64, 64, 64, "v100-sxm2-16gb").to_dict()
    assert verify(written(tmp_path / "g.json", saved)).verdict == "equal"


def test_statuses_and_mistakes(
    result: rl.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    result.to_json(file)
    assert execute(["verify", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "equal"
    saved = {**result.to_dict(), "mfu": 1.0}
    assert execute(["verify", str(written(tmp_path / "d.json", saved))]) == 1
    assert "mfu: was 1" in capsys.readouterr().out
    bare = Path(__file__).parents[1] / "data" / "lint" / "honest" / "bars.svg"
    assert execute(["verify", str(bare)]) == 3
    capsys.readouterr()
    for arguments, says in (
        ([str(tmp_path / "none.json")], "cannot be read"),
        ([str(written(tmp_path / "a.yaml", "a: 1"))], "allowed are"),
        ([str(written(tmp_path / "b.json", "[1]"))], "does not say how it was made"),
        ([str(written(tmp_path / "c.json", "{"))], "JSON"),
        ([str(written(tmp_path / "d.png", "no"))], "not a PNG"),
        ([str(file), "--tolerance", "1"], "below 1"),
        ([str(file), "--tolerance", "nan"], "below 1"),
    ):
        assert execute(["verify", *arguments]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert says in err
