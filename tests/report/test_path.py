"""The critical path in words: parts that add up, on stages that are there."""

from __future__ import annotations

import math

import pytest

import ridgeline as rl
from stacked import stacked

PLANS = (
    ("resnet18", "dgx1-v100", rl.Plan(global_batch=64)),
    ("gpt2", "dgx-a100", rl.Plan(data=2, tensor=2, pipeline=2, global_batch=16)),
    ("gpt2", "dgx-a100", stacked(data=8, zero_stage=3, global_batch=8, host__launch_time="20 us")),
    ("vgg16", "dgx1-v100", rl.Plan(replicas="3-1", global_batch=24, micro_batch=4)),
)


@pytest.mark.parametrize(("model", "cluster", "plan"), PLANS)
def test_parts_of_the_path_add_up_to_the_step(model: str, cluster: str, plan: rl.Plan) -> None:
    result = rl.simulate(model, cluster, plan)
    parts = result.critical_path_s
    assert math.fsum(parts.values()) == pytest.approx(result.step_time_s, rel=1e-9)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    stages = {name.partition(":")[0] for name in parts if ":" in name}
    assert stages <= {f"stage {i}" for i in range(1, plan.pipeline + 1)}
    assert bool(stages) == (plan.pipeline > 1)
    assert result.to_dict()["critical_path_s"] == parts
    first, share = next(iter(parts)), next(iter(parts.values())) / result.step_time_s
    assert f"critical path: {first} {share:.0%}" in result.summary(verbose=True)


def test_a_step_bound_by_one_thing_has_a_path_of_it() -> None:
    plan = stacked(data=32, global_batch=32, overlap__gradients=False)
    result = rl.simulate("vgg16", "dgx1-v100-edr", plan)
    assert next(iter(result.critical_path_s)) == "communication (data)"
    alone = rl.simulate("vgg16", "dgx1-v100", stacked(global_batch=1)).critical_path_s
    assert alone.keys() <= {"forward", "input-gradient", "weight-gradient", "update"}


def test_waiting_for_data_is_on_the_path() -> None:
    slow = rl.load_cluster("dgx1-v100", overrides={"node.host.storage": "1 MB/s"})
    result = rl.simulate("resnet18", slow, rl.Plan(global_batch=64), dataset="imagenet")
    assert next(iter(result.critical_path_s)) == "input"
    assert math.fsum(result.critical_path_s.values()) == pytest.approx(result.step_time_s)
