"""Quantities: "900 GB/s" -> 9e11 and back. Strings with units outside, SI floats inside.

A quantity is ``NUMBER UNIT``, where a unit is a product and quotient of prefixed unit symbols:
``GB/s``, ``pJ/bit``, ``mm2``, ``W/mm2``, ``pJ/bit/mm``. Decimal prefixes (k, M, G, T, P, E; m, u,
n, p, f) and binary prefixes (Ki, Mi, Gi, Ti, Pi) are kept apart: GB is 1e9 B, GiB is 2**30 B; b is
a bit and B is a byte. A size in Gb is refused, since GB or Gbit is meant, and so is a bare number.
Prefixes are applied with exact decimal arithmetic before anything is rounded to float64.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from ridgeline.errors import ConfigError

# symbol -> (dimension, scale to the base unit). Base units: s, B, FLOP, J, m, kg, USD, op.
_SYMBOLS: dict[str, tuple[dict[str, int], Decimal]] = {
    "s": ({"s": 1}, Decimal(1)),
    "min": ({"s": 1}, Decimal(60)),
    "h": ({"s": 1}, Decimal(3600)),
    "day": ({"s": 1}, Decimal(86400)),
    "B": ({"B": 1}, Decimal(1)),
    "b": ({"B": 1}, Decimal("0.125")),
    "bit": ({"B": 1}, Decimal("0.125")),
    "FLOP": ({"FLOP": 1}, Decimal(1)),
    "MAC": ({"FLOP": 1}, Decimal(2)),
    "J": ({"J": 1}, Decimal(1)),
    "W": ({"J": 1, "s": -1}, Decimal(1)),
    "Wh": ({"J": 1}, Decimal(3600)),
    "Hz": ({"s": -1}, Decimal(1)),
    "m": ({"m": 1}, Decimal(1)),
    "g": ({"kg": 1}, Decimal("0.001")),
    "USD": ({"USD": 1}, Decimal(1)),
    "op": ({"op": 1}, Decimal(1)),
}
_NO_PREFIX = {"min", "h", "day"}
_PREFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    "f": Decimal("1e-15"),
    "p": Decimal("1e-12"),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "µ": Decimal("1e-6"),
    "μ": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "c": Decimal("1e-2"),
    "k": Decimal("1e3"),
    "K": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*?)?\s*")
_BITS = re.compile(r"([A-Za-zµμ]{0,2})b")
_FACTOR = re.compile(r"([A-Za-zµμ]+)\^?(-?\d+)?")
_JSON_PATTERN = (
    r"^\s*[+]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*[A-Za-zµμ].*$"  # in ECMA-262
)
_MAX_LENGTH = 80
_LEAST, _MOST = 1e-40, 1e40
"""Of any quantity in SI units: what is beyond is a slip, and products of these stay finite."""
MOST_BYTES = 2.0**60
"""No size is larger: a few of them add up in 64 bits, and no machine has as much."""

Dimension = tuple[tuple[str, int], ...]
_SIZE: Dimension = (("B", 1),)


def _symbol(text: str) -> tuple[dict[str, int], Decimal]:
    if text in _SYMBOLS:  # "min" is a minute and "m" a metre before they are prefixes
        return _SYMBOLS[text]
    for length in (2, 1):
        prefix, rest = text[:length], text[length:]
        if prefix in _PREFIXES and rest in _SYMBOLS and rest not in _NO_PREFIX:
            dimension, scale = _SYMBOLS[rest]
            return dimension, scale * _PREFIXES[prefix]
    raise ConfigError(
        f"unknown unit {text!r}{_meant(text)} (units are built from {', '.join(_SYMBOLS)})"
    )


def _meant(text: str) -> str:
    """Return "; did you mean 'GB/s'?" for GBps or gb/s, or an empty string."""
    unit = meant(text)
    return f"; did you mean {unit!r}?" if unit else ""


def meant(text: str) -> str | None:
    """Return the unit that GBps or gb/s is a misspelling of, if any."""
    names = [p + s for s in _SYMBOLS if s not in _NO_PREFIX for p in reversed(_PREFIXES)]
    for ending, tail in (("", ""), ("ps", "/s"), ("s", "/s")):
        stem = text.lower().removesuffix(ending)
        if len(stem) + len(ending) == len(text):
            found = [name for name in names if name.lower() == stem]
            typed = text[: len(stem)]
            if found:
                return f"{typed if typed in found else found[0]}{tail}"
    return None


@lru_cache(maxsize=1024)
def _unit(text: str) -> tuple[Dimension, Decimal]:
    total: dict[str, int] = {}
    scale = Decimal(1)
    for position, part in enumerate(text.replace("·", "*").split("/")):
        for factor in part.split("*"):
            match = _FACTOR.fullmatch(factor.strip())
            if match is None:
                raise ConfigError(f"cannot read the unit {text!r}")
            dimension, factor_scale = _symbol(match[1])
            power = int(match[2] or 1) * (1 if position == 0 else -1)
            if abs(power) > 4:
                raise ConfigError(f"cannot read the unit {text!r}: power {power}")
            scale *= factor_scale**power
            for base, exponent in dimension.items():
                total[base] = total.get(base, 0) + exponent * power
    return tuple(sorted((b, e) for b, e in total.items() if e)), scale


def dimension_of(unit: str) -> Dimension | None:
    """Return the dimension of a unit, or None if the unit cannot be read."""
    try:
        return _unit(unit)[0]
    except ConfigError:
        return None


def scale_of(unit: str) -> float:
    """Return how many SI units a unit is: 1e9 of ``GB/s``."""
    return float(_unit(unit)[1])


def split(text: str) -> tuple[str, str | None]:
    """Part a quantity into its number and its unit, both as written; no unit is None."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    return (match[1], match[2]) if match else (text, None)


@dataclass(frozen=True)
class Dimensioned:
    """Stands in the annotation of a field that takes a quantity: what its unit may be."""

    unit: str
    """Of the dimension, in SI units."""
    zero: bool = True
    """Whether 0 is allowed."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Describe the field in JSON Schema: text with a unit."""
        return {
            "type": "string",
            "pattern": _JSON_PATTERN,
            "x-unit": self.unit,
        }


class QuantityError(ValueError):
    """A field that takes a quantity has something else; `config` adds what to write instead."""

    def __init__(self, message: str, raw: object, unit: str) -> None:
        super().__init__(message)
        self.raw, self.unit = raw, unit


def parse(text: object, unit: str) -> float:
    """Read a quantity such as ``"900 GB/s"`` and return it in the SI form of `unit`.

    Parameters
    ----------
    text
        Number and unit.
    unit
        A unit of the wanted dimension, e.g. ``"B/s"``.

    Returns
    -------
    float
        Value in base units (s, B, FLOP, J, m, kg, USD, op).

    Raises
    ------
    ConfigError
        If there is no unit, the unit is unknown or has another dimension.
    """
    if not isinstance(text, str):
        _unit(unit)
        example: object = 1.5
        if isinstance(text, int | float) and not isinstance(text, bool) and math.isfinite(text):
            example = text
        raise ConfigError(f"{text!r} has no unit; write for example '{example} {unit}'")
    return _parsed(text, unit)


@lru_cache(maxsize=4096)  # descriptions are read again and again in a study
def _parsed(text: str, unit: str) -> float:
    wanted, _ = _unit(unit)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ConfigError(
            f"{text[:_MAX_LENGTH]!r} is not a quantity; write for example '1.5 {unit}'"
        )
    number, found_unit = match[1], match[2]
    if found_unit is None:
        raise ConfigError(f"{text!r} has no unit; write for example '{number} {unit}'")
    dimension, scale = _unit(found_unit)
    if dimension != wanted:
        raise ConfigError(f"{text!r} is not in {unit}: {found_unit!r} has another dimension")
    if wanted == _SIZE and (bits := _BITS.fullmatch(found_unit)):
        # Nobody states a size in Gb who does not mean GB, or the Gbit of a memory chip.
        raise ConfigError(
            f"{text!r} is a number of bits; write '{number} {bits[1]}B' for bytes, or "
            f"'{number} {bits[1]}bit' for bits"
        )
    try:
        value = float(Decimal(number.replace("_", "")) * scale)
    except ArithmeticError as error:
        raise ConfigError(f"{text!r} is out of range") from error
    if value and not _LEAST <= abs(value) <= _MOST:
        raise ConfigError(f"{text!r} is out of range")
    return value


def quantity(text: str) -> float:
    """Read a quantity of any dimension, or a bare number, and return it in SI units.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ConfigError(f"{text[:_MAX_LENGTH]!r} is not a quantity")
    scale = _unit(match[2])[1] if match[2] is not None else Decimal(1)
    try:
        return float(Decimal(match[1].replace("_", "")) * scale)
    except ArithmeticError as error:
        raise ConfigError(f"{text!r} is out of range") from error


def show(value: float, unit: str, digits: int = 3) -> str:
    """Write an SI value for people with a decimal prefix: ``show(9e11, "B/s") == "900 GB/s"``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.{digits}g} {unit}"
    power = _first_power(unit)  # of a square metre, the prefix is squared too
    for prefix in ("P", "T", "G", "M", "k", "", "m", "u", "n", "p", "f"):
        scaled = value / float(_PREFIXES[prefix]) ** power
        if abs(scaled) >= 0.9995:
            break
    if abs(scaled) >= 1000 or abs(scaled) < 1e-3:
        return f"{value:.{digits}g} {unit}"
    text = f"{scaled:.{digits}g}" if abs(scaled) < 10**digits else f"{scaled:.0f}"
    return f"{text} {prefix}{unit}"


def unprefixed(unit: str) -> str:
    """Return a unit without its prefix: ``unprefixed("GB/s") == "B/s"``."""
    match = _FACTOR.match(unit)
    if match is not None and match[1] not in _SYMBOLS:
        for length in (2, 1):
            if unit[:length] in _PREFIXES and match[1][length:] in _SYMBOLS:
                return unit[length:]
    return unit


def _first_power(unit: str) -> int:
    match = _FACTOR.match(unit)
    return int(match[2] or 1) if match else 1


def _quantity(unit: str, *, zero: bool = True, most: float = math.inf) -> Any:
    """Make the pydantic type of a quantity (not negative, or positive) in the dimension `unit`."""

    def read(raw: object) -> float:
        try:
            value = parse(raw, unit)
        except ConfigError as error:
            raise QuantityError(error.message, raw, unit) from error
        if value < 0 or (value == 0 and not zero) or value == float("inf"):
            raise ValueError(f"{raw!r} must be {'at least' if zero else 'more than'} 0 and finite")
        if value > most:
            raise ValueError(f"{raw!r} must be at most {show(most, unit)}")
        return value

    return Annotated[
        float,
        BeforeValidator(read, json_schema_input_type=str),
        PlainSerializer(lambda value: f"{value!r} {unit}", return_type=str),
        Dimensioned(unit, zero),
    ]


if TYPE_CHECKING:
    Seconds = float
    SomeSeconds = float
    Bytes = float
    MaybeBytes = float
    BytesPerSecond = float
    Flop = float
    FlopPerSecond = float
    Watts = float
    SomeWatts = float
    JoulesPerByte = float
    JoulesPerFlop = float
    JoulesPerOp = float
    SquareMetres = float
    SquareMetresPerByte = float
    WattsPerByte = float
    WattsPerSquareMetre = float
    Metres = float
    Hertz = float
    Dollars = float
    DollarsPerJoule = float
    DollarsPerSecond = float
    KilogramsPerJoule = float
else:
    Seconds = _quantity("s")
    SomeSeconds = _quantity("s", zero=False)
    Bytes = _quantity("B", zero=False, most=MOST_BYTES)
    MaybeBytes = _quantity("B", most=MOST_BYTES)
    BytesPerSecond = _quantity("B/s", zero=False)
    Flop = _quantity("FLOP")
    FlopPerSecond = _quantity("FLOP/s", zero=False)
    Watts = _quantity("W")
    SomeWatts = _quantity("W", zero=False)
    JoulesPerByte = _quantity("J/B")
    JoulesPerFlop = _quantity("J/FLOP")
    JoulesPerOp = _quantity("J/op")
    SquareMetresPerByte = _quantity("m2/B")
    WattsPerByte = _quantity("W/B")
    WattsPerSquareMetre = _quantity("W/m2", zero=False)
    SquareMetres = _quantity("m2", zero=False)
    Metres = _quantity("m", zero=False)
    Hertz = _quantity("Hz", zero=False)
    Dollars = _quantity("USD")
    DollarsPerJoule = _quantity("USD/J")
    DollarsPerSecond = _quantity("USD/s")
    KilogramsPerJoule = _quantity("g/J")
