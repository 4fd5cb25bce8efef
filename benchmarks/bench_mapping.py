"""Speed of the mappers: ``python benchmarks/bench_mapping.py``.

Prints the time of both mappers for every contraction of a ResNet-50 training step on a TPU v2, how
far the fast one is from the optimal one, the whole step, and the same products beside what SCALE-
Sim 3.0.0 (``tests/data/scalesim_3_0_0.csv``) and ZigZag 3.9.1
(``benchmarks/data/zigzag_3_9_1.csv``) took: recorded CPU seconds of other times, an order of
magnitude.
"""

from __future__ import annotations

import csv
import math
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ridgeline as rl
from ridgeline.hardware import load_device
from ridgeline.kernels.mapping.device import machine_of
from ridgeline.kernels.mapping.machine import Buffer, MappingMachine
from ridgeline.kernels.mapping.mapper import Mapper, forget, map_contraction
from ridgeline.workload.graph import Conv, Gemm, Pass

HERE = Path(__file__).parent
RUNS = HERE.parent / "tests" / "data" / "scalesim_3_0_0.csv"


def cpu_s(work: Callable[[], object], repeats: int = 1) -> float:
    """CPU seconds of one call, the least of three series."""
    series = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(repeats):
            work()
        series.append((time.process_time() - start) / repeats)
    return min(series)


def search_s(loops: Gemm | Conv, pass_: Pass, machine: MappingMachine, mapper: Mapper) -> float:
    """CPU seconds of one search that remembers nothing."""

    def afresh() -> None:
        forget()
        map_contraction(loops, pass_, machine, mapper)

    return cpu_s(afresh)


def rows(path: Path) -> list[dict[str, str]]:
    """Read a table, its comments apart."""
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def main() -> None:
    """Print everything."""
    device = load_device("tpu-v2")
    machine = machine_of(device, "mxu", "bf16", "fp32")
    assert machine is not None
    model = rl.load_model("resnet50")
    graph = model.training(256, "bf16-mixed", None)
    ops = list({(op.loops, op.priced_as): None for op in graph.ops if op.loops is not None})
    for mapper in ("fast", "optimal"):
        map_contraction(*ops[0], machine, mapper)  # compile
        taken = sorted(1e6 * search_s(*op, machine, mapper) for op in ops)
        print(
            f"{mapper:8} {len(ops)} contractions: mean {statistics.mean(taken):8.0f} us, "
            f"median {statistics.median(taken):8.0f} us, longest {taken[-1]:8.0f} us"
        )
    apart = sorted(
        map_contraction(*op, machine, "fast").time_s
        / map_contraction(*op, machine, "optimal").time_s
        - 1
        for op in ops
    )
    print(f"fast over optimal: mean {statistics.mean(apart):.3%}, most {apart[-1]:.3%}")
    small = machine._replace(capacities=(*machine.capacities[:3], 256 * 1024.0))
    apart = sorted(
        map_contraction(*op, small, "fast").time_s / map_contraction(*op, small, "optimal").time_s
        - 1
        for op in ops
    )
    print(f"  with 256 KiB of buffers: mean {statistics.mean(apart):.3%}, most {apart[-1]:.3%}")

    # Another level of buffers before the arrays: an invented machine.
    l1 = Buffer("l1", (math.inf,) * 3 + (512 * 1024.0,), True, True, 1 / 3e12, 0.0, 1e-12)
    deep = machine._replace(nearer=(l1,), near_byte_s=1 / 6e12)
    for mapper in ("fast", "optimal"):
        map_contraction(*ops[0], deep, mapper)  # compile
        taken = sorted(1e3 * search_s(*op, deep, mapper) for op in ops)
        print(
            f"{mapper:8} on two levels of buffers: mean {statistics.mean(taken):5.1f} ms, "
            f"median {statistics.median(taken):5.1f} ms, longest {taken[-1]:5.1f} ms"
        )

    cluster, plan = rl.load_cluster("tpu-v2"), rl.Plan(global_batch=256, precision="bf16-mixed")
    rl.simulate(model, cluster, plan)
    warm = cpu_s(lambda: rl.simulate(model, cluster, plan), 3)

    def afresh() -> None:
        forget()
        rl.simulate(model, cluster, plan)

    print(f"whole step, ResNet-50, batch 256: {1e3 * warm:.1f} ms, no mapping remembered ", end="")
    print(f"{1e3 * cpu_s(afresh, 3):.1f} ms, all searches alone ", end="")
    print(f"{1e3 * sum(search_s(*op, machine, 'fast') for op in ops):.1f} ms")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory of this process: {most:.0f} MiB")

    theirs = {
        "SCALE-Sim 3.0.0": [
            (tuple(map(int, row["shape"].split("x"))), float(row["cpu_s"]))
            for row in rows(RUNS)
            if row["cpu_s"] and not row["sparsity"] and row["shape"].count("x") == 2
        ],
        "ZigZag 3.9.1": [
            ((int(row["m"]), int(row["n"]), int(row["k"])), float(row["cpu_s"]))
            for row in rows(HERE / "data" / "zigzag_3_9_1.csv")
        ],
    }
    for name, runs in theirs.items():
        their_s = sum(seconds for _, seconds in runs)
        for mapper in ("fast", "optimal"):
            our_s = sum(search_s(Gemm(*shape), Pass.FORWARD, machine, mapper) for shape, _ in runs)
            print(
                f"{name}: {len(runs)} products {their_s:9.2f} CPU s; {mapper} here {our_s:9.5f} "
                f"CPU s, {their_s / our_s:,.0f} times less"
            )


if __name__ == "__main__":
    main()
