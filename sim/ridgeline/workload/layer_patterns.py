"""Patterns of layers: a name stands for a layer and for all below it, ``*`` and ``?`` as of files.

``vision`` is ``vision.0.attention.query`` and all else whose name begins with ``vision.``; so is a
pattern with wildcards, ``*.attention``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ridgeline.errors import ConfigError, nearest


def is_below(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a layer, or a weight of a layer, is one of some patterns or below one."""
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def check_patterns(network: str, field: str, patterns: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a pattern that no name fits: nothing would follow it.

    Raises
    ------
    ConfigError
        With the nearest name.
    """
    known = list(names) if patterns else []
    for pattern in patterns:
        if not any(is_below(name, (pattern,)) for name in known):
            heads = list(dict.fromkeys(name.partition(".")[0] for name in known))
            near = nearest(pattern.strip("*."), heads)
            more = ", ..." if len(heads) > 12 else ""
            raise ConfigError(
                f"no layer with weights of {network} is called {pattern!r}{near}"
                f" (it has {', '.join(heads[:12])}{more})",
                field=field,
            )
