"""The summary of one screen: 24 lines of 80 columns, with what matters, and the rest behind -v."""

from __future__ import annotations

import re

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.report.short_summary import COLUMNS, LINES, short_summary
from ridgeline.report.summary import remarks

STEPS = {
    "one device": ("lenet5", "tpu-v3", rl.Plan(global_batch=128), None),
    "several": ("resnet18", "dgx1-v100", rl.Plan(data=8, global_batch=256), None),
    "a pipeline": (
        "gpt3-125m", "dgx-a100",
        rl.Plan(data=2, tensor=2, pipeline=2, global_batch=16, precision="bf16-mixed"), None,
    ),
    "no fit": (
        "gpt2-xl", "v100-sxm2-16gb", rl.Plan(global_batch=32, precision="fp16-mixed"), None,
    ),
    "a bound": ("resnet18", "eyeriss", rl.Plan(global_batch=1), "ideal"),
}  # fmt: skip


@pytest.fixture(scope="module", params=STEPS)
def result(request: pytest.FixtureRequest) -> rl.Result:
    model, cluster, plan, software = STEPS[request.param]
    return rl.simulate(model, cluster, plan, software=software)


def test_it_fits_a_screen_and_says_what_matters(result: rl.Result) -> None:
    after = ["published measurements of this configuration: none is shipped"]
    lines = short_summary(result, after, more="-v says more")
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    software = result.manifest["software"]["name"]
    for said in (result.manifest["model"]["name"], f"software: {software}", "plan as run:",
                 "step time", "bound by", result.bound.split()[0], "where the time went",
                 "peak memory", "energy a step", "trust:", *after):  # fmt: skip
        assert said in text
    interval = "90 % between" if result.uncertainty else "no range is stated"
    assert text.count(interval) == 2
    assert ("does not fit" in text) is not result.fits
    assert lines[-1] == "-v says more"


def test_its_columns_are_the_parts_of_the_result(result: rl.Result) -> None:
    lines = short_summary(result)
    head = next(i for i, line in enumerate(lines) if line.startswith("where the time went"))
    total = next(line for line in lines[head:] if line.startswith("total")).split()
    unit = lines[head].removeprefix("where the time went").split()[0]
    size = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    shown = float(total[1].replace(",", ""))
    assert shown == pytest.approx(result.step_time_s / size, abs=0.006)
    compute = next(line for line in lines[head:] if line.startswith("compute")).split()
    share = result.time_s["compute"] / result.step_time_s
    assert float(compute[2].rstrip("%")) == pytest.approx(100 * share, abs=0.06)


def test_notes_beyond_the_screen_are_counted(result: rl.Result) -> None:
    room = LINES - len(short_summary(result))
    notes = len(remarks(result))
    lines = short_summary(result, ["one more line"] * (room + notes))
    told = sum(line.startswith("note: ") for line in lines)
    left = re.fullmatch(r"and (\d+) (?:more|notes)", lines[-1])
    assert told + (int(left[1]) if left else 0) == notes


def test_the_rest_is_behind_v(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "lenet5", "v100-sxm2-16gb", "--batch", "64"]
    assert execute(command) == 0
    short = capsys.readouterr()
    assert execute([*command, "-v"]) == 0
    whole = capsys.readouterr()
    assert len(short.out.splitlines()) <= LINES
    assert "critical path:" in whole.out
    assert "critical path:" not in short.out
    assert "ridgeline: read " in whole.err
    assert short.err == ""
    result = rl.simulate("lenet5", "v100-sxm2-16gb", rl.Plan(global_batch=64))
    assert result.summary(verbose=True).splitlines()[0] == whole.out.splitlines()[0]
    assert result.summary().splitlines()[0] == short.out.splitlines()[0]
