"""Speed of the systolic closed form: ``python benchmarks/bench_systolic.py``.

Prints layer evaluations per CPU second: vectorised, one by one in a Python loop, and what the
recorded runs of SCALE-Sim 3.0.0 took for the same layers (``tests/data/scalesim_3_0_0.csv``, CPU
seconds of other machines at other times: an order of magnitude). The register-level array, which
proves the closed form, is there for comparison.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.systolic_registers import register_level_product
from ridgeline.hardware import load_device
from ridgeline.hardware.scalesim import read_config
from ridgeline.kernels.systolic import gemm_cycles, scalesim_product
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.kernels.systolic.partition import best_partition
from ridgeline.kernels.systolic.scalesim_files import read_topology
from ridgeline.kernels.systolic.scalesim_report import layer_reports, report_files
from ridgeline.workload.graph import Conv

RUNS = Path(__file__).parents[1] / "tests" / "data" / "scalesim_3_0_0.csv"


def cpu_s(work: Callable[[], object], repeats: int = 1) -> float:
    """CPU seconds of one call, the least of three series."""
    series = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(repeats):
            work()
        series.append((time.process_time() - start) / repeats)
    return min(series)


def recorded() -> list[tuple[tuple[int, int, int], int, int, str, int, float]]:
    """M, N, K, rows, columns, dataflow, cycles and CPU seconds of the timed dense runs."""
    found = []
    with RUNS.open() as stream:
        for row in csv.DictReader(line for line in stream if not line.startswith("#")):
            if not row["cpu_s"] or row["sparsity"]:
                continue
            sizes = [int(size) for size in row["shape"].split("x")]
            if len(sizes) == 7:
                h, w, r, s, channels, filters, stride = sizes
                loops = Conv(1, channels, h, w, filters, r, s, stride=(stride, stride))
                sizes = list(scalesim_product(loops))
            rows, columns = (int(x) for x in row["array"].split("x"))
            m, n, k = sizes
            found.append(
                (
                    (m, n, k),
                    rows,
                    columns,
                    row["dataflow"],
                    int(row["compute"]),
                    float(row["cpu_s"]),
                )
            )
    return found


THEIRS = """
import contextlib, io, json, sys, time
from scalesim.scale_sim import scalesim
config, topology, layout, folder = sys.argv[1:]
start = time.process_time()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run = scalesim(save_disk_space=True, verbose=False, config=config, topology=topology,
                   layout=layout, input_type_gemm=True)
    run.run_scale(top_path=folder)
print(json.dumps(time.process_time() - start))
"""
MODES = ("CALC", "USER")


def against_scalesim(python: str) -> None:
    """Replay products in both modes, and run SCALE-Sim itself on them with that interpreter."""
    example = Path(__file__).parents[1] / "docs" / "examples" / "scalesim" / "user.cfg"
    for mode in MODES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config, topology = folder / "array.cfg", folder / "layers.csv"
            text = example.read_text().replace(": USER", f": {mode}")
            config.write_text(text)
            topology.write_text("Layer, M, N, K,\nsquare, 256, 128, 256,\nvit, 196, 64, 1176,\n")
            (folder / "layout.csv").write_text("none,\n")
            paths = [str(path) for path in (config, topology, folder / "layout.csv", folder)]
            run = subprocess.run(
                [python, "-c", THEIRS, *paths], capture_output=True, text=True, check=True
            )
            described, layers = read_config(config), read_topology(topology)

            def ours() -> dict[str, str]:
                return report_files(described, layer_reports(described, layers, "scalesim"))  # noqa: B023

            theirs = folder / described.run_name
            for file, content in ours().items():  # and compile
                same = [line.strip() for line in (theirs / file).read_text().splitlines()]
                assert same == [line.strip() for line in content.splitlines()], file
            theirs_s, ours_s = json.loads(run.stdout), cpu_s(ours)
            print(
                f"SCALE-Sim's reports of 2 products, {mode} mode: SCALE-Sim {theirs_s:.2f} CPU s,"
                f" here {ours_s:.4f} CPU s, {theirs_s / ours_s:.0f} times less; the same reports"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=1_000_000)
    parser.add_argument("--scalesim", help="an interpreter with SCALE-Sim 3.0.0, to run it, too")
    arguments = parser.parse_args()
    count = arguments.layers
    m, n, k = np.random.default_rng(0).integers(1, 5000, (3, count))
    print(f"{'':44}{'evaluations / CPU s':>20}")
    for dataflow in ("os", "ws", "is"):
        seconds = cpu_s(lambda d=dataflow: gemm_cycles(m, n, k, 128, 128, d))  # type: ignore[misc]
        print(f"{'gemm_cycles, one call, ' + dataflow:44}{count / seconds:>20,.0f}")
    some = [(int(a), int(b), int(c)) for a, b, c in zip(m[:5000], n, k, strict=False)]
    seconds = cpu_s(lambda: [gemm_cycles(*shape, 128, 128) for shape in some])
    print(f"{'gemm_cycles, a Python loop':44}{len(some) / seconds:>20,.0f}")

    engine = load_device("tpu-v2").engines["mxu"]
    assert engine.array is not None
    arrays = arrays_of(engine.array, engine.accumulate)

    def divide() -> None:
        best_partition.cache_clear()
        for shape in some[:1000]:
            best_partition(*shape, 1, arrays)

    print(f"{'best division on tpu-v2, new shapes':44}{1000 / cpu_s(divide):>20,.0f}")

    a, b = np.ones((128, 128), int), np.ones((128, 128), int)
    register_level_product(a, b, 16, 16)  # compile
    seconds = cpu_s(lambda: register_level_product(a, b, 16, 16))
    print(f"{'register-level array, 128^3 on 16 x 16':44}{1 / seconds:>20,.1f}")

    runs = recorded()
    theirs_s = sum(run[-1] for run in runs)

    def ours() -> list[object]:
        return [
            gemm_cycles(*size, rows, columns, dataflow, compat="scalesim")
            for size, rows, columns, dataflow, _, _ in runs
        ]

    assert ours() == [cycles for *_, cycles, _ in runs]
    ours_s = cpu_s(ours, repeats=20)
    print(
        f"\nthe {len(runs)} recorded dense runs with a CPU time, same cycles:\n"
        f"  SCALE-Sim 3.0.0   {theirs_s:12.1f} CPU s (longest {max(run[-1] for run in runs):.1f})\n"
        f'  compat="scalesim" {ours_s:12.6f} CPU s, one by one: {theirs_s / ours_s:.1e} times less'
    )
    if arguments.scalesim:
        against_scalesim(arguments.scalesim)


if __name__ == "__main__":
    main()
