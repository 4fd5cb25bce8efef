"""Collectives of jobs on nodes of several kinds pay what the group's own nodes need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.network import collective
from ridgeline.network.node_constants import of_ranks, slower_library, slowest
from ridgeline.network.resolve import load_cluster, topology_of

FILE = str(Path(__file__).parents[2] / "docs" / "examples" / "fabrics" / "two-generations.yaml")
SIZES = st.floats(1.0, 1e9)
OPS = st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
A100, H100 = range(8), range(16, 24)


@settings(max_examples=30, deadline=None)
@given(OPS, SIZES, st.sampled_from([("dgx-a100", A100), ("dgx-h100", H100)]))
def test_a_group_on_one_kind_of_node_costs_what_it_costs_there(
    op: str, size: float, of: tuple[str, range]
) -> None:
    """To the last digit, whatever other nodes the job has."""
    node, ranks = of
    mixed = collective(op, size, load_cluster(FILE), ranks=list(ranks))
    alone = collective(op, size, node, ranks=8)
    assert (mixed.algorithm, mixed.time_s) == (alone.algorithm, alone.time_s)


@settings(max_examples=20, deadline=None)
@given(SIZES, st.sampled_from(["ring-simple", "ring-ll", "ring-ll128", "tree-simple", "tree-ll"]))
def test_a_group_over_both_kinds_is_no_faster_than_on_the_fast(size: float, name: str) -> None:
    """Its ways pass links of both, and its library's constants are the slower."""
    both = load_cluster(FILE)
    mixed, fast = (
        collective("all-reduce", size, both, ranks=[*ranks], algorithm=name).time_s
        for ranks in ([0, 16], [16, 24])
    )
    assert mixed > fast


def test_constants_of_kinds_are_joined_by_the_slower() -> None:
    topology = topology_of(load_cluster(FILE), 32)
    slow, fast = topology.node_constants
    assert topology.collective_latency_s == max(
        slow.collective_latency_s, fast.collective_latency_s
    )
    assert slowest([slow, fast]) == slowest([fast, slow])
    for name, of in {**slow.library, **fast.library}.items():
        assert slower_library(of, of) == of
        assert topology.library[name] == of  # generations of NVLink have names of their own
    one, other = slow.library["nvlink3"], fast.library["nvlink4"]
    joined = slower_library(one, other)
    assert joined.generation == "ampere"
    for a, b, both in zip(one.protocols, other.protocols, joined.protocols, strict=True):
        assert both.start_s == max(a.start_s or 0.0, b.start_s or 0.0) or both.start_s is None
        assert both.copy_bytes_per_s == min(a.copy_bytes_per_s, b.copy_bytes_per_s)
    assert of_ranks(topology, np.array(A100)) is of_ranks(topology, [3, 9])
    assert of_ranks(topology, range(32)) is topology


def test_a_step_on_two_kinds_prices_each_group_by_its_own_nodes() -> None:
    """Tensor-parallel groups inside of nodes: those of the fast nodes take less."""
    plan = rl.Plan(data=4, tensor=8, global_batch=16, micro_batch=1, precision="bf16-mixed")
    found = rl.simulate("gpt3-1.3b", load_cluster(FILE), plan).details
    lowered, timeline = found.lowered, found.timeline
    program, kinds = timeline.program, np.array(lowered.kind_of_rank)
    kind = kinds[program.stream_rank[program.stream]]
    rows = {row for (row, _), talk in lowered.talks.items() if talk.ranks == 8}
    own = np.isin(program.cost, list(rows))
    slow, fast = (timeline.durations_s[own & (kind == k)] for k in (0, 1))
    assert len(slow) == len(fast) > 0
    assert fast.min() < slow.min()
