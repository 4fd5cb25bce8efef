"""Random small contractions and machines: what the mappers find is the best of everything.

``python benchmarks/check_mapping_brute.py [CASES [SEED]]`` lists every tiling in every order of the
loops, plays each element by element (``tests/oracles/mapping_tiles.py``), with every way to compute
each tile, and compares the least time, energy and product of both with what the mappers find. It
prints how many cases were compared by objective, and every difference with what repeats it; the
exit status is 1 if there is one.
"""

from __future__ import annotations

import collections
import itertools
import math
import random
import sys
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.mapping_tiles import Played, least_of, play
from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.machine import MappingMachine, Split, problem
from ridgeline.kernels.mapping.mapper import DENSITY, Base, Mapper, Objective, map_contraction
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.search import ORDERS
from ridgeline.kernels.mapping.space import listed
from ridgeline.kernels.systolic.closed_form import FoldSchedule
from ridgeline.kernels.systolic.partition import ArrayChain, Arrays
from ridgeline.workload.graph import Conv, Gemm, Pass

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
MOST_TILINGS = 120
SAME = 1e-9
Contraction = tuple[Gemm | Conv, Pass]


def contraction(rng: random.Random) -> Contraction:
    """Draw a small product or a pass over a small convolution."""
    if rng.random() < 0.6:
        m, n, k = (rng.randint(1, 5) for _ in range(3))
        return Gemm(m=m, n=n, k=k, batch=rng.choice([1, 1, 2])), Pass.FORWARD
    groups = rng.choice([1, 1, 2])
    filters = rng.randint(1, 3), rng.randint(1, 3)
    padding = rng.randint(0, filters[0]), rng.randint(0, filters[1])
    side = [max(1, filters[i] - 2 * padding[i]) + rng.randint(0, 3) for i in range(2)]
    conv = Conv(
        batch=rng.choice([1, 2]), c_in=groups * rng.randint(1, 2), h_in=side[0], w_in=side[1],
        c_out=groups * rng.randint(1, 2), r=filters[0], s=filters[1],
        stride=(rng.choice([1, 1, 2]), rng.choice([1, 1, 2])), padding=padding, groups=groups,
    )  # fmt: skip
    return conv, rng.choice([Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT])


def machine(rng: random.Random) -> MappingMachine:
    """Draw a machine with one level of buffers, whose ports loads and stores share."""
    capacity = float(rng.randint(20, 600))
    near_byte_s = rng.choice([0.0, 0.125, 1.0])
    past = rng.choice(["", "", "a", "b", "c", "ab", "bc"])
    far_byte_s = rng.choice([0.03125, 0.25, 2.0])
    a, b, c = (FAR if operand in past else 0 for operand in "abc")
    names = tuple("far" if operand in past else "near" for operand in "abc")
    split = Split(
        (a, b, c), (near_byte_s, 0.0, 0.0, far_byte_s), (capacity, math.inf, math.inf),
        (1.0, 1.0, 1.0), names,
    )  # fmt: skip
    flows = rng.sample(["os", "ws", "is"], rng.randint(1, 3))
    fold, edge = rng.choice(["serial", "pipelined", "overlapped"]), rng.choice(["exact", "full"])
    arrays = Arrays(
        rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3),
        tuple(FoldSchedule(flow, fold, edge) for flow in flows),
        rng.choice([None, ArrayChain(1, 2.0)]), rng.random() < 0.5,
    )  # fmt: skip
    return MappingMachine(
        arrays=None if rng.random() < 0.2 else arrays, cycle_s=1.0, mac_s=0.25,
        near_byte_s=near_byte_s, capacities=(math.inf, math.inf, math.inf, capacity),
        double=rng.random() < 0.7, shared_port=True, byte_s=max(far_byte_s, near_byte_s),
        latency_s=float(rng.randint(0, 3)), far_byte_j=8.0, near_byte_j=1.0,
        idle_w=rng.choice([0.0, 0.5, 20.0]),
        widths=rng.choice([(2.0, 2.0, 2.0, 4.0), (1.0, 1.0, 1.0, 1.0)]),
        far="far", near="near", split=split if past else None,
    )  # fmt: skip


def everything(
    what: Contraction, on: MappingMachine, mapper: Mapper, most: int = MOST_TILINGS
) -> list[Played] | None:
    """Play every listed tiling in every order that fits; None if that is too much."""
    loops, pass_ = what
    groups, nest = dims_of(loops, pass_), nest_of(loops, pass_)
    starts, table, _ = listed(problem(loops, pass_, on)[0], DENSITY[mapper])
    tables = [table[starts[i] : starts[i + 1], :3].tolist() for i in range(4)]
    if math.prod(map(len, tables)) > most:
        return None
    played = []
    for extents in itertools.product(*tables):
        named: dict[str, int] = {}
        for dims, tile in zip(groups, extents, strict=True):
            named |= dict(zip(dims, tile, strict=False))
        for order in ORDERS.tolist():
            one = play(nest, groups, named, tuple(order), on)
            if one.room > on.capacities[3]:
                break  # with any order
            played.append(one)
    return played


def value(
    what: Contraction, on: MappingMachine, mapper: Mapper, objective: Objective, base: Base
) -> float:
    """Return what a mapper finds; infinite if nothing fits."""
    try:
        found = map_contraction(*what, on, mapper, objective, base)
    except RidgelineError:
        return math.inf
    product = (found.time_s + base.time_s) * (found.energy_j + base.energy_j)
    return {"time": found.time_s, "energy": found.energy_j, "edp": product}[objective]


def compared(
    what: Contraction, on: MappingMachine, mapper: Mapper, objective: Objective, base: Base,
    played: list[Played],
) -> tuple[float, float]:  # fmt: skip
    """Return what a mapper finds, and the least of everything."""
    least = min((least_of(one, on, objective, base) for one in played), default=math.inf)
    return value(what, on, mapper, objective, base), least


def drawn(rng: random.Random) -> tuple[Contraction, MappingMachine, Mapper, Base]:
    """Draw a case."""
    mappers: tuple[Mapper, ...] = get_args(Mapper)
    what, on, mapper = contraction(rng), machine(rng), rng.choice(mappers)
    return what, on, mapper, Base(rng.choice([0.0, 3.0]), rng.choice([0.0, 500.0]))


def main() -> int:
    """Draw and compare."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    counts: collections.Counter[str] = collections.Counter()
    wrong = 0
    for case in range(cases):
        what, on, mapper, base = drawn(random.Random(f"{seed} {case}"))
        played = everything(what, on, mapper)
        if played is None:
            counts["too many tilings"] += 1
            continue
        fitting = len(played) // len(ORDERS)
        counts[("nothing fits", "one tiling fits", "several tilings fit")[min(fitting, 2)]] += 1
        for objective in OBJECTIVES:
            counts[objective] += 1
            found, least = compared(what, on, mapper, objective, base, played)
            if not math.isclose(found, least, rel_tol=SAME):
                wrong += 1
                print(
                    f"case {case} of seed {seed}: {objective}, {mapper}, {what}: found {found:.9g},"
                    f" the best is {least:.9g}\n  {on}, {base}",
                    flush=True,
                )
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print(f"{wrong} of {cases} cases are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
