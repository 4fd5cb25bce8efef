"""Where ops find their operands: the fast way against a list of blocks, and what follows."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from machines import write_machine
from ridgeline.hardware import Device, load_device
from ridgeline.kernels import price
from ridgeline.kernels.cache_residency import keeping, last_touched, passing, residence
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.liveness import STATIC_ROLES, lifetimes, storages

MACHINE = tempfile.TemporaryDirectory()
write_machine(Path(MACHINE.name))


def device(capacity: str, **more: object) -> Device:
    overrides = {"memory.l2.keeps": True, "memory.l2.capacity": capacity, **more}
    return load_device(str(Path(MACHINE.name) / "device.yaml"), overrides)


def mlp(batch: int, widths: list[int], optimizer: str = "sgd") -> Graph:
    model = load_model("mlp", {"inputs": 16, "widths": widths, "optimizer": optimizer})
    return model.training(batch)


def slow(
    graph: Graph, capacity: float, staying: frozenset[str] = frozenset()
) -> list[tuple[int, ...]]:
    """Tell which operands are farther than a capacity (`depths`)."""
    return [tuple(int(d > capacity) for d in found) for found in depths(graph, staying)]


def depths(graph: Graph, staying: frozenset[str] = frozenset()) -> list[tuple[float, ...]]:
    """Return the bytes touched since, by operand (`touches`)."""
    return touches(graph, staying)[0]


def touches(
    graph: Graph, staying: frozenset[str] = frozenset()
) -> tuple[list[tuple[float, ...]], list[list[int]]]:
    """Play three steps over a list of blocks, the last touched at the end; inputs are new.

    Return, by operand, the bytes touched since, and the op of the last step that touched its memory
    last, -1 before that. Of `staying` weights no block is touched: they are there, but for updates.
    """
    storage, spans = storages(graph), lifetimes(graph)
    blocks: list[list[object]] = []  # [owner or None, bytes, step, op]
    freed: list[list[object]] = []
    found: list[tuple[float, ...]] = []
    since: list[list[int]] = []
    for number in range(3):
        found, since = [], []
        for i, op in enumerate(graph.ops):
            here: list[float] = []
            before: list[int] = []
            for name in (*op.inputs, *op.outputs):
                root, size = storage[name], float(graph.tensors[name].bytes)
                if root in staying:
                    here.append(float("inf") if op.pass_ is Pass.UPDATE else 0.0)
                    before.append(-1)
                    continue
                mine = next((b for b in blocks if b[0] == root), None)
                if mine is not None:
                    at = blocks.index(mine)
                    depth = size + sum(b[1] for b in blocks[at + 1 :])
                    blocks.pop(at)
                    blocks.append([root, max(size, mine[1]), number, i])
                    before.append(mine[3] if mine[2] == number else -1)
                    here.append(depth)
                    continue
                missing, places = size, []
                while missing > 0 and freed:
                    block = freed[-1]
                    taken = min(block[1], missing)
                    places.append(next(k for k, b in enumerate(blocks) if b is block))
                    block[1] -= taken
                    missing -= taken
                    if block[1] == 0:
                        freed.pop()
                depth = float("inf")
                before.append(-1)
                if missing == 0 and places:
                    _, _, step, by = blocks[min(places)]
                    before[-1] = by if step == number else -1
                    depth = size + sum(b[1] for b in blocks[min(places) + 1 :])
                blocks.append([root, size, number, i])
                here.append(float("inf") if graph.tensors[root].role is Role.INPUT else depth)
            for root, (_, last) in spans.items():
                if last == i and graph.tensors[root].role not in STATIC_ROLES:
                    for block in blocks:
                        if block[0] == root:
                            block[0] = None
                            freed.append(block)
            found.append(tuple(here))
            since.append(before)
    return found, since


def compulsory(graph: Graph) -> float:
    """Bytes of the mini-batch, which comes from outside."""
    read = {name for op in graph.ops for name in op.inputs}
    return sum(t.bytes for t in graph.tensors.values() if t.role is Role.INPUT and t.name in read)


def far_bytes(graph: Graph, found: dict[int, tuple[int, ...]]) -> float:
    return sum(passing(op, graph, found[id(op)], 1)[1].total for op in graph.ops)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 64),
    widths=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    optimizer=st.sampled_from(["sgd", "adam"]),
    capacity=st.integers(1, 64),
    data=st.data(),
)
def test_as_a_list_of_blocks_has_it(
    batch: int, widths: list[int], optimizer: str, capacity: int, data: st.DataObject
) -> None:
    """Also of a cache that has room for what was touched since, and for not a byte more."""
    graph = mlp(batch, widths, optimizer)
    assert last_touched(graph, device("1 KiB")) == touches(graph)[1]
    exact = {int(d) for found in depths(graph) for d in found if 0 < d < float("inf")}
    for size in (capacity * 1024, data.draw(st.sampled_from(sorted(exact)))):
        fast = residence(graph, device(f"{size} B")).found
        assert [fast[id(op)] for op in graph.ops] == slow(graph, size)


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 64), widths=st.lists(st.integers(1, 64), min_size=1, max_size=5))
def test_a_larger_cache_holds_what_a_smaller_one_does(batch: int, widths: list[int]) -> None:
    graph = mlp(batch, widths)
    sizes = [residence(graph, device(f"{kib} KiB")).found for kib in (1, 8, 64, 4096)]
    for smaller, larger in itertools.pairwise(sizes):
        for op in graph.ops:
            assert all(a >= b for a, b in zip(smaller[id(op)], larger[id(op)], strict=True))
    everything = sizes[-1]
    # holds the whole step: the mini-batch alone passes the memory behind it
    assert far_bytes(graph, everything) == compulsory(graph)


def test_a_step_that_fits_moves_nothing_in_the_far_memory() -> None:
    graph, large, none = (
        mlp(8, [32, 10]),
        device("64 MiB"),
        device("64 MiB", **{"memory.l2.keeps": False}),
    )
    found = residence(graph, large).found
    assert keeping(none) == ()
    assert residence(graph, none).found == {}
    kept_bytes = 0.0
    for op in graph.ops:
        kept, streamed = price(op, graph, large, found=found[id(op)]), price(op, graph, none)
        assert kept.traffic_bytes["hbm"] == passing(op, graph, found[id(op)], 1)[1].total
        kept_bytes += kept.traffic_bytes["hbm"]
        assert streamed.traffic_bytes["hbm"] >= passing(op, graph, found[id(op)], 0)[0].total
        assert kept.time_s(large) <= streamed.time_s(none)
    assert kept_bytes == compulsory(graph)


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 256), kib=st.integers(1, 512))
def test_bytes_of_the_far_memory_are_between_none_and_all(batch: int, kib: int) -> None:
    graph = mlp(batch, [64, 32, 10], "adam")
    machine = device(f"{kib} KiB")
    found = residence(graph, machine).found
    for op in graph.ops:
        alone = price(op, graph, machine).traffic_bytes["hbm"]
        among = price(op, graph, machine, found=found[id(op)]).traffic_bytes["hbm"]
        assert 0 <= among <= alone * (1 + 1e-12)


def test_a_mini_batch_of_no_step_before_is_far() -> None:
    graph = mlp(4, [8])
    found = residence(graph, device("1 KiB")).found
    first = found[id(graph.ops[0])]
    assert first[0] == 1
    large = residence(graph, device("64 MiB")).found
    assert large[id(graph.ops[0])][0] == 1


def test_a_simulated_step_stays_in_its_cache() -> None:
    plan, model = rl.Plan(global_batch=16, precision="fp32"), load_model("mlp")
    path = str(Path(MACHINE.name) / "device.yaml")
    overrides = {"device.memory.l2.capacity": "64 MiB", "device.memory.l2.keeps": False}
    streamed = rl.simulate(model, rl.load_cluster(path, overrides), plan)
    kept = rl.simulate(
        model, rl.load_cluster(path, {**overrides, "device.memory.l2.keeps": True}), plan
    )
    graph = kept.details.graph
    assert kept.traffic_bytes["hbm"] == compulsory(graph) < streamed.traffic_bytes["hbm"]
    assert kept.kept_bytes["l2"] > 0
    assert streamed.kept_bytes == {}
    rows = [entry for entry in kept.ledger() if entry.unit == "B kept"]
    assert sum(entry.amount for entry in rows) == pytest.approx(kept.kept_bytes["l2"], rel=1e-12)
    assert "kept on chip between ops: l2" in kept.summary(verbose=True)
    assert kept.step_time_s < streamed.step_time_s
    assert kept.flops_per_step == streamed.flops_per_step
