"""Zeros in a matrix operand: their pattern, and the bits that are left to store.

==============  ======================================================================
unstructured    any element may be zero (magnitude pruning)
n:m             at most N of every M along the sum are not zero (2:4)
block           whole blocks of rows x columns are zero
activation      any element, known only while the step runs (ReLU, max-pool backward)
==============  ======================================================================

Compressed, an operand [k, n] is its non-zero elements and what says where they belong: for N:M
log2 M bits an element; otherwise the cheaper of a bit for every element or block, and compressed
columns (the row of every element or block, a 32-bit pointer for every column). Nothing obliges
anyone to compress: what would take more room than the dense operand is stored dense.

Mao et al., "Exploring the granularity of sparsity in convolutional neural networks",
arXiv:1705.08922; Mishra et al., "Accelerating sparse deep neural networks", arXiv:2104.08378 (2:4).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ridgeline.errors import ConfigError, nearest

Kind = Literal["unstructured", "n:m", "block", "activation"]
KINDS: tuple[str, ...] = get_args(Kind)
_POINTER_BITS = 32
_RATIO = re.compile(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*")
_SIZES = re.compile(r"\s*(\d{1,6})\s*x\s*(\d{1,6})\s*")
_WORDS = "2:4, 'unstructured 0.3', 'block 32x32 0.1', 'activation 0.5'"


class Stored(NamedTuple):
    """Bits of a compressed operand: its elements, and what says where they belong."""

    element_bits: float
    index_bits: float

    @property
    def total(self) -> float:
        """All bits."""
        return self.element_bits + self.index_bits


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The zeros of one operand.

    Attributes
    ----------
    density
        Share of elements that are not zero; of blocks for "block", N / M for "n:m".
    group
        N and M of "n:m".
    block
        Rows, along the sum, and columns of a block.
    """

    kind: Kind
    density: float
    group: tuple[int, int] = (1, 1)
    block: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"unknown kind of sparsity {self.kind!r}{nearest(self.kind, KINDS)} "
                f"(known: {', '.join(KINDS)})"
            )
        if not 0 < self.density <= 1:
            raise ConfigError(
                f"density is the share of non-zeros, above 0 and at most 1; found {self.density!r}"
            )
        if min(self.block) < 1:
            raise ConfigError(f"a block is rows x columns of at least 1; found {self.block}")

    def __str__(self) -> str:
        if self.kind == "n:m":
            return f"{self.group[0]}:{self.group[1]}"
        size = f" {self.block[0]}x{self.block[1]}" if self.kind == "block" else ""
        return f"{self.kind}{size} {self.density:g}"

    def compressed(self, k: int) -> int:
        """Elements of a column of `k` that "n:m" stores: of whole groups and of the rest."""
        kept, of = self.group
        return k // of * kept + min(k % of, kept)

    def nonzeros(self, k: int, n: int) -> float:
        """Return the elements of [k, n] that are not zero: most of "n:m", else expected."""
        return float(self.compressed(k) * n) if self.kind == "n:m" else self.density * k * n

    def stored(self, k: int, n: int, bits: int) -> Stored:
        """Return the bits of [k, n] in the cheapest encoding, which may be the dense one."""
        dense = Stored(float(k * n * bits), 0.0)
        if self.density == 1:
            return dense
        if self.kind == "n:m":
            count = self.nonzeros(k, n)
            return min(
                Stored(count * bits, count * (self.group[1] - 1).bit_length()),
                dense,
                key=lambda stored: stored.total,
            )
        down, across = math.ceil(k / self.block[0]), math.ceil(n / self.block[1])
        count = self.density * down * across
        rows = count * max(1, (down - 1).bit_length())
        index = min(float(down * across), rows + _POINTER_BITS * (across + 1))
        compressed = Stored(self.density * k * n * bits, index)
        return min(compressed, dense, key=lambda stored: stored.total)


def n_of_m(kept: int, of: int) -> Sparsity:
    """Return the pattern N:M."""
    if not 1 <= kept <= of:
        raise ConfigError(f"N:M needs 1 <= N <= M, such as 2:4; found {kept}:{of}")
    return Sparsity("n:m", kept / of, (kept, of))


def parse(
    pattern: str | tuple[int, int] | Sparsity | None,
    density: float | None = None,
    kind: str | None = None,
    block: str | tuple[int, int] | None = None,
) -> Sparsity | None:
    """Read a pattern from text or from its parts.

    Parameters
    ----------
    pattern
        ``"2:4"``, (2, 4), ``"unstructured 0.3"``, ``"block 32x32 0.1"``, ``"activation 0.5"``,
        ``"none"``, or None.
    density, kind, block
        Instead of a pattern: share of non-zeros, kind (default: unstructured, with a block: block),
        rows and columns of a block.

    Raises
    ------
    ConfigError
        If it cannot be read, parts are missing, or both ways are used.
    """
    if pattern is None or pattern == "none":
        if density is None:
            if kind is not None or block is not None:
                raise ConfigError("a kind of sparsity or a block needs a density")
            return None
        chosen = kind or ("unstructured" if block is None else "block")
        if (chosen == "block") != (block is not None):
            raise ConfigError("a block size belongs to the kind 'block', and that needs one")
        if chosen == "n:m":
            raise ConfigError("give N:M as sparsity, such as 2:4, and not by a density")
        return Sparsity(chosen, density, block=_pair(block))  # type: ignore[arg-type]
    if density is not None or kind is not None or block is not None:
        raise ConfigError("give either a pattern or a density with a kind, not both")
    if isinstance(pattern, Sparsity):
        return pattern
    if isinstance(pattern, tuple):
        if len(pattern) != 2 or not all(isinstance(n, int) for n in pattern):
            return _refuse(repr(pattern))
        return n_of_m(*pattern)
    return _from_text(pattern)


def _from_text(text: str) -> Sparsity:
    if match := _RATIO.fullmatch(text):
        return n_of_m(int(match[1]), int(match[2]))
    words = text.split()
    try:
        density = float(words[-1])
    except (ValueError, IndexError):
        return _refuse(text)
    if len(words) == 2 and words[0] != "block":
        return Sparsity(words[0], density)  # type: ignore[arg-type]  # checked there
    if len(words) == 3 and words[0] == "block":
        return Sparsity("block", density, block=_pair(words[1]))
    return _refuse(text)


def _pair(block: str | tuple[int, int] | None) -> tuple[int, int]:
    if block is None:
        return (1, 1)
    if isinstance(block, str):
        match = _SIZES.fullmatch(block)
        if match is None:
            raise ConfigError(f"a block is rows x columns, such as 32x32; found {block!r}")
        return int(match[1]), int(match[2])
    return block


def _refuse(text: str) -> Sparsity:
    raise ConfigError(f"cannot read the sparsity {text!r}; write for example {_WORDS}")
