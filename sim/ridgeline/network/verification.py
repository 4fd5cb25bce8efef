"""Verification of collectives: a script's messages are played on symbolic chunks.

Every position begins with a contribution of its own to every slot, a random number of 64 bits; a
message copies what its source has, or adds it to what its target has. At the end every position
must have what the operation promises: a sum of the right contributions, each once. Sums modulo 2^64
say this of all slots at once (two sets of contributions agree by a chance of 2^-64); a slot that
is wrong is then played again by itself, contribution by contribution, to say what is missing.

Algorithms of this package are tested with real data; those that a user registers, or brings in a
file, are verified before they are priced or chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.network.message_schedule import Ints, MessageRounds, MessageSchedule
from ridgeline.network.topology import Floats, Topology

MAX_MOVES = 2 * 10**8
"""Slots moved by all messages that are verified at most."""
_ROOTED = frozenset({"broadcast", "scatter"})
_OWNED = frozenset({"all-gather", "gather"})
_SENT = frozenset({"all-to-all", "send", "send-recv"})
_WHOLE = frozenset({"all-reduce", "reduce", "broadcast"})
_Numbers = npt.NDArray[np.uint64]


class WrongCollectiveError(RidgelineError):
    """A collective does not do what its operation promises."""


class Moves(NamedTuple):
    """Messages of one wave of one round, slot by slot."""

    source: Ints
    target: Ints
    slot: Ints
    combine: npt.NDArray[np.bool_]


def verify_script(name: str, op: str, script: MessageSchedule, pairs: Floats, n: int) -> None:
    """Check that a script does its operation.

    Parameters
    ----------
    name
        Of the algorithm, for messages.
    pairs
        Bytes that the operation is asked for: of the whole ([1]), of every position's part ([n]),
        or from each to each ([n * n]).
    n
        Positions of the group.

    Raises
    ------
    WrongCollectiveError
        If a rank does not end up with a chunk, with what rank misses of which chunk.
    RidgelineError
        If it has too many messages to be verified.
    """
    label = f"{op} algorithm {name!r}"
    _check_shape(label, script, n)
    if op == "barrier":
        _check_barrier(label, script, n)
        return
    _check_bytes(label, op, script, pairs, n)
    places, slots = n + len(script.vertices), len(script.slot_bytes)
    own = np.random.default_rng(2026).integers(1, 2**63, (places, slots), dtype=np.uint64) * 2 + 1
    own[n:] = 0
    data, has = own.copy(), _first_holders(op, script, places)
    for round_, moves in enumerate(script_moves(script)):
        missing = np.flatnonzero(~has[moves.source, moves.slot])
        if len(missing):
            m = int(missing[0])
            raise WrongCollectiveError(
                f"{label}: rank {moves.source[m]} sends chunk {moves.slot[m]} to rank "
                f"{moves.target[m]} in round {round_}, but does not have it yet"
            )
        carried = data[moves.source, moves.slot]
        kept = ~moves.combine
        data[moves.target[kept], moves.slot[kept]] = carried[kept]
        np.add.at(
            data, (moves.target[moves.combine], moves.slot[moves.combine]), carried[moves.combine]
        )
        has[moves.target, moves.slot] = True
    _check_end(label, op, script, own, data, has, n)


def verify_routes(name: str, script: MessageSchedule, topology: Topology, vertex: Ints) -> None:
    """Check that links that a script names for its messages lead from their source to their target.

    Raises
    ------
    WrongCollectiveError
        If some do not.
    """
    place = np.concatenate((vertex, np.array(script.vertices, np.int64)))
    for step in script.steps:
        if step.routes is None:
            continue
        for m in range(len(step.source)):
            at = int(place[step.source[m]])
            for link in step.routes.links[step.routes.ptr[m] : step.routes.ptr[m + 1]].tolist():
                at = int(topology.target[link]) if int(topology.source[link]) == at else -1
            if at != int(place[step.target[m]]):
                raise WrongCollectiveError(
                    f"algorithm {name!r}: the links of a message from rank {step.source[m]} to "
                    f"rank {step.target[m]} do not lead from one to the other"
                )


def script_moves(script: MessageSchedule) -> Iterator[Moves]:
    """Yield the messages of every wave of every round, in order."""
    for step in script.steps:
        for turn in range(step.repeat):
            for wave in range(int(step.wave.max()) + 1):
                chosen = np.flatnonzero(step.wave == wave)
                if len(chosen):
                    yield _moves(step, chosen, turn)


def _moves(step: MessageRounds, chosen: Ints, turn: int) -> Moves:
    count = step.count[chosen]
    each = np.repeat(chosen, count)
    k = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count)
    base = step.base[each]
    slot = base + (step.first[each] - base + turn * step.shift[each] + k) % step.span[each]
    return Moves(step.source[each], step.target[each], slot, step.combine[each])


def _check_shape(label: str, script: MessageSchedule, n: int) -> None:
    places, slots = n + len(script.vertices), len(script.slot_bytes)
    moves = sum(int(step.count.sum()) * step.repeat for step in script.steps)
    if max(moves, places * slots) > MAX_MOVES:
        raise RidgelineError(
            f"{label} moves {moves} chunks between {places} ranks; up to {MAX_MOVES} are verified"
        )
    for step in script.steps:
        ends = np.concatenate((step.source, step.target))
        if len(ends) and not (ends.min() >= 0 and ends.max() < places):
            named = int(ends.max() if ends.min() >= 0 else ends.min())
            raise WrongCollectiveError(
                f"{label}: a message names rank {named}; there are ranks 0 to {places - 1}"
            )
        last = step.base + step.span
        if len(ends) and not (step.base.min() >= 0 and last.max() <= slots):
            raise WrongCollectiveError(
                f"{label}: a message names chunk {int(last.max()) - 1}; there are 0 to {slots - 1}"
            )


def _check_bytes(label: str, op: str, script: MessageSchedule, asked: Floats, n: int) -> None:
    """Check that the chunks together are what the operation is asked to move."""
    if op in _SENT:
        key, length = script.origin * n + script.owner, n * n
        known = (script.origin >= 0) & (script.owner >= 0)
    elif op in _WHOLE:
        key, length = np.zeros(len(script.slot_bytes), np.int64), 1
        known = np.ones(len(key), bool)
    else:
        key, length = script.owner, n
        known = script.owner >= 0
    if not known.all():
        slot = int(np.flatnonzero(~known)[0])
        raise WrongCollectiveError(f"{label}: chunk {slot} has no owner, or no origin")
    total = np.bincount(key, script.slot_bytes, length)
    off = np.abs(total - asked) > 1e-6 * max(float(np.max(asked, initial=0.0)), 1e-9)
    if op in _SENT:
        off[np.arange(n) * (n + 1)] = False  # what stays need not be a chunk
    if off.any():
        at = int(np.flatnonzero(off)[0])
        what = {1: "all", n: f"the part of rank {at}"}.get(
            length, f"from rank {at // n} to {at % n}"
        )
        raise WrongCollectiveError(
            f"{label}: its chunks of {what} are {total[at]:g} B together; the operation has "
            f"{asked[at]:g} B"
        )


def _first_holders(op: str, script: MessageSchedule, places: int) -> npt.NDArray[np.bool_]:
    """[places, slots] who has a slot at the beginning."""
    slots = len(script.slot_bytes)
    if op in _ROOTED | _OWNED | _SENT:
        has = np.zeros((places, slots), bool)
        first = np.zeros(slots, np.int64) if op in _ROOTED else script.owner
        has[script.origin if op in _SENT else first, np.arange(slots)] = True
        return has
    return np.ones((places, slots), bool)


def _holders(op: str, script: MessageSchedule, n: int) -> tuple[Ints, Ints]:
    """Positions and slots that must be right at the end."""
    slots = np.arange(len(script.slot_bytes))
    if op in {"all-reduce", "broadcast", "all-gather"}:
        return np.repeat(np.arange(n), len(slots)), np.tile(slots, n)
    if op in {"reduce", "gather"}:
        return np.zeros(len(slots), np.int64), slots
    return script.owner, slots


def _check_end(
    label: str,
    op: str,
    script: MessageSchedule,
    own: _Numbers,
    data: _Numbers,
    has: npt.NDArray[np.bool_],
    n: int,
) -> None:
    position, slot = _holders(op, script, n)
    if op in {"all-reduce", "reduce-scatter", "reduce"}:
        expected = own[:n].sum(axis=0, dtype=np.uint64)[slot]
        wanted = None
    else:
        first = np.zeros(len(slot), np.int64) if op in _ROOTED else script.owner[slot]
        wanted = script.origin[slot] if op in _SENT else first
        expected = own[wanted, slot]
    wrong = np.flatnonzero(~has[position, slot] | (data[position, slot] != expected))
    if not len(wrong):
        return
    at = int(wrong[0])
    who, chunk = int(position[at]), int(slot[at])
    beyond = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    if not has[who, chunk]:
        raise WrongCollectiveError(f"{label}: rank {who} misses chunk {chunk}{beyond}")
    held = _contributions(op, script, own.shape[0], chunk)[who, :n]
    need = np.ones(n, np.int64)
    if wanted is not None:
        need = np.zeros(n, np.int64)
        need[int(wanted[at])] = 1
    less, more = np.flatnonzero(held < need), np.flatnonzero(held > need)
    parts = [f"misses the contribution of rank {r}" for r in less[:1].tolist()]
    parts += [f"has the contribution of rank {r} {int(held[r])} times" for r in more[:1].tolist()]
    raise WrongCollectiveError(
        f"{label}: rank {who} {' and '.join(parts)} in chunk {chunk}{beyond}"
    )


def _contributions(op: str, script: MessageSchedule, places: int, slot: int) -> Ints:
    """[places, places] how often each has the contribution of each to one slot, at the end."""
    held: Ints = np.eye(places, dtype=np.int64)
    for moves in script_moves(script):
        own = moves.slot == slot
        before = held[moves.source[own]]
        for target, combine, carried in zip(
            moves.target[own].tolist(), moves.combine[own].tolist(), before, strict=True
        ):
            held[target] = held[target] + carried if combine else carried
    return held


def _check_barrier(label: str, script: MessageSchedule, n: int) -> None:
    places = n + len(script.vertices)
    heard = np.eye(places, dtype=bool)
    for moves in script_moves(script):
        before = heard.copy()
        for source, target in zip(moves.source.tolist(), moves.target.tolist(), strict=True):
            heard[target] |= before[source]
    missing = np.argwhere(~heard[:n, :n])
    if len(missing):
        rank, other = missing[0].tolist()
        raise WrongCollectiveError(f"{label}: rank {rank} does not hear of rank {other}")
