"""Layer-wise plans of mixtures of experts: the same ranks share experts, however this is said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from pods import on_pod

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.graph import Role
from stacked import stacked
from thoroughly import sample_of

MIXTURE = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 256
sequence: 32
layers: 2
hidden: 64
attention: {heads: 8, bias: false, output_bias: false}
feed_forward: {width: 64, activation: swiglu, bias: false}
mixture: {experts: 8, top_k: 2, width: 64}
norm: rms-norm
positions: rotary
tied: false
"""


def step(fold: bool = True, **fields: Any) -> Result:
    model, cluster = on_pod(MIXTURE)
    plan = stacked(**{"global_batch": 16, "precision": "fp16-mixed", **fields})
    return simulate(model, cluster, plan, fold=fold)


def of_blocks(result: Result) -> tuple[Counter[tuple[str, str]], dict[str, int]]:
    """FLOPs and bytes sent by kind and pass, and bytes of weights, of the blocks of a device."""
    graph = result.details.lowered.graph
    work: Counter[tuple[str, str]] = Counter()
    for op in graph.ops:
        if op.layer.startswith("blocks"):
            work[op.kind, op.pass_.value] += op.matrix_flops
            if op.kind in COLLECTIVES:
                work[op.kind, op.pass_.value] += int(dict(op.attrs)["size_bytes"])
    weights = {t.name: t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT}
    return +work, {name: size for name, size in weights.items() if name.startswith("blocks")}


@sample_of(
    3,
    10,
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((2, 4, 8)),
    st.sampled_from((0, 1, 2, 3)),
    st.sampled_from((1.0, 2.0)),
)
def test_devices_of_tensor_that_divide_samples_are_replicas(
    expert: int, tensor: int, sharding: int, imbalance: float
) -> None:
    """Whether eight ranks that share experts are called `data` or levels of `tensor`."""
    fields = {"expert": expert, "zero_stage": sharding, "expert_load_factor": imbalance}
    plain = step(data=8, micro_batch=2, **fields)
    ruled = step(
        data=8 // tensor, tensor=tensor, layers="*:tensor=1", micro_batch=2 * tensor, **fields
    )
    assert of_blocks(plain) == of_blocks(ruled)
    held = [r.memory_bytes["optimizer"] + r.memory_bytes["gradients"] for r in (plain, ruled)]
    assert held[1] <= held[0] * (1 + 1e-9)  # tables stay divided


PLANS = (
    {"data": 8, "expert": 8, "layers": "*.attention.*:tensor=4", "micro_batch": 2},
    {"data": 4, "tensor": 2, "expert": 4, "layers": "*.experts.*:tensor=1", "micro_batch": 4},
    {"data": 8, "expert": 2, "layers": "*.attention.*:tensor=4", "zero_stage": 1, "micro_batch": 1},
    {"data": 4, "tensor": 2, "expert": 2, "layers": "*.attention.*:tensor=1", "pipeline": 2,
     "micro_batch": 2},
)  # fmt: skip


@pytest.mark.parametrize("fields", PLANS)
def test_folded_equals_unfolded(fields: dict[str, Any]) -> None:
    folded, whole = step(**fields), step(fold=False, **fields)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)
    assert folded.memory_bytes == whole.memory_bytes


@pytest.mark.parametrize("fields", PLANS)
def test_every_expert_is_held_by_as_many_ranks(fields: dict[str, Any]) -> None:
    wide = stacked(global_batch=64, **fields).widest()
    mixture = 2 if fields.get("layers") == "*.attention.*:tensor=1" else 1
    mesh = Mesh.of(wide, mixture)
    for stage in range(wide.pipeline):
        sharing = mesh.groups(stage, *mesh.along("expert"))
        same = mesh.groups(stage, *mesh.along("beyond"))
        assert sharing.shape[1] == wide.expert
        assert sharing.size == same.size == len(mesh.stage(stage))
        assert np.array_equal(np.sort(sharing.ravel()), np.sort(same.ravel()))
        for group in sharing:  # a group has each rank of a set of replicas once
            assert all(len(np.intersect1d(group, other)) <= 1 for other in same)
        assert sharing.shape[1] * same.shape[1] * mixture == len(mesh.stage(stage))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"data": 8, "expert": 4, "layers": "*.experts.up*:tensor=2;*.experts.*:tensor=1"},
         r"no layer|divided alike"),
        ({"data": 8, "expert": 4, "layers": "*.experts.down:tensor=2"}, "divided alike from"),
        ({"data": 8, "expert": 3, "layers": "*.attention.*:tensor=4"}, "must divide the 8 devices"),
        ({"tensor": 8, "expert": 8, "layers": "*.experts.*:tensor=1", "global_batch": 4},
         "allowed: micro-batches for which these are a multiple of 8"),
        ({"data": 12, "expert": 6, "layers": "*.attention.*:tensor=4", "global_batch": 12},
         "this has to fit in with tensor=1, 4 of the layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        step(**fields)
