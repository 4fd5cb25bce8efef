"""Schedules with split backward passes (dgrad, wgrad), found by playing them.

Whenever a stage is free, a rule says what it takes of all that has come to it, or that it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ridgeline.errors import RidgelineError
from ridgeline.parallel.schedule.slots import Orders, Phase, Slot

SAME_S = 1e-9
"""Share of the longest pass up to which times are the same."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of the passes of one micro-batch on one chunk of a stage, and of a message.

    Attributes
    ----------
    backward_s, weight_s
        Gradients of activations, and of weights.
    """

    forward_s: float = 1.0
    backward_s: float = 1.0
    weight_s: float = 1.0
    message_s: float = 0.0


@dataclass
class Waiting:
    """A stage while it is played.

    Attributes
    ----------
    came
        By phase and chunk, when each micro-batch comes, and its number, in order.
    left
        By phase and chunk, how many micro-batches are still to do.
    idle_s
        How long it has waited since it has begun.
    held
        Activations, of one micro-batch on one chunk each; less once only W needs them.
    weights
        Micro-batches and chunks whose W is to be done.
    last
        Phase of the last F or B.
    is_filling
        Whether no backward pass has been done yet.
    """

    came: dict[tuple[Phase, int], deque[tuple[float, int]]]
    left: dict[tuple[Phase, int], int]
    free_s: float = 0.0
    begun_s: float = -1.0
    idle_s: float = 0.0
    held: float = 0.0
    weights: deque[tuple[int, int]] = field(default_factory=deque)
    last: Phase = "F"
    is_filling: bool = True

    def comes_s(self, kind: tuple[Phase, int]) -> float:
        """When the next micro-batch comes; inf: nobody works on it yet."""
        return self.came[kind][0][0] if self.came[kind] else float("inf")

    def first(self, kind: tuple[Phase, int]) -> Slot:
        """Return the next of a kind."""
        return Slot(kind[0], self.came[kind][0][1], kind[1])

    def weight(self) -> Slot | None:
        """Return the first gradient of weights that waits."""
        return Slot("W", *self.weights[0]) if self.weights else None


Rule = Callable[["Player", Waiting, float], Slot | None]


class Player:
    """Plays a pipeline by a rule.

    Parameters
    ----------
    turns
        Whether each stage has two chunks, and a micro-batch comes back through them (a V).
    weight_share
        Share of its activations that a micro-batch still needs for W after B.
    """

    def __init__(
        self, stages: int, micro_batches: int, times: PassTimes, rule: Rule, *,
        turns: bool = False, weight_share: float = 1.0,
    ) -> None:  # fmt: skip
        self.times, self.rule, self.weight_share = times, rule, weight_share
        down = range(stages)
        self.way = [(0, k) for k in down] + ([(1, k) for k in reversed(down)] if turns else [])
        self.place = {where: i for i, where in enumerate(self.way)}
        self.same_s = SAME_S * max(times.forward_s, times.backward_s, times.weight_s)
        phases: tuple[Phase, ...] = ("F", "B")
        kinds = [(phase, chunk) for chunk in range(1 + turns) for phase in phases]
        self.stages = [
            Waiting({kind: deque() for kind in kinds}, dict.fromkeys(kinds, micro_batches))
            for _ in down
        ]
        self.stages[0].came["F", 0].extend((0.0, i) for i in range(micro_batches))
        self.orders: Orders = [[] for _ in down]
        self.slots = 3 * micro_batches * len(self.way)
        self._wakes = [(0.0, 0)]

    def play(self) -> float:
        """Play everything; return the time from the first to the last slot of the slowest stage.

        Raises
        ------
        RidgelineError
            If the rule lets all stages wait for each other.
        """
        left = self.slots
        while self._wakes and left:
            now_s, k = heappop(self._wakes)
            stage = self.stages[k]
            if now_s >= stage.free_s and (slot := self.rule(self, stage, now_s)) is not None:
                self._do(k, slot, now_s)
                left -= 1
        if left:
            raise RidgelineError("the stages of a pipeline wait for each other")
        return max(stage.free_s - stage.begun_s for stage in self.stages)

    def is_there(self, stage: Waiting, kind: tuple[Phase, int], now_s: float) -> bool:
        """Whether a micro-batch of a kind has come."""
        return stage.comes_s(kind) <= now_s + self.same_s

    def fills(self, stage: Waiting, wait_s: float) -> bool:
        """Whether a stage does a W while it waits: if it has time, or has waited most of all."""
        most_s = max(one.idle_s for one in self.stages)
        return wait_s >= self.times.weight_s - self.same_s or stage.idle_s + wait_s > most_s

    def _do(self, k: int, slot: Slot, now_s: float) -> None:
        stage, (phase, i, chunk) = self.stages[k], slot
        if stage.begun_s < 0:
            stage.begun_s = now_s
        else:
            stage.idle_s += now_s - stage.free_s
        times = self.times
        took_s = {"F": times.forward_s, "B": times.backward_s, "W": times.weight_s}[phase]
        stage.free_s = now_s + took_s
        self.orders[k].append(slot)
        if phase == "W":
            stage.weights.popleft()
            stage.held -= self.weight_share
        else:
            stage.came[phase, chunk].popleft()
            stage.left[phase, chunk] -= 1
            stage.last = phase
            stage.held += 1 if phase == "F" else self.weight_share - 1
            if phase == "B":
                stage.is_filling = False
                stage.weights.append((i, chunk))
            self._send(phase, k, self.place[chunk, k] + (1 if phase == "F" else -1), i)
        heappush(self._wakes, (stage.free_s, k))

    def _send(self, phase: Phase, source: int, place: int, micro_batch: int) -> None:
        if place < 0:
            return
        if place == len(self.way):  # the loss: its gradient goes back at once
            phase, place = "B", place - 1
        chunk, k = self.way[place]
        come_s = self.stages[source].free_s + (self.times.message_s if k != source else 0.0)
        self.stages[k].came[phase, chunk].append((come_s, micro_batch))
        heappush(self._wakes, (come_s, k))
