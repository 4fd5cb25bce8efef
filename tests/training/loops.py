"""Runs without a machine: steps of ten seconds on one node, for tests of the training loop."""

from __future__ import annotations

import math
from typing import Any

from ridgeline.training.run_file import RunFile
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.training.storage import CheckpointTimes
from ridgeline.training.training_loop import TrainingLoop

STEP_S = 10.0


def run_of(**fields: Any) -> RunFile:
    """Return a run file of these fields, and what no test of the loop reads."""
    return RunFile.model_validate(
        {
            "kind": "run",
            "name": "test",
            "model": "resnet50",
            "cluster": "dgx1-v100",
            "plan": {"data": 8},
            "target": {"steps": 1},
            **fields,
        }
    )


def loop_of(
    run: RunFile, *, steps: int, seed: int = 0, nodes: int = 1, workers: int = 1
) -> TrainingLoop:
    """Play a run whose checkpoint states its times, and return its loop."""
    saving = None
    if run.checkpoint is not None:
        policy = run.checkpoint
        assert isinstance(policy.every, int)
        written = policy.save_time or 0.0
        stall = written if policy.mode == "synchronous" else written / 10
        restored = written if policy.restore_time is None else policy.restore_time
        saving = (CheckpointTimes(1e9, stall, written, restored), policy.every)
    times = StepTimes((StepPhase(steps, STEP_S),))
    loop = TrainingLoop(run, times, nodes=nodes, workers=workers, saving=saving, seed=seed)
    loop.play()
    return loop


def expected_largest_exponential(workers: int) -> float:
    """Return the expected largest of exponential times of mean 1: the harmonic number H_N."""
    if workers < 1000:
        return math.fsum(1 / k for k in range(1, workers + 1))
    return math.log(workers) + 0.5772156649015329 + 1 / (2 * workers) - 1 / (12 * workers**2)
