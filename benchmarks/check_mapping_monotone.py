"""Random machines and products: more of anything is never slower, nor below its own ledger.

``python benchmarks/check_mapping_monotone.py [CASES [SEED]]`` draws devices with systolic arrays or
broadcast grids and one to three levels of buffers, improves one resource of each, and compares what
`kernels.single_op.gemm` and `conv` report. It prints how many cases were drawn by resource,
and every violation with what repeats it; the exit status is 1 if there is one.
"""

from __future__ import annotations

import collections
import random
import sys
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.workload.graph import Conv

ROUNDING = 1 + 1e-9
LEVELS = ("l1", "l2", "l3")


def changed(thing: Any, **values: Any) -> Any:
    """Return a part of a device with other values, where it states them with a source."""
    update = {}
    for name, value in values.items():
        stated = getattr(thing, name)
        plain = stated is None or not hasattr(stated, "source") or value is None
        update[name] = value if plain else stated.model_copy(update={"value": value})
    return thing.model_copy(update=update)


def device(numbers: dict[str, Any]) -> Device:
    """Build a device from its numbers."""
    base = load_device("tpu-v2")
    engine, far, near = base.engines["mxu"], base.memory["hbm"], base.memory["vmem"]
    assert engine.array is not None
    fields = ("rows", "columns", "count", "clock", "multicast", "dataflows", "fold", "edge")
    array = changed(engine.array, **{name: numbers[name] for name in fields})
    peak = array.flops_per_cycle * numbers["clock"]
    rates = {"bf16": engine.rates["bf16"].model_copy(update={"value": peak})}
    memory = {"registers": base.memory["registers"]}
    for name, level in zip(LEVELS, numbers["levels"], strict=False):
        rate = level["bandwidth"] or None
        memory[name] = changed(near, capacity=level["capacity"]).model_copy(
            update={
                "bandwidth": rate and far.bandwidth.model_copy(update={"value": rate}),
                "latency": base.launch_latency.model_copy(update={"value": level["latency"]}),
                "buffers": level["buffers"],
                "ports": level["ports"],
            }
        )
    memory["hbm"] = changed(far, bandwidth=numbers["far"])
    return changed(base, launch_latency=numbers["launch"]).model_copy(
        update={
            "engines": {
                **base.engines,
                "mxu": engine.model_copy(update={"array": array, "rates": rates}),
            },
            "memory": memory,
            "achievable": (),
        }
    )


def drawn(rng: random.Random) -> dict[str, Any]:
    """Draw the numbers of a machine."""
    count = rng.choice([1, 1, 1, 1, 2, 2, 3])
    far = 10 ** rng.uniform(9, 12)
    levels = [
        {
            "capacity": int(2 ** rng.uniform(13 + 4 * place, 20 + 4 * place)),
            "bandwidth": rng.choice([0, far * 10 ** rng.uniform(-0.3, 2)]),
            "latency": rng.choice([0.0, 10 ** rng.uniform(-9, -6)]),
            "buffers": rng.choice(["double", "double", "single"]),
            "ports": rng.choice(["shared", "shared", "separate"]),
        }
        for place in range(count)
    ]
    return {
        "rows": rng.choice([8, 16, 32, 128]),
        "columns": rng.choice([8, 16, 32, 128]),
        "count": rng.choice([1, 1, 2, 4, 6]),
        "dataflows": rng.sample(["os", "ws", "is"], rng.randint(1, 3)),
        "fold": rng.choice(["serial", "pipelined", "overlapped"]),
        "edge": rng.choice(["exact", "full"]),
        "multicast": rng.random() < 0.3,
        "clock": rng.choice([2e8, 7e8, 1.5e9]),
        "levels": levels,
        "far": far,
        "launch": rng.choice([0.0, 1e-6]),
    }


def better(numbers: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Improve one resource; return its name and the numbers of the better machine."""
    factor = 2 ** rng.uniform(0.01, 4)
    place = rng.randrange(len(numbers["levels"]))
    level = dict(numbers["levels"][place])
    what = rng.choice(
        ["far bandwidth", "arrays", "capacity", "bandwidth", "latency", "clock", "ports", "level"]
    )
    if what == "far bandwidth":
        return what, {**numbers, "far": numbers["far"] * factor}
    if what == "arrays":
        return what, {**numbers, "count": numbers["count"] + rng.randint(1, 4)}
    if what == "level" and len(numbers["levels"]) < len(LEVELS):
        more = {**level, "capacity": level["capacity"] * 4, "bandwidth": 0}
        return what, {**numbers, "levels": [*numbers["levels"], more]}
    if what == "capacity":
        level["capacity"] = int(level["capacity"] * factor) + 1
    elif what == "bandwidth":
        level["bandwidth"] = level["bandwidth"] * factor
    elif what == "latency":
        level["latency"] = level["latency"] / factor
    elif what == "clock":
        return what, {**numbers, "clock": numbers["clock"] * factor}
    else:
        level["ports"] = "separate"
    levels = list(numbers["levels"])
    levels[place] = level
    return what, {**numbers, "levels": levels}


def shape(rng: random.Random) -> tuple[int, int, int, int] | Conv:
    """Draw a product or a convolution."""
    if rng.random() < 0.75:
        sizes = [int(2 ** rng.uniform(0, 12)) for _ in range(3)]
        return sizes[0], sizes[1], sizes[2], rng.choice([1, 1, 1, 3])
    side, filter_ = rng.choice([7, 14, 28]), rng.choice([1, 3])
    return Conv(
        rng.choice([1, 4]), rng.randint(1, 128), side, side, rng.randint(1, 128), filter_, filter_,
        (rng.choice([1, 2]),) * 2, (filter_ // 2,) * 2,
    )  # fmt: skip


def timed(what: tuple[int, int, int, int] | Conv, on: Device, mapper: str, goal: str) -> OpResult:
    """Price it."""
    if isinstance(what, Conv):
        return conv(what, on, format="bf16", mapping=mapper, objective=goal)
    m, n, k, batch = what
    return gemm(m, n, k, on, batch=batch, format="bf16", mapping=mapper, objective=goal)


def value(result: OpResult, goal: str) -> float:
    """What was to be least."""
    energy = result.energy_j["total"]
    return {"time": result.time_s, "energy": energy, "edp": energy * result.time_s}[goal]


def below_ledger(result: OpResult, on: Device) -> str:
    """Name a level whose bytes need more than the time; empty if there is none."""
    for name, size in result.traffic_bytes.items():
        bandwidth = on.memory[name].bandwidth
        if bandwidth is not None and size / bandwidth.value > result.time_s * ROUNDING:
            return name
    return ""


def main() -> int:
    """Draw and compare."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    counts: collections.Counter[str] = collections.Counter()
    wrong = 0
    for case in range(cases):
        rng = random.Random(f"{seed} {case}")
        numbers, what = drawn(rng), shape(rng)
        name, more = better(numbers, rng)
        mapper = rng.choice(["fast", "fast", "optimal"])
        # Of several levels another goal than time is searched tile by tile: very good, not least.
        alone = len(numbers["levels"]) == 1 and name != "level"
        goal = rng.choice(["time", "time", "energy", "edp"]) if alone else "time"
        one, other = device(numbers), device(more)
        try:
            before = timed(what, one, mapper, goal)
        except RidgelineError:
            counts["too small"] += 1
            continue
        after = timed(what, other, mapper, goal)
        counts[f"{goal}: {name}"] += 1
        short = below_ledger(before, one) or below_ledger(after, other)
        if short or value(after, goal) > value(before, goal) * ROUNDING:
            wrong += 1
            print(
                f"case {case} of seed {seed}: {name}, {mapper}, {goal}, {what}: "
                f"{value(before, goal):.6g} -> {value(after, goal):.6g} {short}\n"
                f"  {numbers}\n  {more}",
                flush=True,
            )
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print(f"{wrong} of {cases} cases are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
