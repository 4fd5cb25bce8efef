"""Two processes of this machine that exchange gradients through gloo.

A process is this module run by the same Python, with its task as JSON; the first of the two prints
its times. Of a piece of work both the time of the wall and that of the processor are taken. Where a
process has one thread for its arithmetic, the latter counts, as in all of a calibration: on a
machine that does other things two processes seldom run at the same moment, and the wall says mostly
how long one waits for the other to be let run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.calibrate.machine import keep_freed_memory

RANKS = 2
_PATIENCE_S = 300.0
_QUANTILE = 0.1  # of the samples: what another process did not delay
_WARM = 3
_VECTORS = 8


class ProcessTimes(NamedTuple):
    """Low quantiles of a process's times of one piece of work."""

    processor_s: float
    wall_s: float

    def counting_s(self, threads: int) -> float:
        """Return the one that counts."""
        return self.processor_s if threads == 1 else self.wall_s


def run_pair(task: dict[str, Any]) -> list[ProcessTimes]:
    """Let two processes do a task; return the times that it asks for, in seconds.

    Raises
    ------
    RidgelineError
        If a process fails, with the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = {**task, "meeting": str(Path(folder) / "meeting")}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps({**meeting, "rank": rank})],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        try:
            answers = [process.communicate(timeout=_PATIENCE_S) for process in started]
        except subprocess.TimeoutExpired as error:
            raise RidgelineError(f"two processes did not finish in {_PATIENCE_S:g} s") from error
        finally:
            for process in started:
                process.kill()
        for process, (_, said) in zip(started, answers, strict=True):
            if process.returncode:
                last = said.strip().splitlines()[-1:] or ["no message"]
                raise RidgelineError(f"one of two processes failed: {last[0]}")
    return [ProcessTimes(*times) for times in json.loads(answers[0][0].strip().splitlines()[-1])]


def exchange_s(sizes_bytes: Sequence[int], threads: int, samples: int) -> list[ProcessTimes]:
    """Measure what exchanging gradients of so many bytes adds to a step of one process.

    The step is of a network without arithmetic to speak of, whose weights are a few vectors: with
    the wrapper that copies gradients into buffers, reduces and copies them back, and without.
    """
    task = {"do": "exchange", "sizes": list(sizes_bytes), "samples": samples, "threads": threads}
    both = run_pair(task)
    return [
        ProcessTimes(*(max(w - wo, 0.0) for w, wo in zip(with_, without, strict=True)))
        for with_, without in zip(both[::2], both[1::2], strict=True)
    ]


def train_s(cases: Sequence[tuple[str, int, int]], threads: int) -> list[ProcessTimes]:
    """Measure steps of data-parallel training: case, samples of each process, repetitions."""
    return run_pair({"do": "train", "cases": [list(case) for case in cases], "threads": threads})


def _repeated(run: Callable[[], object], samples: int) -> ProcessTimes:
    taken = []
    for i in range(_WARM + samples):
        start = time.process_time(), time.perf_counter()
        run()
        if i >= _WARM:
            taken.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return ProcessTimes(*(float(x) for x in np.quantile(taken, _QUANTILE, axis=0)))


def _work(task: dict[str, Any]) -> list[ProcessTimes]:
    """Do one process's part of a task."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from ridgeline.study.live.torch_networks import CASES, Vectors, step_of, vectors_step

    keep_freed_memory()
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo", init_method=f"file://{task['meeting']}", rank=task["rank"], world_size=RANKS
    )
    times = []
    if task["do"] == "exchange":
        for size in task["sizes"]:
            alone = Vectors(_VECTORS, max(1, size // (4 * _VECTORS)))
            times += [
                _repeated(vectors_step(network), task["samples"])
                for network in (DistributedDataParallel(alone), alone)
            ]
    else:
        known = {case.name: case for case in CASES}
        for name, batch, samples in task["cases"]:
            network = DistributedDataParallel(known[name].build())
            times.append(_repeated(step_of(known[name], batch, network, "cpu"), samples))
    distributed.barrier()
    distributed.destroy_process_group()
    return times


if __name__ == "__main__":
    print(json.dumps(_work(json.loads(sys.argv[1]))))
