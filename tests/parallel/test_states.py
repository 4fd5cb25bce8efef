"""State-space layers on several devices: heads are divided, positions are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from oracles.graph_interpreter import run
from oracles.sharded_data import Devices, divided_with_layouts, updates
from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.divide import ShardingSpec
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Role
from ridgeline.workload.model import Model


def hybrid(**fields: Any) -> Model:
    return load_model(
        "nemotron-h-8b",
        {
            "vocabulary": 16, "sequence": 8, "layers": 3, "pattern": "M*-", "hidden": 16,
            "attention.heads": 4, "attention.kv_heads": 4, "attention.head_size": 4,
            "state_space": {"heads": 8, "head_size": 4, "groups": 4, "state": 2, "chunk": 4},
            "feed_forward.width": 32, **fields,
        },
    )  # fmt: skip


@settings(max_examples=4, deadline=None)
@given(st.sampled_from((2, 4)), st.booleans(), st.integers(0, 2**32 - 1))
def test_devices_learn_what_one_learns(tensor: int, sequence: bool, seed: int) -> None:
    """Played on real data, where products are divided by whole heads and groups."""
    graph = hybrid().training(2, "fp32")
    rng = np.random.default_rng(seed)
    given_values = {
        t.name: rng.integers(0, 8, t.shape) if t.format == "int64" else rng.normal(size=t.shape) / 4
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }
    layouts = divided_with_layouts(graph, ShardingSpec(tensor=tensor, sequence=sequence))
    assert not layouts.divided.whole
    devices = Devices(graph, layouts)
    devices.run(given_values)
    alone = run(graph, given_values)
    for weight, gradient in updates(graph).items():
        scale = np.abs(alone[gradient]).max()
        assert devices.gradient(weight) == pytest.approx(alone[gradient], abs=1e-9 * scale)


def test_a_device_has_its_share_of_products_and_bytes() -> None:
    cluster = rl.load_cluster("dgx-h100")
    one, four = (
        rl.simulate(hybrid(), cluster, rl.Plan(global_batch=4, tensor=n, sequence="on"))
        for n in (1, 4)
    )
    found = [
        sum(op.matrix_flops for op in r.details.lowered.graph.ops if op.kind == "state-space")
        for r in (one, four)
    ]
    assert found[0] == 4 * found[1]
    assert four.flops_per_step == one.flops_per_step
    moved = [
        sum(
            cost.traffic_bytes["hbm"] for cost, op in zip(
                r.details.lowered.op_costs, r.details.lowered.graph.ops, strict=True
            ) if op.kind == "state-space"
        )
        for r in (one, four)
    ]  # fmt: skip
    assert moved[0] == pytest.approx(4 * moved[1], rel=1e-6)


def test_groups_that_cannot_be_shared_are_said() -> None:
    with pytest.raises(ConfigError, match="does not divide the 4 heads"):
        rl.simulate(
            hybrid(**{"attention.heads": 8, "attention.kv_heads": 8}),
            rl.load_cluster("dgx-h100"),
            rl.Plan(global_batch=4, tensor=8),
        )
