"""Bubbles of pipelines, given how long the passes of one stage take.

A row names schedule, stages, micro-batches and the bubble rate, the idle share of the step of the
slowest stage, and the times of a stage: ``forward_ms``, ``backward_ms`` (gradients of activations),
``weight_ms`` and ``message_ms``. Every slot of the schedule and every message is a task that the
engine plays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.executor import run
from ridgeline.errors import RidgelineError
from ridgeline.parallel.schedule import (
    SCHEDULES,
    Orders,
    Slot,
    zero_bubble_2p,
)
from ridgeline.parallel.schedule.player import PassTimes
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow

_TIMES = ("forward_ms", "backward_ms", "weight_ms", "message_ms")
COLUMNS = ("model", "schedule", "stages", "micro_batches", *_TIMES, "measured", "source")
SHIPPED = "pipelines.csv"


@dataclass(frozen=True)
class MeasuredStage:
    """Seconds of the passes of one micro-batch on one stage, and of a message to the next.

    Attributes
    ----------
    layers
        Of the stage: as many chunks an interleaved schedule has.
    weight_share
        Share of its activations that a micro-batch needs after its backward pass for the gradients
        of weights; None: not known.
    """

    forward_s: float
    backward_s: float
    weight_s: float
    message_s: float
    layers: int
    weight_share: float | None = None

    @property
    def total_s(self) -> float:
        """All passes of one micro-batch."""
        return self.forward_s + self.backward_s + self.weight_s


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the bubble rate of every row that states one."""
    return predict_each(rows, _one)


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    stages, micro_batches = row.whole("stages"), row.whole("micro_batches")
    measured, name = row.number("measured"), row.text("schedule")
    if not stages or not micro_batches or measured is None:
        raise RidgelineError("stages, micro-batches or the rate are not given")
    stage = _stage(row)
    predicted = bubble_rate(name, stages, micro_batches, stage)
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('model')} {stages} {micro_batches}",
        sweep=f"{row.text('model')} {stages} {micro_batches}",
        configuration=f"{row.text('model')}, {stages} stages, {micro_batches} of {name}",
        quantity="bubble rate",
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial={"(K - 1) / (M + K - 1)": (stages - 1) / (micro_batches + stages - 1)},
        points=True,
        command=row.command("pipeline"),
        **stated("pipeline", predicted),
    )


def bubble_rate(name: str, stages: int, micro_batches: int, stage: MeasuredStage) -> float:
    """Return the idle share of the longest step of a stage.

    Raises
    ------
    RidgelineError
        If the schedule does not exist for these numbers.
    """
    orders, chunks = _orders(name, stages, micro_batches, stage)
    known = SCHEDULES.find(name)
    splits = known is None or known.splits_backward  # zero-bubble-2p is no schedule of a plan
    turns = known is not None and known.turns
    backward_s = stage.backward_s + (0.0 if splits else stage.weight_s)
    seconds = {"F": stage.forward_s, "B": backward_s, "W": stage.weight_s}
    b = ProgramBuilder()
    rows = {phase: b.add_cost([WorkPhase(s / chunks, {})]) for phase, s in seconds.items()}
    wire = b.add_cost([WorkPhase(stage.message_s, {})])
    streams = [b.add_stream(f"stage{k}", b.add_rank()) for k in range(stages)]
    task: dict[tuple[int, str, int, int], int] = {}
    waiting = {k: list(reversed(order)) for k, order in enumerate(orders)}
    own: list[list[int]] = [[] for _ in orders]
    while any(waiting.values()):
        before = len(task)
        for k, slots in waiting.items():
            while slots and ((source := _before(k, slots[-1], stages, chunks, turns)) is None
                             or source in task):  # fmt: skip
                slot = slots.pop()
                deps = [] if source is None else [task[source]]
                if source is not None and source[0] != k:  # a message, on a wire for itself
                    line = b.add_stream(f"message{len(task)}", k)
                    deps = [b.add_task("message", "send", cost=wire, stream=line, deps=deps)]
                deps = sorted({*deps, *own[k][-1:]})
                number = b.add_task(
                    slot.phase, "slot", cost=rows[slot.phase], stream=streams[k], deps=deps
                )
                task[(k, *slot)] = number
                own[k].append(number)
        if len(task) == before:
            raise RidgelineError(f"the slots of {name} wait for each other in a circle")
    timeline = run(b.build())
    step_s = max(
        float(timeline.end_s[mine].max() - timeline.start_s[mine].min()) for mine in map(list, own)
    )
    return 1.0 - micro_batches * stage.total_s / step_s


def _orders(name: str, stages: int, micro_batches: int, stage: MeasuredStage) -> tuple[Orders, int]:
    """Return the slots of every stage, and the chunks of a stage."""
    if name == zero_bubble_2p.NAME:
        if stage.weight_share is None:
            raise RidgelineError("what gradients of weights need of the activations is not known")
        times = PassTimes(stage.forward_s, stage.backward_s, stage.weight_s, stage.message_s)
        return zero_bubble_2p.order(stages, micro_batches, times, stage.weight_share), 1
    schedule = SCHEDULES[name]
    chunks = 1 + schedule.turns
    if schedule.interleaves and not schedule.turns:
        chunks = max(stage.layers, 2)
    return schedule(stages, micro_batches, chunks), chunks


def _before(
    k: int, slot: Slot, stages: int, chunks: int, turns: bool
) -> tuple[int, str, int, int] | None:
    """Return the slot of another pass that a slot waits for.

    Where micro-batches turn, second chunks go from the last stage to the first.
    """
    phase, i, chunk = slot
    if phase == "W":
        return k, "B", i, chunk
    down = 1 if not (turns and chunk) else -1  # from a stage to the next of the same chunk
    first, last = (0, stages - 1)[::down]
    if phase == "F":
        if k != first:
            return k - down, "F", i, chunk
        return (k if turns else stages - 1, "F", i, chunk - 1) if chunk else None
    if k != last:
        return k + down, "B", i, chunk
    return (k if turns else 0, "B", i, chunk + 1) if chunk < chunks - 1 else (k, "F", i, chunk)


def _stage(row: MeasuredRow) -> MeasuredStage:
    """Read the times of a stage, and of how many layers it is."""
    times_s = [time_ms / 1e3 for name in _TIMES if (time_ms := row.number(name)) is not None]
    if len(times_s) < len(_TIMES):
        raise RidgelineError("the times of a stage are not known")
    forward_s, backward_s, weight_s, message_s = times_s
    layers, share = (
        row.number(name) if name in row.values else None for name in ("layers", "weight_share")
    )
    return MeasuredStage(forward_s, backward_s, weight_s, message_s, int(layers or 0), share)
