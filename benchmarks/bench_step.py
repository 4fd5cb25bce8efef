"""Speed and memory of one training step: ``python benchmarks/bench_step.py``.

Prints what a warm process takes for ResNet-50's whole training step, with stalls, energy, memory
and manifest: asked again, when its prices are remembered, and on a device whose memory is of
another speed each time, so that nothing but the network is known from before. Each device is
measured in a process of its own, for its peak memory; the compiled kernels are on disk. Beside it
stand the recorded CPU seconds of SCALE-Sim 3.0.0 and ZigZag 3.9.1 for their own rows: other layers
and other times, an order of magnitude.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
import time
from pathlib import Path

import ridgeline as rl

HERE = Path(__file__).parent
RECORDED = {
    "SCALE-Sim 3.0.0": HERE.parent / "tests" / "data" / "scalesim_3_0_0.csv",
    "ZigZag 3.9.1": HERE / "data" / "zigzag_3_9_1.csv",
}
STEPS = (("tpu-v2", "bf16-mixed", 600), ("v100-sxm2-16gb", "fp16-mixed", 900))
BATCH, REPEATS = 64, 30


def measure(device: str, precision: str, bandwidth: int) -> None:
    """Print one line for one device."""
    model = rl.load_model("resnet50")
    plan = rl.Plan(global_batch=BATCH, precision=precision)
    clusters = [
        rl.load_cluster(device, {"device.memory.hbm.bandwidth": f"{bandwidth + n} GB/s"})
        for n in range(REPEATS + 1)
    ]
    rl.simulate(model, clusters[0], plan)
    again = median_ms(model, [clusters[0]] * REPEATS, plan)
    afresh = median_ms(model, clusters[1:], plan)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{device:18s} {again:16.1f} {afresh:22.1f} {most:14.0f}", flush=True)


def median_ms(model: rl.Model, clusters: list[rl.Cluster], plan: rl.Plan) -> float:
    """CPU milliseconds of one step, the median of all: the machine does other things, too."""
    times = []
    for cluster in clusters:
        start = time.process_time()
        rl.simulate(model, cluster, plan)
        times.append(time.process_time() - start)
    return 1e3 * sorted(times)[len(times) // 2]


def recorded_s(path: Path) -> tuple[int, float]:
    """Rows of a table of recorded runs, and their mean CPU seconds."""
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    times = [float(row["cpu_s"]) for row in rows if row.get("cpu_s")]
    return len(times), sum(times) / len(times)


def main() -> None:
    """Print everything."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    print(f"ResNet-50's training step, batch {BATCH}: CPU ms warm, peak memory of the process")
    print(f"{'device':18s} {'asked again, ms':>16s} {'another device, ms':>22s} {'most, MiB':>14s}")
    for step in STEPS:
        for quiet in (True, False):  # the first run leaves the compiled kernels on disk
            command = [sys.executable, __file__, *map(str, step)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL if quiet else None)
    for name, path in RECORDED.items():
        n, seconds = recorded_s(path)
        print(f"{name}: {seconds:.2f} CPU s a layer, the mean of {n} recorded runs")


if __name__ == "__main__":
    main()
