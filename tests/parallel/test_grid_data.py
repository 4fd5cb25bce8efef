"""Networks that are divided over a grid of devices learn the same, on real data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from oracles import graph_networks
from oracles.graph_interpreter import run
from oracles.grid_data import GridDevices
from oracles.sharded_data import divided_with_layouts, updates
from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.divide import ShardingSpec
from ridgeline.parallel.sharding.tensor_2d import Grid
from ridgeline.workload import training_graph
from ridgeline.workload.graph import Graph, Role
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.optimizers import OPTIMIZERS

MODES = ("summa", "gather", "stationary")


def values(graph: Graph, seed: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(math.prod(t.shape[1:]))
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    make = draw(
        st.sampled_from(
            [graph_networks._images, graph_networks._sequences, graph_networks._features]
        )
    )
    few = [move for move in graph_networks.SEQUENCE_MOVES if move != "experts"]
    with mock.patch.object(graph_networks, "SEQUENCE_MOVES", few):
        return make(draw, 4, draw(st.sampled_from(sorted(PRECISIONS))))


def check(graph: Graph, grid: Grid, seed: int) -> None:
    division = ShardingSpec(tensor=grid.rows * grid.columns, two=grid)
    try:
        layouts = divided_with_layouts(graph, division)
    except ConfigError as refused:
        assert "heads" in str(refused)  # noqa: PT017
        assume(False)
    inputs = values(graph, seed)
    before = run(graph, inputs)
    devices = GridDevices(graph, layouts, grid.mode)
    assume(not devices.is_padded())
    devices.run(inputs)
    for weight, gradient in updates(graph).items():
        np.testing.assert_allclose(
            devices.gradient(weight), before[gradient], rtol=1e-5, atol=1e-8, err_msg=weight
        )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graphs(),
    st.sampled_from([(2, 2), (2, 3), (4, 2)]),
    st.sampled_from(MODES),
    st.integers(0, 2**32 - 1),
)
def test_any_network_learns_the_same_on_any_grid(
    forward: Graph, shape: tuple[int, int], mode: str, seed: int
) -> None:
    check(training_graph(forward, OPTIMIZERS["sgd"]), Grid(*shape, mode), seed)
