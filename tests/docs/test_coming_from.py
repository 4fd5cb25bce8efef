"""Pages that lead through commands, and the gallery: commands run, pictures exist."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import execute
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.sweep import load_study, plain_rows
from thoroughly import further

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
QUESTION = "from-a-question-to-a-figure.md"
PAGES = (
    "from-scalesim.md", "from-astrasim.md", "from-timeloop.md", QUESTION, "fabrics.md",
    "faults.md", "whatif.md", "transport.md",
)  # fmt: skip
LONG_PAGES = ("from-calculon.md", "neighbours.md", "search.md", "sweeps.md")
"""Their commands take a minute and more."""
MEMORY, ARRAYS = "cluster.device.memory.hbm", "cluster.device.engines.mxu.array"
sys.path.insert(0, str(ROOT / "notebooks"))
import run as runner  # noqa: E402


@pytest.mark.parametrize("page", [*PAGES, *further(*LONG_PAGES)])
def test_all_commands_of_a_page_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    lines = (DOCS / page).read_text("utf-8").splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ridgeline ")]
    assert len(commands) >= 3
    for command in commands:
        words, _, target = command.partition(" > ")
        assert execute(shlex.split(words)[1:]) == 0, command
        printed = capsys.readouterr().out
        if target:
            Path(target).write_text(printed, encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, *LONG_PAGES])
def test_python_of_a_page_runs(page: str) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
        exec(block, names)


@pytest.mark.parametrize("page", [*PAGES, *LONG_PAGES, "gallery.md"])
def test_links_and_pictures_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text("utf-8")):
        assert target.startswith("https://") or (DOCS / target).exists(), target


def test_the_gallery_shows_figures_that_notebooks_make() -> None:
    text = (DOCS / "gallery.md").read_text("utf-8")
    made = {
        f"notebook-{path.stem[:2]}-{name.replace('_', '-')}.png"
        for path in runner.notebooks()
        for _, source in runner.code_cells(path)
        for name in re.findall(r"^fig_(\w+)", source, re.MULTILINE)
    }
    shown = set(re.findall(r"images/(notebook-[\w-]+\.png)", text))
    assert shown <= made
    numbers = {*range(1, 10), 11, 12}  # those of 10 are shown by its page alone
    assert {name[:11] for name in shown} == {f"notebook-{n:02}" for n in numbers}


def test_the_plan_fields_that_the_page_on_calculon_names_exist() -> None:
    text = (DOCS / "from-calculon.md").read_text("utf-8")
    table = text.partition("| Calculon, execution")[2].partition("\n\n")[0]
    named = set(re.findall(r"[`,](\w+)=", table))
    assert named
    assert named <= set(Plan.model_fields)


def test_what_the_page_on_calculon_says_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "from-calculon.md").read_text("utf-8")
    command = re.search(r"^\$ (ridgeline run gpt3-175b .*)$", text, re.MULTILINE)
    said = re.search(r"([\d.]+) s are printed", text)
    assert command is not None
    assert said is not None
    assert execute(shlex.split(command[1])[1:]) == 0
    printed = re.search(r"step time\s+([\d.]+) s", capsys.readouterr().out)
    assert printed is not None
    assert round(float(printed[1]), 1) == float(said[1])


def test_the_study_of_the_question_is_the_file_and_its_table_what_is_simulated(
    tmp_path: Path,
) -> None:
    text = (DOCS / QUESTION).read_text("utf-8")
    study = DOCS / "examples" / "double.yaml"
    file = "".join(s for s in study.read_text("utf-8").splitlines(True) if s[0] != "#")
    assert f"```yaml\n{file}```" in text
    printed = {
        (bandwidth, int(count)): [int(cell) for cell in cells.split("|")]
        for bandwidth, count, cells in re.findall(r"^\| (\d+ GB/s) \| (\d) \| (.*) \|$", text, re.M)
    }
    assert execute(["sweep", str(study), "--output", str(tmp_path / "rows.csv")]) == 0
    simulated: dict[tuple[str, int], list[int]] = {}
    for row in plain_rows(str(tmp_path / "rows.csv")):
        machine = row[f"{MEMORY}.bandwidth"], int(row[f"{ARRAYS}.count"])
        simulated.setdefault(machine, []).append(round(row["samples_per_s"]))
    assert printed == simulated
    gains = re.findall(r"(\d+) % and\s(?:twice the arrays )?(\d+) %", text)
    assert len(gains) == 2  # with one sequence a step, and with the most
    for at, gain in zip((0, -1), gains, strict=True):
        changes = (("1800 GB/s", 4), ("900 GB/s", 8))
        got = [simulated[change][at] / simulated["900 GB/s", 4][at] - 1 for change in changes]
        assert [int(percent) / 100 for percent in gain] == pytest.approx(got, abs=0.03)


@pytest.mark.thorough
def test_the_figures_of_shipped_studies_are_drawn_as_the_page_on_sweeps_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "sweeps.md").read_text("utf-8")
    rows = re.findall(r"^\| \[`([\w-]+)\.yaml`\].*<br>`(ridgeline plot .*)` \|", text, re.M)
    assert len(rows) == 7
    monkeypatch.chdir(tmp_path)
    for name, command in rows:
        study = str(DOCS / "examples" / f"{name}.yaml")
        assert load_study(study)
        if "-" in name:
            continue  # the same fields and the same figure for another network
        assert execute(["sweep", study, "--output", f"{name}.csv"]) == 0
        assert execute(shlex.split(command)[1:]) == 0
        assert Path(f"{name}.png").stat().st_size > 0
