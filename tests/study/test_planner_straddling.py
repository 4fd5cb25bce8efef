"""Plans on nodes that groups of ranks do not fill evenly: some groups lie on two nodes.

Bounds know for each stage in which groups its ranks are, and stay below the engine.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.comm.placement import switched_nodes
from ridgeline.study.planner import search
from ridgeline.study.planner.bounds import stretched, totals
from ridgeline.study.planner.plan_class import PlacedOps
from ridgeline.study.planner.searcher import Searcher, searcher
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model
from thoroughly import further

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "hwconfigs" / "clusters"
TWO_GENERATIONS = ROOT / "docs" / "examples" / "fabrics" / "two-generations.yaml"


def uneven(devices: int) -> Cluster:
    """Return racks as of GB200 NVL72 with so many devices in each."""
    parts = [f"  - {{name: nic{i}, kind: nic}}" for i in range(devices)]
    switch = [
        f"  - {{between: [device{i}, nvswitch], type: nvlink5, count: 18}}" for i in range(devices)
    ]
    nics = [f"  - {{between: [device{i}, nic{i}], type: pcie5-x16}}" for i in range(devices)]
    node = [
        "kind: node", "name: uneven", "base: gb200-nvl72", f"count: {devices}", "components:",
        "  - {name: nvswitch, kind: switch}", *parts, "links:", *switch, *nics,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        node_file, cluster_file = Path(folder) / "uneven.yaml", Path(folder) / "uneven-ndr.yaml"
        node_file.write_text("\n".join(node) + "\n")
        shipped = (CLUSTERS / "gb200-nvl72-ndr.yaml").read_text()
        cluster_file.write_text(shipped.replace("node: gb200-nvl72\n", f"node: {node_file}\n"))
        return load_cluster(str(cluster_file))


def mixture() -> Model:
    """Return a small mixture of eight experts."""
    return load_model("mixtral-8x7b", {"layers": 4, "hidden": 1024, "sequence": 512})


@functools.cache
def prepared(in_node: int, devices: int, software: str = "megatron-core") -> Searcher:
    return searcher(
        mixture(), uneven(in_node), devices, devices, precision="bf16-mixed", software=software
    )


def straddles(one: Searcher) -> list[int]:
    """Return plans with some groups that lie on two nodes."""
    s = one.space
    node = one.groups.wires.node

    def apart(i: int) -> bool:
        groups = node.reshape(-1, int(s.tensor[i] * s.expert[i]))
        return bool((groups != groups[:, :1]).any())

    return [i for i in range(len(s)) if apart(i)]


@pytest.mark.parametrize(
    ("case", "examples"),
    [
        ((3, 8, "megatron-core"), 8),
        *further(((3, 16, "ideal"), 25), ((6, 16, "megatron-core"), 25)),
    ],
)
def test_bounds_stay_below_the_engine(case: tuple[int, int, str], examples: int) -> None:
    """Whichever groups the ranks of a stage are in, and whatever replicas send."""
    one = prepared(*case)
    some = np.random.default_rng(examples).choice(straddles(one), examples, replace=False)
    assert sum(is_below(one, i) for i in some.tolist()) > examples // 2


def is_below(one: Searcher, i: int) -> bool:
    """Hold the bounds of a plan against the engine; False where it cannot be played."""
    group = one.groups.group(one.key(i))
    if group is None:
        return False
    try:
        played = one.replay(one.space.plan(i))
        bounds = [one.tightened(group, i, wired=wired) for wired in (False, True)]
    except RidgelineError:
        return False
    known = totals(group)[None, :]
    screened = one.screened(np.array([i]), np.array([0]), known, [group.placed])[0]
    step_s = played.step_time_s * (1 + 1e-9)
    assert max(screened[0], *(bound.time_s for bound in bounds)) <= step_s, one.space.plan(i)
    family = one.groups.family(one.key(i))
    exchanged = one.groups.exchanged_at_least(family)
    least = one.groups.least_at_peak(family)[:3].sum() + sum(of.least_s for of in exchanged)
    priced = one.groups.least(family)
    assert priced is not None
    assert least <= priced[:3].sum() * (1 + 1e-9)
    return True


@pytest.mark.parametrize("devices", [4, *further(8, 16)])
def test_a_search_is_what_enumeration_finds(devices: int) -> None:
    """Three devices a node and groups of two and more: the best of all replays."""
    fix = {"zero_stage": "1", "micro_batch": "1", "recompute": "none", "virtual_stages": "1..2"}
    found = search(
        mixture(), uneven(3), devices, 2 * devices, precision="bf16-mixed", fix=fix,
        software="megatron-core",
    )  # fmt: skip
    assert found.proven
    one = searcher(
        mixture(), uneven(3), devices, 2 * devices, precision="bf16-mixed",
        software="megatron-core",
    )  # fmt: skip
    s = one.space
    some = (s.sharding == 1) & (s.micro_batch == 1) & (s.chunks <= 2)
    some &= s.recompute == s.modes.index("none")
    played = []
    for i in np.flatnonzero(some).tolist():
        try:
            played.append(one.replay(s.plan(i)))
        except RidgelineError:
            continue
    best = min(r.step_time_s for r in played if r.fits)
    assert found.best.step_time_s == pytest.approx(best, rel=1e-12)


def test_all_of_a_node_of_one_switch_is_one_place() -> None:
    """Groups inside of nodes cost the same; those on two nodes by how many are on each."""
    one = prepared(6, 16)
    between = one.groups.between
    assert len(between.alike(2, 1)) == 1
    assert sorted(between.kinds(4, 1).parted.tolist()) == [1.0, 1.0, 1.0, 2.0]
    assert switched_nodes(one.groups.topology).all()
    assert not switched_nodes(from_cluster(load_cluster("dgx1-v100-edr"), 16)).any()
    each = [one.groups.wires.time_s("all-to-all", np.array(g), 1e6) for g in ([0, 1], [3, 5])]
    assert each[0] == each[1]


def test_groups_on_other_nodes_are_told_apart() -> None:
    """Groups of the same places on A100 nodes and on H100 nodes, where neither stands for both."""
    one = searcher("mlp", str(TWO_GENERATIONS), 32, 32, software="ideal")
    between = one.groups.between
    times = {one.groups.wires.time_s("all-gather", g, 1e8) for g in between.alike(8, 1)}
    assert len(times) == 2
    found = [between.rank_s("all-gather", 8, 1, 1e8, rank) for rank in (0, 15, 16, 31)]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert set(found) == times


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_mean_stage_is_stretched_by_no_more_than_the_best_division(
    data: st.DataObject,
) -> None:
    """However work and collectives are divided over stages, the fullest takes as long."""
    stages = data.draw(st.integers(1, 6))
    ratio = np.array(data.draw(st.lists(st.floats(1, 20), min_size=2, max_size=5)))
    ratio[0] = 1.0
    kinds = np.array(
        data.draw(st.lists(st.integers(0, len(ratio) - 1), min_size=stages, max_size=stages))
    )
    parts = st.lists(st.floats(0, 1), min_size=stages, max_size=stages)
    work, sent = (np.array(data.draw(parts)) for _ in range(2))
    if work.sum() + sent.sum() == 0.0:
        return
    placed = PlacedOps(2, 1, float(sent.sum()), ratio, np.zeros((0, 0)))
    whole_s = float(work.sum() + sent.sum())
    fullest = (work + ratio[kinds] * sent).max()
    longer = stretched(whole_s, [placed], [kinds])
    assert longer >= 1.0
    if longer > 1.0:
        assert whole_s * longer / stages <= fullest * (1 + 1e-9)


def subsets() -> Iterator[tuple[int, int]]:
    yield from product((2, 4, 8), (1, 2))


def test_a_place_of_all_stages_is_in_the_groups_that_it_says() -> None:
    """`of_stages` tells the kinds of the groups that these ranks are members of."""
    between = prepared(3, 16).groups.between
    for (members, apart), stages in product(subsets(), (1, 2)):
        column = between.column(stages, ((members, apart),), ())
        assert column is not None
        kinds = between.kinds(members, apart)
        for stage, kind in enumerate(between.of_stages(members, apart, stages, column).tolist()):
            rank = stage * (16 // stages) + column
            first = rank // (members * apart) * members * apart + rank % apart
            group = first + np.arange(members) * apart
            assert rank in group
            places = (between.wires.place[one] for one in (group, kinds.first[kind]))
            inside = len(set(between.wires.node[group].tolist())) == 1
            assert inside or np.array_equal(*places)
