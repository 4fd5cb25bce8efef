"""Suites of measurements: their names, what each is of, and the module that predicts its rows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ridgeline.errors import RidgelineError, nearest

SUITES = {
    "gemm": "Matrix products on one device",
    "conv": "Convolutions, forward and both gradients, on one device",
    "rnn": "Recurrent layers on one device",
    "single-device": "Training steps on one device",
    "multi-device": "Training steps on several devices",
    "llm": "Training steps of large language models under hybrid plans",
    "memory": "Fullest moment of a device in training steps of transformers",
    "pipeline": "Bubbles of pipeline schedules, given the times of a stage",
    "collectives": "Collectives over the links of a machine",
    "attention": "Fused attention on one device: prefill, encoders, generation",
    "moe": "Fused expert networks of one rank",
    "elementwise": "Elementwise functions on one device",
    "norm": "Norms on one device",
    "softmax": "Softmax on one device",
    "linear-attention": "Convolutions, scans and updates of linear attention on one device",
    "cast": "Scaling and casting to narrow formats on one device",
    "expert-all-to-all": "Dispatch and combine of expert parallelism",
    "kernel-power": "Mean board power while one kernel repeats",
    "generation": "Generation of tokens by serving frameworks: throughput and latency",
    "model-latency": "Forward passes and training steps of transformers in fp32",
    "energy": "Mean power of devices and nodes while they train",
    "node-power": "Mean power of whole nodes while they train",
    "power-limit": "Power and time under power limits, and the limit with the least energy",
    "convergence": "Samples to a target, by batch",
    "imagenet": "Whole runs on ImageNet: time to train",
    "mlperf": "Whole runs of MLPerf Training: time to train",
}


def find_suite(name: str) -> Any:
    """Import the module of a suite.

    Raises
    ------
    RidgelineError
        If there is no suite of this name.
    """
    if name not in SUITES:
        raise RidgelineError(
            f"there is no suite {name!r}{nearest(name, SUITES)} (there are: {', '.join(SUITES)})"
        )
    return import_module(f"{__package__}.{name.replace('-', '_')}")
