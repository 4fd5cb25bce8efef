"""Memory events: bytes that the tasks of a block allocate and release."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.workload.liveness import MemoryEntry, MemoryPlan


def block_entries(
    memory: MemoryPlan, ops: Sequence[int], fine: bool
) -> list[tuple[MemoryEntry, ...]]:
    """Return changes of the memory by op: all, or the fullest moment and what is left."""
    if fine or not ops:
        return [memory.entries[i] for i in ops]
    held: dict[str, int] = {}
    fullest: dict[str, int] = {}
    most = 0
    for i in ops:
        for kind, taken, _ in memory.entries[i]:
            held[kind] = held.get(kind, 0) + taken
        if sum(held.values()) > most:
            most, fullest = sum(held.values()), dict(held)
        for kind, _, given in memory.entries[i]:
            held[kind] = held.get(kind, 0) + given
    kinds = [kind for kind in held if held[kind] or fullest.get(kind)]
    begin = tuple(MemoryEntry(kind, fullest.get(kind, 0), 0) for kind in kinds)
    end = tuple(MemoryEntry(kind, 0, held[kind] - fullest.get(kind, 0)) for kind in kinds)
    changes: list[tuple[MemoryEntry, ...]] = [() for _ in ops]
    changes[0], changes[-1] = begin, (*changes[-1], *end)
    if len(ops) == 1:
        changes[0] = (*begin, *end)
    return changes
