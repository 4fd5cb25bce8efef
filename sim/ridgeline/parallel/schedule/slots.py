"""Pipeline schedule: for every stage, the order of its forward and backward slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ridgeline.errors import RidgelineError
from ridgeline.registry import Registry, takes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Phase = Literal["F", "B", "W"]
PHASES: tuple[Phase, ...] = ("F", "B", "W")


class Slot(NamedTuple):
    """One piece of work of one stage.

    Attributes
    ----------
    phase
        "F": forward; "B": backward, all of it or, where the schedule has "W" slots, the gradients
        of activations only; "W": the gradients of weights.
    micro_batch
        From 0.
    chunk
        Which of the stage's model chunks, from 0. Where stages have several, a micro-batch goes
        through chunk 0 of all stages, then chunk 1: from the first stage to the last again, or, in
        a schedule that turns, back.
    """

    phase: Phase
    micro_batch: int
    chunk: int = 0


Orders = list[list[Slot]]
"""For every stage, its slots in order."""


class Bubble(Protocol):
    """Idle seconds of a stage in one step, where all stages take the same time."""

    def __call__(
        self, stages: int, chunks: int, forward_s: float, backward_s: float, weight_s: float
    ) -> float:
        """Return it; times are of one micro-batch on one stage, all its chunks together."""


class StageCount(Protocol):
    """A number for one stage, from 0."""

    def __call__(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        """Return it."""


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule: call it for the order of every stage.

    Attributes
    ----------
    name, source
        What it is called, and where it is published.
    order
        Makes the slots; use the schedule itself or `arrays`, which check what is asked.
    in_flight
        Most micro-batches, of one chunk each, whose activations a stage holds at once: from F to
        B, or to W where the schedule has W.
    bubble_s
        Idle time of a stage in one step for equal stages: `backward_s` is the gradient of the
        activations, `weight_s` that of the weights; published with the schedule. Where
        `flushes` is false, it is paid once a run. None: nothing is published.
    weight_versions
        How many versions of its weights a stage holds.
    splits_backward
        Whether B and W are separate.
    flushes
        Whether all micro-batches of a step have ended before the next step begins.
    interleaves
        Whether a stage has several chunks of the model.
    turns
        Whether it has two, and a micro-batch comes back through the stages in the second (a V).
    carried
        How many of its last slots, all W, a stage does when the next step has begun, while it
        waits for the first micro-batch of that: stages then begin and end a step one after the
        other, and the weights of each are updated when its own gradients are complete.
    """

    name: str
    source: str
    order: Callable[[int, int, int], SlotArrays | Orders]
    in_flight: StageCount
    bubble_s: Bubble | None = None
    weight_versions: StageCount = lambda stage, stages, micro_batches, chunks: 1
    splits_backward: bool = False
    flushes: bool = True
    interleaves: bool = False
    turns: bool = False
    carried: StageCount = lambda stage, stages, micro_batches, chunks: 0

    def __call__(self, stages: int, micro_batches: int, chunks: int = 1) -> Orders:
        """Return the order of every stage.

        Raises
        ------
        RidgelineError
            If the schedule does not exist for so many stages, micro-batches and chunks.
        """
        return self.arrays(stages, micro_batches, chunks).orders()

    def arrays(self, stages: int, micro_batches: int, chunks: int = 1) -> SlotArrays:
        """Return the same as arrays; raises as the schedule itself does."""
        self.check(stages, micro_batches, chunks)
        made = self.order(stages, micro_batches, chunks)
        if isinstance(made, SlotArrays):
            return made
        check_orders(self, made, stages, micro_batches, chunks)
        return slot_arrays(made)

    def place(self, part: int, stages: int) -> tuple[int, int]:
        """Return chunk and stage of a part of the model, the parts numbered in order."""
        chunk, stage = divmod(part, stages)
        return chunk, stages - 1 - stage if self.turns and chunk % 2 else stage

    def part(self, chunk: int, stage: int, stages: int) -> int:
        """Return which part of the model is at a place (`place`)."""
        turned = self.turns and chunk % 2
        return chunk * stages + (stages - 1 - stage if turned else stage)

    def check(self, stages: int, micro_batches: int, chunks: int = 1) -> None:
        """Complain if the schedule does not exist for these numbers (see `__call__`)."""
        for name, value in (
            ("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks),
        ):  # fmt: skip
            if value < 1:
                raise RidgelineError(f"schedule {self.name}: {value} {name}; at least 1")
        if self.interleaves and not self.turns and chunks < 2:
            raise RidgelineError(
                f"schedule {self.name} needs at least 2 chunks of the model on each stage; with 1 "
                "it is 1f1b"
            )
        if self.turns and chunks != 2:
            raise RidgelineError(
                f"schedule {self.name} has two chunks of the model on each stage, not {chunks}"
            )
        if not self.interleaves and chunks > 1:
            raise RidgelineError(
                f"schedule {self.name} has one chunk of the model on each stage, not {chunks}; "
                "several: interleaved"
            )
        if self.interleaves and not self.turns and micro_batches % stages:
            below = micro_batches - micro_batches % stages
            near = f"{below} or {below + stages}" if below else str(stages)
            raise RidgelineError(
                f"schedule {self.name}: the {micro_batches} micro-batches must be a multiple of "
                f"the {stages} stages; the nearest: {near}"
            )


@dataclass(frozen=True)
class SlotArrays:
    """The slots of all stages, one stage after the other, as arrays.

    Attributes
    ----------
    stage_ptr
        [K + 1] slots stage_ptr[k]:stage_ptr[k + 1] are those of stage k.
    phase
        [S] index into `PHASES`.
    micro_batch, chunk
        [S] from 0.
    """

    stage_ptr: npt.NDArray[np.int64]
    phase: npt.NDArray[np.uint8]
    micro_batch: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int32]

    def orders(self) -> Orders:
        """Return the same as lists."""
        columns = (self.phase.tolist(), self.micro_batch.tolist(), self.chunk.tolist())
        slots = [Slot(PHASES[phase], i, chunk) for phase, i, chunk in zip(*columns, strict=True)]
        return [slots[a:b] for a, b in pairwise(self.stage_ptr.tolist())]


def check_orders(
    schedule: PipelineSchedule, orders: Orders, stages: int, micro_batches: int, chunks: int
) -> None:
    """Complain of orders that do not do all work once, or whose slots wait in a circle.

    A stage's forward waits for that of the stage before, its backward for that of the stage behind
    and for its own forward, its gradients of weights for its own backward.

    Raises
    ------
    RidgelineError
        Naming the stage and the slot.
    """
    said = f"schedule {schedule.name} of {stages} stages and {micro_batches} micro-batches"
    phases: Sequence[Phase] = PHASES if schedule.splits_backward else PHASES[:2]
    asked = {Slot(p, i, c) for p in phases for i in range(micro_batches) for c in range(chunks)}
    if len(orders) != stages:
        raise RidgelineError(f"{said} has orders of {len(orders)} stages")
    for stage, order in enumerate(orders):
        for slot in asked.symmetric_difference(order):
            verb = "leaves out" if slot in asked else "has a slot that is no work of it:"
            raise RidgelineError(f"{said}: stage {stage} {verb} {tuple(slot)}")
        if len(order) != len(asked):
            raise RidgelineError(f"{said}: stage {stage} does a slot twice")
    parts = stages * chunks
    done: set[tuple[Phase, int, int]] = set()  # phase, part of the model, micro-batch
    waiting = [list(reversed(order)) for order in orders]
    while any(waiting):
        before = len(done)
        for stage, slots in enumerate(waiting):
            while slots:
                phase, i, chunk = slots[-1]
                part = schedule.part(chunk, stage, stages)
                needs = {
                    "F": [("F", part - 1, i)] if part else [],
                    "B": [("F", part, i), *([("B", part + 1, i)] if part + 1 < parts else [])],
                    "W": [("B", part, i)],
                }[phase]
                if not done.issuperset(needs):
                    break
                done.add((phase, part, i))
                slots.pop()
        if len(done) == before:
            stage = next(stage for stage, slots in enumerate(waiting) if slots)
            at = tuple(waiting[stage][-1])
            raise RidgelineError(f"{said} never ends: stage {stage} waits for ever at {at}")


def slot_arrays(orders: Orders) -> SlotArrays:
    """Return slots as flat arrays."""
    import numpy as np

    flat = [slot for order in orders for slot in order]
    number = {phase: k for k, phase in enumerate(PHASES)}
    return SlotArrays(
        np.cumsum([0, *map(len, orders)], dtype=np.int64),
        np.fromiter((number[slot[0]] for slot in flat), np.uint8, len(flat)),
        np.fromiter(map(itemgetter(1), flat), np.int32, len(flat)),
        np.fromiter(map(itemgetter(2), flat), np.int32, len(flat)),
    )


def one_forward_one_backward(
    micro_batch: npt.ArrayLike, forward_chunk: npt.ArrayLike, backward_chunk: npt.ArrayLike,
    warm_up: npt.ArrayLike, late: npt.ArrayLike | None = None,
) -> SlotArrays:  # fmt: skip
    """Interleave: so many forwards, then one forward and one backward in turn, then the rest.

    Every slot is put where it belongs by counting those before it: i forwards and
    max(i - warm_up, 0) backwards before forward i, and so on.

    Parameters
    ----------
    micro_batch
        [n] in the order in which each stage goes through them, forward and backward.
    forward_chunk, backward_chunk
        [n] or one for all.
    warm_up
        [K] forwards of every stage before its pairs, at most n.
    late
        [K] after how many further backwards the gradients of weights come, each behind one, the
        last ones at the end; None: there are none.
    """
    import numpy as np

    w, i = np.atleast_1d(warm_up)[:, None], np.arange(len(np.atleast_1d(micro_batch)))
    n = len(i)
    behind = n if late is None else np.atleast_1d(late)[:, None]  # n: none comes in between

    def backward_at(i: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        at: npt.NDArray[np.int64] = i + np.minimum(w + i + 1, n) + np.maximum(i - behind, 0)
        return at

    at = [i + np.maximum(i - w, 0) + np.maximum(i - w - behind, 0), backward_at(i)]
    chunks = [forward_chunk, backward_chunk]
    if late is not None:
        at.append(np.where(i + behind < n, backward_at(i + behind) + 1, 2 * n + i))
        chunks.append(backward_chunk)
    shape = len(w), len(at) * n
    phase, micro_batches, chunk = (np.empty(shape, kind) for kind in (np.uint8, np.int32, np.int32))
    row = np.arange(len(w))[:, None]
    for number, (place, of) in enumerate(zip(at, chunks, strict=True)):
        phase[row, place], micro_batches[row, place] = number, micro_batch
        chunk[row, place] = of
    stage_ptr = np.arange(len(w) + 1) * shape[1]
    return SlotArrays(stage_ptr, phase.ravel(), micro_batches.ravel(), chunk.ravel())


SCHEDULES: Registry[str, PipelineSchedule] = Registry(
    "schedule", "ridgeline.parallel.schedule", PipelineSchedule
)
"""All schedules by name."""


def schedule(
    name: str,
    *,
    source: str,
    in_flight: StageCount,
    bubble_s: Bubble | None = None,
    **properties: Any,
) -> Callable[[Callable[[int, int, int], SlotArrays | Orders]], PipelineSchedule]:
    """Return a decorator that registers the writer of slots as a pipeline schedule.

    It takes stages, micro-batches and chunks, and returns for every stage its slots in order: a
    list of `Slot` for each, which is checked (`check_orders`), or `SlotArrays`, which are not.
    Parameters, and further properties, are the attributes of `PipelineSchedule`.

    Raises
    ------
    RidgelineError
        If the name is taken, or a function takes other parameters; by the decorator.
    """

    def put(order: Callable[[int, int, int], SlotArrays | Orders]) -> PipelineSchedule:
        said = f"schedule {name!r}"
        takes(order, f"{said}: what is decorated", "stages", "micro_batches", "chunks")
        takes(in_flight, f"{said}: in_flight", "stage", "stages", "micro_batches", "chunks")
        made = PipelineSchedule(name, source, order, in_flight, bubble_s, **properties)
        return SCHEDULES.register(name)(made)

    return put
