"""State-space layers: the op against its recurrence, and what products of chunks count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import run
from oracles.graph_rules_states import in_chunks
from ridgeline.errors import ConfigError
from ridgeline.workload import Graph, load_model, ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Gemm, Role
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.ops.state_space import StateSpaceSizes


def layer(sizes: StateSpaceSizes, positions: int, taps: int = 3) -> Graph:
    b = GraphBuilder("test", 2, PRECISIONS["fp32"])
    mixed = b.input("mixed", (2, positions, sizes.mixed))
    steps = b.input("steps", (2, positions, sizes.heads))
    return b.graph(ops.state_space(b, "states", mixed, steps, sizes, taps))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from((1, 2)), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4),
    st.integers(1, 3), st.sampled_from((1, 2, 4)), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_products_of_chunks_are_the_recurrence_and_are_counted(
    groups: int, each: int, size: int, state: int, chunks: int, chunk: int, seed: int
) -> None:
    sizes = StateSpaceSizes(groups * each, size, groups, state, chunk)
    graph = layer(sizes, chunks * chunk)
    (op,) = (op for op in graph.ops if op.kind == "state-space")
    rng = np.random.default_rng(seed)
    given_values = {
        t.name: rng.normal(size=t.shape)
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT}
    }
    env = run(graph, given_values)
    y, macs = in_chunks(op, [env[name] for name in op.inputs], chunk)
    assert y.reshape(env[op.outputs[0]].shape) == pytest.approx(env[op.outputs[0]], abs=1e-9)
    assert isinstance(op.loops, Gemm)
    rounded = op.loops.m * op.loops.n * op.loops.batch  # of k, up to a whole one
    assert macs <= op.loops.macs < macs + rounded


def test_what_is_kept_does_not_grow_with_the_state() -> None:
    """Scores and states are formed again in the backward pass."""
    tiny = {"vocabulary": 8, "sequence": 8, "layers": 2, "hidden": 8, "pattern": "M-"}
    small, large = (
        load_model("nemotron-h-8b", {**tiny, "state_space": {**PARTS, "chunk": chunk}})
        for chunk in (2, 8)
    )
    kept = [
        {n: t.bytes for n, t in m.training(1).tensors.items() if t.role is Role.ACTIVATION}
        for m in (small, large)
    ]
    assert kept[0] == kept[1]


PARTS = {"heads": 4, "head_size": 2, "groups": 2, "state": 4}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layers": 53}, "the pattern says 52"),
        ({"state_space.groups": 3}, "must divide heads"),
        ({"pattern": "*-", "layers": 2}, "layers M of the pattern, and only they"),
        ({"pattern": "ME", "layers": 2}, "layers E of the pattern, and only they"),
        ({"pattern": "MX", "layers": 2}, "pattern"),
        ({"further_tokens": 1}, "need further_pattern"),
    ],
)
def test_what_cannot_be_says_why(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_model("nemotron-h-8b", fields)


def test_the_parameters_of_a_layer() -> None:
    """Dao and Gu, 2024, Section 7: of 2 hidden features inside, 3 of 4 weights are products."""
    graph = load_model("nemotron-h-8b").forward(1)
    sizes = {
        t.name.partition("blocks.0.")[2]: t.elements
        for t in graph.tensors.values()
        if t.role is Role.WEIGHT and t.name.startswith("blocks.0.")
    }
    hidden, inner, mixed, heads = 4096, 8192, 8192 + 2 * 8 * 128, 128
    assert sizes == {
        "norm.weight": hidden,
        "state-space.input.weight": hidden * (inner + mixed + heads),
        "state-space.states.filter": mixed * 4,
        "state-space.states.filter-bias": mixed,
        "state-space.states.step-bias": heads,
        "state-space.states.decay": heads,
        "state-space.states.skip": heads,
        "state-space.norm.weight": inner,
        "state-space.output.weight": inner * hidden,
    }
