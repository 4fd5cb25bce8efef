"""Einstein sums as products of two tensors, one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Pair(NamedTuple):
    """A product of two operands of an Einstein sum: its loops, and the letters of its result."""

    letters: str
    m: int
    n: int
    k: int
    batch: int


def parsed(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """Return the letters of every operand and of the result, with "..." written out.

    None where the equation does not fit operands of so many axes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    spare = "".join(chr(0x100 + i) for i in range(max(ranks, default=0)))
    written, widest = [], ""
    for term, rank in zip(terms, ranks, strict=True):
        free = rank - len(term.replace("...", ""))
        if free < 0 or (free and "..." not in term):
            return None
        letters = spare[len(spare) - free :] if free else ""
        widest = max(widest, letters, key=len)
        written.append(term.replace("...", letters))
    if not arrow:
        all_letters = "".join(written)
        once = sorted(c for c in set(all_letters) - set(widest) if all_letters.count(c) == 1)
        right = "..." + "".join(once)
    return written, right.replace("...", widest)


def pair(first: str, second: str, keep: set[str], sizes: Mapping[str, int]) -> Pair:
    """Return the product of two operands; `keep` are the letters that are needed afterwards."""
    a, b = dict.fromkeys(first), dict.fromkeys(second)

    def extent(letters: Sequence[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    both = [c for c in a if c in b]
    alone = [c for c in (*a, *b) if c not in keep and c not in both]
    return Pair(
        letters="".join(c for c in (*a, *(c for c in b if c not in a)) if c in keep),
        m=extent([c for c in a if c not in b and c in keep]),
        n=extent([c for c in b if c not in a and c in keep]),
        k=extent([c for c in both if c not in keep]) * extent(alone),
        batch=extent([c for c in both if c in keep]),
    )
