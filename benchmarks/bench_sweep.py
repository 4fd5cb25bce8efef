"""Speed and memory of a design study: ``python benchmarks/bench_sweep.py [POINTS]``.

Sweeps ResNet-50's training step over the rows, columns and dataflow of a TPU v2's arrays, its
memory on chip and its bandwidth: so many points, spread over the grid of 10,000, or with ``all``
the whole of it. Prints CPU time a point and points a second of the clock on one and on two
processes, with the start of the processes, whether the two files are the same bytes, the same
points one by one with everything loaded anew (what a loop over `rl.simulate` does) and the ratio,
and the most memory that any process had. The compiled kernels are on disk.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import ridgeline as rl
from ridgeline.study.store import RowStore
from ridgeline.study.sweep import Sweep, prepare, write_rows

ARRAY = "cluster.device.engines.mxu.array"
SIDES = "[16, 32, 64, 96, 128, 160, 192, 256, 384, 512]"
STUDY = """kind: study
name: arrays
model: resnet50
cluster: tpu-v2
plan: {global_batch: 64, precision: bf16-mixed}
"""
FIELDS = f"""
  {ARRAY}.rows: {SIDES}
  {ARRAY}.columns: {SIDES}
  {ARRAY}.dataflows: [[ws], [os], [is], [ws, is], [os, ws, is]]
  cluster.device.memory.vmem.capacity: [4 MiB, 16 MiB, 32 MiB, 64 MiB]
  cluster.device.memory.hbm.bandwidth: {{from: 300 GB/s, to: 2400 GB/s, steps: 5, scale: log}}
"""
PLAIN = 20  # points that are simulated one by one
MIB = 1024


def swept(sweep: Sweep, folder: Path, processes: int) -> tuple[float, float, bytes]:
    """Seconds of CPU time, of this process and of those that it started, and of the clock."""
    out, start, used = folder / f"rows-{processes}.csv", time.monotonic(), cpu_s()
    with RowStore(folder / f"rows-{processes}.jsonl") as store:
        sweep.run(store, processes)
        write_rows(sweep.rows(store), out)
    for child in multiprocessing.active_children():  # their time counts when they have ended
        child.join()
    return cpu_s() - used, time.monotonic() - start, out.read_bytes()


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def plain_s(sweep: Sweep) -> float:
    """CPU seconds of one point with everything loaded for it alone."""
    points = [point for _, _, point in sweep.keyed()]
    chosen = points[:: max(1, len(points) // PLAIN)][:PLAIN]
    start = time.process_time()
    for point in chosen:
        overrides = {
            path.removeprefix("cluster."): value for path, value in point.overrides.items()
        }
        cluster = rl.load_cluster(point.cluster, overrides)
        rl.simulate(rl.load_model(point.model), cluster, rl.Plan(**point.plan)).to_row()
    return (time.process_time() - start) / len(chosen)


def main() -> None:
    """Print everything."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else "400"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        points = f"vary:{FIELDS}"
        if wanted != "all":
            over = FIELDS.replace("steps: 5, ", "").strip().replace("\n ", ",\n ")
            points = (
                f"sample:\n {{method: latin-hypercube, count: {int(wanted)}, over: {{{over}}}}}\n"
            )
        (folder / "study.yaml").write_text(STUDY + points)
        sweep = prepare(folder / "study.yaml")
        n, plain = sweep.size, plain_s(sweep)
        print(f"{n} of 10,000 points of ResNet-50 training on systolic arrays")
        print(f"{'':14s} {'CPU ms a point':>14s} {'points/s':>9s} {'10,000 take':>12s}")
        print(f"{'one by one':14s} {1e3 * plain:14.1f} {1 / plain:9.1f} {1e4 * plain:10.0f} s")
        results = {}
        for processes in (1, 2):
            used_s, wall_s, results[processes] = swept(sweep, folder, processes)
            label = f"{processes} process{'es' if processes > 1 else ''}"
            print(
                f"{label:14s} {1e3 * used_s / n:14.1f} {n / wall_s:9.1f}"
                f" {1e4 * wall_s / n:10.0f} s, {plain * n / used_s:.1f} times less CPU time a point"
            )
        print(f"same bytes on 1 and 2 processes: {results[1] == results[2]}")
    for label, who in (
        ("this process", resource.RUSAGE_SELF),
        ("others", resource.RUSAGE_CHILDREN),
    ):
        print(f"most memory, {label}: {resource.getrusage(who).ru_maxrss / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
