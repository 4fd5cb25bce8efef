"""Flows against SimGrid: recorded ends of 1,000 random sets, and a fresh run where it is there."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from oracles.simgrid_flows import flow_sets
from ridgeline.engine import ProgramBuilder, WorkPhase, run

DATA = Path(__file__).parents[1] / "data" / "simgrid_flows.csv"
ORACLE = Path(__file__).parents[1] / "oracles" / "simgrid_flows.py"
DEBIAN_PYTHON = shutil.which("python3", path="/usr/bin")


def recorded(text: str) -> list[float]:
    lines = [line for line in text.splitlines() if not line.startswith(("#", "["))]
    return [float(row["end_s"]) for row in csv.DictReader(lines)]


def played(n: int) -> list[float]:
    builder = ProgramBuilder()
    rank = builder.add_rank()
    for one in flow_sets(n):
        links = [builder.add_resource("link", c, shared=True) for c in one.capacity]
        for size, passed in one.flows:
            row = builder.add_cost([WorkPhase(0.0, {links[j]: float(size) for j in passed})])
            builder.add_task("flow", "flow", stream=builder.add_stream("s", rank), cost=row)
    ends: list[float] = run(builder.build()).end_s.tolist()
    return ends


def test_a_thousand_sets_of_flows_end_when_simgrid_says() -> None:
    expected = recorded(DATA.read_text("utf-8"))
    assert len(expected) == sum(len(one.flows) for one in flow_sets(1000))
    np.testing.assert_allclose(played(1000), expected, rtol=1e-6)


def test_simgrid_still_says_so() -> None:
    has = DEBIAN_PYTHON and subprocess.run(
        [DEBIAN_PYTHON, "-c", "import simgrid"], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not has:
        pytest.skip("Debian's python3-simgrid is not installed")
    again = subprocess.run(
        [str(DEBIAN_PYTHON), str(ORACLE), "30"], capture_output=True, check=True, text=True
    )
    ends = recorded(again.stdout)
    np.testing.assert_allclose(ends, recorded(DATA.read_text("utf-8"))[: len(ends)], rtol=1e-9)
