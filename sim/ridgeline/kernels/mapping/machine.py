"""The machine that contractions are mapped onto: its arrays and its levels of buffers."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgeline.kernels.mapping.axes import axes_of
from ridgeline.kernels.mapping.compute import (
    Ports,
    TileEngine,
    even_engine,
    systolic_engine,
)
from ridgeline.kernels.mapping.footprint import Ints
from ridgeline.kernels.mapping.mapping import FAR, OPERANDS
from ridgeline.kernels.mapping.pipeline import BufferLevel, Shape
from ridgeline.kernels.systolic.partition import Arrays
from ridgeline.workload.graph import Conv, Gemm, Pass


class Split(NamedTuple):
    """A level that consists of several buffers, each with a port, or that operands pass by.

    Attributes
    ----------
    of
        Port of a, b, c: 0, 1, 2, or `compute.FAR` for what is not kept on this level.
    byte_s
        Seconds per byte of each port; 0 if that is never the limit. The last one is `FAR`'s.
    capacities
        Bytes of the buffer behind each port but the last.
    byte_j
        Joules per byte of a, b, c where they are kept.
    names
        Of the memory levels where a, b, c are kept.
    """

    of: tuple[int, int, int]
    byte_s: tuple[float, float, float, float]
    capacities: tuple[float, float, float]
    byte_j: tuple[float, float, float]
    names: tuple[str, str, str]


class Buffer(NamedTuple):
    """A level of buffers, and the way between it and the level behind; as in `MappingMachine`.

    Attributes
    ----------
    own_byte_s
        Seconds per byte of the level's own port.
    """

    name: str
    capacities: tuple[float, float, float, float]
    double: bool
    shared_port: bool
    byte_s: float
    latency_s: float
    byte_j: float
    own_byte_s: float = 0.0
    split: Split | None = None


class MappingMachine(NamedTuple):
    """What a mapping depends on.

    Attributes
    ----------
    arrays
        Systolic arrays; None: tiles take `mac_s` for each multiply-accumulate.
    near_byte_s
        Seconds per byte of the port of the buffers, which all pass that comes or goes on either
        side of them; 0 if that is never the limit.
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
    split
        Where the first level of buffers is several, or not for all operands.
    held
        1 for those of a, b, c that the farthest buffers hold already, or keep for other ops.
    variants
        The same machine with all operands passing levels by, or with other shares of ports: other
        ways to use it.
    bypasses
        The same machine with single operands passing the buffers by.
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
    split: Split | None = None
    held: tuple[int, int, int] = (0, 0, 0)
    variants: tuple[MappingMachine, ...] = ()
    bypasses: tuple[MappingMachine, ...] = ()

    @property
    def levels(self) -> tuple[Buffer, ...]:
        """All levels of buffers, from far to near."""
        first = Buffer(
            self.near, self.capacities, self.double, self.shared_port, self.byte_s, self.latency_s,
            self.near_byte_j, self.near_byte_s, self.split,
        )  # fmt: skip
        return (first, *self.nearer)


def granule_of(machine: MappingMachine) -> int:
    """Return what tiles are multiples of where they can."""
    return 1 if machine.arrays is None else max(machine.arrays.rows, machine.arrays.columns)


def problem(
    loops: Gemm | Conv, pass_: Pass, machine: MappingMachine
) -> tuple[Ints, Shape, BufferLevel, TileEngine]:
    """Put a contraction and a machine into the arrays of the search."""
    axes, touches, elements = axes_of(loops, pass_, granule_of(machine))
    shape = Shape(touches, elements, np.array(machine.widths), False, True)
    return axes, shape, level_of(machine), engine_of(machine)


def level_of(machine: MappingMachine) -> BufferLevel:
    """Return the farthest level of buffers."""
    return levels_of(machine)[0]


@lru_cache(maxsize=256)
def levels_of(machine: MappingMachine) -> tuple[BufferLevel, ...]:
    """Return all levels of buffers, from far to near."""
    levels: list[BufferLevel] = []
    behind_j: tuple[float, ...] = (machine.far_byte_j,) * 3
    for buffer in machine.levels:
        split = _split(buffer)
        held = (0, 0, 0) if levels else machine.held
        levels.append(_level(buffer, split, behind_j, held, machine.idle_w))
        behind_j = split.byte_j
    return tuple(levels)


def _split(buffer: Buffer) -> Split:
    """Return the ports of a level; by default all operands share one buffer and its port."""
    return buffer.split or Split(
        (0, 0, 0), (buffer.own_byte_s, 0.0, 0.0, 0.0), (buffer.capacities[3], math.inf, math.inf),
        (buffer.byte_j,) * 3, (buffer.name,) * 3,
    )  # fmt: skip


def _level(
    buffer: Buffer, split: Split, behind_j: tuple[float, ...], held: tuple[int, int, int],
    idle_w: float,
) -> BufferLevel:  # fmt: skip
    kept = [operand for operand in range(3) if split.of[operand] != FAR]
    together = len({split.of[operand] for operand in kept}) == 1
    return BufferLevel(
        np.array((*buffer.capacities[:3], *split.capacities)), buffer.double, buffer.shared_port,
        buffer.byte_s, buffer.latency_s,
        Ports(np.array(split.of), np.array(split.byte_s), any(split.byte_s)),
        np.array(held), np.array(behind_j), np.array(split.byte_j), idle_w,
        min(behind_j[i] + (split.byte_j[i] if i in kept else 0.0) for i in range(3)),
        split.byte_s[split.of[kept[0]]] if len(kept) == len(OPERANDS) and together else 0.0,
    )  # fmt: skip


@lru_cache(maxsize=256)
def engine_of(machine: MappingMachine) -> TileEngine:
    """Describe what computes to the search."""
    if machine.arrays is None:
        return even_engine(machine.mac_s)
    return systolic_engine(machine.arrays, machine.cycle_s)
