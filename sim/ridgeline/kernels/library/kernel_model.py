"""Models of library kernels, and tables of their constants by framework, kernel and generation."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.device import Device

Floats = NDArray[np.float64]
Work = Mapping[str, Floats]
"""What calls do and where they run, by name: one number for each call (`machine_work`)."""
FOLDER = Path(__file__).parent / "constants"


class Constant(NamedTuple):
    """A constant of a kernel, with the range that a fit may choose from.

    Attributes
    ----------
    start
        Where a fit begins.
    """

    name: str
    low: float
    high: float
    start: float


START = (Constant("start_us", 0.2, 250.0, 2.0), Constant("start_cycles", 0.0, 60e3, 10e3))
"""Of every kernel: the fixed time of a call, on the host and of memory, and in cycles of the
processors."""


class DiscreteConstant(NamedTuple):
    """A constant that has few values: the side of a tile, whether heads are packed."""

    name: str
    values: tuple[float, ...]


class KernelModel(NamedTuple):
    """A mechanism: what calls take, from their work and the constants of a kernel.

    Attributes
    ----------
    counted
        Adds to the work what depends on choices alone: tiles, blocks.
    time_s
        Time of each call, without the fixed one (``start_us``). Constants may have axes before that
        of the calls.
    """

    name: str
    constants: tuple[Constant, ...]
    choices: tuple[DiscreteConstant, ...]
    counted: Callable[[Work, Mapping[str, float]], Work]
    time_s: Callable[[Work, Mapping[str, Floats]], Floats]

    @property
    def names(self) -> list[str]:
        """Names of all constants, those with few values at the end."""
        fitted = [one.name for one in (*START, *self.constants)]
        return [*fitted, *(one.name for one in self.choices)]

    def call_s(self, counted: Work, x: Mapping[str, Floats]) -> Floats:
        """Return the time of calls whose tiles are counted: the kernel's, and the fixed one."""
        cycles = x["start_cycles"] / np.maximum(counted["clock"], _LEAST_CLOCK)
        return x["start_us"] * 1e-6 + cycles + self.time_s(counted, x)

    def predict(self, work: Work, line: Mapping[str, float]) -> Floats:
        """Return the time of calls by one line of constants."""
        values = {name: np.asarray(value, np.float64) for name, value in line.items()}
        return self.call_s(self.counted(work, line), values)


class KernelKey(NamedTuple):
    """Which line of a table: "" where a line is of all of them."""

    framework: str
    version: str
    kernel: str
    format: str
    generation: str


# By data sheet: dense FLOPs of 16-bit products per processor and cycle, at least. Instructions of
# single warps (mma.sync) reach 2048 on an A100, those of four warps (wgmma, from Hopper on) 4096,
# those whose accumulators are in a memory of their own (tcgen05, data-centre Blackwell) 8192.
_GENERATIONS = (("tcgen05", 6000.0), ("wgmma", 3000.0), ("mma", 0.0))
SYSTOLIC_UNIT = "systolic"
_L1_BYTES_PER_CYCLE = 128  # of a processor (NVIDIA, tuning guides from Volta on)
_VENDORS = ("NVIDIA", "AMD")
_LEAST_CLOCK = 1e8  # of a device that states no bandwidth of its nearest memory
_PRODUCT_FORMATS = ("bf16", "fp16")


def generation_of(device: Device) -> str | None:
    """Return the instructions of the device's matrix units; None of one without such."""
    if any(engine.kind == SYSTOLIC_UNIT for engine in device.engines.values()):
        return SYSTOLIC_UNIT
    rate, clock = _product_rate(device), _cycles_per_s(device)
    if not rate or not clock or device.vendor != "NVIDIA":
        return None
    per_cycle = rate / (_processors(device) * clock)
    return next(name for name, least in _GENERATIONS if per_cycle >= least)


def machine_work(device: Device, format_: str) -> dict[str, float]:
    """Return what kernels need of a device: processors, cycles and bytes per second, FLOP/s.

    Parameters
    ----------
    format_
        Of the products; a device that does none in it multiplies in 16 bits.
    """
    far = device.memory[device.far_memory]
    near = [level for level in device.memory.values() if level.kind == "sram"][-1]
    assert far.bandwidth is not None
    near_bps = far.bandwidth if near.bandwidth is None else near.bandwidth
    return {
        "processors": float(_processors(device)),
        "clock": _cycles_per_s(device),
        "flop_s": _rates(device).get(format_) or _product_rate(device),
        "vector_flop_s": _vector_rate(device),
        "far_bps": far.bandwidth.value * far.achievable.value,
        "near_bps": near_bps.value,
        "near_bytes": near.capacity.value,
    }


def _processors(device: Device) -> int:
    return next(iter(device.memory.values())).instances.value


def _rates(device: Device) -> dict[str, float]:
    found: dict[str, float] = {}
    for engine in device.engines.values():
        if engine.kind in ("tensor-core", SYSTOLIC_UNIT):
            found |= {name: rate.value for name, rate in engine.rates.items()}
    return found


def _vector_rate(device: Device) -> float:
    able = (engine for engine in device.engines.values() if engine.kind == "vector")
    rates = [engine.rates["fp32"].value for engine in able if "fp32" in engine.rates]
    return max(rates, default=0.0)


def _product_rate(device: Device) -> float:
    rates = _rates(device)
    return next((rates[name] for name in _PRODUCT_FORMATS if name in rates), 0.0)


def _cycles_per_s(device: Device) -> float:
    l1 = device.memory.get("l1")
    if device.vendor not in _VENDORS or l1 is None or l1.bandwidth is None:
        return 0.0
    return l1.bandwidth.value / (_processors(device) * _L1_BYTES_PER_CYCLE)


@cache
def table(name: str) -> dict[KernelKey, dict[str, float]]:
    """Return the lines of a table of constants."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = set(KernelKey._fields) | set(NOTES)
    return {
        KernelKey(*(row[field] for field in KernelKey._fields)): {
            name: float(value) for name, value in row.items() if name not in known
        }
        for row in rows
    }


NOTES = ("rows", "devices", "error", "error_left_out")
"""Columns of a table for its reader: what the line was fitted to, and its mean error."""


def lines_of(key: KernelKey) -> tuple[KernelKey, ...]:
    """Return the lines that are of a kernel, the narrowest first.

    Of this version, of the kernel on a generation of devices, of the kernel, of its framework, of
    the generation, of all.
    """
    wide = key._replace(framework="", version="", kernel="", generation="")
    every = (
        key,
        key._replace(version=""),
        key._replace(version="", generation=""),
        wide._replace(framework=key.framework),
        wide._replace(generation=key.generation),
        wide,
    )
    return tuple(dict.fromkeys(every))


def line_of(
    lines: Mapping[KernelKey, dict[str, float]], wanted: KernelKey
) -> dict[str, float] | None:
    """Return the constants of a kernel, or of what is most like it; None where there is nothing."""
    return next((lines[key] for key in lines_of(wanted) if key in lines), None)


class LibraryCall(NamedTuple):
    """One call of a library's kernel.

    Attributes
    ----------
    table
        Name of the table of constants.
    wanted
        Which line of it, but for the generation of the device.
    work
        What is called, as the model's function of work says.
    format
        Of the products; "": there are none, so that all generations of devices have one line.
    """

    model: KernelModel
    table: str
    wanted: tuple[str, str, str, str]
    work: Mapping[str, float]
    format: str = ""

    def key(self, device: Device) -> KernelKey | None:
        """Return which line a device wants; None of one without what its kernels need."""
        generation = generation_of(device) if self.format else ""
        if generation != SYSTOLIC_UNIT and not _cycles_per_s(device):
            return None
        return None if generation is None else KernelKey(*self.wanted, generation)

    def time_s(self, device: Device) -> float | None:
        """Return the time on a device; None where no kernel like it is known."""
        key = self.key(device)
        line = None if key is None else line_of(table(self.table), key)
        if line is None:
            return None
        return float(self.model.predict(as_arrays([self.on(device)]), line)[0])

    def on(self, device: Device) -> dict[str, float]:
        """Return the work, with what the device is."""
        return {**machine_work(device, self.format), **self.work}


def as_arrays(rows: list[dict[str, float]]) -> dict[str, Floats]:
    """Return the work of some calls as arrays."""
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}
