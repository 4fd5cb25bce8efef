"""What-if: scaled capacities against steps of faster machines, and replays against plays."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.report.perfetto import trace
from ridgeline.report.result import Result
from ridgeline.study.whatif import LeverScaling, levers, read_scaling, what_if

PLAN = rl.Plan(data=8, global_batch=256)


@pytest.fixture(scope="module")
def step() -> Result:
    return rl.simulate("mlp", "dgx1-v100", PLAN, software="ideal")


def test_faster_links_are_those_of_a_faster_machine(step: Result) -> None:
    found = what_if(step, [read_scaling("link.nvlink 2x")])
    fast = {"node.link_types.nvlink2.bandwidth": "50 GB/s"}
    other = rl.simulate("mlp", rl.load_cluster("dgx1-v100", fast), PLAN, software="ideal")
    assert found.after_s == pytest.approx(other.step_time_s, rel=1e-9)
    assert found.before_s == step.step_time_s
    assert sum(found.path_after_s.values()) == pytest.approx(found.after_s)
    assert found.path_before_s == step.critical_path_s


def test_replays_are_what_the_engine_plays(step: Result) -> None:
    found = what_if(step, [read_scaling("hbm=0.5x..2x"), read_scaling("latency 1x..2x")], points=5)
    assert found.replays_per_s > 0
    for share, time_s in zip(found.factors, found.times_s, strict=True):
        scales = [
            LeverScaling("hbm", 0.5 * 4**share, 0.5 * 4**share), LeverScaling("latency", 2**share,
            2**share)
        ]  # fmt: skip
        assert time_s == pytest.approx(what_if(step, scales).after_s, rel=1e-9)
    assert found.times_s[-1] == pytest.approx(found.after_s, rel=1e-9)


def test_more_is_never_slower(step: Result) -> None:
    for lever in levers(step.details.lowered.program):
        found = what_if(step, [LeverScaling(lever, 2.0, 2.0)])
        assert found.after_s <= found.before_s * (1 + 1e-12)
    parts = [what_if(step, [read_scaling(f"{kind}.latency 0.5x")]) for kind in ("launch", "link")]
    both = what_if(step, [read_scaling("latency 0.5x")])
    assert both.after_s <= min(part.after_s for part in parts)


@pytest.mark.parametrize("text", ["hbm", "hbm 0x", "hbm=-1x", "hbm=x", "2x", "hbm=1x..0x"])
def test_factors_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a lever and a factor above 0"):
        read_scaling(text)


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(shlex.split("run mlp dgx1-v100 --plan data=8 --batch 256 --json")) == 0
    Path("step.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert execute(shlex.split("whatif step.json --scale hbm=2x --scale link=2x --json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["speedup"] >= 1
    assert set(said["alone_s"]) == {"hbm", "link"}
    for words, message in (
        ("whatif step.json --scale hbn=2x", "the step uses no 'hbn'; did you mean 'hbm'"),
        ("whatif mlp --scale hbm=2x", "whatif needs a result"),
        ("whatif no.json --scale hbm=2x", "no.json: cannot be read"),
        ("whatif step.json --scale hbm=1x..2x --points 1", "2 to 1,000,000 points"),
    ):
        assert execute(shlex.split(words)) == 2
        assert message in capsys.readouterr().err
    Path("bad.json").write_text("[]", encoding="utf-8")
    assert execute(shlex.split("whatif bad.json --scale hbm=2x")) == 2
    assert "expected the JSON of one result" in capsys.readouterr().err


def test_the_critical_path_is_a_track_with_arrows() -> None:
    plan = rl.Plan(data=2, pipeline=2, global_batch=64, micro_batch=8, precision="fp16-mixed")
    result = rl.simulate("gpt2", "dgx1-v100", plan)
    events = trace(result)["traceEvents"]
    path = [e for e in events if e.get("cat") == "critical path" and e["ph"] == "X"]
    assert sum(event["dur"] for event in path) == pytest.approx(
        result.details.timeline.makespan_s * 1e6
    )
    starts, ends = ([e for e in events if e["ph"] == ph] for ph in "sf")
    assert [e["id"] for e in starts] == [e["id"] for e in ends] != []
