"""Orders of pipeline schedules written slot by slot, as their papers tell them."""

from __future__ import annotations

from ridgeline.parallel.schedule import Orders, Slot


def one_forward_one_backward(
    forward: list[Slot], backward: list[Slot], warm_up: int, late: int | None
) -> list[Slot]:
    """Interleave; behind every backward from `late` on a gradient of weights; None: behind none."""
    order, weights = list(forward[:warm_up]), [Slot("W", *slot[1:]) for slot in backward]
    waiting = list(forward[warm_up:])
    for done, slot in enumerate(backward):
        if waiting:
            order.append(waiting.pop(0))
        order.append(slot)
        if late is not None and done >= late:
            order.append(weights.pop(0))
    return order + (weights if late is not None else [])


def orders(name: str, stages: int, m: int, chunks: int) -> Orders:
    """Return the slots of every stage."""
    groups = [
        (chunk, range(first, first + (stages if chunks > 1 else m)))
        for first in range(0, m, stages if chunks > 1 else m)
        for chunk in range(chunks)
    ]
    forward = [Slot("F", i, chunk) for chunk, group in groups for i in group]
    backward = [Slot("B", i, chunks - 1 - chunk) for chunk, group in groups for i in group]
    found = []
    for k in range(stages):
        left = stages - 1 - k
        if name == "gpipe":
            found.append(forward + backward[::-1])
            continue
        warm_up, late = {
            "1f1b": (left, None),
            "interleaved": (2 * left + (chunks - 1) * stages, None),
            "zero-bubble": (left, k),
            "zero-bubble-h2": (min(2 * left, m - 1), 2 * k),
        }[name]
        found.append(one_forward_one_backward(forward, backward, min(warm_up, len(forward)), late))
    return found
