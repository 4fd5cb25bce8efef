"""Energy tables: what one event costs, with width, process node, voltage, scope and source.

A price is absolute (pJ/FLOP, pJ/bit, pJ/bit/mm of wire) or relative to the arithmetic of the
table's `reference` (MAC/B: so many multiply-accumulates per byte).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from pydantic import field_validator

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.sourced import NOT_STATED, Basis, Described, Sourced
from ridgeline.unit_proposals import energy_unit_proposal

Unit = Literal["J/FLOP", "J/B", "J/B/m"]
_RELATIVE: dict[str, str] = {"J/FLOP": "FLOP/FLOP", "J/B": "FLOP/B", "J/B/m": "FLOP/B/m"}
_EXAMPLES: dict[str, str] = {"J/FLOP": "pJ/FLOP", "J/B": "pJ/bit", "J/B/m": "pJ/bit/mm"}
_NUMBERS = tuple("0123456789+-.")
_UNITS = (*_RELATIVE, *_RELATIVE.values())


def stated(energy: str, unit: Unit) -> float | None:
    """Joules of a quantity such as ``10 pJ/bit``; None if text is the name of an entry instead.

    Raises
    ------
    ConfigError
        If it begins like a number and is no energy of the unit, or less than 0.
    """
    if energy[:1] not in _NUMBERS:
        return None
    if (bare := energy_unit_proposal(energy, unit)) is not None:
        raise ConfigError(bare)
    joules = units.parse(energy, unit)
    if joules < 0:
        raise ConfigError(f"{energy!r} must be at least 0")
    return joules


NO_TABLE = "none"
"""Name of the table without entries of devices whose parts and quantities state all energies."""


class EnergyEntry(Strict):
    """The price of one kind of event."""

    value: str
    """Energy per event: ``pJ/FLOP`` for arithmetic, ``pJ/bit`` or ``pJ/B`` for data movement,
    ``pJ/bit/mm`` for a wire; or relative to arithmetic: ``FLOP/FLOP``, ``MAC/B``."""
    scope: Literal["arithmetic", "device", "path", "link"]
    """What the figure includes: the bare circuit, the memory device, the whole way, a link."""
    width_bits: int | None = None
    """Width of the access that the source states the energy for."""
    process_node: units.Metres | None = None
    """Feature size, where it is not that of the table."""
    voltage: str = ""
    """Supply voltage, where the source states it."""
    source: str = NOT_STATED
    """A key of the file's ``sources``, or a citation in words."""
    basis: Basis = NOT_STATED
    """How the value was obtained."""
    note: str = ""
    """What a reader must know: scope, conversion, conditions."""

    @property
    def is_unknown(self) -> bool:
        """Whether a 0 stands for a price that nobody has stated."""
        return self.basis == NOT_STATED and float(self.value.split()[0]) == 0

    @field_validator("value")
    @classmethod
    def _readable(cls, raw: str) -> str:
        for unit in _UNITS:
            try:
                if units.parse(raw, unit) < 0:
                    raise ValueError(f"{raw!r} must be at least 0")
            except ConfigError:
                continue
            return raw
        raise ValueError(
            f"{raw!r} is not an energy per FLOP, per byte or per bit and mm; write '1.5 pJ/FLOP'"
        )


class EnergyTable(Described):
    """Prices by entry name."""

    kind: Literal["energy-table"]
    """What the file describes: always ``energy-table``."""
    process_node: units.Metres | None = None
    """Feature size that the table is for; None: its entries are of several."""
    reference: Sourced[units.JoulesPerFlop] | None = None
    """Energy of a FLOP that relative prices are multiples of; None: they have no joules."""
    entries: dict[str, EnergyEntry]
    """By names of your own, which devices, nodes and clusters refer to."""

    def price_j(self, entry: str, unit: Unit) -> float:
        """Joules per FLOP, per byte or per byte and metre of an entry, or of a quantity as it is.

        Raises
        ------
        ConfigError
            If the table has no such entry (an event without a price is an error, never a zero), if
            the entry is priced in another unit, or if it is relative and the table has no
            reference.
        """
        joules = stated(entry, unit)
        if joules is not None:
            return joules
        if entry not in self.entries:
            if self.name == NO_TABLE:
                raise ConfigError(
                    f"{entry!r} is an entry of an energy table, but no energy_table is stated; a "
                    f"quantity with its unit needs none, for example '1.5 {_EXAMPLES[unit]}'"
                )
            raise ConfigError(
                f"the energy table {self.name!r} has no entry {entry!r}"
                f"{nearest(entry, self.entries)} (it has: {', '.join(sorted(self.entries))}); a "
                f"quantity with its unit is allowed, too, for example '1.5 {_EXAMPLES[unit]}'"
            )
        value = self.entries[entry].value
        try:
            if not _is_relative(value):
                return units.parse(value, unit)
            relative = units.parse(value, _RELATIVE[unit])
        except ConfigError as error:
            raise ConfigError(f"energy table {self.name!r}, entry {entry!r}: {error}") from error
        if self.reference is None:
            raise ConfigError(
                f"energy table {self.name!r}, entry {entry!r}: {value!r} is relative; give the "
                'energy of a FLOP, for example energy_table.reference="0.75 pJ/FLOP"'
            )
        return relative * self.reference.value

    def access(self, entry: str) -> tuple[float, str]:
        """Energy of one access of the entry's width, or of one FLOP, and its unit.

        The unit is "J", or "FLOP" for a relative price: so many FLOPs of the reference.
        """
        found = self.entries[entry]
        value, dimension = found.value, next(u for u in _UNITS if _reads(found.value, u))
        amount = units.parse(value, dimension)
        if dimension.endswith("/B") and found.width_bits is not None:
            amount *= found.width_bits / 8
        return amount, dimension.partition("/")[0]

    def ratio(self, entry: str, to: str) -> float:
        """Energy of one access or FLOP of an entry over that of another one.

        Raises
        ------
        ConfigError
            If an entry is unknown, states no width of its access, or one is relative and the other
            is not.
        """
        for name in (entry, to):
            if name not in self.entries:
                raise ConfigError(
                    f"the energy table {self.name!r} has no entry {name!r}"
                    f"{nearest(name, self.entries)}"
                )
            if self.entries[name].width_bits is None and not _is_arithmetic(
                self.entries[name].value
            ):
                raise ConfigError(
                    f"energy table {self.name!r}, entry {name!r}: its source states no width of an "
                    "access, so that it has no ratio to others"
                )
        (energy, unit), (other, unit_of_other) = self.access(entry), self.access(to)
        if unit != unit_of_other or other == 0:
            raise ConfigError(
                f"energy table {self.name!r}: {entry!r} and {to!r} have no common unit"
            )
        return energy / other

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per entry: name, value, scope, width, node in nm, source."""
        return [
            {
                "entry": name,
                **entry.model_dump(exclude={"process_node"}),
                "process_node_nm": _nanometres(entry.process_node or self.process_node),
            }
            for name, entry in self.entries.items()
        ]


def _reads(value: str, unit: str) -> bool:
    try:
        units.parse(value, unit)
    except ConfigError:
        return False
    return True


@lru_cache(maxsize=1024)
def _is_relative(value: str) -> bool:
    return any(_reads(value, unit) for unit in _RELATIVE.values())


def _is_arithmetic(value: str) -> bool:
    return _reads(value, "J/FLOP") or _reads(value, "FLOP/FLOP")


def _nanometres(size_m: float | None) -> float | None:
    return None if size_m is None else round(size_m * 1e9, 3)
