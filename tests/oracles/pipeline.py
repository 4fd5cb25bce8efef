"""Plays a pipeline schedule by the rules of dependence alone, one slot at a time.

Exact: times are Fractions. A slot starts when its stage has ended the one before and the slot that
it depends on has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ridgeline.parallel.schedule import Orders, Slot

Ends = dict[tuple[int, Slot], Fraction]


def source(
    stage: int, slot: Slot, stages: int, chunks: int, turns: bool = False
) -> tuple[int, Slot] | None:
    """The slot, and its stage, that must have ended; None at the beginning of the model.

    Where a micro-batch `turns`, its second chunks go from the last stage to the first.
    """
    phase, micro_batch, chunk = slot
    if phase == "W":
        return stage, Slot("B", micro_batch, chunk)
    step = 1 if phase == "B" else -1
    way = [(c, k) for c in range(chunks) for k in range(stages)[:: -1 if turns and c else 1]]
    place = way.index((chunk, stage)) + step
    if place < 0:
        return None
    if place == stages * chunks:
        return stage, Slot("F", micro_batch, chunk)
    return way[place][1], Slot(phase, micro_batch, way[place][0])


def play(
    orders: Orders, durations: Mapping[str, Fraction], chunks: int = 1, turns: bool = False
) -> Ends:
    """End of every slot; `durations` are of a slot, by phase."""
    stages = len(orders)
    ends: Ends = {}
    clock, at = [Fraction(0)] * stages, [0] * stages
    while any(at[k] < len(orders[k]) for k in range(stages)):
        moved = False
        for k in range(stages):
            while at[k] < len(orders[k]):
                slot = orders[k][at[k]]
                waits = source(k, slot, stages, chunks, turns)
                if waits is not None and waits not in ends:
                    break
                ready = max(clock[k], ends[waits] if waits else Fraction(0))
                clock[k] = ends[k, slot] = ready + durations[slot.phase]
                at[k] += 1
                moved = True
        assert moved, (
            f"deadlock: {[orders[k][at[k]] for k in range(stages) if at[k] < len(orders[k])]}"
        )
    return ends


def held(orders: Orders) -> list[int]:
    """Most activations (micro-batch and chunk) that each stage holds between F and its last use."""
    peaks = []
    for order in orders:
        free = "W" if any(slot.phase == "W" for slot in order) else "B"
        now = peak = 0
        for slot in order:
            now += slot.phase == "F"
            peak = max(peak, now)
            now -= slot.phase == free
        peaks.append(peak)
    return peaks
