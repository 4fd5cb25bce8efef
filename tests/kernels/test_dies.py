"""Packages of several dies: every cut by hand, ways between dies, bounds, one die as none."""

from __future__ import annotations

import itertools
import math
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_device
from ridgeline.hardware.dies import DIE_LINKS
from ridgeline.hardware.equal_parts import one_die
from ridgeline.hardware.templates import device_template
from ridgeline.kernels.cost import op_energy_j, peak_rates
from ridgeline.kernels.dies import Cut, cuts_of
from ridgeline.kernels.mapping.mapping_file import load_mapping
from ridgeline.kernels.pricing import price
from ridgeline.kernels.single_op import gemm
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from thoroughly import sample_of


@pytest.fixture(scope="module")
def chiplet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("dies") / "my-chiplet.yaml"
    path.write_text(device_template("chiplet"), "utf-8")
    return str(path)


def packaged(
    path: str, count: int = 4, topology: str = "mesh", gb: float = 256.0, **fields: Any
) -> Any:
    """The template with other dies: arrays and levels scale with their count."""
    scaled = {
        "dies.count": count,
        "dies.topology": topology,
        "dies.link.bandwidth": f"{gb} GB/s",
        "engines.mxu.array.count": count,
        "engines.mxu.rates.bf16": f"{32.768 * count} TFLOP/s",
        "engines.vpu.rates.fp32": f"{1.024 * count} TFLOP/s",
        **{f"memory.{name}.instances": count for name in ("registers", "l1", "l2", "hbm")},
    }
    return load_device(path, scaled | fields)


def product(m: int, n: int, k: int, batch: int = 1) -> tuple[Op, Graph]:
    shapes = {"a": (batch, m, k), "b": (batch, k, n), "c": (batch, m, n)}
    tensors = {name: Tensor(name, size, "bf16", Role.ACTIVATION) for name, size in shapes.items()}
    kind = "gemm" if batch == 1 else "matmul"
    op = Op("p", kind, Pass.FORWARD, "", ("a", "b"), ("c",), loops=Gemm(m, n, k, batch))
    return op, Graph("p", 1, "bf16", tensors, (op,), "c")


sizes = st.sampled_from([1, 3, 16, 48, 64, 100, 128, 256, 500, 1024])


@sample_of(
    30,
    120,
    shape=st.tuples(sizes, sizes, sizes),
    batch=st.sampled_from([1, 1, 2, 4, 6]),
    count=st.sampled_from([2, 4, 6]),
    topology=st.sampled_from(["all-to-all", "ring", "mesh"]),
    gb=st.sampled_from([0.5, 8.0, 100.0, 4000.0]),
    placement=st.sampled_from(["cut", "interleaved"]),
)
def test_the_cut_is_the_fastest_of_all(
    chiplet: str, shape: tuple[int, int, int], batch: int, count: int, topology: str, gb: float,
    placement: str,
) -> None:  # fmt: skip
    """Every cut written out: a die by itself, and the bytes of the busiest link."""
    device = packaged(chiplet, count, topology, gb, **{"dies.placement": placement})
    op, graph = product(*shape, batch)
    die, found = one_die(device), []
    numbers = [number for number in range(1, count + 1) if count % number == 0]
    m, n, k = shape
    for pb, pm, pn, pk in itertools.product(numbers, repeat=4):
        used = pb * pm * pn * pk
        if count % used or pb > batch or pm > m or pn > n or pk > k:
            continue
        part, _ = product(-(-m // pm), -(-n // pn), -(-k // pk), -(-batch // pb))
        block = -(-(batch * m * n * (pk - 1)) // (used // pk * pk))  # sums that a die adds
        part = Op(part.name, op.kind, part.pass_, "", part.inputs, part.outputs, part.loops, block)
        tensors = {}
        for name, parts in (("a", pb * pm * pk), ("b", pb * pn * pk), ("c", pb * pm * pn)):
            elements = -(-graph.tensors[name].elements // parts)
            tensors[name] = Tensor(name, (elements,), "bf16", Role.ACTIVATION)
        cost = price(part, Graph("p", 1, "bf16", tensors, (part,), "c"), die)
        far = cost.moved[die.far_memory]
        if placement == "interleaved":
            each, dies = far.total * (count - 1) / count, count
        else:
            c_bytes = batch * m * n * 4 / (pb * pm * pn)
            each = far.a * (pn - 1) / pn + far.b * (pm - 1) / pm + c_bytes * (pk - 1) / pk
            dies = used
        spans = cost.spans(peak_rates(die))
        time_s, busy_s = spans.time_s, spans.time_s - cost.latency_s
        if each:
            paths = device.dies.paths(dies)
            busiest = used * each * paths.busiest / (used * (dies - 1))
            hops = paths.most_hops * 20e-9
            time_s = cost.latency_s + hops + max(busy_s, busiest / (gb * 1e9))
        found.append(time_s)
    assert price(op, graph, device).time_s(device) == pytest.approx(min(found), rel=1e-9)


def _routes(topology: str, rows: int, count: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Shortest ways between all dies, on a grid along the row first."""
    columns = count // rows

    def neighbours(die: int) -> list[int]:
        if topology == "all-to-all":
            return [other for other in range(count) if other != die]
        if topology == "ring":
            return sorted({(die + 1) % count, (die - 1) % count} - {die})
        row, column = divmod(die, columns)
        near = []
        if column + 1 < columns:
            near.append(die + 1)
        if column:
            near.append(die - 1)
        if row + 1 < rows:
            near.append(die + columns)
        if row:
            near.append(die - columns)
        return near

    found = {}
    for start in range(count):
        before, waiting = {start: start}, deque([start])
        while waiting:
            at = waiting.popleft()
            for other in neighbours(at):
                if other not in before:
                    before[other] = at
                    waiting.append(other)
        for end in range(count):
            way, at = [], end
            while at != start:
                way.append((before[at], at))
                at = before[at]
            found[start, end] = way
    return found


@pytest.mark.parametrize("topology", ["all-to-all", "ring", "mesh"])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 8, 9, 12, 16, 36])
def test_ways_between_dies_are_those_that_a_search_finds(
    chiplet: str, topology: str, count: int
) -> None:
    dies = packaged(chiplet, count, topology).dies
    paths = dies.paths(count)
    rows = max(r for r in range(1, math.isqrt(count) + 1) if count % r == 0)
    routes = _routes(topology, rows, count)
    hops = [len(way) for (start, end), way in routes.items() if start != end]
    assert paths.mean_hops == pytest.approx(sum(hops) / len(hops))
    assert paths.most_hops == max(hops)
    assert paths.links == len({step for way in routes.values() for step in way}) or count == 2
    if topology == "mesh":  # along the row first: the load of every link by its ends
        columns, loads = count // rows, {}
        for start, end in itertools.permutations(range(count), 2):
            (r, c), (r2, c2) = divmod(start, columns), divmod(end, columns)
            way = [(r, x) for x in range(c, c2, 1 if c2 > c else -1)]
            way += [(y, c2) for y in range(r, r2, 1 if r2 > r else -1)]
            for step in zip(way, [*way[1:], (r2, c2)], strict=True):
                loads[step] = loads.get(step, 0) + 1
        assert paths.busiest == max(loads.values())
    else:  # all links are alike
        assert paths.busiest == pytest.approx(sum(hops) / paths.links)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(sizes, sizes, sizes),
    topology=st.sampled_from(["all-to-all", "ring", "mesh"]),
    gbs=st.tuples(st.floats(1, 4000), st.floats(1, 4000)),
)
def test_bounds_and_faster_links(
    chiplet: str, shape: tuple[int, int, int], topology: str, gbs: tuple[float, float]
) -> None:
    slow, fast = (packaged(chiplet, 4, topology, gb) for gb in sorted(gbs))
    op, graph = product(*shape)
    cost = price(op, graph, slow)
    time_s, rates = cost.time_s(slow), peak_rates(slow)
    assert price(op, graph, fast).time_s(fast) <= time_s * (1 + 1e-12)
    assert time_s <= price(op, graph, one_die(slow)).time_s(one_die(slow)) * (1 + 1e-12)
    for place in (DIE_LINKS, "hbm", "l1"):
        assert cost.traffic_bytes.get(place, 0.0) <= rates[place] * time_s * (1 + 1e-9)
    assert cost.flops["mxu.bf16"] >= op.matrix_flops
    assert cost.traffic_bytes["hbm"] >= sum(tensor.bytes for tensor in graph.tensors.values())
    energy = op_energy_j(cost, slow)
    assert energy.get("network", 0.0) == pytest.approx(
        cost.traffic_bytes.get(DIE_LINKS, 0.0) * 6.4e-12
    )


@given(shape=st.tuples(sizes, sizes, sizes))
@settings(max_examples=20, deadline=None)
def test_one_die_is_none(chiplet: str, shape: tuple[int, int, int]) -> None:
    alone = packaged(chiplet, 1)
    without = alone.model_copy(update={"dies": None})
    op, graph = product(*shape)
    first, second = price(op, graph, alone), price(op, graph, without)
    assert first.time_s(alone) == second.time_s(without)
    assert first.traffic_bytes == second.traffic_bytes


def test_only_products_whose_parts_are_products_are_cut() -> None:
    loops = Conv(8, 32, 14, 14, 64, 3, 3)
    conv = Op("c", "conv2d", Pass.FORWARD, "", ("x", "w"), ("y",), loops=loops)
    assert max(cut.parts for cut in cuts_of(conv, 4)) == 4
    assert all(cut.k == 1 for cut in cuts_of(conv, 4, sums=False))
    grouped = Op("c", "conv2d", Pass.FORWARD, "", ("x", "w"), ("y",),
                 loops=Conv(8, 32, 14, 14, 64, 3, 3, groups=2))  # fmt: skip
    assert set(cuts_of(grouped, 4)) == {Cut(), Cut(batch=2)}
    steps = Op("r", "recurrence", Pass.FORWARD, "", ("x", "w"), ("y",), loops=Gemm(8, 8, 8, 4),
               attrs=(("sequential", 1),))  # fmt: skip
    assert cuts_of(steps, 4) == [Cut()]
    attention = Op("f", "flash-attention", Pass.FORWARD, "", ("q", "k", "v"), ("y",),
                   loops=Gemm(64, 64, 64, 4))  # fmt: skip
    assert {cut.batch for cut in cuts_of(attention, 4)} == {1, 2, 4}


def test_steps_and_ledgers_count_what_passes_between_dies(chiplet: str) -> None:
    model, plan = rl.load_model("bert-base", {"layers": 2}), rl.Plan(global_batch=8)
    times = {}
    for placement in ("cut", "interleaved"):
        cluster = rl.load_cluster(chiplet, overrides={"device.dies.placement": placement})
        found = rl.simulate(model, cluster, plan)
        rows = [row for row in found.ledger().entries if row.place == DIE_LINKS]
        assert rows
        assert math.fsum(row.energy_j for row in rows) == pytest.approx(found.energy_j["network"])
        assert found.traffic_bytes[DIE_LINKS] > 0
        times[placement] = found.step_time_s
    wide = {"device.dies.link.bandwidth": "100 TB/s", "device.dies.link.latency": "0 s"}
    fast = rl.simulate(model, rl.load_cluster(chiplet, overrides=wide), plan)
    assert fast.step_time_s <= min(times.values())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dies.count": 3}, r"4 arrays cannot be shared out evenly over 3 dies"),
        ({"dies.count": 0}, r"dies\.count"),
        ({"dies.topology": "rings"}, r"dies\.topology.*ring"),
        ({"dies.rows": 3}, r"dies\.rows.*must divide the 4 dies"),
        ({"dies.topology": "ring", "dies.rows": 2}, r"dies\.rows.*is of a mesh"),
        ({"dies.link.bandwidth": "0 B/s"}, r"bandwidth.*more than 0"),
        ({"dies.link.energy": "no-such-entry"}, r"dies\.link\.energy.*no-such-entry"),
        ({"memory.l2.instances": 6}, r"6 instances cannot be shared out evenly over 4 dies"),
    ],
)
def test_dies_that_cannot_be_are_refused(chiplet: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_device(chiplet, fields)


def test_a_mapping_file_is_of_one_die(chiplet: str, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("kind: mapping\nname: a\ndataflow: ws\n", "utf-8")
    op, graph = product(64, 64, 64)
    with pytest.raises(RidgelineError, match="one die"):
        price(op, graph, load_device(chiplet), given=load_mapping(str(mapping)))


def test_a_spatial_array_is_that_of_each_die(tmp_path: Path) -> None:
    text = device_template("spatial")
    alone = tmp_path / "one.yaml"
    alone.write_text(text, "utf-8")
    first = load_device(str(alone))
    name = next(n for n, engine in first.engines.items() if engine.spatial is not None)
    rates = {
        f"engines.{name}.rates.{format_}.value": f"{2 * rate.value / 1e12} TFLOP/s"
        for format_, rate in first.engines[name].rates.items()
    }
    dies = {
        "dies": {
            "count": 2,
            "link": {"bandwidth": "10 GB/s", "latency": "5 ns", "energy": "1 pJ/bit"},
        }
    }
    device = load_device(str(alone), {**dies, **rates})
    found = gemm(256, 256, 256, device=device)
    assert "of 2 dies" in found.mapping
    with pytest.raises(
        ConfigError, match=r"no rate of the engine is that \(there are: .*write [0-9.]+ TFLOP/s"
    ):
        load_device(str(alone), {**dies})
