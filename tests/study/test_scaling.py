"""Scaling: labels, speed-ups, and points that stay under the roof."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.app import app
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures_scaling import Roof
from ridgeline.study.scaling import Scaling, scaling
from ridgeline.study.scaling_figures import roof_of


@pytest.fixture(scope="module")
def study() -> Scaling:
    return scaling(
        "mlp", "selene-a100", [1, 2, 16], strategies=["data", "hybrid"], batch=64, limit=1
    )


def test_speed_up_is_throughput_against_the_smallest_run(study: Scaling) -> None:
    for name in ("data", "hybrid"):
        curve = study.curve(name)
        first = curve[0].result
        assert first is not None
        for point in curve:
            assert point.result is not None
            ratio = point.result.samples_per_s / first.samples_per_s
            assert point.speed_up == pytest.approx(ratio, rel=1e-12)
            assert point.efficiency == pytest.approx(ratio / point.devices, rel=1e-12)
            assert point.batch == 64


def test_no_point_is_above_the_envelope(study: Scaling) -> None:
    ran = [p for p in study.points if p.result is not None]
    sent = [p for p in ran if p.binding is not None]
    assert sent
    for point in ran:
        assert point.flop_per_s <= point.envelope_flop_per_s * (1 + 1e-9)
        assert point.local_flop_per_s <= study.peak_flop_per_s
    roof = Roof(**roof_of(study))
    for point in sent:
        level = point.binding
        assert level is not None
        assert point.flop_per_s <= point.flop_per_byte * roof.links[level.name] * (1 + 1e-9)


def test_an_uncontended_step_is_near_the_envelope() -> None:
    weak = scaling(
        "resnet50", "dgx-a100", [8], strategies=["data"], batch=64, mode="weak",
        precision="fp16-mixed", limit=1,
    )  # fmt: skip
    (point,) = weak.points
    assert point.batch == 512
    assert point.flop_per_s >= 0.85 * point.envelope_flop_per_s


def test_what_cannot_run_says_why() -> None:
    study = scaling("mlp", "dgx1-v100", [1, 8], strategies=["data"], batch=4, limit=1)
    assert study.points[0].result is not None
    assert study.points[1].result is None
    assert "data alone" in study.points[1].reason
    with pytest.raises(ConfigError, match="did you mean"):
        scaling("mlp", "dgx1-v100", [1], strategies=["dat"], batch=8)
    with pytest.raises(RidgelineError, match="sends"):
        scaling("mlp", "dgx1-v100", [1], strategies=["data"], batch=8, limit=1).plot(
            "distributed-roofline"
        )


def test_figures_show_the_points(study: Scaling) -> None:
    drawn = {line.get_gid(): line for line in study.plot("distributed-roofline").get_lines()}
    sent = [p for p in study.curve("data") if p.binding is not None]
    line = drawn["points: data"]
    np.testing.assert_array_equal(line.get_xdata(), [p.flop_per_byte for p in sent])
    np.testing.assert_array_equal(line.get_ydata(), [p.flop_per_s for p in sent])
    curves = {line.get_gid(): line for line in study.plot().get_lines()}
    np.testing.assert_array_equal(
        curves["data"].get_xdata(), [p.devices for p in study.curve("data")]
    )


def test_the_ideal_is_seen_and_nothing_is_cut_off(study: Scaling) -> None:
    axes = study.plot()
    lines = {line.get_gid(): line for line in axes.get_lines()}
    base = study.curve("data")[0].result
    assert base is not None
    ideal = lines["ideal from 1"]
    np.testing.assert_allclose(ideal.get_ydata()[-1], 16 * base.samples_per_s, rtol=1e-5)
    assert ideal.get_zorder() > max(lines[name].get_zorder() for name in ("data", "hybrid"))
    (inner,) = axes.child_axes
    assert inner.get_xscale() == inner.get_yscale() == "linear"
    for drawn in (axes, study.plot("distributed-roofline")):
        figure = drawn.get_figure(root=True)
        assert figure is not None
        (stamp,) = [text for text in drawn.texts if text.get_gid() == "stamp"]
        assert stamp.get_window_extent().y0 > 0


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "roof.svg"
    words = ["scaling", "mlp", "dgx1-v100", "--devices", "1,2", "--strategies", "data"]
    assert app([*words, "--batch", "16", "--limit", "1", "--roofline", str(out)]) == 0
    assert "strong scaling" in capsys.readouterr().out
    assert out.stat().st_size > 1000
    assert app(["plan", "mlp", "dgx1-v100", "--devices", "2", "--batch", "16", "--limit", "2"]) == 0
    assert "best plan" in capsys.readouterr().out
