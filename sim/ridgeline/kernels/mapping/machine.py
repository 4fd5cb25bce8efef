"""The machine that contractions are mapped onto: its arrays and its levels of buffers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.kernels.mapping.axes import axes_of
from ridgeline.kernels.mapping.compute import Engine, even_engine, systolic_engine
from ridgeline.kernels.mapping.footprint import Ints
from ridgeline.kernels.mapping.pipeline import Level, Shape
from ridgeline.kernels.systolic.partition import Arrays
from ridgeline.workload.graph import Conv, Gemm, Pass


class Buffer(NamedTuple):
    """A level of buffers, and the way between it and the level behind; as in `Machine`."""

    name: str
    capacities: tuple[float, float, float, float]
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    byte_j: float


class Machine(NamedTuple):
    """What a mapping depends on.

    Attributes
    ----------
    arrays
        Systolic arrays; None: tiles take `mac_s` for each multiply-accumulate.
    near_byte_s
        Seconds per byte between the arrays and the buffers; 0 if that is never the limit.
    capacities
        Bytes of buffers for a, b, c alone, and for all of them.
    byte_s, latency_s
        Of a transfer between the buffers and the memory behind.
    far_byte_j, near_byte_j, idle_w
        Joules per byte behind and in the buffers, and watts that time costs.
    widths
        Bytes of an element of a, b, c, and of a partial sum.
    far, near
        Names of the two memory levels.
    nearer
        Buffers between these and the arrays, from far to near; the arrays take from the last.
    """

    arrays: Arrays | None
    cycle_s: float
    mac_s: float
    near_byte_s: float
    capacities: tuple[float, float, float, float]
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    far_byte_j: float
    near_byte_j: float
    idle_w: float
    widths: tuple[float, float, float, float]
    far: str
    near: str
    nearer: tuple[Buffer, ...] = ()


def granule_of(machine: Machine) -> int:
    """Return what tiles are multiples of where they can."""
    return 1 if machine.arrays is None else max(machine.arrays.rows, machine.arrays.columns)


def problem(loops: Gemm | Conv, pass_: Pass, machine: Machine) -> tuple[Ints, Shape, Level, Engine]:
    """Put a contraction and a machine into the arrays of the search."""
    axes, touches, elements = axes_of(loops, pass_, granule_of(machine))
    shape = Shape(touches, elements, np.array(machine.widths), False, True)
    return axes, shape, level_of(machine), engine_of(machine)


@lru_cache(maxsize=256)
def level_of(machine: Machine) -> Level:
    """Return the farthest level of buffers."""
    return Level(
        np.array(machine.capacities), machine.double, machine.shared_port, machine.byte_s,
        machine.latency_s,
        np.array([machine.far_byte_j, machine.near_byte_j, machine.idle_w]),
    )  # fmt: skip


def levels_of(machine: Machine) -> tuple[Level, ...]:
    """Return all levels of buffers, from far to near."""
    levels, behind_j = [level_of(machine)], machine.near_byte_j
    for buffer in machine.nearer:
        levels.append(
            Level(
                np.array(buffer.capacities), buffer.double, buffer.shared_port, buffer.byte_s,
                buffer.latency_s, np.array([behind_j, buffer.byte_j, machine.idle_w]),
            )
        )  # fmt: skip
        behind_j = buffer.byte_j
    return tuple(levels)


@lru_cache(maxsize=256)
def engine_of(machine: Machine) -> Engine:
    """Describe what computes to the search."""
    if machine.arrays is None:
        return even_engine(machine.mac_s, machine.near_byte_s)
    return systolic_engine(machine.arrays, machine.cycle_s, machine.near_byte_s)
