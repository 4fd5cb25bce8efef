"""Bubbles of pipelines, given how long the passes of one stage take.

A row names schedule, stages (``partitions``), micro-batches and the bubble rate, the idle share of
the step of the slowest stage. The times of a stage are in the row's own columns ``forward_ms``,
``backward_ms`` (gradients of activations), ``weight_ms`` and ``message_ms``; where it has none, in
the table of kernels beside the file (``gemm_kernels.csv``, kind ``pipeline_stage``) or in the one
that ships, by network and number of micro-batches. Every slot of the schedule and every message is
a task that the engine plays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from ridgeline.engine.builder import Phase, ProgramBuilder
from ridgeline.engine.executor import run
from ridgeline.errors import RidgelineError
from ridgeline.parallel.stages.schedules import (
    SCHEDULES,
    Orders,
    Slot,
    zero_bubble_2p,
    zero_bubble_h2,
)
from ridgeline.parallel.stages.schedules.player import Times
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row, read_rows
from ridgeline.study.validate.stated import stated

COLUMNS = ("model", "schedule", "partitions", "micro_batches", "quantity", "value", "source")
SHIPPED = "pipelines.csv"
_NAMES = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "GPipe": "gpipe",
    "ZB-H1": "zero-bubble",
    "ZB-1p": "zero-bubble",  # in the memory of 1F1B its search finds nothing better than H1
    "ZB-H2": "zero-bubble-h2",
    "ZB-2p": zero_bubble_2p.NAME,
    "ZB-V": "zero-bubble-v",
}
_SCHEDULES = {**SCHEDULES, zero_bubble_h2.SCHEDULE.name: zero_bubble_h2.SCHEDULE}
_PASSES = {"fwd": "F", "bwd_input": "B", "bwd_weight": "W", "p2p": "message"}
_COLUMNS = {"forward_ms": "F", "backward_ms": "B", "weight_ms": "W", "message_ms": "message"}
_SIZES = ("heads", "seq", "hidden")
_BESIDE = "gemm_kernels.csv"


@dataclass(frozen=True)
class Stage:
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


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the bubble rate of every row that states one."""
    return predict_each(rows, _one)


def _one(row: Row) -> Outcome | Skipped:
    if row.text("quantity") != "bubble_rate":
        return skip(row, f"{row.text('quantity')} needs more than the times of the stages")
    stages, micro_batches = row.whole("partitions"), row.whole("micro_batches")
    measured = row.number("value")
    if not stages or not micro_batches or measured is None:
        return skip(row, "stages, micro-batches or the rate are not given")
    name = _NAMES.get(row.text("schedule"))
    if name is None:
        return skip(row, f"no schedule is called {row.text('schedule')}")
    stage = _stage(row, stages, micro_batches)
    if stage is None:
        return skip(row, "the times of a stage are not known")
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
        **stated("pipeline", predicted),
    )


def bubble_rate(name: str, stages: int, micro_batches: int, stage: Stage) -> float:
    """Return the idle share of the longest step of a stage.

    Raises
    ------
    RidgelineError
        If the schedule does not exist for these numbers.
    """
    orders, chunks = _orders(name, stages, micro_batches, stage)
    splits = name not in SCHEDULES or SCHEDULES[name].splits_backward
    turns = name in SCHEDULES and SCHEDULES[name].turns
    backward_s = stage.backward_s + (0.0 if splits else stage.weight_s)
    seconds = {"F": stage.forward_s, "B": backward_s, "W": stage.weight_s}
    b = ProgramBuilder()
    rows = {phase: b.add_cost([Phase(s / chunks, {})]) for phase, s in seconds.items()}
    wire = b.add_cost([Phase(stage.message_s, {})])
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


def _orders(name: str, stages: int, micro_batches: int, stage: Stage) -> tuple[Orders, int]:
    """Return the slots of every stage, and the chunks of a stage."""
    if name == zero_bubble_2p.NAME:
        if stage.weight_share is None:
            raise RidgelineError("what gradients of weights need of the activations is not known")
        times = Times(stage.forward_s, stage.backward_s, stage.weight_s, stage.message_s)
        return zero_bubble_2p.order(stages, micro_batches, times, stage.weight_share), 1
    schedule = _SCHEDULES[name]
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


def _stage(row: Row, stages: int, micro_batches: int) -> Stage | None:
    own = {ours: row.number(name) for name, ours in _COLUMNS.items() if name in row.values}
    layers = (row.whole("layers") if "layers" in row.values else None) or 0
    if None not in own.values() and len(own) == len(_COLUMNS):
        return _made({k: v for k, v in own.items() if v is not None}, layers, _share(row))
    beside = Path(row.file).with_name(_BESIDE)
    shipped = Path(str(resources.files(__package__).joinpath("data", "stages.csv")))
    for path in (beside, shipped):
        if path.exists():
            found = _profiles(path).get((row.text("model"), stages, micro_batches))
            if found is not None:
                return found
    return None


def _share(row: Row) -> float | None:
    """Return what W needs of a transformer's activations, of its sizes in columns."""
    sizes = [row.number(name) if name in row.values else None for name in _SIZES]
    heads, positions, hidden = sizes
    if heads is None or positions is None or not hidden:
        return None
    return zero_bubble_2p.weight_share(heads, positions, hidden)


def _made(ms: Mapping[str, float], layers: int, share: float | None) -> Stage:
    forward_s, backward_s, weight_s, message_s = (ms[k] / 1e3 for k in ("F", "B", "W", "message"))
    return Stage(forward_s, backward_s, weight_s, message_s, layers, share)


@lru_cache(maxsize=8)
def _profiles(path: Path) -> dict[tuple[str, int, int], Stage]:
    """Read the profiles of a table of kernels, by network, stages and micro-batches."""
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    depth: dict[tuple[str, int, int], int] = {}
    share: dict[tuple[str, int, int], float] = {}
    for row in read_rows(path):
        if row.values.get("kind") != "pipeline_stage":
            continue
        names = ("p", "m", "a", "s", "h")
        numbers = {name: re.search(rf"\b{name}=(\d+)", row.text("note")) for name in names}
        layers = re.search(r"(\d+) layers", row.text("note"))
        time_ms, kind = row.number("time_ms"), _PASSES.get(row.text("pass_"))
        if not numbers["p"] or not numbers["m"] or time_ms is None or kind is None:
            continue
        key = (row.text("app"), int(numbers["p"][1]), int(numbers["m"][1]))
        found.setdefault(key, {})[kind] = time_ms
        # Embedding and classifier stand for a layer each (the paper's balance).
        depth[key] = (int(layers[1]) + 2) // key[1] if layers else 0
        sizes = [float(of[1]) for name in "ash" if (of := numbers[name])]
        if len(sizes) == 3:
            share[key] = zero_bubble_2p.weight_share(*sizes)
    whole = set(_COLUMNS.values())
    return {
        key: _made(ms, depth[key], share.get(key)) for key, ms in found.items() if whole <= set(ms)
    }
