"""Contraction time: how long a contraction keeps an engine busy, and the bytes it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ridgeline.hardware.device import ENGINE_KINDS, Device
from ridgeline.kernels.cost import OperandBytes
from ridgeline.kernels.latency_parts import (
    BUSY_THROUGHOUT,
    NO_PARTS,
    LatencyParts,
    LazyShares,
    TileChoice,
)
from ridgeline.kernels.overlap import PartialOverlap
from ridgeline.kernels.traffic import Operands, SearchOptions
from ridgeline.registry import Registry
from ridgeline.workload.graph import Op

if TYPE_CHECKING:
    from ridgeline.kernels.mapping.machine import MappingMachine as MappedMachine
    from ridgeline.kernels.mapping.mapped_contraction import Mapped


@dataclass(slots=True)  # not frozen, as `OpCost`
class EngineTime:
    """Work of a contraction on an engine.

    Attributes
    ----------
    peak_flops
        FLOP that the engine would do at peak in the same time.
    calibrated
        Whether the achievable share was measured; without any a full engine is taken to run at
        its peak, which is a bound.
    latency_s
        Time besides the op's launch in which neither arithmetic nor traffic goes on.
    near
        Bytes that pass each memory level between registers and the farthest.
    nearer
        Levels of these that something else passes.
    far
        Bytes that pass the farthest level, where the engine's model counts them; else they follow
        from the registers (`traffic`).
    waiting_s
        Part of `latency_s` in which the engine waits for memory.
    mapped
        The mapping that a search has found, and the machine that it was found for.
    mapping
        Which loops run where, in words, where the engine's model lays them out.
    copying_s
        Time in `peak_flops` in which operands are moved and no arithmetic is done: what memory
        takes beyond that, arithmetic does not hide. None: it hides all that it can.
    latency_parts
        What `latency_s` consists of.
    engine_shares
        Shares of the time in `peak_flops` in which the engine does not multiply.
    tile
        The output tile of processors that share them.
    registers
        Bytes of registers that operands pass inside an array; None: `Engine.instruction` decides.
    exchanged_bytes
        That pass between the tiles of the engine.
    start_s
        Fixed time of the kernel where its library states one, instead of the device's launch
        latency.
    overlap
        Of kernels whose arithmetic and memory hide each other in part: what `waiting_s` follows
        from.
    """

    peak_flops: float
    calibrated: bool
    latency_s: float
    near: OperandBytes
    far: OperandBytes | None = None
    nearer: Mapping[str, OperandBytes] = field(default_factory=dict)
    waiting_s: float = 0.0
    mapped: tuple[Mapped, MappedMachine] | None = None
    mapping: str = ""
    copying_s: float | None = None
    latency_parts: LatencyParts = NO_PARTS
    engine_shares: LazyShares = BUSY_THROUGHOUT
    tile: TileChoice | None = None
    registers: OperandBytes | None = None
    exchanged_bytes: float = 0.0
    start_s: float | None = None
    overlap: PartialOverlap | None = None


class ContractionProblem(NamedTuple):
    """A contraction to be priced."""

    op: Op
    operands: Operands


EngineModel = Callable[
    [Sequence[ContractionProblem], Device, str, str, SearchOptions], list[EngineTime]
]
"""Of contractions, a device, the name of an engine, the format, and how mappings are searched."""

ENGINE_MODELS: Registry[str, EngineModel] = Registry(
    "engine model", "ridgeline.kernels.engines",
    parameters=("jobs", "device", "engine", "format_", "search"), opens=ENGINE_KINDS,
)  # fmt: skip
"""All engine models by kind of engine."""
