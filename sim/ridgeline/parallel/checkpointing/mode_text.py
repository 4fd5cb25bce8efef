"""The text of a mode of recomputation: ``full``, ``mlp+layernorm``, ``full:2``, ``budget:0.4``."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.errors import RidgelineError, nearest
from ridgeline.parallel.checkpointing.modules import JOINED, MODULES, parse_modules
from ridgeline.units import parse

COUNTED = ("full", "uniform", "block")
"""Modes that a number of blocks follows."""
_BUDGET = "budget"
WEIGHED = f"{_BUDGET}:"
"""How the text of a mode begins that chooses ops by what they take."""


@dataclass(frozen=True, slots=True)
class RecomputeMode:
    """A mode of recomputation.

    Attributes
    ----------
    name
        One of the plain modes, of `COUNTED`, "budget", or "modules".
    modules
        Of "modules", in the order in which they are done.
    count
        Blocks; 0: the mode has no number.
    share, size_bytes
        Of "budget", one of the two: of the activations that are kept without recomputation.
    """

    name: str
    modules: tuple[str, ...] = ()
    count: int = 0
    share: float = 0.0
    size_bytes: float = 0.0

    @staticmethod
    def parse(text: str, plain: Collection[str]) -> RecomputeMode:
        """Read a mode.

        Parameters
        ----------
        plain
            Modes of one word that are allowed.

        Raises
        ------
        ValueError
            If it is none; with what is allowed, and the nearest.
        """
        if text in plain:
            return RecomputeMode(text)
        name, colon, rest = (part.strip() for part in text.partition(":"))
        if colon and name in COUNTED:
            if not rest.isdecimal() or not int(rest):
                raise ValueError(f"{name}:N takes a number of blocks from 1, found {rest!r}")
            return RecomputeMode(name, count=int(rest))
        if text.startswith(WEIGHED):
            return _budget(rest)
        try:
            return RecomputeMode("modules", parse_modules(text))
        except ValueError:
            near = nearest(name, (*plain, *COUNTED, _BUDGET) if colon else (*plain, *MODULES))
            counted = ", ".join(f"{one}:N" for one in COUNTED)
            raise ValueError(
                f"allowed: {', '.join(plain)}; {counted}; {_BUDGET}:SHARE or {_BUDGET}:SIZE; or"
                f" modules joined by {JOINED}: {', '.join(MODULES)}; found {text!r}{near}"
            ) from None

    def __str__(self) -> str:
        if self.modules:
            return JOINED.join(self.modules)
        if self.count:
            return f"{self.name}:{self.count}"
        if self.share:
            return f"{self.name}:{self.share:g}"
        return f"{self.name}:{self.size_bytes:g} B" if self.size_bytes else self.name


def _budget(text: str) -> RecomputeMode:
    try:
        share = float(text)
    except ValueError:
        try:
            size = parse(text, "B")
        except RidgelineError as error:
            raise ValueError(
                f"{_BUDGET}: a share of the activations (0.4) or a size (8 GB): {error}"
            ) from error
        if not 0 < size < math.inf:
            raise ValueError(f"{_BUDGET}: a size above 0 B, found {text!r}") from None
        return RecomputeMode(_BUDGET, size_bytes=size)
    if not 0 < share <= 1:
        raise ValueError(f"{_BUDGET}: a share above 0, up to 1, or a size with its unit: {text!r}")
    return RecomputeMode(_BUDGET, share=share)
