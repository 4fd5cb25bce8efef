"""Optimal checkpointing of a chain: which steps to do again so that few of them are kept.

Reversing a chain of equal steps with a number of slots for states is solved in closed form: with
s slots and each step done at most r + 1 times, C(s + r, s) steps can be reversed (Griewank and
Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000). A chain whose steps differ in time and bytes
needs dynamic programming over where to keep a state and which steps to keep whole (Beaumont,
Eyraud-Dubois, Herrmann, Joly and Shilova, Optimal checkpointing for heterogeneous chains, 2019,
arXiv:1911.13214, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError

_Held = Callable[[Sequence[float]], "Ints"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def reversible_steps(slots: int, repeats: int) -> int:
    """Return how many equal steps can be reversed with so many slots and repeats: C(s + r, s).

    The first state takes a slot; a step is done again `repeats` times at most.
    """
    return comb(slots + repeats, slots)


def advances(steps: int, slots: int) -> int:
    """Return the fewest forward steps that reverse a chain of equal steps, with the first sweep.

    ``r n - C(s + r, s + 1)`` with r the least that has ``n <= C(s + r, s)``; the forward step that
    belongs to each backward step is not counted (Griewank and Walther, 2000, equation 4).

    Raises
    ------
    RidgelineError
        If there is not even a slot for the first state.
    """
    if steps < 1 or slots < 1:
        raise RidgelineError(f"{steps} steps cannot be reversed with {slots} slots")
    repeats = 0
    while reversible_steps(slots, repeats) < steps:
        repeats += 1
    return repeats * steps - comb(slots + repeats, slots + 1)


@dataclass(frozen=True)
class ForwardChain:
    """Steps 0 .. n - 1 of a forward pass; step i reads state i and writes state i + 1.

    All are sequences of n numbers. Work is in any unit, that of repeating a step.

    Attributes
    ----------
    advance
        Work to do a step again for the state that it writes.
    turn
        Work to do a step again for what its backward step reads.
    whole
        Work to do it again for both.
    state_bytes
        Of the state that a step reads; the first is there anyhow and not counted.
    keep_bytes
        Of what the backward step reads, kept from the step's forward to its backward.
    turn_bytes
        Needed while the step is turned round: what its backward reads, and what it works with.
    step_bytes
        Needed while it is done forward, with the state that it writes.
    """

    advance: Sequence[float]
    turn: Sequence[float]
    whole: Sequence[float]
    state_bytes: Sequence[float]
    keep_bytes: Sequence[float]
    turn_bytes: Sequence[float]
    step_bytes: Sequence[float]


class Action(NamedTuple):
    """One thing to do: "advance" or do "whole" a step, or its "backward".

    Forward actions come in the order of the sweeps; a step that comes up for the first time is
    part of the forward pass itself. "turn" is the last forward action before its backward.
    """

    what: Literal["advance", "whole", "turn", "backward"]
    step: int


@dataclass(frozen=True)
class Reversal:
    """The cheapest way to reverse a chain: its actions, and the work that is done again."""

    actions: tuple[Action, ...]
    work: float


def best_reversal(chain: ForwardChain, memory_bytes: float, levels: int = 256) -> Reversal | None:
    """Return the reversal with the least repeated work that needs no more than some memory.

    Parameters
    ----------
    memory_bytes
        For states, for what is kept, and for what backward steps work with.
    levels
        Memory is counted in so many steps, bytes rounded up: what is returned always fits, but
        something cheaper may fit by less than a step for each thing held.

    Returns
    -------
    Reversal or None
        None if no reversal fits. It is the best of those that keep a state, once kept, until it
        is used for the last time.
    """
    unit = memory_bytes / levels if memory_bytes > 0 else 1.0

    def held(sizes: Sequence[float]) -> Ints:
        rounded = np.ceil(np.asarray(sizes, np.float64) / unit - 1e-9)
        return np.minimum(rounded, levels + 1).astype(np.int64)

    again = _again(chain, held, levels)
    first = _first(chain, held, levels, again)
    if not np.isfinite(first.work[0, levels]):
        return None
    actions = tuple(_walk(chain, held, levels, first, again))
    return Reversal(actions, float(first.work[0, levels]))


class _Again(NamedTuple):
    """Least work to reverse steps s .. t that were done before, by memory, and the choice.

    The choice at [s, t, m] is `_WHOLE` to keep step s whole, else the step whose state is kept
    next.
    """

    work: Floats
    choice: npt.NDArray[np.int16]


class _First(NamedTuple):
    """As `_Again`, of steps s .. n - 1 that come up for the first time."""

    work: Floats
    choice: npt.NDArray[np.int16]


_WHOLE = 0


def _again(chain: ForwardChain, held: _Held, levels: int) -> _Again:
    n = len(chain.advance)
    state, keep, turn, step = map(
        held, (chain.state_bytes, chain.keep_bytes, chain.turn_bytes, chain.step_bytes)
    )
    ahead = np.concatenate(([0.0], np.cumsum(chain.advance)))
    work = np.full((n, n, levels + 1), np.inf)
    behind = np.full((n, n, levels + 1), np.inf)  # [t, s] work of s .. t with its state paid for
    choice = np.zeros((n, n, levels + 1), np.int16)
    memory = np.arange(levels + 1)
    for length in range(n):
        for s in range(n - length):
            t = s + length
            if length == 0:
                work[s, s] = np.where(memory >= turn[s], chain.turn[s], np.inf)
            else:
                whole = _less(behind[t, s + 1], int(keep[s])) + chain.whole[s]
                whole[: max(step[s], turn[s])] = np.inf
                states = behind[t, s + 1 : t + 1] + work[s, s:t]
                states += (ahead[s + 1 : t + 1] - ahead[s])[:, None]
                work[s, t], choice[s, t] = _best(whole, states, _room(step, state, s, t), s)
            behind[t, s] = _less(work[s, t], int(state[s]))
    return _Again(work, choice)


def _room(step: Ints, state: Ints, s: int, t: int) -> Ints:
    """Levels that it takes to do steps s .. mid - 1 one after the other, for every mid <= t.

    All but the first read a state that is there for the moment only.
    """
    each = step[s:t] + state[s:t]
    each[0] = step[s]
    return np.maximum.accumulate(each)


def _best(
    whole: Floats, states: Floats, room: Ints, s: int
) -> tuple[Floats, npt.NDArray[np.int16]]:
    """Return the least work at every memory, of keeping step s whole or a later step's state.

    `states` and `room`, at [mid - s - 1], are the work with the state of step `mid` by memory, and
    the memory that it takes to get there.
    """
    states = np.where(np.arange(states.shape[1]) >= room[:, None], states, np.inf)
    mid = np.argmin(states, axis=0)
    least = np.take_along_axis(states, mid[None], axis=0)[0]
    best = np.minimum(whole, least)
    return best, np.where(whole <= least, _WHOLE, s + 1 + mid).astype(np.int16)


def _first(chain: ForwardChain, held: _Held, levels: int, again: _Again) -> _First:
    n = len(chain.advance)
    state, keep, turn, step = map(
        held, (chain.state_bytes, chain.keep_bytes, chain.turn_bytes, chain.step_bytes)
    )
    work = np.full((n, levels + 1), np.inf)
    behind = work.copy()
    choice = np.zeros((n, levels + 1), np.int16)
    work[n - 1, turn[n - 1] :] = 0.0
    for s in reversed(range(n)):
        if s < n - 1:
            whole = _less(behind[s + 1], int(keep[s]))
            whole[: max(step[s], turn[s])] = np.inf
            states = behind[s + 1 :] + again.work[s, s : n - 1]
            work[s], choice[s] = _best(whole, states, _room(step, state, s, n - 1), s)
        behind[s] = _less(work[s], int(state[s]))
    return _First(work, choice)


def _less(work: Floats, taken: int) -> Floats:
    """Return work by memory where so many levels are taken before."""
    less = np.full(len(work), np.inf)
    less[taken:] = work[: max(len(work) - taken, 0)]
    return less


def _walk(
    chain: ForwardChain, held: _Held, levels: int, first: _First, again: _Again
) -> Iterator[Action]:
    """Unroll the choices."""
    state, keep = held(chain.state_bytes), held(chain.keep_bytes)
    n = len(chain.advance)
    todo: list[tuple[int, int, int] | Action] = [(0, n - 1, levels)]
    seen = -1  # the last step that has come up
    while todo:
        part = todo.pop()
        if isinstance(part, Action):
            yield part
            continue
        s, t, m = part
        table = first.choice[s] if s > seen else again.choice[s, t]
        if s == t:
            seen = max(seen, s)
            yield Action("turn", s)
            yield Action("backward", s)
        elif table[m] == _WHOLE:
            seen = max(seen, s)
            yield Action("whole", s)
            todo += [Action("backward", s), (s + 1, t, m - int(state[s + 1] + keep[s]))]
        else:
            mid = int(table[m])
            seen = max(seen, mid - 1)
            yield from (Action("advance", step) for step in range(s, mid))
            todo += [(s, mid - 1, m), (mid, t, m - int(state[mid]))]
