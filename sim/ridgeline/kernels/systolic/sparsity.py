"""Weights of which at most N in every M along k are not zero."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.kernels.systolic.closed_form import N

_RATIO = re.compile(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*")


class StructuredSparsity(NamedTuple):
    """At most `kept` of every `block` weights along k are stored and multiplied."""

    kept: int
    block: int

    def __str__(self) -> str:
        return f"{self.kept}:{self.block}"

    @property
    def index_bits(self) -> int:
        """Bits that say where in its block a stored weight belongs."""
        return (self.block - 1).bit_length()

    def compressed(self, k: N) -> N:
        """Weights that are stored of k: those of the whole blocks and of the rest."""
        rest: N = np.minimum(k % self.block, self.kept)
        return k // self.block * self.kept + (int(rest) if isinstance(k, int) else rest)


def parse_sparsity(text: str | tuple[int, int] | None) -> StructuredSparsity | None:
    """Read ``"2:4"`` or (2, 4); None means dense.

    Raises
    ------
    ConfigError
        If this is not a ratio N:M with 1 <= N <= M.
    """
    if text is None:
        return None
    match = _RATIO.fullmatch(text) if isinstance(text, str) else None
    pair = (int(match[1]), int(match[2])) if match else text
    if (
        not isinstance(pair, tuple)
        or len(pair) != 2
        or not all(isinstance(x, int) for x in pair)
        or not 1 <= pair[0] <= pair[1]
    ):
        raise ConfigError(f"sparsity must be N:M with 1 <= N <= M, such as 2:4; found {text!r}")
    return StructuredSparsity(*pair)
