"""Experts with unlike numbers of tokens: the fullest rank sets the pace, links carry its load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.parallel.comm.collective_selection import schedule_of
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.parallel.sharding.experts import dropped_share
from ridgeline.simulation import shared_topology
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Gemm, Graph
from stacked import stacked


def training(imbalanced: dict[str, object] | None = None) -> Graph:
    more = {"layers": 1, **(imbalanced or {})}
    return load_model("mixtral-8x7b", more).training(1, "bf16-mixed")


def expert_flops(graph: Graph) -> int:
    layers = ("gate-up", "down")
    return sum(op.matrix_flops for op in graph.ops if op.layer.endswith(layers))


def loads(experts: int, ranks: int, imbalance: float) -> list[float]:
    """Rows of each rank over the mean: one expert is full, the others share what is left."""
    of_expert = np.full(experts, (experts - imbalance) / (experts - 1))
    of_expert[0] = imbalance
    return [float(part.mean()) for part in np.split(of_expert, ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("imbalance", [1.0, 1.5, 2.25, 4.0])
def test_the_fullest_rank_is_the_one_that_is_simulated(ranks: int, imbalance: float) -> None:
    graph = training()
    even, made = (
        divide(graph, ShardingSpec(expert=ranks, imbalance=factor)) for factor in (1.0, imbalance)
    )
    share = loads(8, ranks, imbalance)
    assert sum(share) == pytest.approx(ranks)  # no row is lost
    assert max(share) == share[0]
    ratio = expert_flops(made.graph) / expert_flops(even.graph)
    assert ratio == pytest.approx(share[0], rel=1e-3)
    others = [
        (a, b)
        for a, b in zip(made.graph.ops, even.graph.ops, strict=True)
        if isinstance(a.loops, Gemm) and "mixture" not in a.layer and not a.layer.endswith("down")
        and not a.layer.endswith("gate-up")
    ]  # fmt: skip
    assert others
    assert all(a.loops == b.loops for a, b in others)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["dgx-a100", "selene-a100"]),
    st.sampled_from([2, 4, 8, 16]),
    st.floats(1.0, 3.0),
    st.sampled_from(["to", "from"]),
)
def test_links_carry_what_each_rank_gets(cluster: str, ranks: int, fuller: float, way: str) -> None:
    """Bytes that enter and leave each device, counted token by token."""
    machine = rl.load_cluster(cluster)
    ranks = min(ranks, machine.max_devices)
    fuller = min(fuller, float(ranks))
    topology = shared_topology(machine, ranks)
    size = 1e6
    weight = [fuller] + [(ranks - fuller) / (ranks - 1)] * (ranks - 1)
    into, out = np.zeros(ranks), np.zeros(ranks)
    for a in range(ranks):
        for b in range(ranks):
            if a != b:
                sent = size / ranks * (weight[b] if way == "to" else weight[a])
                into[b], out[a] = into[b] + sent, out[a] + sent
    group = np.arange(ranks)
    even = schedule_of("all-to-all", topology, group, size).bytes_on_wire()
    uneven = schedule_of(f"all-to-all {way}:{fuller!r}", topology, group, size).bytes_on_wire()
    assert set(uneven) <= set(even)  # a rank that gets nothing has no flow
    devices = topology.devices[:ranks].tolist()
    for rank, device in enumerate(devices):
        for ends, found in ((topology.target, into), (topology.source, out)):
            mine = [link for link in even if int(ends[link]) == device]
            carried = sum(uneven.get(link, 0.0) for link in mine) / sum(even[link] for link in mine)
            assert carried == pytest.approx(found[rank] / (size * (ranks - 1) / ranks), rel=1e-6)


def test_the_step_waits_for_the_fullest_rank() -> None:
    model = rl.load_model("mixtral-8x7b", {"layers": 2})
    steps = [
        rl.simulate(
            model, "selene-a100", stacked(global_batch=8, data=8, expert=8, expert_load_factor=f)
        )
        for f in (1.0, 1.5, 3.0)
    ]
    times = [step.step_time_s for step in steps]
    assert times == sorted(times)
    assert times[0] < times[2]
    held = [step.memory_bytes["activations"] for step in steps]
    assert held[0] < held[1] < held[2]
    plain = stacked(global_batch=8, data=8, expert_load_factor=2.0)  # all experts on each device
    same = rl.simulate(model, "selene-a100", plain).step_time_s
    assert same == rl.simulate(model, "selene-a100", stacked(global_batch=8, data=8)).step_time_s


def test_what_is_above_a_capacity_is_dropped() -> None:
    mixture = {"experts": 8, "top_k": 2, "width": 14336, "capacity_factor": 1.25}
    graph = training({"mixture": mixture})
    assert dropped_share(graph, 1.25) == pytest.approx(0.0, abs=1e-6)
    assert dropped_share(graph, 2.0) == pytest.approx(0.75 / 8)  # of 1/8 x 2 of all choices
    assert dropped_share(training(), 2.0) == 0.0  # no capacity is stated: nothing is dropped
    even, full = (divide(graph, ShardingSpec(expert=8, imbalance=f)) for f in (1.0, 2.0))
    assert expert_flops(even.graph) == expert_flops(full.graph)  # empty rows are computed, too


@pytest.mark.parametrize(
    ("name", "imbalance", "said"),
    [("mixtral-8x7b", 4.5, "1 to 4"), ("gpt2", 2.0, "gpt2 has none")],
)
def test_loads_that_cannot_be_say_why(name: str, imbalance: float, said: str) -> None:
    graph = load_model(name, {"layers": 1}).training(1, "fp32")
    with pytest.raises(ConfigError, match=said):
        divide(graph, ShardingSpec(expert=1, imbalance=imbalance))
    with pytest.raises(ConfigError, match="expert_load_factor"):
        stacked(global_batch=8, expert_load_factor=0.5)
