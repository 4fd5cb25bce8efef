"""What to write instead of a quantity that cannot be read: the unit that suits the field.

A number without a unit is read as the user most likely meant it: ``latency: 10`` of a memory level
as ``10 ns``, ``clock: 940`` as ``940 MHz``. The ranges below are those of machines that were built;
they choose a proposal and never a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline import units
from ridgeline.errors import ConfigError

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class _Typical:
    """Units that fit a field, the likeliest first, and the range of values in SI units."""

    units: tuple[str, ...]
    least: float
    most: float


_KI, _MI, _GI = 2.0**10, 2.0**20, 2.0**30
_NOUNS = {
    "s": ("time", "s, ms, us, ns"),
    "B": ("size", "KiB, MiB, GiB or kB, MB, GB; Gb are bits"),
    "B/s": ("bandwidth", "MB/s, GB/s, TB/s; Gb/s are bits"),
    "FLOP": ("amount of work", "MFLOP, GFLOP, TFLOP"),
    "FLOP/s": ("rate", "GFLOP/s, TFLOP/s, PFLOP/s; a multiply-accumulate is 2 FLOP"),
    "W": ("power", "mW, W, kW"),
    "J": ("energy", "pJ, nJ, J"),
    "J/B": ("energy of moved data", "pJ/bit, pJ/B"),
    "J/FLOP": ("energy of arithmetic", "fJ/FLOP, pJ/FLOP, pJ/MAC"),
    "m": ("length", "nm, um, mm"),
    "m2": ("area", "um2, mm2"),
    "Hz": ("clock", "MHz, GHz"),
    "USD": ("price", "USD"),
}
"""Of each dimension: its noun, and units to choose from."""
_FIELD_NOUNS = {"latency", "bandwidth", "capacity", "clock", "area", "price"}
_BY_DIMENSION = {
    "s": _Typical(("us", "ns", "ms", "s"), 50e-9, 1e-3),
    "B": _Typical(("GiB", "MiB", "TiB", "KiB"), 64 * _MI, 64 * 1024 * _GI),
    "B/s": _Typical(("GB/s", "TB/s", "MB/s"), 1e8, 1e15),
    "FLOP": _Typical(("GFLOP", "MFLOP"), 1e6, 1e15),
    "FLOP/s": _Typical(("TFLOP/s", "GFLOP/s", "PFLOP/s"), 1e9, 1e17),
    "W": _Typical(("W", "mW", "kW"), 1e-3, 1e5),
    "J": _Typical(("J",), 0.0, math.inf),
    "J/B": _Typical(("pJ/bit",), 1e-16, 1e-8),
    "J/FLOP": _Typical(("pJ/FLOP",), 1e-16, 1e-9),
    "m": _Typical(("nm",), 1e-9, 1e-5),
    "m2": _Typical(("mm2",), 1e-9, 0.1),
    "Hz": _Typical(("GHz", "MHz"), 1e7, 6e9),
    "USD": _Typical(("USD",), 0.0, math.inf),
}
_CAPACITIES = {
    "registers": _Typical(("KiB", "MiB", "GiB"), 4 * _KI, 128 * _MI),
    "sram": _Typical(("MiB", "KiB", "GiB"), 4 * _KI, 300 * _MI),
    "dram": _BY_DIMENSION["B"],
}
_OF_TILE = _Typical(("KiB", "MiB"), 4 * _KI, 64 * _MI)
_MESSAGE = _Typical(("MB", "kB", "GB"), 1e3, 1e12)
_NEAR_LATENCY = _Typical(("ns", "us"), 1e-10, 1e-5)
_LEVEL_BANDWIDTH = _Typical(("GB/s", "TB/s"), 1e10, 1e14)
_INVERSE = {("s", "Hz"), ("Hz", "s")}
_SPELLINGS = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "msec": "ms", "usec": "us",
    "nsec": "ns", "watt": "W", "watts": "W", "tops": "TFLOP/s", "gops": "GFLOP/s",
    "gbyte": "GB", "mbyte": "MB", "kbyte": "kB", "gbyte/s": "GB/s", "mbyte/s": "MB/s",
    "bytes": "B", "byte": "B", "nanometer": "nm", "nanometre": "nm", "usd": "USD", "$": "USD",
    "dollar": "USD", "dollars": "USD", "sqmm": "mm2", "mm²": "mm2", "pj/flops": "pJ/FLOP",
    "flops": "FLOP/s", "gflops": "GFLOP/s", "tflops": "TFLOP/s", "pflops": "PFLOP/s",
}  # fmt: skip
"""How people write units, in lower case."""
_BARE = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_DOLLARS = re.compile(r"\s*\$\s*([\d_.,]+)\s*")


def proposal(  # noqa: PLR0911
    raw: object, unit: str, location: Location, beside: Mapping[str, Any]
) -> str | None:
    """Say what was found in place of a quantity, and what to write; None if that is not clear.

    Parameters
    ----------
    raw
        What stands in the file: a number, or text.
    unit
        Unit of the dimension that is due, such as ``B/s``.
    location
        Keys and positions that lead to the value.
    beside
        The other fields of the mapping that the field stands in.
    """
    names = [str(part) for part in location if part != "value"]
    typical = _typical(unit, names, beside)
    noun, choices = _NOUNS.get(unit, ("quantity", unit))
    ending = names[-1].rpartition("_")[2] if names else ""
    due = ending if ending in _FIELD_NOUNS else noun
    note = f"({_a(due)}: {choices})"
    number = _bare(raw)
    if number is not None:
        text = _written(number, raw, unit, typical)
        return f"found {raw!r}, a number without a unit; write {text!r} {note}"
    if not isinstance(raw, str):
        return None
    if (dollars := _DOLLARS.fullmatch(raw)) is not None and unit == "USD":
        return f"found {raw!r}; write {dollars[1].replace(',', '') + ' USD'!r} {note}"
    value, found = units.split(raw)
    if found is None:
        return None
    if (other := units.dimension_of(found)) is None:
        meant = _meant(found)
        if "cycle" in found and unit == "B/s":
            return (
                f"found {raw!r}; multiply by the clock, since a bandwidth is in bytes a second: "
                f"64 B/cycle at 1 GHz are '64 GB/s' {note}"
            )
        if meant is None or units.dimension_of(meant) != units.dimension_of(unit):
            return None
        return f"found {raw!r} with an unknown unit; write {f'{value} {meant}'!r} {note}"
    if other == units.dimension_of(unit):
        return None  # something else is wrong with it
    better = _converted(value, found, unit)
    known = next((word for u, (word, _) in _NOUNS.items() if units.dimension_of(u) == other), None)
    was = f", {_a(known)} where {_a(due)} is due" if known else f" where {_a(due)} is due"
    instead = f"{value} {typical.units[0]}" if better is None else better
    how = "write" if better is not None else "write for example"
    return f"found {raw!r}{was}; {how} {instead!r} {note}"


def energy_proposal(raw: object, location: Location) -> str | None:
    """Say what to write where a number stands in place of an entry of an energy table."""
    names = [str(part) for part in location]
    arithmetic = "engines" in names or any("flop" in name for name in names[-2:])
    return energy_unit_proposal(
        raw, "J/FLOP" if arithmetic else "J/B", is_entry="entries" not in names
    )


def energy_unit_proposal(raw: object, unit: str, *, is_entry: bool = True) -> str | None:
    """Say what to write in place of a number that should be an energy of the unit.

    `is_entry`: whether the name of an entry of an energy table may stand there, too.
    """
    number = _bare(raw)
    if number is None:
        return None
    text = _written(number, raw, unit, _BY_DIMENSION[unit])
    noun, choices = _NOUNS[unit]
    entry = ", or the name of an entry of the energy table" if is_entry else ""
    return f"found {raw!r}, a number without a unit; write {text!r}{entry} ({_a(noun)}: {choices})"


def _meant(unit: str) -> str | None:
    """Return the unit that a misspelling most likely means: 'GB/s' of gb/s."""
    above, slash, below = unit.partition("/")
    if (known := _SPELLINGS.get(unit.lower()) or units.meant(unit)) is not None or not slash:
        return known
    parts = [each if units.dimension_of(each) else _meant(each) for each in (above, below)]
    return f"{parts[0]}/{parts[1]}" if all(parts) else None


def _typical(  # noqa: PLR0911
    unit: str, names: list[str], beside: Mapping[str, Any]
) -> _Typical:
    """Choose the range of a field by its name and what stands around it."""
    field, above = names[-1] if names else "", set(names[:-1])
    if unit == "B":
        if field == "capacity":
            return _CAPACITIES.get(str(beside.get("kind")), _BY_DIMENSION["B"])
        if field == "local_memory" or above & {"bsp", "grid", "partitions"}:
            return _OF_TILE
        if field in {"size", "bucket"} or "size" in above or "bucket" in above:
            return _MESSAGE
    if unit == "s" and above & {"memory", "network"}:  # of a level; between arrays
        return _NEAR_LATENCY
    if unit == "B/s" and "memory" in above:
        return _LEVEL_BANDWIDTH
    if unit == "m2" and "areas" in above:
        return _Typical(("mm2",), 1e-12, 1e-3)
    return _BY_DIMENSION.get(unit, _Typical((unit,), 0.0, math.inf))


def _bare(raw: object) -> float | None:
    """Return the number that stands without a unit."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        return float(raw) if _BARE.fullmatch(raw) and math.isfinite(float(raw)) else None
    return float(raw) if isinstance(raw, int | float) and math.isfinite(raw) else None


def _written(number: float, raw: object, unit: str, typical: _Typical) -> str:
    """Write a bare number with a unit: as it stands, or with a prefix if it is in SI units."""
    if typical.least <= abs(number) <= typical.most:  # 9e11 of a bandwidth: bytes a second already
        ordered = sorted({*typical.units, unit}, key=units.scale_of, reverse=True)
        for each in ordered:
            size = number / units.scale_of(each)
            if abs(size) >= 1:
                return f"{size:.12g} {each}"
        return f"{number / units.scale_of(ordered[-1]):.12g} {ordered[-1]}"
    text = raw.strip() if isinstance(raw, str) else f"{raw}"
    for each in typical.units:
        if typical.least <= abs(number) * units.scale_of(each) <= typical.most:
            return f"{text} {each}"
    return f"{text} {typical.units[0]}"


_MENDED = (
    ("B", "B/s", r"\Z", "/s"),
    ("FLOP", "FLOP/s", r"\Z", "/s"),
    ("B/s", "B", r"/s\Z", ""),
    ("FLOP/s", "FLOP", r"/s\Z", ""),
    ("J", "W", r"J\Z", "W"),
    ("W", "J", r"W\Z", "J"),
    ("J", "J/B", r"\Z", "/bit"),
    ("J", "J/FLOP", r"\Z", "/FLOP"),
    ("J/op", "J/FLOP", r"op\Z", "FLOP"),
    ("J/B", "J/FLOP", r"/(bit|B|b)\Z", "/FLOP"),
    ("J/FLOP", "J/B", r"/(FLOP|MAC)\Z", "/bit"),
    ("op/s", "FLOP/s", r"op/s\Z", "FLOP/s"),
    ("m", "m2", r"\Z", "2"),
    ("m2", "m", r"\^?2\Z", ""),
)
"""Found dimension, due dimension, and what to replace in the unit by what."""


def _converted(number: str, found: str, unit: str) -> str | None:
    """Rewrite a quantity of a related dimension: '900 GB' of a bandwidth as '900 GB/s'."""
    dimension = units.dimension_of(found)
    for of, due, pattern, put in _MENDED:
        if due == unit and dimension == units.dimension_of(of):
            mended = re.sub(pattern, put, found, count=1)
            if units.dimension_of(mended) == units.dimension_of(unit):
                return f"{number} {mended}"
    if any(unit == due and dimension == units.dimension_of(of) for of, due in _INVERSE):
        try:
            return units.show(1 / units.quantity(f"{number} {found}"), unit)
        except (ConfigError, ZeroDivisionError):
            return None
    return None


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
