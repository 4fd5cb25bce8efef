"""Random programs, as Hypothesis strategies.

Hypothesis draws the dimensions and a seed, which makes the rest: drawing each number by itself
takes fifty times as long, and shrinking the dimensions is what makes a failure readable.

`programs` have every feature of the format. With ``numbers="few"`` sizes and rates come from few
values, so that many things happen at one moment; with ``numbers="generic"`` each is different, so
that nothing coincides but what must. `dyadic_programs` are contended, yet every rate is a power of
two and every time a short binary fraction, so that float64 makes no rounding error at all.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from hypothesis import strategies as st

from ridgeline.engine.builder import MemoryEntry, ProgramBuilder, WorkPhase
from ridgeline.engine.program import Program

FEW = (0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 7.0)
KINDS = ("weights", "activations")


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    shared: bool = True,
    numbers: Literal["few", "generic"] = "generic",
    max_tasks: int = 24,
    max_streams: int = 8,
) -> Program:
    n_tasks, n_streams = draw(st.integers(0, max_tasks)), draw(st.integers(1, max_streams))
    n_ranks, n_private = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    n_shared = draw(st.integers(1, max(4, max_streams // 2))) if shared else 0
    rng = Random(draw(st.integers(0, 2**32)))

    def number(zeros: float = 0.0) -> float:
        if rng.random() < zeros:
            return 0.0
        return rng.choice(FEW[1:]) if numbers == "few" else rng.uniform(0.1, 10.0)

    def phase() -> WorkPhase:
        used = rng.sample(resources, rng.randint(0, min(4, len(resources))))
        works = {resource: number(zeros=0.1) for resource in used}
        weight = rng.choice([1.0, 1.0, 2.0, 3.0])
        return WorkPhase(number(zeros=0.5), works, rng.randint(1, 3), weight)

    def row() -> int:
        events = {account: rng.randint(0, 100) for account in rng.sample(accounts, 2)}
        return builder.add_cost([phase() for _ in range(rng.randint(0, 3))], events)

    def memory_entry() -> MemoryEntry:
        kind = rng.choice(KINDS)  # gives back at most 20, so the initial bytes may not be enough
        return rng.choice(ranks), kind, rng.randint(-20, 50), rng.randint(-20, 50)

    builder = ProgramBuilder()
    resources = [
        builder.add_resource(f"r{i}", number(), shared=i >= n_private)
        for i in range(n_private + n_shared)
    ]
    accounts = [builder.add_account("dram", f"level{i}", "B", 1e-12 * i) for i in range(3)]
    ranks = [builder.add_rank(rng.randint(1, 8)) for _ in range(n_ranks)]
    streams = [builder.add_stream(f"s{i}", rng.choice(ranks)) for i in range(n_streams)]
    few_rows = [row() for _ in range(3)]
    for task in range(n_tasks):
        gang = rng.random() < 0.25
        crew = rng.sample(streams, rng.randint(1, min(6, n_streams)))
        builder.add_task(
            rng.choice(["compute", "collective"]),
            f"task {task}",
            stream=-1 if gang else crew[0],
            group=builder.add_group(crew) if gang else -1,
            cost=rng.choice(few_rows) if numbers == "few" else row(),
            deps=rng.sample(range(task), rng.choice([0, 0, 1, 2]) if task > 1 else 0),
            priority=rng.randint(-1, 1),
            multiplicity=rng.randint(1, 5),
            memory=[memory_entry() for _ in range(rng.randint(0, 2))],
        )
    for rank in ranks:
        for kind in KINDS:
            builder.set_initial_memory(rank, kind, rng.randint(0, 200))
    return builder.build()


@st.composite
def dyadic_programs(draw: st.DrawFn) -> Program:
    """Draw a contended program without rounding errors.

    Every pair of streams has one link; all links are equally fast, a flow uses equal amounts of
    its links, and its private cap is not below half a link. So a flow gets a whole link or half.
    """
    n_tasks, n_pairs = draw(st.integers(0, 24)), draw(st.integers(1, 3))
    rng = Random(draw(st.integers(0, 2**32)))
    rate = rng.choice([0.5, 2.0, 16.0])
    builder = ProgramBuilder()
    links = [builder.add_resource(f"link{i}", rate, shared=True) for i in range(n_pairs)]
    engine = builder.add_resource("engine", 1.0)
    rank = builder.add_rank()
    streams = [builder.add_stream(f"s{i}", rank) for i in range(2 * n_pairs)]
    for task in range(n_tasks):
        crew = rng.sample(streams, min(rng.choice([1, 1, 1, 1, 2, 3]), len(streams)))
        phases = []
        for _ in range(rng.randint(0, 2)):
            size = float(rng.randint(1, 64))
            works = {links[s // 2]: size for s in crew} if rng.random() < 0.8 else {}
            if rng.random() < 0.5:
                works[engine] = size / (rate * rng.choice([0.5, 1.0, 2.0]))
            phases.append(WorkPhase(rng.randint(0, 8) / 8, works, rng.randint(1, 3)))
        builder.add_task(
            "any",
            f"task {task}",
            group=builder.add_group(crew),
            cost=builder.add_cost(phases),
            deps=rng.sample(range(task), rng.choice([0, 0, 1, 2]) if task > 1 else 0),
            priority=rng.randint(-1, 1),
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
