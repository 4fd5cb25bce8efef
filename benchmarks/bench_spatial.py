"""Spatial arrays, broadcast grids and tiles: how fast the searches are, and what they promise.

``python benchmarks/bench_spatial.py`` prints, all in one run:

* the seconds of a search for a layout beside those of counting one layout after the other, and how
  many layouts each had to play;
* the seconds of a search for layers of networks on Eyeriss and on an array of 128 x 128;
* random machines with more of one resource: how many of them take longer (none should), and how
  many times lie below what arithmetic and traffic need (none should).

Options: ``--machines N`` (10,000), ``--seed N``, ``--only search|layers|machines``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.broadcast_grid import Ring, grid_gemm
from ridgeline.kernels.bsp_gemm import ElementSizes, EqualTiles, best_plan
from ridgeline.kernels.spatial import space
from ridgeline.kernels.spatial.constraints import FREE
from ridgeline.kernels.spatial.cycle_model import CycleMachine
from ridgeline.kernels.spatial.dataflows import DATAFLOWS
from ridgeline.kernels.spatial.machine import Elements, LayoutPrices, elements_of
from ridgeline.kernels.spatial.nest import (
    LOOPS,
    ConvolutionNest,
    SpatialLayout,
    TemporalLoop,
    nest_of,
)
from ridgeline.kernels.spatial.search import LayoutResult, best_layout, evaluate
from ridgeline.workload.graph import Conv, Gemm

FLOWS = sorted(DATAFLOWS)
MORE = 1 + 1e-12


def eyeriss() -> Elements:
    device = load_device("eyeriss")
    array = device.engines["array"].spatial
    far = device.memory["dram"].bandwidth
    assert array is not None
    assert far is not None
    words = device.memory["buffer"].capacity.value / 2
    return elements_of(array, words, far.value / (2 * array.clock.value))


def random_nest(rng: random.Random, limit: int) -> ConvolutionNest:
    while True:
        sizes = [1] * 8
        for _ in range(rng.randint(2, 5)):
            sizes[rng.randrange(8)] = rng.randint(2, 3 if limit < 1000 else 24)
        if math.prod(sizes) <= limit:
            break
    few = (1, 1, 2)
    return ConvolutionNest(
        tuple(sizes),
        (rng.choice(few), rng.choice(few)),
        (rng.choice(few), rng.choice(few)),
    )


def random_elements(rng: random.Random, largest: int) -> Elements:
    def width() -> int:
        return rng.choice((1, 1, 2, 4))

    def flag() -> bool:
        return rng.random() < 0.6

    networks = CycleMachine(
        width(), width(), width(), width(), flag(), flag(), flag(), flag(), flag(),
        rng.choice((1, 1, 2)), rng.choice((0, 0, 5)),
    )  # fmt: skip
    return Elements(
        rows=rng.randint(1, largest),
        columns=rng.randint(1, largest),
        networks=networks,
        room=(rng.randint(1, 12), rng.randint(1, 24), rng.randint(1, 12)),
        buffer_words=rng.choice((12, 60, 300, 3000)),
        memory_width=rng.choice((0.1, 0.5, 2.0, 8.0)),
        held=frozenset(rng.choice(("xwy", "xwy", "xy", "xw", "wy"))),  # type: ignore[arg-type]
        adds_along=frozenset(rng.choice((("rows",), ("rows", "columns"), ()))),
        dataflows=(rng.choice(FLOWS),),
        prices=LayoutPrices(near_cycles=rng.choice((0.0, 0.0, 0.3)), near_j=1.0, far_j=100.0),
    )


def every_layout(nest: ConvolutionNest, elements: Elements) -> Iterator[SpatialLayout]:
    """All layouts that a dataflow allows, one after the other."""
    for flow in DATAFLOWS[elements.dataflows[0]]:
        tiles = space.element_tiles(nest, elements, flow, FREE)
        axes = [space.spreads(nest, elements, flow, FREE, axis) for axis in ("rows", "columns")]
        orders = space.orders_of(nest, flow, FREE)
        for tile, rows, columns in itertools.product(tiles, *axes):
            base = SpatialLayout(tile, rows, columns, ())
            trips = {d: -(-nest.size(d) // base.array_tile[d]) for d in LOOPS}
            nested = dict.fromkeys(
                tuple(TemporalLoop(d, trips[d]) for d in order if trips[d] > 1) for order in orders
            )
            for loops in nested:
                for cut in range(len(loops) + 1):
                    cuts = [(loops[:cut], loops[cut:])]
                    if cut < len(loops):
                        d, trip = loops[cut].of, loops[cut].trips
                        cuts += [
                            (
                                (*loops[:cut], TemporalLoop(d, -(-trip // most))),
                                (TemporalLoop(d, most), *loops[cut + 1 :]),
                            )
                            for most in range(2, trip)
                        ]
                    for memory, buffer in cuts:
                        layout = replace(base, buffer=buffer, memory=memory)
                        if elements.refusal(nest, layout) is None:
                            yield layout


def brute_force(nest: ConvolutionNest, elements: Elements) -> tuple[LayoutResult | None, int]:
    """The best of all layouts, each of them counted; how many there are."""
    best, seen = None, 0
    for layout in every_layout(nest, elements):
        found = evaluate(nest, elements, layout)
        seen += 1
        if best is None or found.rank < best.rank:
            best = found
    return best, seen


def searched(nest: ConvolutionNest, elements: Elements) -> LayoutResult | None:
    try:
        return best_layout.__wrapped__(nest, elements)
    except RidgelineError:
        return None


def bench_search(rng: random.Random, cases: int) -> None:
    ratios, layouts, played, wrong = [], 0, 0, 0
    while len(ratios) < cases:
        nest, elements = random_nest(rng, 200), random_elements(rng, 4)
        objective = rng.choice(("time", "energy", "edp"))
        prices = elements.prices._replace(objective=objective)
        elements = replace(elements, room=(2, 3, 2), prices=prices)
        start = time.perf_counter()
        found = searched(nest, elements)
        middle = time.perf_counter()
        best, seen = brute_force(nest, elements)
        end = time.perf_counter()
        if best is None or found is None:
            wrong += best is not found
            continue
        wrong += any(abs(a - b) > 1e-9 * abs(b) for a, b in zip(found.rank, best.rank, strict=True))
        ratios.append((end - middle) / (middle - start))
        layouts, played = layouts + seen, played + found.played
    print(
        f"search against counting every layout: {cases} nests, {wrong} differ; "
        f"{layouts} layouts, {played} played by the search; "
        f"median {statistics.median(ratios):.1f} x as fast"
    )


def bench_layers() -> None:
    on_eyeriss = eyeriss()
    large = Elements(
        128, 128, CycleMachine(64, 64, 64, 64, True, True, True, True, True, 1, 0), (16, 16, 16),
        2**20,
        64.0, frozenset("xwy"), frozenset({"rows"}), ("any",),
    )  # fmt: skip
    layers = {
        "AlexNet conv3": Conv(4, 256, 13, 13, 384, 3, 3, padding=(1, 1)),
        "VGG-16 conv2_2": Conv(4, 128, 112, 112, 128, 3, 3, padding=(1, 1)),
        "ResNet-50 conv1": Conv(4, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3)),
        "ResNet-50 3 x 3": Conv(8, 64, 56, 56, 64, 3, 3, padding=(1, 1)),
        "MobileNet 3 x 3, by channel": Conv(4, 96, 56, 56, 96, 3, 3, (1, 1), (1, 1), groups=96),
        "BERT 512 x 1024 x 1024": Gemm(512, 1024, 1024),
        "matrix times vector": Gemm(1, 4096, 1024),
    }
    for machine, name in ((on_eyeriss, "Eyeriss"), (large, "128 x 128")):
        for layer, loops in layers.items():
            seconds = {}
            for flow in FLOWS:
                start = time.process_time()
                found = best_layout(nest_of(loops), replace(machine, dataflows=(flow,)))
                seconds[flow] = (time.process_time() - start, found)
            print(
                f"{name:10s} {layer:28s} "
                + "  ".join(
                    f"{flow} {s:.2f} s{'' if f.complete else ' (not complete)'}"
                    for flow, (s, f) in seconds.items()
                )
            )


def spatial_pair(rng: random.Random) -> tuple[str, float, float, float] | None:
    """A resource, seconds with less and with more of it, and the least that they can be."""
    nest, less = random_nest(rng, 4000), random_elements(rng, 9)
    found = searched(nest, less)
    if found is None:
        return None
    field = rng.choice(
        ("rows", "columns", "x", "w", "y", "buffer_words", "memory_width", "near", "clock",
         "x_words", "w_words", "in_words", "out_words", "x_double", "w_double", "y_double",
         "x_multicast", "w_multicast")
    )  # fmt: skip
    more, scale = less, 1.0
    factor = rng.choice((1, 1, 2, 3))
    if field in {"rows", "columns", "buffer_words"}:
        more = replace(less, **{field: getattr(less, field) + factor})
    elif field in {"x", "w", "y"}:
        room = list(less.room)
        room["xwy".index(field)] += factor
        more = replace(less, room=tuple(room))
    elif field == "memory_width":
        more = replace(less, memory_width=less.memory_width * (1 + factor / 3))
    elif field == "near":
        near = less.prices.near_cycles / (1 + factor)
        more = replace(less, prices=less.prices._replace(near_cycles=near))
    elif field == "clock":
        scale = 1 + factor
        near = less.prices.near_cycles * scale
        prices = less.prices._replace(near_cycles=near)
        more = replace(less, memory_width=less.memory_width / scale, prices=prices)
    else:
        now = getattr(less.networks, field)
        better = True if isinstance(now, bool) else now + factor
        more = replace(less, networks=less.networks._replace(**{field: better}))
    after = searched(nest, more)
    if after is None:
        return field, found.time_cycles, math.inf, 0.0
    least = max(nest.macs / (less.rows * less.columns), sum(found.memory_words) / less.memory_width)
    return f"spatial {field}", found.time_cycles, after.time_cycles / scale, least


def tiles_pair(rng: random.Random) -> tuple[str, float, float, float] | None:
    product = Gemm(*(rng.randint(1, 150) for _ in "mnkb"[:3]), rng.choice((1, 1, 3)))
    less = EqualTiles(
        rng.randint(1, 40), rng.randint(16, 8000), 64e9,
        (rng.choice((1, 4)), rng.choice((1, 4, 16)), rng.choice((1, 4, 16))), 1 / 6.4e9,
        rng.choice((0.0, 1e-8, 1e-6)), rng.choice((0.0, 1e-7)),
    )  # fmt: skip
    field = rng.choice(("number", "room_bytes", "flop_per_s", "byte_s", "sync_s", "least_s"))
    now, factor = getattr(less, field), rng.choice((1.1, 1.5, 2, 3))
    better = now / factor if field.endswith("_s") and field != "flop_per_s" else now * factor
    more = less._replace(**{field: math.ceil(better) if isinstance(now, int) else better})
    sizes = ElementSizes(2, 2, 2, 4)
    try:
        before, after = best_plan(product, sizes, less), best_plan(product, sizes, more)
    except RidgelineError:
        return None
    macs = product.batch * product.m * product.n * product.k
    least = max(2 * macs / (less.number * less.flop_per_s), before.exchange_s)
    return f"tiles {field}", before.time_s, after.time_s, least


def grid_pair(rng: random.Random) -> tuple[str, float, float, float] | None:
    m, n, k = (rng.randint(1, 300) for _ in "mnk")
    less = Ring(rng.randint(1, 8), rng.randint(1, 8), rng.choice((4, 64, 1000, 20000)))
    field = rng.choice(("cores", "side", "local_bytes"))
    more = replace(less, **{field: getattr(less, field) + rng.randint(1, 4)})
    latency = rng.randint(1, 8)
    try:
        before, after = (grid_gemm(m, n, k, ring, latency) for ring in (less, more))
    except RidgelineError:
        return None
    least = m * n * k / less.elements
    return f"grid {field}", float(before.cycles), float(after.cycles), least


def bench_machines(rng: random.Random, machines: int) -> None:
    for kind, pair in (("spatial", spatial_pair), ("tiles", tiles_pair), ("grid", grid_pair)):
        tried: Counter[str] = Counter()
        slower: Counter[str] = Counter()
        below, worst, start = 0, 1.0, time.process_time()
        while tried.total() < machines:
            found = pair(rng)
            if found is None:
                continue
            field, before, after, least = found
            tried[field] += 1
            below += before * MORE < least
            if after > before * MORE:
                slower[field] += 1
                worst = max(worst, after / before)
        print(
            f"{kind}: {tried.total()} random machines with more of one resource, "
            f"{slower.total()} slower (worst {worst:.3f} x; {dict(slower)}), "
            f"{below} below a bound; {time.process_time() - start:.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", choices=("search", "layers", "machines"))
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    searched(random_nest(rng, 100), replace(eyeriss(), dataflows=("any",)))  # compiles
    if asked.only in {None, "search"}:
        bench_search(rng, asked.cases)
    if asked.only in {None, "layers"}:
        bench_layers()
    if asked.only in {None, "machines"}:
        bench_machines(rng, asked.machines)


if __name__ == "__main__":
    main()
