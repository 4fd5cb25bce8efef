"""Several levels of buffers against tiles played element by element inside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nests import PASSES, convs, gemms
from test_search import Contraction, big, large, machines, mapped

from oracles.mapping_tiles import Extents, Within
from oracles.nested_tiles import best_of_all, combinations, play_levels
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.footprint import Ints
from ridgeline.kernels.mapping.machine import Buffer, MappingMachine, levels_of, problem
from ridgeline.kernels.mapping.mapper import NESTED
from ridgeline.kernels.mapping.multi_level import MultiLevelSearch
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.pipeline import FASTEST, TIME, Shape
from ridgeline.kernels.mapping.search import ORDERS
from ridgeline.kernels.mapping.space import listed
from ridgeline.kernels.mapping.subproblems import parts
from ridgeline.kernels.mapping.tilings import PIXELS, PLACE, POINTS, REPRESENTATIVE_FIELDS, SELF
from ridgeline.kernels.single_op import gemm
from ridgeline.workload.graph import Conv, Gemm, Pass
from thoroughly import sample_of

ROOT = Path(__file__).parents[3]


@st.composite
def buffers(draw: st.DrawFn) -> Buffer:
    return Buffer(
        "nearer", (math.inf, math.inf, math.inf, float(draw(st.integers(40, 300)))),
        draw(st.booleans()), True, draw(st.sampled_from([0.03125, 0.25])),
        float(draw(st.integers(0, 1))), 0.5, draw(st.sampled_from([0.0, 0.125])),
    )  # fmt: skip


@st.composite
def deep_machines(draw: st.DrawFn, most: int = 2) -> MappingMachine:
    nearer = draw(st.lists(buffers(), min_size=1, max_size=most))
    return draw(machines())._replace(nearer=tuple(nearer), near_byte_s=0.0, split=None)


class Parts:
    """The contraction of any tile, from its place alone: no two of them are taken to be alike."""

    def __init__(self, contraction: Contraction, machine: MappingMachine, mapper: str) -> None:
        self.groups = dims_of(*contraction)
        axes, self.shape, _, engine = problem(*contraction, machine)
        self.axes = [axes]
        self.search = MultiLevelSearch(levels_of(machine), engine, NESTED[mapper], FASTEST)  # type: ignore[index]
        self.stack: list[tuple[Within, Extents, Ints]] = []

    def of(self, outer: Within, extents: Extents, axes: Ints, tile: Within) -> Ints:
        found = np.empty_like(axes)
        for number, dims in enumerate(self.groups):
            tiling = np.ones(6, np.int64)
            place = 0
            for i, dim in enumerate(dims):
                low, high = outer.tile[dim]
                tiling[i] = extents[dim]
                place = place * -(-(high - low) // extents[dim])
                place += (tile.tile[dim][0] - low) // extents[dim]
            row = np.zeros((1, REPRESENTATIVE_FIELDS))
            row[0, PLACE] = place
            if not axes[number, PIXELS]:
                low, high = tile.tile[dims[0]]
                row[0, POINTS + SELF] = high - low
            found[number] = parts(axes[number], tiling, row)[0]
        return found

    def choose(self, depth: int, within: Within) -> tuple[Extents, tuple[int, ...]]:
        """What the search says of a tile; tiles come in depth first: the outer one is known."""
        del self.stack[depth:]
        axes = self.axes[0] if depth == 0 else self.of(*self.stack[depth - 1], within)
        shape = self.shape._replace(begun=self.begun(depth, within), ended=within.ended)
        solution = self.search.solve(axes, shape, depth)
        extents = next(combinations([[row] for row in solution.extents.tolist()], self.groups))
        self.stack.append((within, extents, axes))
        return extents, tuple(solution.order.tolist())

    def begun(self, depth: int, within: Within) -> bool:
        """Whether the sums of a tile go on: it does not begin at the first of k."""
        return any(within.tile[dim][0] > 0 for dim in self.groups[3])


deep = st.one_of(
    st.tuples(gemms(6), st.just(Pass.FORWARD)), st.tuples(convs(4), st.sampled_from(PASSES))
)


halo = MappingMachine(
    arrays=None, cycle_s=1.0, mac_s=0.25, near_byte_s=0.0,
    capacities=(math.inf, math.inf, math.inf, 200.0), double=True, shared_port=True,
    byte_s=0.03125, latency_s=0.0, far_byte_j=8.0, near_byte_j=1.0, idle_w=0.5,
    widths=(2.0, 2.0, 2.0, 4.0), far="far", near="near",
    nearer=(Buffer("nearer", (math.inf,) * 3 + (40.0,), False, True, 0.03125, 0.0, 0.5),),
)  # fmt: skip


@example(  # the first tile of a part adds to sums of the part before
    contraction=(Conv(1, 1, 3, 3, 1, 2, 1), Pass.INPUT_GRADIENT), machine=halo, mapper="fast"
)
@settings(max_examples=25, deadline=None)
@given(contraction=deep, machine=deep_machines(), mapper=st.sampled_from(["fast", "optimal"]))
def test_what_is_found_is_what_is_played(
    contraction: Contraction, machine: MappingMachine, mapper: str
) -> None:
    """Seconds and words over every border, element by element through all levels."""
    found = mapped(contraction, machine, mapper)
    if found is None:
        return
    parts_ = Parts(contraction, machine, mapper)
    time_s, engine_s, words = play_levels(
        nest_of(*contraction), parts_.groups, machine, parts_.choose
    )
    assert found.time_s == pytest.approx(time_s, rel=1e-12)
    assert found.compute_s == pytest.approx(engine_s, rel=1e-12)
    assert words == [
        [*level.loads, level.stores, level.results] for level in (found, *found.nearer)
    ]
    stalls = found.nearer_stall_s + found.first_load_s + found.steady_stall_s + found.last_store_s
    assert found.time_s == pytest.approx(found.compute_s + stalls, rel=1e-12)
    for level in found.nearer:  # what is a result on one level is one on all
        assert level.results == found.results
        assert level.loads[0] >= found.loads[0]
        assert level.loads[1] >= found.loads[1]


@sample_of(
    4,
    15,
    contraction=st.one_of(
        st.tuples(gemms(3), st.just(Pass.FORWARD)), st.tuples(convs(2), st.sampled_from(PASSES))
    ),
    machine=deep_machines(1),
    mapper=st.sampled_from(["fast", "optimal"]),
)
def test_the_search_is_brute_force_over_all_levels(
    contraction: Contraction, machine: MappingMachine, mapper: str
) -> None:
    densities = NESTED[mapper]  # type: ignore[index]
    axes = problem(*contraction, machine)[0]
    groups = dims_of(*contraction)

    def tables(depth: int, within: Within) -> Iterator[tuple[Extents, tuple[int, ...]]]:
        here = axes.copy()
        for number, dims in enumerate(groups):
            spans = [high - low for low, high in (within.tile[dim] for dim in dims)]
            if here[number, PIXELS]:
                here[number, 4:7] = spans
            else:
                here[number, 1] = spans[0]
        starts, table, _ = listed(here, densities[min(depth, 1)])
        rows = [table[starts[i] : starts[i + 1], :3].tolist() for i in range(4)]
        for extents in combinations(rows, groups):
            for order in ORDERS.tolist():
                yield extents, tuple(order)

    if math.prod(np.diff(listed(axes, densities[0])[0])) > 6:
        return
    found = mapped(contraction, machine, mapper)
    least = best_of_all(nest_of(*contraction), groups, machine, tables)
    assert (math.inf if found is None else found.time_s) == pytest.approx(least, rel=1e-12)


def deep_problem(
    contraction: Contraction, machine: MappingMachine, mapper: str, pruned: bool
) -> tuple[MultiLevelSearch, Ints, Shape]:
    axes, shape, _, engine = problem(*contraction, machine)
    return (
        MultiLevelSearch(levels_of(machine), engine, NESTED[mapper], FASTEST, pruned),
        axes,
        shape,
    )  # type: ignore[index]


@settings(max_examples=15, deadline=None)
@given(contraction=deep, machine=deep_machines(), mapper=st.sampled_from(["fast", "optimal"]))
def test_pruning_loses_nothing(
    contraction: Contraction, machine: MappingMachine, mapper: str
) -> None:
    results = []
    for pruned in (True, False):
        search, axes, shape = deep_problem(contraction, machine, mapper, pruned)
        solution = search.solve(axes, shape)
        results.append((solution, search.played))
    (one, played), (other, all_) = results
    np.testing.assert_array_equal(one.found[TIME], other.found[TIME])
    np.testing.assert_array_equal(one.extents, other.extents)
    assert played <= all_


two_levels = big._replace(
    nearer=(Buffer("near", (math.inf,) * 3 + (3e4,), True, True, 2e-12, 1e-8, 1e-12),)
)


@sample_of(7, 25,
    contraction=large, capacity=st.floats(2e5, 4e6), slow=st.floats(0.1, 20),
    factor=st.floats(1, 8),
    what=st.sampled_from(
        ["bandwidth", "nearer bandwidth", "capacity", "nearer capacity", "arrays", "latency"]
    ),
)  # fmt: skip
def test_more_of_anything_on_any_level_is_never_slower(
    contraction: Contraction, capacity: float, slow: float, factor: float, what: str
) -> None:
    assert big.arrays is not None
    near = two_levels.nearer[0]._replace(byte_s=slow * 1e-12)
    base = two_levels._replace(capacities=(math.inf,) * 3 + (capacity,), nearer=(near,))
    better = {
        "bandwidth": base._replace(byte_s=base.byte_s / factor),
        "nearer bandwidth": base._replace(nearer=(near._replace(byte_s=near.byte_s / factor),)),
        "capacity": base._replace(capacities=(math.inf,) * 3 + (capacity * factor,)),
        "nearer capacity": base._replace(
            nearer=(near._replace(capacities=(math.inf,) * 3 + (near.capacities[3] * factor,)),)
        ),
        "arrays": base._replace(arrays=big.arrays._replace(number=math.ceil(4 * factor) % 12 + 4)),
        "latency": base._replace(nearer=(near._replace(latency_s=near.latency_s / factor),)),
    }[what]
    before, after = mapped(contraction, base, "fast"), mapped(contraction, better, "fast")
    if before is not None:
        assert after is not None
        assert after.time_s <= before.time_s * (1 + 1e-12)


def test_optimal_is_no_slower_than_fast() -> None:
    for size in (Gemm(1000, 777, 300), Gemm(512, 512, 512), Gemm(33, 1000, 65)):
        fast, optimal = (
            mapped((size, Pass.FORWARD), two_levels, mapper) for mapper in ("fast", "optimal")
        )
        assert fast is not None
        assert optimal is not None
        assert optimal.time_s <= fast.time_s


@pytest.fixture(scope="module")
def three_levels(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A TPU v2 with another level of buffers, as a file."""
    text = (ROOT / "hwconfigs" / "devices" / "tpu-v2.yaml").read_text()
    text = text.replace("name: tpu-v2", "name: three-levels", 1).replace(
        "  vmem:\n    kind: sram\n",
        "  l1:\n    kind: sram\n    capacity: 512 KiB\n    bandwidth: 6 TB/s\n    energy: sram.l1\n"
        "  vmem:\n    kind: sram\n    bandwidth: 3 TB/s\n    latency: 20 ns\n",
        1,
    )
    path = tmp_path_factory.mktemp("devices") / "three.yaml"
    path.write_text(text)
    return load_device(str(path))


@pytest.mark.parametrize("mapper", ["fast", "optimal"])
def test_a_device_with_three_memories_reports_all_of_them(
    three_levels: Device, mapper: str
) -> None:
    """What crosses the borders of a level is its traffic; that times its price is its energy."""
    found = gemm(1000, 777, 300, three_levels, mapping=mapper)
    assert found.mapped is not None
    borders = {name: sum(x.values()) for name, x in found.mapped["moved_bytes"].items()}
    names = {level["level"] for level in found.mapped["loops"]["levels"]}
    assert names <= {"hbm", "vmem", "l1"}
    assert {part for border in borders for part in border.split(" - ")} <= {*names, "engine"}
    for level in ("hbm", "vmem", "l1"):
        bytes_ = sum(size for name, size in borders.items() if level in name.split(" - "))
        assert found.traffic_bytes[level] == pytest.approx(bytes_, rel=1e-12)
    seconds = dict(found.mapped["time_s"])
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()), rel=1e-9)
    parts_j = (found.energy_j[part] for part in ("registers", "sram", "dram"))
    assert sum(found.level_energy_j.values()) == pytest.approx(sum(parts_j), rel=1e-12)
    assert (found.level_energy_j["l1"] > 0) == ("l1" in names)


def test_a_level_that_is_not_needed_costs_nothing(three_levels: Device) -> None:
    """All operands may pass a level by: another one never makes a product slower."""
    far = three_levels.memory["hbm"]
    for m, n, k in ((1000, 777, 300), (4096, 4096, 512), (8, 3000, 900)):
        both = gemm(m, n, k, three_levels)
        for name in ("l1", "vmem"):
            memory = {key: level for key, level in three_levels.memory.items() if key != name}
            without = three_levels.model_copy(update={"memory": memory})
            assert without.memory["hbm"] is far
            assert both.time_s <= gemm(m, n, k, without).time_s * (1 + 1e-12)
