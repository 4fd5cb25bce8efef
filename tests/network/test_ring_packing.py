from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_machines import CUBE_MESH

from oracles.ring_packing import best_total, widest_chain
from ridgeline.network.packing import MAX_DEVICES, Packing, pack_chains, pack_rings
from thoroughly import sample_of

Rows = list[list[int]]


def matrices(pairs: dict[tuple[int, int], int], members: tuple[int, ...]) -> tuple[Rows, Rows]:
    """Count and bandwidth (1 everywhere) of the links among some devices."""
    n = len(members)
    count = [[0] * n for _ in range(n)]
    for (a, b), links in pairs.items():
        if a in members and b in members:
            i, j = members.index(a), members.index(b)
            count[i][j] = count[j][i] = links
    return count, [[1] * n for _ in range(n)]


def pack(count: Rows, bandwidth: Rows) -> Packing:
    return pack_rings(tuple(map(tuple, count)), tuple(tuple(map(float, r)) for r in bandwidth))


def check_disjoint(packing: Packing, count: Rows, bandwidth: Rows) -> None:
    used: Counter[tuple[int, int]] = Counter()
    for order, rate in zip(packing.rings, packing.bandwidths_bytes_per_s, strict=True):
        assert sorted(order) == list(range(len(count)))
        hops = list(pairwise([*order, order[0]]))
        assert rate == min(bandwidth[a][b] for a, b in hops)
        used.update(hops)
    assert all(times <= count[a][b] for (a, b), times in used.items())


P100 = dict.fromkeys(CUBE_MESH, 1)


def test_the_p100_cube_mesh_has_two_disjoint_undirected_hamiltonian_cycles() -> None:
    assert len(P100) == 16
    count, _ = matrices(P100, tuple(range(8)))
    linked = [row.copy() for row in count]
    found = []

    def cycles(path: list[int]) -> None:
        if len(path) == 8:
            if linked[path[-1]][0] and path[1] < path[-1]:
                found.append({frozenset(hop) for hop in pairwise([*path, 0])})
            return
        for device in range(8):
            if linked[path[-1]][device] and device not in path:
                cycles([*path, device])

    cycles([0])
    disjoint = [(a, b) for a, b in combinations(found, 2) if not a & b]
    assert (len(found), len(disjoint)) == (30, 12)


@pytest.mark.parametrize(("pairs", "rings"), [(P100, 4), (CUBE_MESH, 6)])
def test_the_cube_mesh_uses_every_link_of_a_device(
    pairs: dict[tuple[int, int], int], rings: int
) -> None:
    count, bandwidth = matrices(pairs, tuple(range(8)))
    packing = pack(count, bandwidth)
    check_disjoint(packing, count, bandwidth)
    assert packing.proven
    assert len(packing.rings) == rings == min(sum(row) for row in count)


@pytest.mark.parametrize("size", range(2, 8))
def test_no_better_packing_of_any_subset_of_the_v100_cube_mesh(size: int) -> None:
    seen = set()
    for members in combinations(range(8), size):
        count, bandwidth = matrices(CUBE_MESH, members)
        key = tuple(map(tuple, count))
        if key in seen:
            continue
        seen.add(key)
        packing = pack(count, bandwidth)
        check_disjoint(packing, count, bandwidth)
        assert packing.proven
        assert len(packing.rings) == best_total(key, tuple(map(tuple, bandwidth)))


def test_two_devices_send_to_each_other_over_all_their_links() -> None:
    packing = pack([[0, 2], [2, 0]], [[1, 1], [1, 1]])
    assert packing.rings == ((0, 1), (0, 1))


@pytest.mark.parametrize(("n", "rings"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_complete_graphs_decompose_except_for_4_and_6_devices(n: int, rings: int) -> None:
    # Tillson, "A Hamiltonian decomposition of K*_2m, 2m >= 8", J. Comb. Theory B 29(1), 1980
    packing = pack([[int(i != j) for j in range(n)] for i in range(n)], [[1] * n] * n)
    assert packing.proven
    assert len(packing.rings) == rings


def multigraph(seed: int) -> tuple[Rows, Rows]:
    """Links and their bandwidths, at random; half of them full duplex as real nodes are."""
    chance = random.Random(seed)
    n = chance.randint(2, 6)
    links = [0, 1, 1, 2] if n < 6 else [0, 0, 1, 1]
    rates = chance.choice([[1], [1, 2], [1, 2, 3], [1, 3, 4, 7]])
    count = [[0 if i == j else chance.choice(links) for j in range(n)] for i in range(n)]
    bandwidth = [[chance.choice(rates) for _ in range(n)] for _ in range(n)]
    if chance.random() < 0.5:
        count = [[count[min(i, j)][max(i, j)] for j in range(n)] for i in range(n)]
    return count, bandwidth


@sample_of(150, 600, st.integers(0, 2**32))
def test_no_better_packing_exists(seed: int) -> None:
    check_packing(*multigraph(seed))


HARD: list[tuple[Rows, Rows]] = [
    (  # the best packing leaves links of the scarcest device unused
        [[0, 0, 1, 1], [1, 0, 0, 2], [1, 1, 0, 1], [2, 2, 2, 0]],
        [[4, 4, 4, 7], [3, 1, 1, 3], [7, 1, 3, 3], [3, 4, 4, 1]],
    ),
    (  # the same links are left over by sets of rings of different bandwidth
        [[0, 2, 0, 1, 1], [2, 0, 0, 1, 2], [1, 1, 0, 0, 1], [1, 0, 1, 0, 1], [1, 2, 1, 2, 0]],
        [[1, 1, 2, 1, 2], [2, 2, 2, 2, 1], [2, 2, 1, 2, 1], [1, 1, 2, 2, 2], [1, 2, 1, 1, 1]],
    ),
]


@pytest.mark.parametrize(("count", "bandwidth"), HARD)
def test_hard_packings(count: Rows, bandwidth: Rows) -> None:
    check_packing(count, bandwidth)


def check_packing(count: Rows, bandwidth: Rows) -> None:
    packing = pack(count, bandwidth)
    check_disjoint(packing, count, bandwidth)
    best = best_total(tuple(map(tuple, count)), tuple(map(tuple, bandwidth)))
    total = sum(packing.bandwidths_bytes_per_s)
    assert packing.proven
    assert total == best
    assert packing == pack_rings.__wrapped__(  # found anew, not remembered
        tuple(map(tuple, count)), tuple(tuple(map(float, r)) for r in bandwidth)
    )


def test_a_search_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.network.packing.MAX_STATES", 3)
    count = tuple(tuple(int(i != j) for j in range(6)) for i in range(6))
    packing = pack_rings.__wrapped__(count, tuple((1.0,) * 6 for _ in range(6)))
    assert not packing.proven
    check_disjoint(packing, [list(row) for row in count], [[1] * 6] * 6)


@given(st.integers(2, MAX_DEVICES - 2), st.data())
@settings(max_examples=100, deadline=None)
def test_each_chain_is_the_widest_that_the_ones_before_leave(n: int, data: st.DataObject) -> None:
    widths = st.sampled_from([0, *range(6, 60, 6)])
    half = [[data.draw(widths) for _ in range(n)] for _ in range(n)]
    width = tuple(
        tuple(half[min(i, j)][max(i, j)] if i != j else 0 for j in range(n)) for i in range(n)
    )
    ends = [(0, n - 1), (n - 1, 0), (0, n - 1)]  # the second runs against the first
    bandwidth = tuple(tuple(map(float, row)) for row in width)
    chains = pack_chains(bandwidth, tuple((pair,) for pair in ends))
    if widest_chain(width, 0, n - 1) is None:
        assert chains == ()
        return
    users: Counter[frozenset[int]] = Counter()
    for (first, last), chain in zip(ends, chains, strict=True):
        assert (chain[0], chain[-1], sorted(chain)) == (first, last, list(range(n)))
        shared = tuple(
            tuple(width[i][j] // (1 + users[frozenset((i, j))]) for j in range(n)) for i in range(n)
        )
        assert min(shared[a][b] for a, b in pairwise(chain)) == widest_chain(shared, first, last)
        users.update(frozenset(hop) for hop in pairwise(chain))


def test_a_chain_takes_the_first_pair_of_ends_that_works() -> None:
    line = ((0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 1.0, 0.0))  # 0 - 1 - 2
    assert pack_chains(line, (((0, 1), (1, 2), (2, 0), (0, 2)),)) == ((2, 1, 0),)
    assert pack_chains(line, (((0, 1), (1, 2)),)) == ()
    assert pack_chains(((0.0,),), (((0, 0),), ((0, 0),))) == ((0,), (0,))
