"""What is computed from a Timeline equals an obvious loop over its tasks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from engine.programs import programs
from engine.test_executors import examples
from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.executor import run
from ridgeline.engine.program import Program
from ridgeline.engine.timeline import TaskRow, Timeline
from ridgeline.errors import RidgelineError


def crew(program: Program, task: int) -> list[int]:
    group = program.group[task]
    if group < 0:
        return [int(program.stream[task])]
    first, last = program.group_ptr[group : group + 2]
    return [int(stream) for stream in program.group_stream[first:last]]


def memory_moments(timeline: Timeline, rank: int) -> dict[float, list[int]]:
    """Bytes of each kind after every moment at which something may have changed."""
    p = timeline.program
    deltas: dict[float, list[int]] = {0.0: p.memory_initial[rank].tolist()}
    for task in range(p.n_tasks):
        for entry in range(p.memory_ptr[task], p.memory_ptr[task + 1]):
            if p.memory_rank[entry] == rank:
                for moment, change in (
                    (timeline.start_s[task], p.memory_start[entry]),
                    (timeline.end_s[task], p.memory_end[entry]),
                ):
                    if change != 0:
                        at = deltas.setdefault(float(moment), [0] * len(p.memory_kinds))
                        at[p.memory_kind[entry]] += int(change)
    held, moments = [0] * len(p.memory_kinds), {}
    for moment in sorted(deltas):
        held = [a + b for a, b in zip(held, deltas[moment], strict=True)]
        moments[moment] = held
    return moments


@examples(300)
@given(programs(numbers="few"))
def test_memory_equals_a_loop_over_all_moments(program: Program) -> None:
    timeline = run(program)
    expected = [memory_moments(timeline, rank) for rank in range(len(program.rank_multiplicity))]
    if any(size < 0 for moments in expected for held in moments.values() for size in held):
        with pytest.raises(RidgelineError, match="more was given back than taken"):
            timeline.memory()
        return
    for rank, (memory, moments) in enumerate(zip(timeline.memory(), expected, strict=True)):
        peak = max(sum(held) for held in moments.values())
        first = next(moment for moment, held in moments.items() if sum(held) == peak)
        assert memory.peak_bytes == peak
        assert memory.peak_s == first
        assert list(memory.by_kind.values()) == moments[first]
        assert list(memory.by_kind) == list(program.memory_kinds)
        times, held_bytes = timeline.memory_profile(rank)
        assert times.tolist() == list(moments)
        assert held_bytes.tolist() == list(moments.values())


def test_memory_that_passes_from_task_to_task_counts_once() -> None:
    builder = ProgramBuilder()
    rank = builder.add_rank()
    stream = builder.add_stream("s", rank)
    row = builder.add_cost([WorkPhase(1.0)])
    for _ in range(3):
        builder.add_task(
            "x", "x", stream=stream, cost=row, memory=[(rank, "workspace", 2**60, -(2**60))]
        )
    builder.set_initial_memory(rank, "weights", 1)
    [memory] = run(builder.build()).memory()
    assert memory.peak_bytes == 2**60 + 1
    assert memory.by_kind == {"workspace": 2**60, "weights": 1}


@examples(200)
@given(programs())
def test_ledger_equals_a_loop_over_all_tasks(program: Program) -> None:
    p = program
    units = [0.0] * len(p.accounts)
    for task in range(p.n_tasks):
        row = p.cost[task]
        for event in range(p.event_ptr[row], p.event_ptr[row + 1]):
            units[p.event_account[event]] += float(p.multiplicity[task] * p.event_count[event])
    timeline = run(program)
    assert timeline.ledger() == dict(enumerate(units))
    for number, joules in timeline.energy_j().items():
        assert joules == units[number] * p.accounts[number].price_j


@examples(300)
@given(programs(numbers="few"))
def test_critical_path_is_an_unbroken_chain_of_causes(program: Program) -> None:
    timeline = run(program)
    path = timeline.critical_path().tolist()
    assert len(set(path)) == len(path)
    if not path:
        assert program.n_tasks == 0
        return
    assert timeline.start_s[path[0]] == 0.0
    assert timeline.end_s[path[-1]] == timeline.makespan_s
    for before, after in pairwise(path):
        assert timeline.end_s[before] == timeline.start_s[after]
        deps = program.dep_index[program.dep_ptr[after] : program.dep_ptr[after + 1]]
        assert before in deps or set(crew(program, before)) & set(crew(program, after))


@examples(100)
@given(programs(numbers="few"))
def test_streams_list_their_tasks(program: Program) -> None:
    timeline = run(program)
    for stream in range(len(program.stream_rank)):
        tasks = timeline.tasks_of(stream).tolist()
        assert sorted(tasks) == [
            task for task in range(program.n_tasks) if stream in crew(program, task)
        ]
        busy = timeline.busy(stream)
        assert busy.tolist() == [[timeline.start_s[t], timeline.end_s[t]] for t in tasks]


def test_rows_say_tasks_in_words() -> None:
    builder = ProgramBuilder()
    ranks = [builder.add_rank(), builder.add_rank(multiplicity=7)]
    streams = [builder.add_stream(f"compute {rank}", rank) for rank in ranks]
    one, half = builder.add_cost([WorkPhase(1.0)]), builder.add_cost([WorkPhase(0.25, repeat=2)])
    builder.add_task("compute", "conv1", stream=streams[1], cost=one, multiplicity=7)
    builder.add_task("collective", "all-reduce", group=builder.add_group(streams), cost=half)
    timeline = run(builder.build())
    assert timeline.rows([0, 1]) == [
        TaskRow(0, "conv1", "compute", "compute 1", 1, 0.0, 1.0, 7),
        TaskRow(1, "all-reduce", "collective", "compute 0", 0, 1.0, 1.5, 1),
    ]
    assert timeline.durations_s.tolist() == [1.0, 0.5]
    assert repr(timeline) == "Timeline(2 tasks on 2 streams, 1.5 s)"


def test_a_timeline_needs_all_ends() -> None:
    builder = ProgramBuilder()
    stream = builder.add_stream("s", builder.add_rank())
    builder.add_task("x", "alone", stream=stream, cost=builder.add_cost([]))
    program = builder.build()
    program.dep_ptr[1] = 1
    cyclic = Program(**{**vars(program), "dep_index": np.zeros(1, np.int32)})
    with pytest.raises(RidgelineError, match="'alone' \\(task 0\\) waits for 'alone'"):
        Timeline(cyclic, np.full(1, np.nan), np.full(1, np.nan))
