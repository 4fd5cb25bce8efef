"""Themes of figures: how wide they are made, and how finely they are written.

Letters have the same size in all of them, so that a narrower figure has larger letters once a page
has scaled it: of "print", 8 of 10 points are left in a column of 3.3 inches, where "screen" would
leave 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.errors import ConfigError, nearest


class Theme(NamedTuple):
    """How figures are made.

    Attributes
    ----------
    width_in
        Of a new figure, in inches.
    dpi
        Of a raster image that it is written to.
    """

    width_in: float
    dpi: int


THEMES: Mapping[str, Theme] = MappingProxyType(
    {"screen": Theme(5.6, 150), "print": Theme(4.2, 480)}
)
_chosen: ContextVar[str] = ContextVar("theme", default="screen")


@contextmanager
def theme(name: str | None) -> Iterator[None]:
    """Make figures in a theme: "screen" or "print", for a column of a paper; None: as it is.

    Raises
    ------
    ConfigError
        If there is no such theme.
    """
    name = _chosen.get() if name is None else name
    if name not in THEMES:
        raise ConfigError(
            f"there is no theme {name!r}{nearest(name, THEMES)} (there are: {', '.join(THEMES)})",
            field="--theme",
        )
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen() -> Theme:
    """Return the theme that figures are made in now."""
    return THEMES[_chosen.get()]
