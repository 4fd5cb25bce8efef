"""What each resource does to a step's time, the figures of it, and results repeated from JSON."""

import json

import numpy as np
import pytest

from ridgeline import Plan, load_cluster, simulate
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.effects import busy
from ridgeline.report.sensitivity import LATENCIES, sensitivity
from ridgeline.study.repeat import repeat
from ridgeline.workload.graph import Pass

PLAN = Plan(global_batch=256, data=8, precision="fp16-mixed")


@pytest.fixture(scope="module")
def result():
    return simulate("resnet18", "dgx1-v100", PLAN, software="ideal")


@pytest.mark.parametrize("factor", [1.25, 2.0, 10.0])
def test_more_is_never_slower_and_less_never_faster(result, factor):
    found = sensitivity(result, factor)
    assert {"tensor-cores", "hbm", "nvlink2 links", LATENCIES} <= {one.resource for one in found}
    for one in found:
        assert one.more_s <= result.step_time_s * (1 + 1e-12)
        assert one.less_s >= result.step_time_s * (1 - 1e-12)
    spread = [one.less_s - one.more_s for one in found]
    assert spread == sorted(spread, reverse=True)
    with pytest.raises(RidgelineError, match="above 1"):
        sensitivity(result, 1.0)


def test_what_contention_adds_stays():
    slowed = simulate("resnet18", "dgx1-v100", PLAN, software="pytorch-amp-2021")
    assert slowed.details.plan.stack.overlap.contention
    for one in sensitivity(slowed):
        assert one.more_s <= slowed.step_time_s * (1 + 1e-12)
        assert one.less_s >= slowed.step_time_s * (1 - 1e-12)


def test_a_replay_is_what_a_machine_with_that_bandwidth_takes_at_most(result):
    """Where ops are priced anew, a few are tiled better for the other machine."""
    faster = load_cluster("dgx1-v100", {"device.memory.hbm.bandwidth": "1800 GB/s"})
    again = simulate("resnet18", faster, PLAN, software="ideal").step_time_s
    by_name = {one.resource: one for one in sensitivity(result)}
    assert again <= by_name["hbm"].more_s * (1 + 1e-12)
    assert by_name["hbm"].more_s == pytest.approx(again, rel=0.01)


def test_the_figures_show_these_numbers(result):
    drawn = result.plot("tornado")
    found = sensitivity(result)[:8]
    widths = [bar.get_width() for bars in drawn.containers for bar in bars]
    expected = [
        (time_s - result.step_time_s) * 1e3 for one in found for time_s in (one.more_s, one.less_s)
    ]
    assert widths == pytest.approx(expected)
    shown = busy(result)
    mesh = result.plot("utilisation").collections[0]
    np.testing.assert_array_equal(np.ma.filled(mesh.get_array(), np.nan), shown.share.T)
    assert len(shown.layers) == 21  # 20 convolutions and the last product
    inside = shown.share[~np.isnan(shown.share)]
    assert ((inside > 0) & (inside <= 1)).all()
    assert np.isnan(shown.share[0]).tolist() == [False, True, False]  # no gradient of the images
    forward = [
        (op, cost) for op, cost in zip(
            result.details.lowered.ops, result.details.lowered.op_costs, strict=True
        ) if op.layer == shown.layers[0] and op.pass_ is Pass.FORWARD and op.loops is not None
    ]  # fmt: skip
    (op, cost) = forward[0]
    device = result.details.cluster.device
    peak = device.engines["tensor-cores"].rates["fp16"].value
    assert shown.share[0, 0] == pytest.approx(op.matrix_flops / cost.time_s(device) / peak)


def test_a_result_is_repeated_from_its_json(result):
    saved = json.loads(result.to_json())
    again = repeat(saved)
    assert again.to_dict() == saved
    fed = simulate("resnet18", "dgx1-v100", PLAN, dataset="imagenet")
    assert repeat(fed.to_dict()).to_dict() == fed.to_dict()
    slower = load_cluster("dgx1-v100", {"device.memory.hbm.bandwidth": "450 GB/s"})
    changed = simulate("resnet18", slower, PLAN)
    assert repeat(changed.to_dict()).step_time_s == changed.step_time_s


def test_what_cannot_be_repeated_says_why(result):
    saved = json.loads(result.to_json())
    with pytest.raises(ConfigError, match="no manifest"):
        repeat({"step_time_s": 1.0}, file="x.json")
    saved["manifest"]["cluster"]["fingerprint"] = "0"
    with pytest.raises(RidgelineError, match="cluster 'dgx1-v100' is not the one of this result"):
        repeat(saved, file="x.json")
    del saved["manifest"]["cluster"]["name"]
    with pytest.raises(ConfigError, match="not whole"):
        repeat(saved, file="x.json")
