"""Measure the machine that this runs on, and describe it as a device.

Products, convolutions and recurrences on a designed set of shapes, ops outside contractions at
several sizes, updates, and additions at every level of memory: each is measured, and the
parameters of the model that prices it (`kernels.cpu_cores`, `Device.kernels`) are fitted to the
measurements. No network is run.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.study.calibrate import classes, document, machine
from ridgeline.study.calibrate.backend import Backend, check_backend, open_backend
from ridgeline.study.calibrate.clock import measure
from ridgeline.study.calibrate.document import Findings

__all__ = ["Calibration", "Options", "calibrate"]

_SHARES = {
    "products": 0.4,
    "convolutions": 0.25,
    "other ops": 0.2,
    "updates": 0.05,
    "recurrences": 0.1,
}
_MEMORY_S = 0.15
_ELEMENT = 4
_ARRAYS = 3  # of an addition
_FAR_TIMES = 4  # the nearest memory that no cache holds: so many times the last cache
_FAR_MOST = 2**27
_POWER_S = 0.5
_LAST_SHARES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


@dataclass(frozen=True)
class Options:
    """What is measured, and for how long.

    Attributes
    ----------
    seconds
        About how long all of it takes; the fewest repetitions are made in any case.
    threads
        That share an op; None: as many as there are cores to run on.
    """

    backend: str = "numpy"
    device: str = "cpu"
    seconds: float = 30.0
    threads: int | None = None
    seed: int = 0
    quick: bool = False
    name: str | None = None

    @property
    def rounds(self) -> int:
        """How often everything is measured, all else in between."""
        return 1 if self.quick else 3

    @property
    def products(self) -> int:
        """Shapes of products for each pass."""
        return 16 if self.quick else 64

    @property
    def convolutions(self) -> int:
        """Shapes of convolutions for each class of filters, and of recurrences."""
        return 6 if self.quick else 24


@dataclass(frozen=True)
class Calibration:
    """What was found, and the fields of the device file."""

    found: Findings
    fields: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write the device file, whole or not at all."""
        document.write(Path(path), self.fields, "Printed by ridgeline calibrate")


def _silent(_: str) -> None:
    return None


def calibrate(
    options: Options,
    said: Callable[[str], None] = _silent,
    backend: Backend | None = None,
) -> Calibration:
    """Measure this machine.

    Parameters
    ----------
    said
        Is told what is measured, as it begins.
    backend
        What does the work; by default the one that the options name.

    Raises
    ------
    RidgelineError
        If the backend is not there, or what was asked for cannot be measured.
    """
    if options.seconds <= 0:
        raise RidgelineError(f"seconds must be more than 0, found {options.seconds:g}")
    if options.seed < 0:
        raise RidgelineError(f"seed must be at least 0, found {options.seed}")
    if backend is None:
        check_backend(options.backend, options.device)
    cores = machine.usable_cores()
    threads = cores if options.threads is None else options.threads
    if not 1 <= threads <= cores:
        raise RidgelineError(f"threads must be 1 to {cores} on this machine, found {threads}")
    machine.keep_freed_memory()
    busy = machine.disturbance()
    if busy is not None:
        said(busy)
    if options.backend == "numpy":
        import numpy as np

        np.ones((2, 2)) @ np.ones((2, 2))  # so that its BLAS is loaded
        machine.set_blas_threads(threads)
    using = backend or open_backend(options.backend, options.device, threads, options.seed)
    said(f"{using.versions}, {threads} thread(s)")
    found = _about(using, threads)
    name = options.name or document.slug(f"{found.processor.model} {using.name} {threads}t")
    found.levels = _bandwidths(using, found)
    said("memory")
    back_s = _walk(using)
    _measure(options, using, found, name, back_s, said)
    found.among_others = classes.among_others(using)
    found.begin_s = back_s + _step_s(found)
    _measure_power(using, found)
    _remark(options, found, busy)
    return Calibration(found, document.describe(name, found))


def _about(using: Backend, threads: int) -> Findings:
    """Describe the machine as the operating system does; rates are those of one product."""
    from ridgeline.workload.graph import Gemm

    described = using.described()
    # The cores of an accelerator are its own; the threads are those of the host.
    units = threads if using.device == "cpu" else described.cores
    rates = {}
    for format_ in using.formats:
        run = using.product(Gemm(384, 384, 384), "forward", format_)
        if run is not None:
            rates[format_] = 2 * 384**3 / measure(run, using.watch).seconds
    return Findings(
        device=using.device,
        versions=using.versions,
        processor=described,
        threads=units,
        registers=(float(described.register_bytes * units), units),
        levels=(),
        rates=rates,
        date=datetime.date.today(),
    )


def _bandwidths(using: Backend, found: Findings) -> tuple[tuple[str, float, float], ...]:
    """Measure additions whose arrays a level holds; a level is not faster than a nearer one.

    The last cache is often shared with others: what this process has of it is the largest share in
    which additions are nearer to its bandwidth than to that of the memory behind.
    """
    nothing = measure(using.add(1), using.watch, _MEMORY_S / 4).seconds
    capacities = document.levels_of(found.processor.caches, found.threads)
    last = capacities[-1][1] if capacities else 2.0**25
    sizes = [(name, size, size / 2) for name, size in capacities]
    sizes.append(("memory", float(found.processor.memory_bytes), min(_FAR_TIMES * last, _FAR_MOST)))
    levels: list[tuple[str, float, float]] = []
    for name, capacity, used in sizes:
        bandwidth = _bandwidth(using, used, nothing)
        if levels:
            bandwidth = min(bandwidth, levels[-1][2])
        levels.append((name, capacity, bandwidth))
    if len(levels) > 1:
        name, capacity, bandwidth = levels[-2]
        between = (bandwidth * levels[-1][2]) ** 0.5
        own = [s for s in _LAST_SHARES if _bandwidth(using, s * capacity, nothing) >= between]
        levels[-2] = (name, max(own, default=min(_LAST_SHARES)) * capacity, bandwidth)
    return tuple(levels)


def _bandwidth(using: Backend, used_bytes: float, nothing_s: float) -> float:
    """Bytes per second of additions that touch so many bytes again and again."""
    elements = max(64, int(used_bytes / (_ARRAYS * _ELEMENT)))
    seconds = measure(using.add(elements), using.watch, _MEMORY_S).seconds
    return _ARRAYS * _ELEMENT * elements / max(seconds - nothing_s, seconds / 10)


def _walk(using: Backend) -> float:
    """Time to begin a walk back through a graph, from walks of two lengths."""
    short, long = using.backward_chain(1), using.backward_chain(9)
    if short is None or long is None:
        return 0.0
    one, nine = (measure(run, using.watch).seconds for run in (short, long))
    return max(0.0, one - (nine - one) / 8)


def _step_s(found: Findings) -> float:
    """Return what an optimizer takes once a step, besides its tensors."""
    group = found.groups.get("optimizer sgd")
    return float(group.fit().seconds[group.columns.index("step")]) if group else 0.0


def _measure(
    options: Options,
    using: Backend,
    found: Findings,
    name: str,
    back_s: float,
    said: Callable[[str], None],
) -> None:
    device = document.loaded(name, found)
    seed, begin = options.seed, time.monotonic()
    parts: dict[str, Callable[[], Iterator[classes.ProbePiece]]] = {
        "products": lambda: classes.product_pieces(using, device, options.products, seed, back_s),
        "convolutions": lambda: classes.conv_pieces(
            using, device, options.convolutions, seed, back_s
        ),
        "other ops": lambda: classes.stream_pieces(using, device, back_s),
        "updates": lambda: classes.update_pieces(using, device),
    }
    done = 0.0
    for part, pieces in parts.items():
        said(part)
        seconds, done = options.seconds * _SHARES[part], done + options.seconds * _SHARES[part]
        found.groups |= classes.measure_pieces(
            list(pieces()), using, seconds, options.rounds, begin + done
        )
    for key, group in found.groups.items():
        if key.startswith("gemm"):
            format_ = key.split()[1]
            best = max(t[0] / s for t, s in zip(group.terms, group.times_s, strict=True))
            found.rates[format_] = max(found.rates[format_], best)
    device = document.loaded(name, found)
    cells = list(classes.recurrent_pieces(using, device, options.convolutions, seed, back_s))
    if cells:
        said("recurrences")
        seconds = options.seconds * _SHARES["recurrences"]
        found.groups |= classes.measure_pieces(
            cells, using, seconds, options.rounds, begin + done + seconds
        )


def _measure_power(using: Backend, found: Findings) -> None:
    from ridgeline.workload.graph import Gemm

    if using.device == "cuda":
        found.idle_w = machine.accelerator_watts()
        return
    counter = machine.energy_counter()
    if counter is None:
        return
    found.idle_w = counter.watts(_POWER_S)
    run = using.product(Gemm(512, 512, 512), "forward", using.formats[0])
    if run is not None:
        found.busy_w = counter.watts_of(run, _POWER_S)


def _remark(options: Options, found: Findings, busy: str | None) -> None:
    if busy is not None:
        found.notes.append(busy)
    if options.quick:
        found.notes.append("quick: few shapes, each measured once; to try out, not to rely on")
    load, disturbed = machine.load_average(), sum(g.disturbed for g in found.groups.values())
    if load is not None:
        found.notes.append(f"load average {load:.1f} at the end")
    found.notes.append(f"{disturbed} disturbed samples rejected")
    if not any(key.startswith("conv2d") for key in found.groups):
        found.notes.append("convolutions are not measured: they are priced at the peak")
