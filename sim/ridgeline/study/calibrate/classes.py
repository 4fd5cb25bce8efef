"""The classes of work whose parameters are estimated, and their measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from ridgeline.hardware.device import Device
from ridgeline.kernels.cpu_cores import terms_of
from ridgeline.kernels.op_signature import operands_of
from ridgeline.kernels.pricing import price
from ridgeline.study.calibrate import probes, shapes
from ridgeline.study.calibrate.backend import Backend
from ridgeline.study.calibrate.clock import Run, TimeSample, measure
from ridgeline.study.calibrate.fit import ParameterFit, fit
from ridgeline.study.calibrate.probes import ProbeWork
from ridgeline.workload.graph import Gemm

PASSES = ("forward", "input-gradient", "weight-gradient")
FILTERS = ("1x1", "3x3", "larger")
RULES = ("sgd", "sgd-momentum", "adam", "adamw")
# Elements: of so few that only the fixed time is seen, and of so many that no branch predictor has
# learnt the data by heart.
_STREAMED = (256, 8192, 65536, 262144)
_MEMORY_BOUND = 1.3  # times what memory takes: below, a time says little about a kernel
_SMALL_S, _TOGETHER_S = 0.01, 0.2
_UPDATED = ((1, 64), (6, 64), (8, 1024), (2, 16384), (1, 65536), (2, 262144))  # tensors, elements


@dataclass
class Measured:
    """Measurements of one class, and the parameters that explain them.

    Attributes
    ----------
    terms
        Amounts of every term, a row a measurement.
    labels
        What was measured, in words.
    """

    name: str
    columns: tuple[str, ...]
    terms: list[tuple[float, ...]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    known_s: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    disturbed: int = 0

    def add(self, label: str, terms: Sequence[float], sample: TimeSample, known_s: float) -> None:
        """Enter a measurement, and which part of it does not belong to the work."""
        self.labels.append(label)
        self.terms.append(tuple(terms))
        self.times_s.append(sample.seconds)
        self.known_s.append(known_s)
        self.disturbed += sample.taken - sample.kept

    def fit(self) -> ParameterFit:
        """Estimate the parameters."""
        return fit(
            np.array(self.terms, dtype=np.float64), np.array(self.times_s), np.array(self.known_s)
        )


class ProbePiece(NamedTuple):
    """Something to measure: its class, label, terms, and how to begin it.

    Attributes
    ----------
    known_s
        Part of its time that does not belong to the class.
    memory_s
        What its traffic alone takes. A time that is not much longer says nothing about the class.
    """

    name: str
    columns: tuple[str, ...]
    label: str
    terms: tuple[float, ...]
    begin: Callable[[], Run | None]
    known_s: float
    memory_s: float = 0.0


PRODUCT = ("flops", "a", "b", "c", "each", "latency")
CONV = ("flops", "a", "b", "c", "latency")
STREAM = ("bytes", "latency")
UPDATE = ("bytes", "latency", "step")
RECURRENCE = ("flops", "c", "each", "latency")


def _product_terms(work: ProbeWork, device: Device) -> tuple[float, ...]:
    terms = terms_of(work.op, operands_of(work.op, work.graph, device, "fp32"))
    return (*terms, 1.0)


def product_pieces(
    backend: Backend, device: Device, count: int, seed: int, back_s: float
) -> Iterator[ProbePiece]:
    """Products by format and pass."""
    for i, format_ in enumerate(backend.formats):
        # Training runs in the first format; of the others the rate is what matters.
        wanted = PASSES if i == 0 else PASSES[:1]
        for pass_ in wanted:
            made = [*shapes.products(count, seed), *shapes.batches(count // 4, seed)]
            for gemm in made:
                if gemm.batch > 1 and pass_ == "weight-gradient":
                    continue
                work = probes.product_work(gemm, pass_, format_)
                yield ProbePiece(
                    f"gemm {format_} {pass_}",
                    PRODUCT,
                    f"{gemm.batch} x {gemm.m}x{gemm.n}x{gemm.k}",
                    _product_terms(work, device),
                    partial(backend.product, gemm, pass_, format_),
                    0.0 if pass_ == "forward" else back_s,
                )


def conv_pieces(
    backend: Backend, device: Device, count: int, seed: int, back_s: float
) -> Iterator[ProbePiece]:
    """Convolutions by filter and pass, in the first format."""
    format_ = backend.formats[0]
    for filter_ in FILTERS:
        for conv in shapes.convolutions(filter_, count, seed):
            for pass_ in PASSES:
                work = probes.conv_work(conv, pass_, format_)
                flops, a, b, c, _, _ = _product_terms(work, device)
                yield ProbePiece(
                    f"conv2d {format_} {pass_} {filter_}",
                    CONV,
                    f"{conv.batch}x{conv.c_in}x{conv.h_in}x{conv.w_in} -> {conv.c_out}",
                    (flops, a, b, c, 1.0),
                    partial(backend.convolution, conv, pass_, format_),
                    0.0 if pass_ == "forward" else back_s,
                )


def _stream(backend: Backend, name: str, shape: probes.Shape, pass_: str) -> Run:
    return backend.stream(name, shape)[pass_]


def _recurrence(backend: Backend, sizes: tuple[int, int, int], pass_: str) -> Run:
    return backend.recurrence(*sizes)[pass_]


def stream_pieces(backend: Backend, device: Device, back_s: float) -> Iterator[ProbePiece]:
    """Ops outside contractions, by kind and pass."""
    for name, probe in probes.PROBES.items():
        for elements in _STREAMED:
            shape = probe.shape(elements)
            work = probes.stream_work(name, elements)
            for pass_ in backend.stream(name, shape):
                if pass_ not in work:
                    continue
                of = work[pass_]
                yield ProbePiece(
                    f"{of.op.kind} {pass_}",
                    STREAM,
                    f"{elements} elements",
                    (float(of.bytes), float(of.count)),
                    partial(_stream, backend, name, shape, pass_),
                    back_s if pass_ != "forward" and name != "bias" else 0.0,
                    memory_s(device, of.bytes),
                )


def memory_s(device: Device, size_bytes: float) -> float:
    """Time to touch so many bytes again and again, at the first level that holds them."""
    bandwidth = math.inf
    for level in device.memory.values():
        if level.bandwidth is not None:
            bandwidth = level.bandwidth.value
            if level.capacity.value >= size_bytes:
                break
    return size_bytes / bandwidth


def update_pieces(backend: Backend, device: Device) -> Iterator[ProbePiece]:
    """Measure updates by rule: of few and many tensors, small and large."""
    for rule in RULES:
        for tensors, elements in _UPDATED:
            size = tensors * probes.update_work(rule, elements).bytes
            yield ProbePiece(
                f"optimizer {rule}",
                UPDATE,
                f"{tensors} x {elements} elements",
                (float(size), float(tensors), 1.0),
                partial(backend.update, rule, tensors, elements),
                0.0,
                memory_s(device, size),
            )


def recurrent_pieces(
    backend: Backend, device: Device, count: int, seed: int, back_s: float
) -> Iterator[ProbePiece]:
    """Recurrences: what layers take less their other ops, as the device prices these so far."""
    for batch, hidden, steps in shapes.recurrences(count, seed):
        graph = probes.recurrent_work("lstm", batch, hidden, steps)
        for pass_ in backend.recurrence(batch, hidden, steps):
            inside = [
                op
                for op in graph.ops
                if op.layer.startswith(probes.LAYER)
                and op.kind != "optimizer"
                and (op.pass_.value == "forward") == (pass_ == "forward")
            ]
            (cell,) = [op for op in inside if op.sequential]
            near = (0,) * 8
            others_s = sum(
                price(op, graph, device, found=near[: len(op.inputs) + len(op.outputs)]).time_s(
                    device
                )
                for op in inside
                if op is not cell
            )
            flops, _, _, c, further, one = _product_terms(ProbeWork(cell, graph), device)
            yield ProbePiece(
                f"recurrence {pass_}",
                RECURRENCE,
                f"batch {batch}, {hidden} features, {steps} steps",
                (flops, c, further, one),
                partial(_recurrence, backend, (batch, hidden, steps), pass_),
                others_s + (0.0 if pass_ == "forward" else back_s),
            )


def measure_pieces(
    pieces: Sequence[ProbePiece], backend: Backend, seconds: float, rounds: int, until: float
) -> Mapping[str, Measured]:
    """Measure pieces, each for its share of the seconds; return them by class.

    Every piece is measured in several rounds, of which the shortest time counts: what disturbs a
    machine for a second (a neighbour, a lower clock) does not disturb the same pieces again.

    Parameters
    ----------
    until
        Time of the monotonic clock after which no further round is begun.
    """
    share_s = seconds / max(len(pieces) * rounds, 1)
    best: dict[int, TimeSample] = {}
    for turn in range(rounds):
        for i, piece in enumerate(pieces):
            if turn > 0 and time.monotonic() > until:
                break
            run = piece.begin()
            if run is not None:
                sample = measure(run, backend.watch, share_s)
                if i not in best or sample.seconds < best[i].seconds:
                    best[i] = sample
    found: dict[str, Measured] = {}
    for i, sample in best.items():
        piece = pieces[i]
        if sample.seconds < _MEMORY_BOUND * piece.memory_s:
            continue
        group = found.setdefault(piece.name, Measured(piece.name, piece.columns))
        group.add(piece.label, piece.terms, sample, piece.known_s)
    return {
        name: group for name, group in found.items() if len(group.times_s) >= len(group.columns)
    }


def among_others(backend: Backend) -> float:
    """How much longer small ops take one after the other than each again and again.

    A step runs hundreds of ops once each: their code and data have left the nearest caches when
    they come again, and nothing predicts their branches.
    """
    runs = [
        run for n, p in probes.PROBES.items() for run in backend.stream(n, p.shape(64)).values()
    ]
    for pass_ in PASSES:
        run = backend.product(Gemm(8, 8, 8), pass_, backend.formats[0])
        runs += [] if run is None else [run]
    alone = sum(measure(run, backend.watch, _SMALL_S).seconds for run in runs)

    def all_of_them() -> None:
        for run in runs:
            run()

    return max(1.0, measure(all_of_them, backend.watch, _TOGETHER_S).seconds / alone)
