"""Searches of small studies: rows, resuming, processes, the command line, and mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.study.ranking import pareto
from ridgeline.study.row_plots import ROW_PLOTS
from ridgeline.study.search.hypervolume import hypervolume
from ridgeline.study.search.method import Evaluated
from ridgeline.study.search.run import HypervolumeBox, shares_of
from ridgeline.study.store import working_file
from ridgeline.study.study_file import load_study
from ridgeline.study.sweep import run_sweep

HEAD = "kind: study\nname: s\nmodel: lenet5\ncluster: tpu-v2\nsoftware: ideal\n"
HBM = "cluster.device.memory.hbm.bandwidth"
ROWS = "cluster.device.engines.mxu.array.rows"
GRID = (
    HEAD + "plan: {precision: bf16-mixed}\n"
    "vary:\n  plan.global_batch: [8, 16, 32, 64]\n"
    f"  {HBM}: {{from: 300 GB/s, to: 900 GB/s, steps: 3}}\n  {ROWS}: [32, 128]\n"
)
OBJECTIVES = "search: {objectives: {step_time_s: min, joules_per_sample: min}, evaluations: 9}\n"
ENDLESS = (
    HEAD + "plan: {precision: bf16-mixed, global_batch: 8}\n"
    f"vary: {{{HBM}: {{from: 300 GB/s, to: 900 GB/s, scale: log}}}}\n"
    "search: {objectives: {samples_per_s: max}, evaluations: 6}\n"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_the_front_of_all_points_is_that_of_a_sweep(tmp_path: Path) -> None:
    study = write(tmp_path, GRID + "require: [fits, global_batch >= 16]\n" + OBJECTIVES)
    found = rl.search(study, method=["exhaustive"], evaluations=1000)
    assert len(found.rows) == found.designs == 24
    assert {row["method"] for row in found.rows} == {"exhaustive"}
    swept = [
        {**row, "joules_per_sample": row["energy_j.total"] / row["plan.global_batch"]}
        for row in run_sweep(load_study(study))
    ]
    expected = pareto(swept, ["step_time_s", "joules_per_sample"])
    assert [r["step_time_s"] for r in found.front] == [r["step_time_s"] for r in expected]
    assert found.methods[0].hypervolume[0] == found.rows[-1]["hypervolume"]
    assert found.methods[0].feasible == 18


def test_random_search_runs_beside_and_hypervolume_never_falls(tmp_path: Path) -> None:
    found = rl.search(write(tmp_path, GRID + OBJECTIVES), seeds=2, parallel=3)
    searches = {(row["method"], row["seed"]) for row in found.rows}
    assert searches == {("lazy-gp", 0), ("lazy-gp", 1), ("random", 0), ("random", 1)}
    for search in searches:
        rows = [row for row in found.rows if (row["method"], row["seed"]) == search]
        shares = [row["hypervolume"] for row in rows]
        assert [row["evaluation"] for row in rows] == list(range(1, 10))
        assert shares == sorted(shares)
        assert 0 < shares[-1] <= 1
        assert len({json.dumps([row[name] for name in found.fields]) for row in rows}) == 9
    assert json.loads(json.dumps(found.to_dict()))["evaluations"] == 36
    drawn = found.plot("hypervolume")
    lines = {line.get_gid(): line.get_ydata().tolist() for line in drawn.get_lines()}
    ends = [row["hypervolume"] for row in found.rows if row["evaluation"] == 9]
    assert lines["median-lazy-gp"][-1] == pytest.approx(sum(ends[:2]) / 2)
    assert len(found.plot("pareto").get_lines()[1].get_xdata()) == len(found.front)
    with pytest.raises(RidgelineError, match="did you mean 'pareto'"):
        found.plot("pareto-front")


def test_spans_without_steps_are_searched_and_not_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(tmp_path, ENDLESS)
    found = rl.search(study)
    assert found.designs is None
    assert found.front == [max(found.rows, key=lambda row: row["samples_per_s"])]
    assert found.front[0][HBM].endswith(" GB/s")
    assert "a search of 1 fields" in repr(load_study(study))
    assert "a search" in load_study(study)._repr_html_()
    assert execute(["sweep", str(study)]) == 2
    assert "run ridgeline search" in capsys.readouterr().err


def test_collectives_are_searched_too(tmp_path: Path) -> None:
    study = write(
        tmp_path,
        "kind: study\nname: c\ncluster: 'Ring(16, 24 GB/s, 500 ns)'\n"
        "collective: {operation: all-reduce, size: 1 MB}\n"
        "vary: {collective.algorithm: [ring, halving-doubling, auto]}\n"
        "search: {objectives: {time_s: min}, method: exhaustive}\n",
    )
    found = rl.search(study)
    assert found.front[0]["time_s"] == min(row["time_s"] for row in found.rows)


def test_a_killed_search_goes_on_to_the_same_bytes_on_any_processes(tmp_path: Path) -> None:
    study = write(tmp_path, GRID + OBJECTIVES.replace("9}", "16, parallel: 2}"))
    whole, out = tmp_path / "whole.csv", tmp_path / "rows.csv"
    rl.search(study, output=whole)
    working = working_file(out)
    running = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", "search", str(study), "--output", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while running.poll() is None and not (working.exists() and working.read_bytes().count(b"\n")):
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert working.exists(), "it was over before it was killed"
    before = working.read_bytes().count(b"\n")
    assert execute(["search", str(study), "--output", str(out), "--processes", "2"]) == 0
    assert before >= 1
    assert out.read_bytes() == whole.read_bytes()
    assert not working.exists()


def test_the_command_prints_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out, figure = write(tmp_path, GRID + OBJECTIVES), tmp_path / "r.csv", tmp_path / "f.svg"
    words = ["search", str(study), "--output", str(out), "--plot", str(figure)]
    assert execute(words) == 0
    printed = capsys.readouterr().out
    assert "space: 24 designs" in printed
    assert "on the front" in printed
    assert figure.exists()
    assert execute([*words[:2], "--json", "--method", "random", "--evaluations", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in report["methods"]] == ["random"]
    assert report["methods"][0]["evaluations"] == 5
    assert execute(["plot", "hypervolume", str(out), "--out", str(figure)]) == 0
    assert "hypervolume" in ROW_PLOTS


def test_where_nothing_is_feasible_the_status_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(tmp_path, GRID + "require: [step_time_s < 0]\n" + OBJECTIVES)
    assert execute(["search", str(study), "--evaluations", "3"]) == 1
    assert "no point is feasible" in capsys.readouterr().err


SAMPLE = "{method: sobol, count: 2, over: {plan.data: [1]}}"
OBJECTIVE = "search: {objectives: {step_time_s: min}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRID, r"study\.yaml: search: there is no search block"),
        (GRID + "search: {}\n", r"search: the field 'objectives' is missing"),
        (GRID + "search: {objectives: {}}\n", r"search\.objectives: .*at least 1"),
        (GRID + "search: {objectives: {step_time_s: least}}\n", r"11:23: .*allowed: min, max"),
        (
            GRID + "search: {objectives: {step_time: min}}\n",
            r"11:23: search\.objectives\.step_time: .*did you mean 'step_time_s'",
        ),
        (GRID + OBJECTIVE + ", method: lazy}\n", r"11:42: .*did you mean 'lazy-gp'"),
        (GRID + OBJECTIVE + ", method: []}\n", r"search\.method"),
        (GRID + OBJECTIVE + ", evaluations: 0}\n", r"search\.evaluations: .*greater"),
        (GRID + OBJECTIVE + ", evaluations: 1.5}\n", r"search\.evaluations"),
        (GRID + OBJECTIVE + ", sed: 1}\n", r"did you mean 'seed'"),
        (GRID + OBJECTIVE + ", reference: {energy: 1.0}}\n", r"'energy' is no objective"),
        (
            GRID + "columns: {hypervolume: step_time_s}\n" + OBJECTIVE + "}\n",
            r"columns\.hypervolume: the name 'hypervolume' is one that every row has",
        ),
        (GRID + "where: [global_batch > 64]\n" + OBJECTIVE + "}\n", r"11:1: where: .*no point"),
        (ENDLESS + "where: [bandwidth > 1e15]\n", r"where: no design passes"),
        (ENDLESS.replace("evaluations: 6", "method: exhaustive"), r"without end"),
        (
            GRID.replace("vary:", f"sample: {SAMPLE}\nvary:")
            + OBJECTIVE + "}\n",
            r"sample: a search chooses points itself",
        ),
        (
            HEAD + "plan: {global_batch: 8, precision: bf16-mixed}\n"
            f"vary: {{{HBM}: {{from: 1 GB/s, to: 2 m}}}}\n" + OBJECTIVE + "}\n",
            r"7:8: vary\.",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_said_with_their_place(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["search", str(write(tmp_path, text))]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said), said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "anneal"], "--method: there is no search method 'anneal'"),
        (["--evaluations", "0"], "--evaluations"),
        (["--seeds", "x"], "expected a whole number, found 'x'"),
        (["--output", "rows.xlsx"], "must end in .csv or .parquet"),
        (["--plot", "f.bmp"], "no format for figures"),
    ],
)
def test_mistakes_in_options(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert execute(["search", str(write(tmp_path, GRID + OBJECTIVES)), *options]) == 2
    assert message in capsys.readouterr().err


def outcomes(*values: Any) -> list[Evaluated]:
    return [Evaluated(v, feasible=True) if v else Evaluated(None, feasible=False) for v in values]


def test_the_box_reaches_a_tenth_behind_the_front() -> None:
    found = outcomes((0.0, 10.0), None, (10.0, 0.0), (4.0, 4.0), (50.0, 50.0))
    box = HypervolumeBox.of(found, [None, None])
    assert box.reference is not None
    assert box.reference.tolist() == [11.0, 11.0]
    shares = shares_of(found, box)
    assert shares[0] == shares[1] == pytest.approx(11 * 1 / 121)
    assert (
        shares[4]
        == shares[3]
        == pytest.approx(hypervolume([(0, 10), (10, 0), (4, 4)], (11, 11)) / 121)
    )
    stated = HypervolumeBox.of(found, [20.0, None])
    assert stated.reference is not None
    assert stated.reference.tolist() == [20.0, 11.0]


def test_the_box_of_one_objective_and_of_nothing() -> None:
    one = HypervolumeBox.of(outcomes((3.0,), (1.0,), (2.0,)), [None])
    assert shares_of(outcomes((3.0,), (2.0,), (1.0,)), one) == [0.0, 0.5, 1.0]
    nothing = HypervolumeBox.of(outcomes(None), [None])
    assert shares_of(outcomes(None), nothing) == [0.0]
    same = HypervolumeBox.of(outcomes((1.0,), (1.0,)), [None])
    assert shares_of(outcomes((1.0,)), same) == [1.0]


def test_network_and_machine_are_searched_together_under_a_law_of_loss(tmp_path: Path) -> None:
    study = write(
        tmp_path,
        "kind: study\nname: co-design\nmodel: gpt3-125m\ncluster: a100-sxm4-80gb\nsoftware: ideal\n"
        "plan: {global_batch: 8, precision: bf16-mixed}\n"
        "vary:\n  model.layers: [6, 12]\n"
        "  cluster.device.memory.hbm.bandwidth: [1 TB/s, 2 TB/s]\n"
        "columns:\n  tokens: 20 * parameters\n  loss: chinchilla_loss(parameters, 5e9)\n"
        "  days: tokens / tokens_per_s / 86400\n"
        "search: {objectives: {loss: min, days: min}, method: exhaustive}\n",
    )
    found = rl.search(study)
    by = {
        (row["model.layers"], row["cluster.device.memory.hbm.bandwidth"]): row for row in found.rows
    }
    for bandwidth in ("1 TB/s", "2 TB/s"):
        few, many = (by.get((layers, bandwidth)) for layers in (6, 12))
        assert few is not None
        assert many is not None
        assert few["parameters"] < many["parameters"]
        assert few["days"] < many["days"] or few["error"]
        law = 1.69 + 406.4 / many["parameters"] ** 0.34 + 410.7 / 5e9**0.28
        assert many["loss"] == pytest.approx(law, rel=1e-12)
    assert {row["cluster.device.memory.hbm.bandwidth"] for row in found.front} == {"2 TB/s"}
