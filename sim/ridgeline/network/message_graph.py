"""Messages of a collective with what each waits for, as other simulators and runtimes need them.

A script goes round by round: all messages of a round are sent at once, of what ranks held before
it. Without rounds, a message is sent when its rank has received what it carries, and received when
its rank has sent on what it would overwrite.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.network.message_schedule import MessageSchedule
from ridgeline.network.verification import script_moves

Slot = tuple[int, int]
"""A rank, and a slot of the payload."""
MOST_SLOTS = 2_000_000
"""Slots moved by all messages that are written at most."""


class GraphMessage(NamedTuple):
    """One message of neighbouring slots.

    Attributes
    ----------
    first, n_slots
        Slots that it carries.
    size_bytes
        Of all of them.
    combine
        Whether the target adds what it gets to what it has.
    send_after
        Messages that its source has to receive before.
    receive_after
        Messages whose source is its target, which has to send them before; and those that the
        target has to receive before.
    """

    round: int
    source: int
    target: int
    first: int
    n_slots: int
    size_bytes: float
    combine: bool
    send_after: tuple[int, ...]
    receive_after: tuple[tuple[int, ...], tuple[int, ...]]


def messages_of(script: MessageSchedule) -> list[GraphMessage]:
    """Return the messages of a script, in order.

    Raises
    ------
    RidgelineError
        If switches take part, or there are too many messages.
    """
    if script.vertices:
        raise RidgelineError("what switches add up is no message from rank to rank")
    moved = sum(int(step.count.sum()) * step.repeat for step in script.steps)
    if moved > MOST_SLOTS:
        raise RidgelineError(f"{moved} chunks are moved; up to {MOST_SLOTS} are written to a file")
    found: list[GraphMessage] = []
    came: defaultdict[Slot, list[int]] = defaultdict(list)  # what a slot of a rank is made of
    last: dict[Slot, int] = {}  # message that wrote a slot of a rank last
    gone: defaultdict[Slot, list[int]] = defaultdict(list)  # sent since it was written
    for number, wave in enumerate(script_moves(script)):
        columns = (wave.source, wave.target, wave.slot, wave.combine)
        runs = _runs(*(column.tolist() for column in columns))
        made = {key: tuple(value) for key, value in came.items()}
        first_index = len(found)
        for index, (source, _, first, count, _) in enumerate(runs, first_index):
            for slot in range(first, first + count):
                gone[source, slot].append(index)
        for index, (source, target, first, count, combine) in enumerate(runs, first_index):
            slots = range(first, first + count)
            needs = {m for slot in slots for m in made.get((source, slot), ())}
            overwritten = {m for slot in slots for m in gone[target, slot]}
            earlier = {last[target, slot] for slot in slots if (target, slot) in last}
            found.append(
                GraphMessage(
                    number,
                    source,
                    target,
                    first,
                    count,
                    float(script.slot_bytes[first : first + count].sum()),
                    combine,
                    tuple(sorted(needs)),
                    (tuple(sorted(overwritten)), tuple(sorted(earlier))),
                )
            )
            for slot in slots:
                key = target, slot
                came[key] = [*came[key], index] if combine else [index]
                last[key] = index
        for _, target, first, count, _ in runs:
            for slot in range(first, first + count):
                gone[target, slot] = []
    return found


def _runs(
    source: list[int], target: list[int], slot: list[int], combine: list[bool]
) -> list[tuple[int, int, int, int, bool]]:
    """Join neighbouring slots of one message."""
    runs: list[tuple[int, int, int, int, bool]] = []
    for a, b, s, adds in zip(source, target, slot, combine, strict=True):
        if runs and runs[-1][:2] == (a, b) and sum(runs[-1][2:4]) == s and runs[-1][4] is adds:
            runs[-1] = (*runs[-1][:3], runs[-1][3] + 1, adds)
        else:
            runs.append((a, b, s, 1, adds))
    return runs
