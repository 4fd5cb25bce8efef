"""Plans that docs/plans.md compares fit, and take what it says; shipped rows are today's."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.study.design_study import DesignStudy
from thoroughly import further

DOCS = Path(__file__).parents[2] / "docs"
RUNS = re.findall(
    r"^ridgeline (run .*?)(?: +# (.*))?$", (DOCS / "plans.md").read_text("utf-8"), re.M
)
COMPARED = [run for run in RUNS if re.match(r"[\d.]+ s, ", run[1])]
LONG = re.compile("summa|stationary")


def simulated(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert execute([*shlex.split(command), "--json", "--require-fit"]) == 0, command
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_there_are_plans_to_compare() -> None:
    assert len(RUNS) > 15
    assert len(COMPARED) >= 6


@pytest.mark.parametrize(
    ("command", "said"),
    [case for run in COMPARED for case in (further(run) if LONG.search(run[0]) else [run])],
)
def test_a_compared_plan_fits_and_takes_what_is_said(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = simulated(command, capsys)
    time_s, memory_gb = re.findall(r"([\d.]+) (?:s|GB)\b", said)
    assert result["step_time_s"] == pytest.approx(float(time_s), rel=0.005)
    memory = result["memory_bytes"]
    assert isinstance(memory, dict)
    assert memory["total"] == pytest.approx(float(memory_gb) * 1e9, rel=0.01)


@pytest.mark.parametrize("command", further(*(run[0] for run in RUNS if run not in COMPARED)))
def test_every_plan_of_the_page_fits(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(command, capsys)


def test_the_rows_of_a_sweep_that_ship_are_those_of_its_study() -> None:
    """If not: ridgeline sweep docs/examples/hbm.yaml --output docs/examples/hbm.csv."""
    with (DOCS / "examples" / "hbm.csv").open(encoding="utf-8") as file:
        shipped = list(csv.DictReader(file))
    rows = DesignStudy(DOCS / "examples" / "hbm.yaml").run()
    assert len(shipped) == len(rows) == 6
    for old, new in zip(shipped, rows, strict=True):
        assert set(old) == set(new)
        for name, value in new.items():
            if isinstance(value, float):
                assert float(old[name]) == pytest.approx(value, rel=1e-9), name
            elif name != "manifest_hash":  # of the code, too
                assert old[name] == ("" if value is None else str(value)), name
