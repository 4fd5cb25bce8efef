"""Mappers against brute force over tilings played element by element; monotony; bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nests import PASSES, convs, gemms

from oracles.mapping_tiles import Played, play
from ridgeline.errors import RidgelineError
from ridgeline.hardware.array import Dataflow
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.compute import FAR
from ridgeline.kernels.mapping.machine import MappingMachine, Split, problem
from ridgeline.kernels.mapping.mapped_contraction import Mapped, mapping_of
from ridgeline.kernels.mapping.mapper import Base, Objective, goal_of, map_contraction
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.search import ORDERS, best
from ridgeline.kernels.mapping.space import listed
from ridgeline.kernels.mapping.tilings import FEW, MANY, tile_extents
from ridgeline.kernels.mapping.traffic import traffic
from ridgeline.kernels.mapping.traffic_bounds import compulsory_bytes, lower_bound_bytes
from ridgeline.kernels.systolic.closed_form import FoldSchedule
from ridgeline.kernels.systolic.partition import ArrayChain, Arrays
from ridgeline.workload.graph import Conv, Gemm, Pass
from thoroughly import sample_of

Contraction = tuple[Gemm | Conv, Pass]
contractions = st.one_of(
    st.tuples(gemms(9), st.just(Pass.FORWARD)), st.tuples(convs(5), st.sampled_from(PASSES))
)


@st.composite
def arrays(draw: st.DrawFn) -> Arrays:
    flows: list[Dataflow] = draw(
        st.lists(st.sampled_from(["os", "ws", "is"]), min_size=1, max_size=2, unique=True)
    )
    fold = draw(st.sampled_from(["serial", "pipelined", "overlapped"]))
    edge = draw(st.sampled_from(["exact", "full"]))
    network = draw(st.sampled_from([None, ArrayChain(1, 2.0)]))
    schedules = tuple(FoldSchedule(flow, fold, edge) for flow in flows)
    number, multicast = draw(st.integers(1, 3)), draw(st.booleans())
    sides = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Arrays(*sides, number, schedules, network, multicast)


@st.composite
def machines(draw: st.DrawFn, **fixed: object) -> MappingMachine:
    capacity = float(draw(st.integers(200, 2000)))
    near_byte_s = draw(st.sampled_from([0.0, 0.125]))
    past = draw(st.sampled_from(["", "", "a", "b", "c", "ab", "bc"]))
    far_byte_s = draw(st.sampled_from([0.03125, 0.25, 2.0]))
    a, b, c = (FAR if operand in past else 0 for operand in "abc")
    split = Split(
        (a, b, c), (near_byte_s, 0.0, 0.0, far_byte_s), (capacity, math.inf, math.inf),
        (1.0, 1.0, 1.0), tuple("far" if operand in past else "near" for operand in "abc"),  # type: ignore[arg-type]
    )  # fmt: skip
    return MappingMachine(
        arrays=draw(st.one_of(st.none(), arrays())),
        cycle_s=1.0,
        mac_s=0.25,
        near_byte_s=near_byte_s,
        capacities=(math.inf, math.inf, math.inf, capacity),
        double=draw(st.sampled_from([True, True, False])),
        shared_port=True,
        byte_s=max(far_byte_s, near_byte_s),
        latency_s=float(draw(st.integers(0, 3))),
        far_byte_j=8.0, near_byte_j=1.0, idle_w=0.5,
        widths=draw(st.sampled_from([(2.0, 2.0, 2.0, 4.0), (1.0, 1.0, 1.0, 1.0)])),
        far="far", near="near", split=split if past else None,
    )  # fmt: skip


def play_of(
    contraction: Contraction, extents: tuple, order: tuple, machine: MappingMachine
) -> Played:
    loops, pass_ = contraction
    groups = dims_of(loops, pass_)
    named = {
        dim: extent
        for dims, tile in zip(groups, extents, strict=True)
        for dim, extent in zip(dims, tile, strict=False)
    }
    return play(nest_of(loops, pass_), groups, named, order, machine)


def mapped(contraction: Contraction, machine: MappingMachine, mapper: str) -> Mapped | None:
    try:
        return map_contraction(*contraction, machine, mapper)  # type: ignore[arg-type]
    except RidgelineError:
        return None


@sample_of(
    25,
    100,
    contraction=contractions,
    machine=machines(),
    mapper=st.sampled_from(["fast", "optimal"]),
)
def test_what_the_search_finds_is_what_is_played(
    contraction: Contraction, machine: MappingMachine, mapper: str
) -> None:
    found = mapped(contraction, machine, mapper)
    if found is None:
        return
    played = play_of(contraction, found.extents, found.order, machine)
    assert found.time_s == pytest.approx(played.time_s, rel=1e-12)
    assert found.compute_s == pytest.approx(played.compute_s, rel=1e-12)
    assert found.first_load_s == played.first_load_s
    assert found.last_store_s == played.last_store_s
    assert (*found.loads, found.stores) == played.words
    assert played.room <= machine.capacities[3]
    # The same words by the loop-nest analysis of the mapping that is printed.
    moved = traffic(nest_of(*contraction), mapping_of(found, *contraction, machine))
    words = {"a": found.loads[0], "b": found.loads[1], "c": found.loads[2]}
    for one in moved:
        assert one.loads == words[one.operand]
        if one.operand == "c":
            assert (one.stores, one.final) == (found.stores, found.results)


@sample_of(
    7,
    25,
    contraction=st.one_of(
        st.tuples(gemms(4), st.just(Pass.FORWARD)), st.tuples(convs(3), st.sampled_from(PASSES))
    ),
    machine=machines(),
    dense=st.booleans(),
)
def test_the_search_is_brute_force(
    contraction: Contraction, machine: MappingMachine, dense: bool
) -> None:
    """Every listed tiling in every order, played element by element: none is faster."""
    found = mapped(contraction, machine, "optimal" if dense else "fast")
    all_ = everything(contraction, machine, MANY if dense else FEW)
    if all_ is not None:
        fastest = min((played.time_s for played in all_), default=math.inf)
        assert (math.inf if found is None else found.time_s) == pytest.approx(fastest, rel=1e-12)


def everything(
    contraction: Contraction, machine: MappingMachine, density: int
) -> list[Played] | None:
    """Play all that fits; None if that is too much."""
    starts, table, _ = listed(problem(*contraction, machine)[0], density)
    tables = [table[starts[i] : starts[i + 1], :3].tolist() for i in range(4)]
    if math.prod(map(len, tables)) > 120:
        return None
    all_ = (
        play_of(contraction, extents, tuple(order), machine)
        for extents in itertools.product(*tables)
        for order in ORDERS.tolist()
    )
    return [played for played in all_ if played.room <= machine.capacities[3]]


@sample_of(10, 40,
    contraction=st.one_of(
        st.tuples(gemms(5), st.just(Pass.FORWARD)), st.tuples(convs(3), st.sampled_from(PASSES))
    ),
    byte_s=st.sampled_from([0.001, 0.01, 0.1]), capacity=st.integers(20, 400),
    energy=st.booleans(),
)  # fmt: skip
def test_of_equal_times_the_least_traffic_wins(
    contraction: Contraction, byte_s: float, capacity: int, energy: bool
) -> None:
    """Seconds are sums that rounding makes unequal: what differs by that counts as equal."""
    machine = MappingMachine(
        arrays=None, cycle_s=1.0, mac_s=0.3, near_byte_s=0.0,
        capacities=(math.inf, math.inf, math.inf, float(capacity)), double=True, shared_port=True,
        byte_s=byte_s, latency_s=0.0, far_byte_j=0.7, near_byte_j=0.0, idle_w=0.0,
        widths=(1.0, 1.0, 1.0, 1.0), far="far", near="near",
    )  # fmt: skip
    found, all_ = mapped(contraction, machine, "fast"), everything(contraction, machine, FEW)
    if found is None or not all_:
        return
    if energy:
        found = map_contraction(*contraction, machine, "fast", "energy")
        least = min(sum(played.words) for played in all_)
        fastest = min(played.time_s for played in all_ if sum(played.words) == least)
    else:
        fastest = min(played.time_s for played in all_)
        as_fast = (played for played in all_ if played.time_s <= fastest * (1 + 1e-13))
        least = min(sum(played.words) for played in as_fast)
    assert sum(found.loads) + found.stores == least
    assert found.time_s == pytest.approx(fastest, rel=1e-12)


def test_an_empty_last_store_waits_for_nothing() -> None:
    """Both columns of the output read padding alone: their gradient stores no element."""
    conv = Conv(1, 1, 1, 1, 1, 1, 1, stride=(1, 2), padding=(0, 1))
    machine = MappingMachine(
        arrays=None, cycle_s=1.0, mac_s=0.25, near_byte_s=0.0,
        capacities=(math.inf, math.inf, math.inf, 200.0), double=True, shared_port=True,
        byte_s=0.03125, latency_s=1.0, far_byte_j=8.0, near_byte_j=1.0, idle_w=0.5,
        widths=(2.0, 2.0, 2.0, 4.0), far="far", near="near",
    )  # fmt: skip
    found = mapped((conv, Pass.INPUT_GRADIENT), machine, "fast")
    assert found is not None
    assert found.time_s == 1.6875  # two tiles: the second load is behind the first product


@sample_of(15, 60,
    contraction=contractions, machine=machines(),
    objective=st.sampled_from(["time", "energy", "edp"]), dense=st.booleans(),
)  # fmt: skip
def test_pruning_loses_nothing(
    contraction: Contraction, machine: MappingMachine, objective: Objective, dense: bool
) -> None:
    """With and without bounds the search ends at the same combination, ties included."""
    check_pruning(problem(*contraction, machine), objective, dense)


def check_pruning(given_: tuple, objective: Objective, dense: bool) -> None:
    goal = goal_of(objective, Base(3.0, 5.0))
    pruned = best(*given_, MANY if dense else FEW, goal, ORDERS, True)
    full = best(*given_, MANY if dense else FEW, goal, ORDERS, False)
    np.testing.assert_array_equal(pruned[2], full[2])
    np.testing.assert_array_equal(pruned[0], full[0])
    assert pruned[3] <= full[3]


def test_sums_go_out_while_the_next_ones_begin() -> None:
    """Stores of sums in two parts pass beside the first part, where there is room for them."""
    conv = Conv(1, 90, 14, 14, 94, 3, 3, stride=(2, 2), padding=(1, 1))
    how = [FoldSchedule(flow, "serial", "exact") for flow in ("is", "ws")]
    machine = MappingMachine(
        arrays=Arrays(32, 8, 4, tuple(how)), cycle_s=1 / 1.5e9, mac_s=0.0, near_byte_s=0.0,
        capacities=(math.inf, math.inf, math.inf, 49676.0), double=True, shared_port=True,
        byte_s=1 / 8.633e10, latency_s=0.0, far_byte_j=3e-11, near_byte_j=4e-12, idle_w=53.0,
        widths=(2.0, 2.0, 2.0, 4.0), far="far", near="near",
    )  # fmt: skip
    check_pruning(problem(conv, Pass.WEIGHT_GRADIENT, machine), "time", dense=False)


@sample_of(
    10,
    40,
    m=st.integers(1, 400),
    n=st.integers(1, 200),
    k=st.integers(1, 400),
    capacity=st.floats(3e4, 3e5),
)
def test_pruning_loses_nothing_of_larger_products(m: int, n: int, k: int, capacity: float) -> None:
    """Tiles that are left over may be computed in another way than whole ones."""
    machine = big._replace(capacities=(math.inf, math.inf, math.inf, capacity))
    check_pruning(problem(Gemm(m, n, k), Pass.FORWARD, machine), "time", dense=True)


sizes = st.integers(1, 3000)
large = st.one_of(
    st.tuples(
        st.builds(Gemm, m=sizes, n=sizes, k=sizes, batch=st.integers(1, 9)),
        st.just(Pass.FORWARD),
    ),
    st.tuples(
        st.builds(
            lambda n, c, k, h, r, s: Conv(n, c, h, h, k, r, r, (s, s), (r // 2, r // 2)),
            st.integers(1, 16), st.integers(1, 300), st.integers(1, 300), st.integers(7, 60),
            st.sampled_from([1, 3, 5]), st.integers(1, 2),
        ),
        st.sampled_from(PASSES),
    ),
)  # fmt: skip
big = MappingMachine(
    Arrays(32, 16, 4, (FoldSchedule("ws", edge="full"), FoldSchedule("os")), ArrayChain(5, 8.0)),
    1e-9, 0.0, 1e-12, (math.inf, math.inf, math.inf, 2e5), True, True, 1e-11, 0.0, 1e-10, 1e-12,
    10.0, (2.0, 2.0, 2.0, 4.0), "hbm", "sram",
)  # fmt: skip


@example(  # the same words for more arrays: what is read from near memory is the limit
    contraction=(Gemm(1, 145, 64), Pass.FORWARD), mapper="fast", capacity=25472.0, slow=19.0,
    factor=1.5, what="arrays",
)  # fmt: skip
@settings(max_examples=150, deadline=None)
@given(
    contraction=large, mapper=st.sampled_from(["fast", "optimal"]),
    capacity=st.floats(2e4, 2e6), slow=st.floats(0.1, 50), factor=st.floats(1, 8),
    what=st.sampled_from(
        ["bandwidth", "near bandwidth", "capacity", "arrays", "latency"]
    ),
)  # fmt: skip
def test_more_of_anything_is_never_slower(
    contraction: Contraction, mapper: str, capacity: float, slow: float, factor: float, what: str
) -> None:
    assert big.arrays is not None
    base = big._replace(
        byte_s=slow * 1e-11, latency_s=1e-7, capacities=(math.inf, math.inf, math.inf, capacity),
        near_byte_s=slow * 1e-12,
    )  # fmt: skip
    better = {
        "bandwidth": base._replace(byte_s=base.byte_s / factor),
        "near bandwidth": base._replace(near_byte_s=base.near_byte_s / factor),
        "capacity": base._replace(capacities=(*base.capacities[:3], capacity * factor)),
        "arrays": base._replace(arrays=big.arrays._replace(number=math.ceil(4 * factor) % 12 + 4)),
        "latency": base._replace(latency_s=base.latency_s / factor),
    }[what]
    before, after = mapped(contraction, base, mapper), mapped(contraction, better, mapper)
    if before is not None:
        assert after is not None
        assert after.time_s <= before.time_s * (1 + 1e-12)


@sample_of(38, 150, contraction=large, capacity=st.floats(2e4, 2e6), slow=st.floats(0.1, 50))
def test_bounds_and_the_distance_of_fast_from_optimal(
    contraction: Contraction, capacity: float, slow: float
) -> None:
    machine = big._replace(byte_s=slow * 1e-11, capacities=(math.inf, math.inf, math.inf, capacity))
    assert machine.arrays is not None
    fast, optimal = mapped(contraction, machine, "fast"), mapped(contraction, machine, "optimal")
    if fast is None or optimal is None:
        assert fast is optimal
        return
    assert optimal.time_s <= fast.time_s
    nest, widths = nest_of(*contraction), machine.widths[:3]
    cells = machine.arrays.rows * machine.arrays.columns * machine.arrays.number
    for found in (fast, optimal):
        moved = (found.loads[0] + found.loads[1] + found.results) * 2.0 + (
            found.loads[2] + found.stores - found.results
        ) * 4.0
        assert moved >= compulsory_bytes(nest, widths) * (1 - 1e-12)
        assert moved >= lower_bound_bytes(nest, capacity, widths) * (1 - 1e-12)
        assert found.time_s >= moved * machine.byte_s * (1 - 1e-12)
        assert found.time_s >= nest.macs / cells * 1e-9 * (1 - 1e-12)
        parts = found.compute_s + found.first_load_s + found.steady_stall_s + found.last_store_s
        assert found.time_s == pytest.approx(parts, rel=1e-12)


def test_buffers_that_are_too_small_are_named() -> None:
    tiny = big._replace(capacities=(math.inf, math.inf, math.inf, 4.0))
    with pytest.raises(
        RidgelineError, match=r"sram is too small: of its 4 B .* a 4 B, b 4 B, c 8 B.*; c takes"
    ):
        map_contraction(Gemm(8, 8, 8), Pass.FORWARD, tiny)
    of_a = big._replace(capacities=(64.0, math.inf, math.inf, 2e5))
    with pytest.raises(RidgelineError, match=r"sram is too small for a: it has 64 B for a, whose"):
        map_contraction(Conv(1, 8, 9, 9, 8, 7, 7), Pass.FORWARD, of_a)


@given(size=st.integers(1, 10**6), granule=st.integers(1, 256), density=st.integers(0, 3))
@settings(deadline=None)
def test_extents_are_listed_from_all_to_one(size: int, granule: int, density: int) -> None:
    found = tile_extents(size, granule, density).tolist()
    assert (found[0], found[-1]) == (size, 1)
    assert found == sorted(set(found), reverse=True)
