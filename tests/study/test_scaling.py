"""Scaling: labels, speed-ups, and points that stay under the roof."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline.cli.app import app
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.report.figures.scaling import distributed_roofline, side_by_side
from ridgeline.report.figures.scaling_points import Curve, Roof
from ridgeline.simulation import simulate
from ridgeline.study.ceilings import UNCONTENDED
from ridgeline.study.scaling import Scaling, ScalingPoint, scaling
from ridgeline.study.scaling_figures import roof_of
from ridgeline.workload.graph import Role
from thoroughly import sample_of

# Programs that cost nothing: what is searched and bounded are plans alone.
simulate = partial(simulate, software=NEUTRAL)
scaling = partial(scaling, software=NEUTRAL)


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
    assert roof.less_arithmetic == 1
    for point in sent:
        level = point.binding
        assert level is not None
        assert point.flop_per_s <= point.flop_per_byte * roof.links[level.name] * (1 + 1e-9)


def test_kernels_with_less_arithmetic_raise_the_ceiling() -> None:
    """VGG's convolutions do fewer FLOPs than are counted: 22 TFLOP/s of a peak of 15.7."""
    study = scaling("vgg-a", "dgx1-v100", [1, 8], strategies=["data"], batch=256, limit=1)
    roof = Roof(**roof_of(study))
    assert roof.peak_flop_per_s < max(point.flop_per_s for point in study.points)
    for point in study.points:
        assert point.flop_per_s <= point.local_flop_per_s <= roof.top_flop_per_s


def test_links_of_nearly_one_bandwidth_have_one_line_of_text() -> None:
    curve = Curve("data", [2, 16], [1e3, 8e3], [2e3, 3e4], [22e12, 22e12], ["edr"] * 2, [26e12] * 2)
    links = {"nvlink2": 140e9, "pcie": 12.3e9, "edr": 12e9, "qpi": 6e9}
    roof = Roof(15.7e12, 30e12, links, {}, 1.7)
    axes = distributed_roofline([curve], roof, title="t", stamp="s")
    names = {text.get_text() for text in axes.texts if text.get_rotation()}
    assert names == {"nvlink2 140 GB/s", "pcie 12.3 GB/s, edr 12 GB/s", "qpi 6 GB/s"}
    drawn = {str(line.get_gid()) for line in axes.lines}
    assert {"link: pcie", "link: edr"} <= drawn
    assert side_by_side([6.0, 140.0, 12.0, 12.3], 1.2) == [[140.0], [12.3, 12.0], [6.0]]


@sample_of(
    3,
    8,
    st.lists(st.tuples(st.floats(1, 5), st.floats(12, 13.8)), min_size=1, max_size=6, unique=True),
    st.floats(1.0, 3.0),
)
def test_points_have_their_numbers_and_nothing_stands_on_them(
    places: list[tuple[float, float]], cap: float
) -> None:
    x, y = ([10.0**value for value in axis] for axis in zip(*places, strict=True))
    n = [2**i for i in range(len(places))]
    curve = Curve("data", n, n, x, y, ["nvlink"] * len(n), [cap * value for value in y])
    roof = Roof(1e14, 8e13, {"nvlink": 1e11}, {"data": (1, y[0] / 2)})
    ax = distributed_roofline([curve], roof, title="t", stamp="s")
    marks = ax.transData.transform(curve.marks)
    numbers = [text for text in ax.texts if text.get_text().isdigit()]
    apart = min((np.hypot(*(a - b)) for a, b in combinations(marks, 2)), default=np.inf)
    if apart > 60:  # pixels: room for all
        assert sorted(int(text.get_text()) for text in numbers) == n
    for text in numbers:
        box = text.get_window_extent()
        assert not any(box.contains(*mark) for mark in marks)


def test_an_uncontended_step_is_near_the_envelope() -> None:
    weak = scaling(
        "resnet50", "dgx-a100", [8], strategies=["data"], batch=64, mode="weak",
        precision="fp16-mixed", limit=1,
    )  # fmt: skip
    (point,) = weak.points
    assert point.batch == 512
    assert point.flop_per_s >= 0.85 * point.envelope_flop_per_s


CASES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("data", "gpt2", "dgx-a100", {"data": 8, "global_batch": 64}),
    ("data", "mlp", "selene-a100", {"data": 16, "global_batch": 64}),
    ("data", "gpt2", "big-basin-p100-50gbe", {"data": 32, "zero_stage": 3, "global_batch": 32}),
    ("tensor", "resnet18", "big-basin-p100-50gbe", {"tensor": 16, "global_batch": 64}),
    ("tensor", "resnet18", "dgx1-v100", {"tensor": 4, "global_batch": 64}),
    ("pipeline", "bert-base", "dgx-a100", {"pipeline": 4, "micro_batch": 2, "global_batch": 32}),
    ("pipeline", "resnet18", "dgx-a100", {"pipeline": 4, "micro_batch": 8, "global_batch": 128}),
    ("context", "gpt2", "dgx-a100", {"context": 4, "global_batch": 4}),
    ("context", "gpt2", "big-basin-p100-50gbe", {"context": 16, "global_batch": 2}),
    ("expert", "mixtral-8x7b", "dgx-h100", {"data": 8, "expert": 8, "global_batch": 16}),
    ("hybrid", "gpt2", "selene-a100",
     {"data": 8, "pipeline": 4, "micro_batch": 1, "global_batch": 64}),
)  # fmt: skip


@pytest.fixture(scope="module")
def points() -> list[ScalingPoint]:
    return [
        ScalingPoint(strategy, plan.devices, plan.global_batch, simulate(name, machine, plan))
        for strategy, name, machine, fields in CASES
        for plan in [Plan(precision="fp32", **fields)]
    ]


def test_bounds_hold_for_every_strategy(points: list[ScalingPoint]) -> None:
    """No step is faster than its work, its messages or a link alone, none slower than in turn."""
    for point in points:
        assert point.result is not None
        step_s, found = point.result.step_time_s, point.ceilings
        assert point.least_s <= step_s * (1 + 1e-9)
        assert step_s <= found.in_turn_s * (1 + 1e-9)
        time_s = point.result.time_s
        own_s = time_s["compute"] + time_s["memory_stall"] + time_s["optimizer"]
        assert own_s <= found.work_s * (1 + 1e-9)
        assert point.flop_per_s <= point.envelope_flop_per_s * (1 + 1e-9)
        if point.is_uncontended:
            assert point.flop_per_s >= UNCONTENDED * point.envelope_flop_per_s
    uncontended = {point.strategy for point in points if point.is_uncontended}
    assert uncontended >= {"data", "tensor", "pipeline", "context", "expert"}
    assert not all(point.is_uncontended for point in points)


def test_a_faster_network_brings_a_step_to_its_work_alone() -> None:
    plan = Plan(data=4, global_batch=32)
    slow, fast = (
        ScalingPoint("data", 4, 32, simulate("resnet18", load_cluster("dgx-a100", changed), plan))
        for changed in ({}, {"node.link_types.nvlink3.bandwidth": "10 TB/s"})
    )
    assert slow.result is not None
    assert fast.result is not None
    assert fast.result.step_time_s < slow.result.step_time_s
    assert slow.ceilings.work_s == pytest.approx(fast.ceilings.work_s, rel=1e-9)
    assert fast.flop_per_s / fast.envelope_flop_per_s > slow.flop_per_s / slow.envelope_flop_per_s


def test_a_ring_sends_what_the_gradients_are() -> None:
    """Data parallelism: 2 (P - 1) / P bytes of every byte of gradient (all-reduce on a ring)."""
    plan = Plan(data=16, global_batch=64)
    point = ScalingPoint("data", 16, 64, simulate("mlp", "cori-haswell-aries", plan))
    assert point.result is not None
    graph = point.result.details.lowered.graph
    summed = sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT)
    useful = point.result.flops_per_step / 16
    assert useful / point.flop_per_byte == pytest.approx(2 * 15 / 16 * summed, rel=0.02)


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
