"""Tokens that go once to each node: counted against every choice of experts there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.routing import routes
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.collective_selection import schedule_of
from ridgeline.parallel.comm.expert_links import link_ratio
from ridgeline.simulation import shared_topology
from stacked import changed, stacked

SELENE = rl.load_cluster("selene-a100")


HGX = rl.load_cluster("hgx-b200-ndr")


def counted(
    topology: Topology, ranks: int, experts: int, choices: int, *, rails: bool
) -> np.ndarray:
    """Bytes by link if every rank has one token for each choice, of one byte, sent by hand."""
    loads = np.zeros(topology.n_links)
    node = topology.node_of[topology.devices[:ranks]]

    def send(a: int, b: int, size: float) -> None:
        ends = topology.devices[[a, b]].astype(np.int64)
        np.add.at(loads, routes(topology, ends[:1], ends[1:]).links, size)

    for chosen in combinations(range(experts), choices):
        wanted = {expert * ranks // experts for expert in chosen}  # ranks that hold them
        for mine in range(ranks):
            for there in {int(node[r]) for r in wanted}:
                members = np.flatnonzero(node == there).tolist()
                home = np.flatnonzero(node == node[mine]).tolist()
                # A token enters by the rank of the same place, or by any of them, as likely.
                entries = [members[home.index(mine) % len(members)]]
                if mine not in members and not rails:
                    entries = members
                for entry in entries:
                    if entry != mine:
                        send(mine, entry, 1 / len(entries))
                    for r in wanted.intersection(members) - {entry}:
                        send(entry, r, 1 / len(entries))
    return loads


@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize(
    ("ranks", "experts", "choices"), [(4, 8, 2), (8, 8, 3), (12, 24, 2), (16, 16, 2)]
)
def test_every_link_carries_what_all_choices_put_on_it(
    ranks: int, experts: int, choices: int, *, rails: bool
) -> None:
    """Two devices of a DGX A100 share the way to two adapters; one of an HGX B200 has its own."""
    topology = shared_topology(HGX if rails else SELENE, ranks)
    by_hand = counted(topology, ranks, experts, choices, rails=rails)
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    ends = topology.devices[np.array(pairs)].astype(np.int64)
    even = np.bincount(routes(topology, ends[:, 0], ends[:, 1]).links, minlength=topology.n_links)
    n_choices = len(list(combinations(range(experts), choices)))
    # One message of an even all-to-all: what a rank sends for all choices, over the ranks.
    ratio = by_hand / (n_choices * choices / ranks)
    found = link_ratio(f"nodes:{choices}:{experts}", topology, tuple(range(ranks))) * even
    np.testing.assert_allclose(found, ratio, rtol=1e-9, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([SELENE, HGX]),
    st.sampled_from([16, 32]),
    st.sampled_from([32, 64, 256]),
    st.integers(1, 8),
)
def test_less_leaves_a_node_the_more_experts_a_token_has(
    cluster: Cluster, ranks: int, experts: int, choices: int
) -> None:
    topology = shared_topology(cluster, ranks)
    group = np.arange(ranks)
    even = schedule_of("all-to-all", topology, group, 1e6).bytes_on_wire()
    op = f"all-to-all nodes:{choices}:{experts}"
    once = schedule_of(op, topology, group, 1e6).bytes_on_wire()
    leaving: dict[int, list[int]] = {}
    for link in even:
        here, there = (topology.node_of[end[link]] for end in (topology.source, topology.target))
        if here >= 0 and there < 0:
            leaving.setdefault(int(here), []).append(link)
    assert len(leaving) == ranks // 8
    for links in leaving.values():
        for link in links:
            assert once[link] <= even[link] * (1 + 1e-9)
            assert once[link] > even[link] * 0.9 / choices
            if choices == 1:
                assert once[link] == pytest.approx(even[link])


def test_tokens_stay_on_their_rails() -> None:
    """Between nodes that share their leaves, what goes once to each node passes no spine."""
    topology = shared_topology(HGX, 256)
    group = np.arange(32)
    once = schedule_of("all-to-all nodes:8:256", topology, group, 1e6).bytes_on_wire()
    even = schedule_of("all-to-all", topology, group, 1e6).bytes_on_wire()

    def above(sent: dict[int, float]) -> float:
        ends = topology.node_of[topology.source], topology.node_of[topology.target]
        return sum(size for link, size in sent.items() if max(ends[0][link], ends[1][link]) < 0)

    assert above(dict(even)) > 0
    assert above(dict(once)) == 0


def test_a_step_over_nodes_is_shorter() -> None:
    small = {"layers": 1, "sequence": 256, "mixture.experts": 16, "mixture.top_k": 8}
    model = rl.load_model("mixtral-8x7b", {**small, "mixture.width": 256})
    plan = stacked(global_batch=16, data=16, expert=16)
    each, once = (
        rl.simulate(model, "selene-a100", changed(plan, moe__dispatch=name))
        for name in ("per-expert", "node-limited")
    )
    assert once.step_time_s < each.step_time_s
    assert once.flops_per_step == each.flops_per_step
    with pytest.raises(ConfigError, match="needs per-expert"):
        stacked(
            global_batch=8, data=8, expert=8, moe__dispatch="node-limited", expert_load_factor=1.5
        )
