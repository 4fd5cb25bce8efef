"""ZB-V: two chunks a stage, through which a micro-batch goes and comes back, like a V.

The first stage has the last layers, too, so that gradients come back to it at once, and all stages
hold as much as the first one of 1F1B. The order is played with passes of equal length. Stages that
begin a step together wait only for the first forward pass of half a stage each.
"""

from __future__ import annotations

from functools import lru_cache, partial

from ridgeline.parallel.schedule.player import PassTimes, Player, Waiting
from ridgeline.parallel.schedule.slots import Phase, Slot, SlotArrays, schedule, slot_arrays

_FIRST: tuple[tuple[Phase, int], ...] = (("F", 0), ("B", 0), ("F", 1), ("B", 1))
"""What a stage takes before what else, of all that has come."""


@lru_cache(maxsize=64)
def _order(stages: int, micro_batches: int) -> SlotArrays:
    rule = partial(_rule, limit=2 * stages)
    player = Player(stages, micro_batches, PassTimes(), rule, turns=True)
    player.play()
    return slot_arrays(player.orders)


def _rule(player: Player, stage: Waiting, now_s: float, *, limit: int) -> Slot | None:
    """Take what has come and has room; the first chunk leaves room for a pass that comes back.

    So the oldest micro-batch always goes on, and nothing waits for ever.
    """
    room = {0: stage.held + 2 <= limit, 1: stage.held + 1 <= limit}
    able = [kind for kind in _FIRST if kind[0] == "B" or room[kind[1]]]
    for kind in able:
        if kind == _FIRST[0] and stage.is_filling:
            soon_s = min(stage.comes_s(other) for other in _FIRST[1:])
            if soon_s < now_s + player.times.forward_s - player.same_s:
                continue  # it would delay what comes back
        if player.is_there(stage, kind, now_s):
            return stage.first(kind)
    if not stage.weights:
        return None
    wait_s = min((stage.comes_s(kind) for kind in able), default=float("inf")) - now_s
    return stage.weight() if player.fills(stage, wait_s) else None


def bubble_s(
    stages: int, chunks: int, forward_s: float, backward_s: float, weight_s: float
) -> float:
    """Wait until the last stage gets its first micro-batch, where all passes take the same time.

    For at least as many micro-batches as stages. The paper's bubble, 0, does not count it.
    """
    return (stages - 1) * forward_s / 2


@schedule(
    "zero-bubble-v",
    source="Qi, Wan, Huang and Lin, Zero bubble pipeline parallelism, ICLR 2024, arXiv:2401.10241,"
    " section 6 (ZB-V)",
    bubble_s=bubble_s,
    in_flight=lambda stage, stages, micro_batches, chunks: 2 * min(stages, micro_batches),
    splits_backward=True,
    interleaves=True,
    turns=True,
)
def zero_bubble_v(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return the order of every stage."""
    return _order(stages, micro_batches)
