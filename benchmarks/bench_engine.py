"""Speed and memory of the event engine: ``python benchmarks/bench_engine.py``.

Prints tasks per second of CPU time of the compiled executor and of the SimPy reference on programs
of the same kind, in one run, and the ratio of the two; the executor is warm, validation is
included. The reference is made to be obvious: it looks at all streams and divides all flows at
every moment, so the ratio grows with the number of streams.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from ridgeline.engine import Program, ProgramBuilder, Timeline, WorkPhase, run, run_reference


def chains(n_tasks: int, n_streams: int) -> Program:
    """Chains of tasks on private resources, three in ten with a dependency on another chain."""
    builder, streams = machine(n_streams)
    engines = [builder.add_resource(f"engine {s}", 1e12) for s in streams]
    rng = np.random.default_rng(0)
    rows = [
        [builder.add_cost([WorkPhase(1e-6, {engine: work})]) for work in rng.uniform(1e6, 1e9, 20)]
        for engine in engines
    ]
    picks = rng.integers(0, 20, n_tasks).tolist()
    others = np.where(rng.random(n_tasks) < 0.3, rng.integers(1, n_streams, n_tasks), 0).tolist()
    for task, (pick, other) in enumerate(zip(picks, others, strict=True)):
        deps = {task - n_streams, task - other - n_streams} if task >= 2 * n_streams else set()
        stream = task % n_streams
        builder.add_task("compute", "op", stream=stream, cost=rows[stream][pick], deps=[*deps])
    return builder.build()


def flows(n_tasks: int, n_streams: int, block: int) -> Program:
    """Flows from each stream's uplink to a random downlink among the `block` streams around it."""
    builder, streams = machine(n_streams)
    up = [builder.add_resource(f"up {s}", 1e9, shared=True) for s in streams]
    down = [builder.add_resource(f"down {s}", 1e9, shared=True) for s in streams]
    rng = np.random.default_rng(0)
    rows = [
        [
            builder.add_cost(
                [WorkPhase(1e-6, {up[s]: size, down[s - s % block + int(peer)]: size})],
            )
            for size, peer in zip(
                rng.uniform(1e5, 1e6, 20), rng.integers(0, block, 20), strict=True
            )
        ]
        for s in streams
    ]
    picks = rng.integers(0, 20, n_tasks).tolist()
    for task, pick in enumerate(picks):
        stream = task % n_streams
        builder.add_task("flow", "send", stream=stream, cost=rows[stream][pick])
    return builder.build()


def rings(n_collectives: int, n_ranks: int) -> tuple[Program, int]:
    """Ring all-reduces of two groups that share every link; also return the number of messages."""
    builder, streams = machine(2 * n_ranks)
    links = [builder.add_resource(f"link {i}", 1e9, shared=True) for i in range(n_ranks)]
    rounds = 2 * (n_ranks - 1)
    for half in (0, 1):
        works = dict.fromkeys(links, 1e5 * (1 + half))
        row = builder.add_cost([WorkPhase(1e-6, works, repeat=rounds)])
        group = builder.add_group(streams[half * n_ranks : (half + 1) * n_ranks])
        for _ in range(n_collectives // 2):
            builder.add_task("collective", "all-reduce", group=group, cost=row)
    program = builder.build()
    return program, program.n_tasks * rounds * n_ranks


def machine(n_streams: int) -> tuple[ProgramBuilder, list[int]]:
    builder = ProgramBuilder()
    return builder, [builder.add_stream(f"s{i}", builder.add_rank()) for i in range(n_streams)]


def cpu_s(execute: Callable[[Program], Timeline], program: Program, repeats: int) -> float:
    """Return the least CPU seconds of some plays."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        execute(program)
        times.append(time.process_time() - begin)
    return min(times)


def bytes_per_task(program: Program) -> tuple[float, float]:
    """Return the bytes a task takes in the Program, and at most in addition while it is played.

    Dependencies are left out of the first and, at 4 B each and 8 B a task, of the second.
    """
    columns = ("kind", "stream", "group", "cost", "priority", "multiplicity", "label", "memory_ptr")
    held = sum(getattr(program, name).nbytes for name in columns)
    tracemalloc.start()
    run(program)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    dependencies = 4 * len(program.dep_index) + 8 * program.n_tasks
    return held / program.n_tasks, (peak - dependencies) / program.n_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    n = parser.parse_args().tasks
    cases = {
        "no sharing, 64 streams": (chains(n, 64), chains(n // 50, 64)),
        "no sharing, 1024 streams": (chains(n, 1024), chains(n // 100, 1024)),
        "links shared in fours, 64 streams": (flows(n, 64, 4), flows(n // 1000, 64, 4)),
        "one crossbar of 64 streams": (flows(n // 10, 64, 64), flows(n // 1000, 64, 64)),
    }
    print(f"{'tasks or messages per CPU second':46s} {'numba':>12s} {'simpy':>12s} {'ratio':>8s}")
    for name, (program, small) in cases.items():
        run(small)
        fast = program.n_tasks / cpu_s(run, program, 3)
        slow = small.n_tasks / cpu_s(run_reference, small, 1)
        print(f"{name:46s} {fast:12,.0f} {slow:12,.0f} {fast / slow:8.0f}")
    program, messages = rings(2000, 64)
    speed = messages / cpu_s(run, program, 3)
    print(f"{'messages of two rings of 64 on the same links':46s} {speed:12,.0f}")
    held, extra = bytes_per_task(cases["no sharing, 64 streams"][0])
    print(f"bytes a task without dependencies: {held:.1f} in the program, {extra:.1f} to play it")


if __name__ == "__main__":
    main()
