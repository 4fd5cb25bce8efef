"""Recursive checkpointing: steps that are reversed with few slots, and the work done again."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ridgeline.parallel.checkpointing.revolve import (
    ForwardChain,
    advances,
    best_reversal,
    reversible_steps,
)
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction, printed

_CASES = ((2, 3), (3, 2), (3, 3), (4, 2), (4, 3))
_ADVANCES = ((10, 3), (33, 4), (60, 7))
_ROOTS = (16, 64)


def reproduce() -> Reproduction:
    """Compare closed forms with the dynamic program that plans recomputation of real networks."""
    return Reproduction(
        name="recursive-checkpointing",
        title="Steps that are reversed with few slots, and the work done again",
        source=(
            "A. Griewank and A. Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000: C(s + r, s) "
            "steps with s slots and r repeats, r n - C(s + r, s + 1) advances; square root: T. "
            "Chen et al., Training deep nets with sublinear memory cost, arXiv:1604.06174"
        ),
        rows=(*_closed_forms(), *_square_root()),
        fits=(),
        notes=(
            "Predicted is the dynamic program over unequal steps (O. Beaumont et al., "
            "arXiv:1911.13214), here on equal ones; the first sweep is counted.",
        ),
    )


def _closed_forms() -> Iterator[ReproducedFigure]:
    for slots, repeats in _CASES:
        yield printed(
            "steps that can be reversed",
            f"{slots} slots, {repeats} repeats",
            float(reversible_steps(slots, repeats)),
            float(_longest(slots, repeats)),
            0.0,
        )
    for steps, slots in _ADVANCES:
        yield printed(
            "forward steps in all",
            f"{steps} steps, {slots} slots",
            float(advances(steps, slots)),
            _swept(steps, slots),
            0.0,
        )


def _square_root() -> Iterator[ReproducedFigure]:
    for steps in _ROOTS:
        ones = [1.0] * steps
        chain = ForwardChain(ones, ones, ones, ones, ones, ones, [0.0] * steps)
        room = 2 * math.isqrt(steps)
        found = best_reversal(chain, room, levels=room)
        assert found is not None
        yield printed(
            "extra forward passes with room for 2 sqrt(n) activations",
            f"{steps} layers",
            1.0,
            found.work / steps,
            note="one suffices; the best order takes less",
        )


def _longest(slots: int, repeats: int) -> int:
    """Return the most steps that are reversed before one more costs more than `repeats`."""
    steps, before = 1, 0.0
    while (now := _swept(steps + 1, slots)) - before <= repeats:
        steps, before = steps + 1, now
    return steps


def _swept(steps: int, slots: int) -> float:
    """Forward steps that reverse equal steps, with the first sweep, by dynamic programming."""
    ones, nothing = [1.0] * steps, [0.0] * steps
    never = [float(slots + 1)] * steps  # what a step keeps for its backward does not fit
    chain = ForwardChain(ones, nothing, ones, ones, never, nothing, nothing)
    found = best_reversal(chain, slots, levels=slots)
    assert found is not None
    return found.work + steps - 1
