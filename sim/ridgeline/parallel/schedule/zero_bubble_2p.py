"""ZB-2p: F, B and W in the order that their times ask for, in twice the memory of 1F1B.

As many forward passes as end before the first backward pass can come, then both in turn, and W
where a stage waits long enough, has waited most of all stages, or has no memory left. A micro-batch
needs less memory once only its W is left: 32 of a transformer's 34 + 5 a s / h bytes a feature.
Like ZB-H2 it needs a next step that begins before this one has ended. It is no schedule of a Plan,
which is written before its times are known; where all passes take the same time it is ZB-H2.
"""

from __future__ import annotations

from functools import lru_cache, partial

from ridgeline.parallel.schedule.player import PassTimes, Player, Waiting
from ridgeline.parallel.schedule.slots import Orders, Phase, Slot

NAME = "zero-bubble-2p"
SOURCE = (
    "Qi, Wan, Huang and Lin, Zero bubble pipeline parallelism, ICLR 2024, arXiv:2401.10241,"
    " section 3.1 and table 1"
)


def weight_share(heads: float, positions: float, hidden: float) -> float:
    """Return the share of a transformer's activations that W still needs after B (table 1)."""
    return 32 / (34 + 5 * heads * positions / hidden)


@lru_cache(maxsize=64)
def order(stages: int, micro_batches: int, times: PassTimes, share: float) -> Orders:
    """Return the order of every stage: the better of two, strictly in turn or not.

    Parameters
    ----------
    share
        Of its activations, what a micro-batch needs after B (`weight_share`).
    """
    found = []
    for strict in (True, False):
        rule = partial(_rule, limit=2.0 * stages, strict=strict)
        player = Player(stages, micro_batches, times, rule, weight_share=share)
        found.append((player.play(), player.orders))
    return min(found, key=lambda one: one[0])[1]


def _rule(
    player: Player, stage: Waiting, now_s: float, *, limit: float, strict: bool
) -> Slot | None:
    forward: tuple[Phase, int] = ("F", 0)
    backward: tuple[Phase, int] = ("B", 0)
    is_full = stage.held + 1 > limit + player.same_s
    if stage.is_filling and stage.left[forward] and not is_full:
        in_time = now_s + player.times.forward_s <= stage.comes_s(backward) + player.same_s
        if in_time:
            return stage.first(forward) if player.is_there(stage, forward, now_s) else None
    turn = forward if stage.last == "B" and stage.left[forward] else backward
    if stage.left[turn] and not (turn == forward and is_full):
        if player.is_there(stage, turn, now_s):
            return stage.first(turn)
        if not strict and turn == forward and player.is_there(stage, backward, now_s):
            return stage.first(backward)
        if not player.fills(stage, stage.comes_s(turn) - now_s):
            return None
    return stage.weight()
