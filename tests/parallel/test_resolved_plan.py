"""A plan as it is run: what a stack fills in, what a user decides, and what is noted."""

from __future__ import annotations

from typing import Any

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.resolved import NEUTRAL, resolved
from ridgeline.parallel.plan.stack_choice import able_stacks, choose_stack
from ridgeline.software import Stack

MODEL = rl.load_model("llama2-7b")
CLUSTER = rl.load_cluster("superpod-h100")


def stack(**defaults: Any) -> Stack:
    return NEUTRAL.model_copy(
        update={"name": "mine", "plan": NEUTRAL.plan.model_copy(update=defaults)}
    )


@pytest.mark.parametrize(
    ("defaults", "plan", "field", "value"),
    [
        ({"zero_stage": 1}, {"data": 8}, "zero_stage", 1),
        ({"zero_stage": 1}, {"data": 8, "zero_stage": 0}, "zero_stage", 0),
        ({"sequence": True}, {"tensor": 8}, "sequence", 8),
        ({"sequence": True}, {"tensor": 8, "sequence": "off"}, "sequence", 1),
        ({"sequence": True}, {"data": 8}, "sequence", 1),
        ({"recompute": "full"}, {}, "recompute", "full"),
        ({"stage_balance": "layers"}, {"pipeline": 4}, "stage_balance", "layers"),
        ({"stage_balance": "layers"}, {"data": 4}, "stage_balance", "even"),
        ({"schedule": "interleaved"}, {"pipeline": 4}, "virtual_stages", 8),
        ({"schedule": "interleaved"}, {"data": 4}, "schedule", "1f1b"),
        ({"cp_comm_type": "ring"}, {"context": 2}, "cp_comm_type", "ring"),
        ({"cp_comm_type": "ring"}, {}, "cp_comm_type", "all-gather"),
        ({"expert_tensor_parallel": 1}, {"data": 8}, "expert_tensor_parallel", 0),
        ({"hybrid_shard_size": "slice"}, {"data": 32, "zero_stage": 3}, "hybrid_shard_size", 8),
        ({"hybrid_shard_size": "slice"}, {"data": 32}, "hybrid_shard_size", 0),
    ],
)
def test_a_stack_fills_what_a_plan_leaves_open(
    defaults: dict[str, Any], plan: dict[str, Any], field: str, value: Any
) -> None:
    asked = rl.Plan(global_batch=64, **plan)
    run = resolved(asked, stack(**defaults), CLUSTER, MODEL)
    assert getattr(run, field) == value
    decided = dict(run.decided)
    assert (field in decided) == (getattr(asked, field) != value)
    assert set(decided.values()) <= {"mine"}
    for name in asked.model_fields_set:
        assert getattr(run, name) == getattr(asked, name)


def test_a_default_that_contradicts_the_plan_is_noted_and_left_out() -> None:
    asked = rl.Plan(global_batch=12, pipeline=4, micro_batch=2)  # 6 micro-batches
    run = resolved(asked, stack(schedule="interleaved", recompute="full"), CLUSTER, MODEL)
    assert (run.schedule, run.recompute) == ("1f1b", "full")
    assert any("interleaved" in note for note in run.notes)


def test_noise_is_of_the_cluster_and_the_network_and_no_part_of_a_bound() -> None:
    plan = rl.Plan(global_batch=64, data=8)
    uneven = rl.load_model("mixtral-8x7b", {"expert_load_factor": 1.5, "sequence_length_std": 0.1})
    run = resolved(plan, NEUTRAL, CLUSTER, uneven)
    assert run.device_speed_std == 0.015
    assert (run.expert_load_factor, run.sequence_length_std) == (1.5, 0.1)
    assert resolved(plan, rl.load_software("ideal"), CLUSTER, MODEL).device_speed_std == 0.0
    quiet = rl.load_cluster("superpod-h100", {"device_speed_std": 0.0})
    assert resolved(plan, NEUTRAL, quiet, MODEL).device_speed_std == 0.0


@pytest.mark.parametrize(
    ("settings", "plan", "says"),
    [
        ({"gradients.reduce_dtype": "fp16"}, {"data": 8, "zero_stage": 1}, "it needs zero_stage=0"),
        ({"pipeline.buffers_per_stage": 0.5}, {"pipeline": 4}, "micro-batches under way"),
    ],
)
def test_what_is_not_modelled_together_is_refused(
    settings: dict[str, Any], plan: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        resolved(rl.Plan(global_batch=64, **plan), NEUTRAL.with_settings(settings))


def test_the_choice_of_a_stack_says_who_made_it() -> None:
    assert choose_stack("nemo", MODEL, CLUSTER).chosen_by == "you"
    assert choose_stack(None).stack.name == "ideal"
    assert choose_stack(None).chosen_by == "nobody"
    own = rl.load_model("llama2-7b", {"software": ["nanogpt"]})
    bare = rl.load_cluster("superpod-h100", {"software": [], "device.software": []})
    assert choose_stack(None, own, bare) == (rl.load_software("nanogpt"), "the network llama2-7b")


def test_a_stack_that_cannot_run_a_step_says_why() -> None:
    with pytest.raises(rl.RidgelineError, match="cannot run this step: it runs networks of"):
        rl.simulate("resnet18", "superpod-h100", rl.Plan(global_batch=8), software="megatron-core")
    plan = rl.Plan(global_batch=8, tensor=2)
    with pytest.raises(rl.RidgelineError, match="no tensor parallelism"):
        rl.simulate("resnet18", "dgx1-v100", plan, software="pytorch-amp-2021")
    able = {stack.name for stack in able_stacks(MODEL, CLUSTER, plan)}
    assert {"megatron-core", "ideal"} <= able
    assert "pytorch-amp-2021" not in able


@pytest.mark.parametrize(
    ("cluster", "plan", "noted"),
    [
        ("gb200-nvl72-ndr", {"data": 288, "expert": 32, "global_batch": 288}, True),
        ("gb200-nvl72-ndr", {"data": 144, "expert": 8, "global_batch": 144}, False),
        ("gb200-nvl64-ndr", {"data": 128, "expert": 32, "global_batch": 128}, False),
        ("gb200-nvl72-ndr", {"data": 64, "expert": 32, "global_batch": 64}, False),
    ],
)
def test_groups_of_experts_that_cross_nodes_are_noted(cluster, plan, noted):
    run = resolved(rl.Plan(**plan), NEUTRAL, rl.load_cluster(cluster), None)
    assert any("cross nodes" in note for note in run.notes) == noted
