"""Stochastic programs: jitter and failures added to tasks by distribution and seed.

Both return a Program like any other, which both executors play alike. Every task that is hit gets a
cost row of its own; what is drawn depends on the seed and on the task's number alone, so that the
same tasks are hit the same way whatever else is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.engine.program import Floats, Ints, Program
from ridgeline.errors import RidgelineError, nearest

Draw = Callable[[np.random.Generator, int], Floats]

DISTRIBUTIONS: dict[str, Draw] = {
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "uniform": lambda rng, n: rng.uniform(0.0, 2.0, n),
    "normal": lambda rng, n: np.abs(rng.normal(0.0, np.sqrt(np.pi / 2), n)),
    "lognormal": lambda rng, n: rng.lognormal(-0.5, 1.0, n),
    "gamma": lambda rng, n: rng.gamma(4.0, 0.25, n),
    "pareto": lambda rng, n: rng.pareto(2.5, n) * 1.5,
    "constant": lambda rng, n: np.ones(n),
}
"""Delays with a mean of 1, by name: half of a normal distribution, a lognormal one with sigma 1, a
gamma one with shape 4, a (Lomax) Pareto one with shape 2.5, ..."""


def with_jitter(
    program: Program,
    distribution: str,
    seed: int,
    *,
    mean_s: float = 0.0,
    relative: float = 0.0,
    kinds: Sequence[str] | None = None,
) -> Program:
    """Delay tasks by chance.

    Parameters
    ----------
    distribution
        Name in `DISTRIBUTIONS`; a draw x has a mean of 1.
    seed
        Of the draws.
    mean_s
        A task begins with ``x * mean_s`` more of latency,
    relative
        and all its latencies and works are ``1 + x * relative`` times as large; events are not.
    kinds
        Kinds of the tasks that are hit; all by default.

    Raises
    ------
    RidgelineError
        If there is no such distribution or kind, or a scale is negative.
    """
    if distribution not in DISTRIBUTIONS:
        raise RidgelineError(
            f"no distribution is called {distribution!r}{nearest(distribution, DISTRIBUTIONS)} "
            f"(known: {', '.join(DISTRIBUTIONS)})"
        )
    if not (mean_s >= 0 and relative >= 0 and np.isfinite([mean_s, relative]).all()):
        raise RidgelineError(f"jitter must be 0 or more, found {mean_s} s and {relative}")
    draw = DISTRIBUTIONS[distribution](np.random.default_rng(seed), program.n_tasks)
    hit = _tasks_of(program, kinds)
    return _changed(program, hit, mean_s * draw[hit], 1.0 + relative * draw[hit])


def with_failures(
    program: Program,
    mean_time_between_s: float,
    repair_s: float,
    seed: int,
    *,
    kinds: Sequence[str] | None = None,
) -> Program:
    """Let the resources of tasks fail: a task that is hit is repaired and begins anew.

    Failures of one task come as a Poisson process. A task that takes d alone then takes
    ``(1 / rate + repair) (exp(rate d) - 1)`` on average. What is lost comes before the task, as
    latency; it is reckoned from the time that the task takes when it has its resources to itself.

    Parameters
    ----------
    mean_time_between_s
        Of the failures that hit a running task.
    repair_s
        From a failure to the new beginning.
    kinds
        Kinds of the tasks that can fail; all by default.

    Raises
    ------
    RidgelineError
        If there is no such kind, a time is impossible, or a task would hardly ever end.
    """
    if not (mean_time_between_s > 0 and 0 <= repair_s < np.inf):
        raise RidgelineError(
            "the time between failures must be more than 0 and that of a repair at least 0; found "
            f"{mean_time_between_s} s and {repair_s} s"
        )
    hit = _tasks_of(program, kinds)
    alone_s = row_times_s(program)[program.cost[hit]]
    odds = np.exp(-alone_s / mean_time_between_s)  # of a run through without a failure
    if len(odds) and odds.min() < 1e-6:
        task = int(hit[odds.argmin()])
        raise RidgelineError(
            f"task {program.label_names[program.label[task]]!r} takes {alone_s.max():.4g} s, and "
            f"with a failure every {mean_time_between_s:.4g} s it would hardly ever end; cut it "
            "into chunks"
        )
    rng = np.random.default_rng(seed)
    failures = (rng.geometric(odds) if len(odds) else np.ones(0, np.int64)) - 1
    lost_s: Floats = repair_s * failures.astype(np.float64)
    # the time to a failure, given that it comes before the task's end
    owner = np.repeat(np.arange(len(hit)), failures)
    quantile = rng.random(len(owner))
    before = -mean_time_between_s * np.log1p(-quantile * (1.0 - odds[owner]))
    lost_s = lost_s + np.bincount(owner, before, len(hit))
    struck = failures > 0
    return _changed(program, hit[struck], lost_s[struck], np.ones(int(struck.sum())))


def with_slow_tasks(program: Program, tasks: Ints, factor: float) -> tuple[Program, dict[int, int]]:
    """Return a program in which some tasks take so many times as long, and their rows by the old.

    All latencies and works of these tasks grow; what they count does not. Tasks that shared a cost
    row share the new one.
    """
    p = program
    rows, which = np.unique(p.cost[tasks], return_inverse=True)
    owners: Ints = rows.astype(np.int64)
    phase_ptr, phases = _gathered(p.phase_ptr, owners)
    work_ptr, works = _gathered(p.work_ptr, phases)
    event_ptr, events = _gathered(p.event_ptr, owners)
    first = len(p.phase_ptr) - 1
    cost = p.cost.copy()
    cost[tasks] = first + which.ravel()
    slow = replace(
        p,
        cost=cost,
        phase_ptr=np.concatenate((p.phase_ptr, p.phase_ptr[-1] + phase_ptr[1:])),
        latency_s=np.concatenate((p.latency_s, p.latency_s[phases] * factor)),
        repeat=np.concatenate((p.repeat, p.repeat[phases])),
        weight=np.concatenate((p.weight, p.weight[phases])),
        work_ptr=np.concatenate((p.work_ptr, p.work_ptr[-1] + work_ptr[1:])),
        work_resource=np.concatenate((p.work_resource, p.work_resource[works])),
        work_amount=np.concatenate((p.work_amount, p.work_amount[works] * factor)),
        event_ptr=np.concatenate((p.event_ptr, p.event_ptr[-1] + event_ptr[1:])),
        event_account=np.concatenate((p.event_account, p.event_account[events])),
        event_count=np.concatenate((p.event_count, p.event_count[events])),
    )
    return slow, {int(old): first + i for i, old in enumerate(rows.tolist())}


def row_times_s(program: Program) -> Floats:
    """Return how long each cost row takes when nothing else uses its resources, [C]."""
    p = program
    busy = p.work_amount / p.capacity[p.work_resource]
    bound = np.zeros(len(p.latency_s))
    np.maximum.at(bound, np.repeat(np.arange(len(bound)), np.diff(p.work_ptr)), busy)
    phase_s = p.repeat * (p.latency_s + bound)
    owner = np.repeat(np.arange(len(p.phase_ptr) - 1), np.diff(p.phase_ptr))
    times: Floats = np.bincount(owner, phase_s, len(p.phase_ptr) - 1).astype(np.float64)
    return times


def _tasks_of(program: Program, kinds: Sequence[str] | None) -> Ints:
    if kinds is None:
        return np.arange(program.n_tasks)
    for kind in kinds:
        if kind not in program.kind_names:
            raise RidgelineError(
                f"no task is of the kind {kind!r}{nearest(kind, program.kind_names)} "
                f"(there are: {', '.join(program.kind_names)})"
            )
    wanted = [program.kind_names.index(kind) for kind in kinds]
    return np.flatnonzero(np.isin(program.kind, wanted))


def _changed(program: Program, tasks: Ints, delay_s: Floats, factor: Floats) -> Program:
    """Give tasks cost rows of their own: a delay first, and then all phases `factor` times."""
    p = program
    rows = p.cost[tasks].astype(np.int64)
    phase_ptr, phases = _gathered(p.phase_ptr, rows)
    work_ptr, works = _gathered(p.work_ptr, phases)
    event_ptr, events = _gathered(p.event_ptr, rows)
    n_phases = np.diff(phase_ptr)
    # the delay is a phase of its own before the first of each row
    first = phase_ptr[:-1]
    by_phase = np.repeat(factor, n_phases)
    by_work = np.repeat(by_phase, np.diff(work_ptr))
    cost = p.cost.copy()
    cost[tasks] = len(p.phase_ptr) - 1 + np.arange(len(tasks), dtype=np.int32)
    new_ptr = phase_ptr[1:] + np.arange(1, len(tasks) + 1)
    return replace(
        p,
        cost=cost,
        phase_ptr=np.concatenate((p.phase_ptr, p.phase_ptr[-1] + new_ptr)),
        latency_s=np.concatenate(
            (p.latency_s, np.insert(p.latency_s[phases] * by_phase, first, delay_s))
        ),
        repeat=np.concatenate((p.repeat, np.insert(p.repeat[phases], first, 1))),
        weight=np.concatenate((p.weight, np.insert(p.weight[phases], first, 1.0))),
        work_ptr=np.concatenate(
            (p.work_ptr, p.work_ptr[-1] + np.cumsum(np.insert(np.diff(work_ptr), first, 0)))
        ),
        work_resource=np.concatenate((p.work_resource, p.work_resource[works])),
        work_amount=np.concatenate((p.work_amount, p.work_amount[works] * by_work)),
        event_ptr=np.concatenate((p.event_ptr, p.event_ptr[-1] + event_ptr[1:])),
        event_account=np.concatenate((p.event_account, p.event_account[events])),
        event_count=np.concatenate((p.event_count, p.event_count[events])),
    )


def _gathered(ptr: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Return the lists of some owners one after the other: their pointer and their entries."""
    size = ptr[which + 1] - ptr[which]
    new = np.concatenate((np.zeros(1, np.int64), np.cumsum(size)))
    return new, np.repeat(ptr[which] - new[:-1], size) + np.arange(new[-1])
