"""The tiles of a bulk-synchronous compute engine: processors with memories of their own."""

from __future__ import annotations

from pydantic import field_validator

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.sourced import DEFAULT, Sourced


class TileMachine(Strict):
    """Equal tiles that compute, wait for each other and exchange; see ``docs/spatial.md``."""

    tiles: Sourced[int]
    """Processors, each with memory of its own."""
    clock: Sourced[units.Hertz]
    """Cycles a second of every tile."""
    memory: Sourced[units.Bytes]
    """Of one tile."""
    reserved: Sourced[float] = Sourced[float](value=0.0, source=DEFAULT, basis="assumed")
    """Share of the memory that programs, stacks and exchange code take."""
    exchange: Sourced[units.BytesPerSecond]
    """That one tile receives with, while others receive too; a tile sends one copy to all."""
    exchange_energy: str | None = None
    """Of a byte that a tile receives: entry of the energy table, or a quantity such as
    ``0.5 pJ/bit``; None: not known, so that its bytes are counted without a price."""
    sync: Sourced[units.Seconds]
    """From the last tile's arrival at a barrier to the first word of the exchange after it."""

    @field_validator("tiles")
    @classmethod
    def _positive(cls, number: Sourced[int]) -> Sourced[int]:
        if number.value < 1:
            raise ValueError(f"must be at least 1, found {number.value}")
        return number

    @field_validator("exchange", "clock", "memory")
    @classmethod
    def _flows(cls, rate: Sourced[float]) -> Sourced[float]:
        if rate.value <= 0:
            raise ValueError(f"must be more than 0, found {rate.value}")
        return rate

    @field_validator("reserved")
    @classmethod
    def _share(cls, share: Sourced[float]) -> Sourced[float]:
        if not 0 <= share.value < 1:
            raise ValueError(f"must be at least 0 and less than 1, found {share.value}")
        return share
