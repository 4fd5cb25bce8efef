"""Message schedule of a collective, rank to rank and round by round, on any network.

An algorithm writes a `MessageSchedule` once. Two things are made of it: the `CollectiveSchedule`
that the engine plays (`ridgeline.network.routed`), and, in the tests, the movement of real data.

The payload is a row of *slots*. A message carries `count` slots from `first` on, which wrap round
inside a *span* of slots: a step that is repeated moves on by `shift` slots each time, so that the
p - 1 rounds of a ring are one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.network.paths import Routes
from ridgeline.network.topology import Floats

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Column = Ints | int


@dataclass(frozen=True, slots=True)
class MessageRounds:
    """Rounds of messages that are all sent at once; M messages, or parts of messages.

    Attributes
    ----------
    source, target
        [M] positions in the group (or, for switches that reduce, in `MessageSchedule.vertices`).
    first, count
        [M] the slots that are sent.
    base, span
        [M] the slots wrap round inside ``base ... base + span - 1``.
    shift
        [M] slots that `first` moves on with each repetition.
    combine
        [M] whether the target adds what it gets to what it has, or keeps it in its place.
    wave
        [M] A message of a later wave streams out while those of earlier waves stream in: data pass
        all waves of one round, each adding its latency, while all links are busy at once.
    repeat
        Rounds.
    routes
        Links of each message; None: those that the topology's routing gives.
    """

    source: Ints
    target: Ints
    first: Ints
    count: Ints
    base: Ints
    span: Ints
    shift: Ints
    combine: Flags
    wave: Ints
    repeat: int = 1
    routes: Routes | None = None


def make_step(
    source: Column,
    target: Column,
    first: Column,
    count: Column = 1,
    *,
    base: Column = 0,
    span: Column,
    shift: Column = 0,
    combine: bool = False,
    wave: Column = 0,
    repeat: int = 1,
    routes: Routes | None = None,
) -> MessageRounds:
    """Return a step; numbers stand for all messages."""
    columns = np.broadcast_arrays(source, target, first, count, base, span, shift, wave)
    a, b, c, d, e, f, g, h = (np.atleast_1d(np.asarray(x, dtype=np.int64)) for x in columns)
    return MessageRounds(a, b, c, d, e, f, g, np.full(len(a), combine), h, repeat, routes)


@dataclass(frozen=True, slots=True)
class MessageSchedule:
    """A collective of p positions.

    Attributes
    ----------
    slot_bytes
        [S] size of every slot.
    owner
        [S] position at which a slot begins (all-gather, gather) or ends (reduce-scatter, scatter,
        all-to-all); -1 where the operation needs none.
    origin
        [S] position at which a slot begins in an all-to-all or a send; -1 elsewhere.
    steps
        In order.
    vertices
        Vertices of the topology behind the positions from p on: switches that take part.
    """

    slot_bytes: Floats
    owner: Ints
    origin: Ints
    steps: tuple[MessageRounds, ...]
    vertices: tuple[int, ...] = ()


def make_script(
    slot_bytes: Floats,
    steps: Sequence[MessageRounds],
    *,
    owner: Ints | None = None,
    origin: Ints | None = None,
    vertices: Sequence[int] = (),
) -> MessageSchedule:
    """Return a script; steps without messages are left out."""
    nobody = np.full(len(slot_bytes), -1, np.int64)
    return MessageSchedule(
        slot_bytes,
        nobody if owner is None else owner,
        nobody if origin is None else origin,
        tuple(step for step in steps if len(step.source) and step.repeat),
        tuple(vertices),
    )


def advanced(step: MessageRounds, turns: int, repeat: int) -> MessageRounds:
    """Return `repeat` rounds of a step, those after the first `turns`."""
    first = step.base + (step.first - step.base + turns * step.shift) % step.span
    return replace(step, first=first, repeat=repeat)


def merged(steps: Sequence[MessageRounds]) -> MessageRounds:
    """Return the messages of several steps, sent at once. All of them have routes, or none has."""
    if len(steps) == 1:
        return steps[0]
    routes = None
    given = [step.routes for step in steps if step.routes is not None]
    if given:
        assert len(given) == len(steps)
        lengths = np.concatenate([np.diff(part.ptr) for part in given])
        ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        routes = Routes(ptr, np.concatenate([part.links for part in given]))

    def column(name: str) -> Any:
        return np.concatenate([getattr(step, name) for step in steps])

    return MessageRounds(
        column("source"), column("target"), column("first"), column("count"), column("base"),
        column("span"), column("shift"), column("combine"), column("wave"),
        steps[0].repeat, routes,
    )  # fmt: skip


def together(lanes: Sequence[Sequence[MessageRounds]]) -> list[MessageRounds]:
    """Run several sequences of steps side by side, round for round."""
    if len(lanes) == 1:
        return list(lanes[0])
    ends = [np.cumsum([step.repeat for step in lane]) for lane in lanes]
    borders = np.unique(np.concatenate([np.zeros(1, np.int64), *ends])).tolist()
    steps = []
    for start, end in pairwise(borders):
        playing = []
        for lane, until in zip(lanes, ends, strict=True):
            number = int(np.searchsorted(until, start, side="right"))
            if number < len(lane):
                begun = int(until[number]) - lane[number].repeat
                playing.append(advanced(lane[number], start - begun, end - start))
        steps.append(merged(playing))
    return steps


def pipelined(
    source: Ints, target: Ints, begin: Ints, combine: Flags, chunks: int, base: Column = 0
) -> list[MessageRounds]:
    """Send `chunks` slots through edges of a pipeline, one slot after the other.

    In round t an edge sends slot t - begin, if there is such a slot: [E] edges, and the round of
    the first slot of each. Rounds in which the same edges are busy become one step.
    """
    borders = np.unique(np.concatenate([begin, begin + chunks])).tolist()
    base = np.broadcast_to(np.asarray(base), source.shape)
    steps = []
    for start, end in pairwise(borders):
        busy = (begin <= start) & (start < begin + chunks)
        if busy.any():
            step = make_step(
                source[busy], target[busy], base[busy] + start - begin[busy],
                base=base[busy], span=chunks, shift=1, repeat=end - start,
            )  # fmt: skip
            steps.append(replace(step, combine=combine[busy]))
    return steps
