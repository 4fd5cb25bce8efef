"""A machine that is not there: its times follow a law, and its clock is a number."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ridgeline.kernels.traffic import streamed_bytes
from ridgeline.study.calibrate import probes
from ridgeline.study.calibrate.clock import Run, Stopwatch
from ridgeline.study.calibrate.machine import Cache, MeasuredProcessor, processor
from ridgeline.study.calibrate.probes import Shape
from ridgeline.workload.graph import Conv, Gemm

LAUNCH_S, BACK_S, STEP_S, TENSOR_S = 4e-6, 2e-5, 1e-5, 2e-6
RATE, EACH_S = 8e10, 3e-7
A_S, B_S, C_S = 1 / 8e9, 1 / 3e10, 1 / 2e10
CONV_RATE, CONV_LAUNCH_S, CONV_BYTE_S = 5e10, 3e-5, 1 / 6e9
STREAM_BYTE_S, NEAR_BYTE_S = 1 / 9e9, 1 / 4e10
HELD, FAR_BYTE_S = 0.7, 1 / 1e10  # of the last cache others have the rest


@dataclass
class Law:
    """A backend by formula; noise has the given deviation of the logarithm."""

    noise: float = 0.0
    name: str = "law"
    device: Literal["cpu", "cuda"] = "cpu"
    versions: str = "a law"
    threads: int = 1
    formats: tuple[str, ...] = ("fp32", "fp64")
    time_s: float = 0.0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Stopwatch(lambda: self.time_s)

    def _run(self, seconds: float) -> Run:
        """Return work whose noise is its own, however often it is measured."""
        random = np.random.default_rng(zlib.crc32(f"{seconds:.12g}".encode()))
        factor = float(random.lognormal(0.0, self.noise))

        def run() -> None:
            self.time_s += seconds * factor

        return run

    def described(self) -> MeasuredProcessor:
        if self.device == "cpu":
            return processor()
        return MeasuredProcessor("An accelerator", 100, (Cache(2, 2**25, 100),), 2**34, 2**18)

    def product(self, gemm: Gemm, pass_: str, format_: str) -> Run | None:
        if gemm.batch > 1 and pass_ == "weight-gradient":
            return None
        self.asked.append(f"{gemm} {pass_}")
        size = {"fp32": 4, "fp64": 8}[format_]
        seconds = LAUNCH_S + 2 * gemm.macs / (RATE * 4 / size) + EACH_S * (gemm.batch - 1)
        for count, byte_s in (
            (gemm.m * gemm.k, A_S),
            (gemm.k * gemm.n, B_S),
            (gemm.m * gemm.n, C_S),
        ):
            seconds += size * gemm.batch * count * byte_s
        return self._run(seconds + (0.0 if pass_ == "forward" else BACK_S))

    def convolution(self, conv: Conv, pass_: str, format_: str) -> Run | None:
        work = probes.conv_work(conv, pass_, format_)
        seconds = CONV_LAUNCH_S + 2 * conv.macs / CONV_RATE + CONV_BYTE_S * work.bytes
        return self._run(seconds + (0.0 if pass_ == "forward" else BACK_S))

    def stream(self, name: str, shape: Shape) -> Mapping[str, Run]:
        if name not in {"relu", "softmax"}:
            return {}
        work = probes.stream_work(name, int(np.prod(shape)))
        return {
            pass_: self._run(
                LAUNCH_S * of.count + of.bytes * STREAM_BYTE_S
                + (0.0 if pass_ == "forward" else BACK_S)
            )
            for pass_, of in work.items()
        }  # fmt: skip

    def recurrence(self, batch: int, hidden: int, steps: int) -> Mapping[str, Run]:
        return {}

    def update(self, rule: str, tensors: int, elements: int) -> Run | None:
        if rule != "sgd":
            return None
        work = probes.update_work(rule, elements)
        moved = tensors * streamed_bytes(work.op, work.graph)
        return self._run(STEP_S + TENSOR_S * tensors + moved * STREAM_BYTE_S)

    def add(self, elements: int) -> Run:
        last = self.described().caches[-1:]
        held = HELD * last[0].size_bytes if last else float("inf")
        byte_s = NEAR_BYTE_S if 12 * elements <= held else FAR_BYTE_S
        return self._run(1e-6 + 12 * elements * byte_s)

    def backward_chain(self, depth: int) -> Run | None:
        return self._run(BACK_S + depth * LAUNCH_S)


def silent() -> Callable[[str], None]:
    return lambda words: None
