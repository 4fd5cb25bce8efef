"""Energy tables: what one event costs, with width, process node, voltage, scope and source."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.sourced import NOT_STATED, Basis, Described

Unit = Literal["J/FLOP", "J/B"]


class EnergyEntry(Strict):
    """The price of one kind of event."""

    value: str
    """Energy per event: ``pJ/FLOP`` for arithmetic, ``pJ/bit`` or ``pJ/B`` for data movement."""
    scope: Literal["arithmetic", "device", "path", "link"]
    """What the figure includes: the bare circuit, the memory device, the whole way, a link."""
    width_bits: int | None = None
    """Width of the access that the source states the energy for."""
    voltage: str = ""
    """Supply voltage, where the source states it."""
    source: str = NOT_STATED
    basis: Basis = NOT_STATED
    note: str = ""

    @field_validator("value")
    @classmethod
    def _readable(cls, raw: str) -> str:
        for unit in ("J/FLOP", "J/B"):
            try:
                if units.parse(raw, unit) < 0:
                    raise ValueError(f"{raw!r} must be at least 0")
            except ConfigError:
                continue
            return raw
        raise ValueError(f"{raw!r} is not an energy per FLOP or per byte; write '1.5 pJ/FLOP'")


class EnergyTable(Described):
    """Prices by entry name, for one process node."""

    kind: Literal["energy-table"]
    process_node: units.Metres
    """Feature size that the table is for."""
    entries: dict[str, EnergyEntry]

    def price_j(self, entry: str, unit: Unit) -> float:
        """Joules per FLOP or per byte of an entry.

        Raises
        ------
        ConfigError
            If the table has no such entry (an event without a price is an error, never a zero), or
            if the entry is priced in another unit.
        """
        if entry not in self.entries:
            raise ConfigError(
                f"the energy table {self.name!r} has no entry {entry!r}"
                f"{nearest(entry, self.entries)} (it has: {', '.join(sorted(self.entries))})"
            )
        try:
            return units.parse(self.entries[entry].value, unit)
        except ConfigError as error:
            raise ConfigError(f"energy table {self.name!r}, entry {entry!r}: {error}") from error

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per entry: name, value, scope, width, source."""
        return [{"entry": name, **entry.model_dump()} for name, entry in self.entries.items()]
