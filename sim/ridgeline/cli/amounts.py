"""Amounts on the command line: times (``5d``), dollars (``1M$``), tokens (``15T``), per cent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ridgeline.errors import ConfigError

_AMOUNT = re.compile(r"([0-9.eE+_-]*[0-9.])\s*([A-Za-z%]*)")
_TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_SHARES = {"": 1.0, "%": 0.01}


def seconds_of(text: str, option: str) -> float:
    """Read ``5d``, ``12h``, ``90min`` or ``30s``."""
    return _read(text, _TIMES, option, "a time, as 5d or 12h")


def dollars_of(text: str, option: str) -> float:
    """Read ``1M$``, ``$250k`` or ``1000``."""
    return _read(text.strip().strip("$"), _COUNTS, option, "dollars, as 1M$ or 250k$")


def count_of(text: str, option: str) -> float:
    """Read ``15T``, ``300B`` or ``2e9``."""
    return _read(text, _COUNTS, option, "a number, as 15T or 2e9")


def share_of(text: str, option: str) -> float:
    """Read ``10%`` or ``0.1``."""
    return _read(text, _SHARES, option, "a share, as 10% or 0.1")


def _read(text: str, units: Mapping[str, float], option: str, expected: str) -> float:
    """Read a number and its unit.

    Raises
    ------
    ConfigError
        If it is no number, is negative, or has another unit.
    """
    match = _AMOUNT.fullmatch(text.strip())
    try:
        value = float(match[1]) * units[match[2]] if match else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not 0.0 <= value < math.inf:
        names = ", ".join(filter(None, units))
        raise ConfigError(f"expected {expected} (units: {names}), found {text!r}", field=option)
    return value
