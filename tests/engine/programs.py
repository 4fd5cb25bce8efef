"""Random programs, as Hypothesis strategies.

`programs` draws every feature of the format. With ``numbers="few"`` sizes and rates come from few
values, so that many things happen at one moment; with ``numbers="generic"`` each is different, so
that nothing coincides but what must. `dyadic_programs` are contended, yet every rate is a power of
two and every time a short binary fraction, so that float64 makes no rounding error at all.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st

from ridgeline.engine.builder import MemoryEntry, Phase, ProgramBuilder
from ridgeline.engine.program import Program

FEW = (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 7.0)
KINDS = ("weights", "activations")
MAX_TASKS = 24


@st.composite
def programs(
    draw: st.DrawFn, *, shared: bool = True, numbers: Literal["few", "generic"] = "generic"
) -> Program:
    builder = ProgramBuilder()
    positive = (
        st.sampled_from(FEW) if numbers == "few" else st.floats(0.1, 10.0, exclude_min=True)
    )
    or_zero = st.just(0.0) | positive
    n_private = draw(st.integers(1, 2))
    n_shared = draw(st.integers(1, 3)) if shared else 0
    resources = [
        builder.add_resource(f"r{i}", draw(positive), shared=i >= n_private)
        for i in range(n_private + n_shared)
    ]
    ranks = [builder.add_rank(draw(st.integers(1, 8))) for _ in range(draw(st.integers(1, 3)))]
    streams = [
        builder.add_stream(f"s{i}", draw(st.sampled_from(ranks)))
        for i in range(draw(st.integers(1, 5)))
    ]
    accounts = [builder.add_account("dram", f"level{i}", "B", 1e-12 * i) for i in range(2)]
    phases = st.builds(
        Phase,
        latency_s=or_zero,
        works=st.dictionaries(st.sampled_from(resources), or_zero, max_size=4),
        repeat=st.integers(1, 3),
        weight=st.sampled_from([1.0, 1.0, 2.0, 3.0]),
    )
    rows = st.lists(phases, max_size=3)
    events = st.dictionaries(st.sampled_from(accounts), st.integers(0, 100))
    few_rows = [builder.add_cost(draw(rows), draw(events)) for _ in range(3)]
    for task in range(draw(st.integers(0, MAX_TASKS))):
        crew = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=4, unique=True))
        alone = draw(st.booleans())
        builder.add_task(
            draw(st.sampled_from(["compute", "collective"])),
            f"task {task}",
            stream=crew[0] if alone else -1,
            group=-1 if alone else builder.add_group(crew),
            cost=draw(st.sampled_from(few_rows))
            if numbers == "few"
            else builder.add_cost(draw(rows), draw(events)),
            deps=draw(st.lists(st.integers(0, task - 1), max_size=3, unique=True)) if task else [],
            priority=draw(st.integers(-1, 1)),
            multiplicity=draw(st.integers(1, 5)),
            memory=draw(st.lists(memory_entries(ranks), max_size=2)),
        )
    for rank in ranks:
        for kind in KINDS:
            builder.set_initial_memory(rank, kind, draw(st.integers(0, 200)))
    return builder.build()


def memory_entries(ranks: list[int]) -> st.SearchStrategy[MemoryEntry]:
    """Return what a task takes and gives back; sometimes more than there is."""
    changes = st.integers(-20, 50)
    return st.tuples(st.sampled_from(ranks), st.sampled_from(KINDS), changes, changes)


@st.composite
def dyadic_programs(draw: st.DrawFn) -> Program:
    """Draw a contended program without rounding errors.

    Every pair of streams has one link; all links are equally fast, a flow uses equal amounts of
    its links, and its private cap is not below half a link. So a flow gets a whole link or half.
    """
    builder = ProgramBuilder()
    rate = draw(st.sampled_from([0.5, 2.0, 16.0]))
    n_pairs = draw(st.integers(1, 3))
    links = [builder.add_resource(f"link{i}", rate, shared=True) for i in range(n_pairs)]
    engine = builder.add_resource("engine", 1.0)
    rank = builder.add_rank()
    streams = [builder.add_stream(f"s{i}", rank) for i in range(2 * n_pairs)]
    for task in range(draw(st.integers(0, MAX_TASKS))):
        crew = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True))
        phases = []
        for _ in range(draw(st.integers(0, 2))):
            size = float(draw(st.integers(1, 64)))
            works = {links[s // 2]: size for s in crew}
            if draw(st.booleans()):
                works = {}
            cap = draw(st.sampled_from([0.5, 1.0, 2.0, None]))
            if cap is not None:
                works[engine] = size / (rate * cap)
            latency = draw(st.integers(0, 8)) / 8
            phases.append(Phase(latency, works, draw(st.integers(1, 3))))
        builder.add_task(
            "any",
            f"task {task}",
            group=builder.add_group(crew),
            cost=builder.add_cost(phases),
            deps=draw(st.lists(st.integers(0, task - 1), max_size=2, unique=True)) if task else [],
            priority=draw(st.integers(-1, 1)),
        )
    return builder.build()


def task_works(program: Program, resource: int) -> list[float]:
    """Return how much work every task does on a resource, repetitions included."""
    p = program
    totals = []
    for row in p.cost.tolist():
        total = 0.0
        for phase in range(p.phase_ptr[row], p.phase_ptr[row + 1]):
            for work in range(p.work_ptr[phase], p.work_ptr[phase + 1]):
                if p.work_resource[work] == resource:
                    total += float(p.repeat[phase] * p.work_amount[work])
        totals.append(total)
    return totals
