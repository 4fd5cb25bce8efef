"""Fault distribution: median and 95th percentile of a step, and the rank it waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.program import Floats, Program
from ridgeline.engine.stochastic import with_jitter
from ridgeline.engine.timeline import Timeline
from ridgeline.network.faults import Jitter, read_faults
from ridgeline.parallel.lower import COLLECTIVE

if TYPE_CHECKING:
    from ridgeline.report.result import Result

_MOST_RANKS = 8


@dataclass(frozen=True)
class Weather:
    """A step with its faults, played once for each draw of its jitter.

    Attributes
    ----------
    faults
        The lines of the faults.
    healthy_s
        The step without them; None where it was not simulated.
    samples
        Draws; one where nothing is drawn.
    median_s, p95_s, least_s, most_s
        Of the step time over all draws.
    waited_for
        Shares of the time that ranks waited at collectives for the last to arrive, by that rank,
        the largest first.
    """

    faults: tuple[str, ...]
    healthy_s: float | None
    samples: int
    median_s: float
    p95_s: float
    least_s: float
    most_s: float
    waited_for: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        values = asdict(self)
        values["faults"] = list(self.faults)
        values["waited_for"] = {str(rank): share for rank, share in self.waited_for.items()}
        return values

    def to_row(self) -> dict[str, Any]:
        """Return the columns of a sweep."""
        return {
            "step_time_median_s": self.median_s,
            "step_time_p95_s": self.p95_s,
            "waited_for_rank": next(iter(self.waited_for), None),
        }


class Draw(NamedTuple):
    """A step under one draw of its jitter: its time, and how long was waited for each rank."""

    time_s: float
    waits_s: tuple[float, ...]


def draw(result: Result, sample: int) -> Draw:
    """Play a step of a cluster with faults under one draw."""
    details = result.details
    jitters = read_faults(details.cluster.faults).jitter
    beyond_s = result.step_time_s - details.timeline.makespan_s  # waiting for the data set
    timeline = details.timeline
    if jitters:
        timeline = run(_drawn(details.lowered.program, jitters, sample))
    return Draw(timeline.makespan_s + beyond_s, tuple(waited_s(timeline).tolist()))


def weather(
    result: Result, healthy_s: float | None = None, draws: Sequence[Draw] | None = None
) -> Weather:
    """Play a step once for each draw of the jitter of its machine.

    Parameters
    ----------
    result
        Of a cluster with faults; its own step time has all of them but the jitter.
    healthy_s
        Step time of the machine without faults.
    draws
        Those of `draw`, where they were played elsewhere.
    """
    details = result.details
    if draws is None:
        draws = [draw(result, sample) for sample in range(samples_of(details.cluster.faults))]
    times = [one.time_s for one in draws]
    waits = np.zeros(len(details.lowered.classes))
    for one in draws:
        waits += one.waits_s
    total = math.fsum(waits.tolist())
    order = np.argsort(-waits, kind="stable")[:_MOST_RANKS].tolist()
    ranks = [members[0] for members in details.lowered.classes]
    return Weather(
        faults=details.cluster.faults,
        healthy_s=healthy_s,
        samples=len(draws),
        median_s=float(np.median(times)),
        p95_s=float(np.quantile(times, 0.95)),
        least_s=min(times),
        most_s=max(times),
        waited_for={ranks[i]: float(waits[i]) / total for i in order if waits[i] > 0},
    )


def samples_of(faults: Sequence[str]) -> int:
    """Return how many draws there are of a machine's jitter: 1 of one without."""
    return max((jitter.samples for jitter in read_faults(faults).jitter), default=1)


def _drawn(program: Program, jitters: tuple[Jitter, ...], sample: int) -> Program:
    """Delay the ops of a step by one draw of each jitter; collectives wait for the last."""
    ops = [name for name in program.kind_names if name != COLLECTIVE]
    for jitter in jitters:
        program = with_jitter(
            program,
            jitter.distribution,
            jitter.seed + sample,
            mean_s=jitter.mean_s,
            relative=jitter.relative,
            kinds=ops,
        )
    return program


def waited_s(timeline: Timeline) -> Floats:
    """Return how long others waited at collectives for each simulated rank, which came last.

    Of each collective of several ranks that is the time from the first to the last of what it waits
    for, as far as that is on one rank.
    """
    p = timeline.program
    owner = np.repeat(np.arange(p.n_tasks), np.diff(p.dep_ptr))
    of_one = (p.group[owner] >= 0) & (p.group[p.dep_index] < 0)
    owner, before = owner[of_one], p.dep_index[of_one]
    ends = timeline.end_s[before]
    last, first = np.full(p.n_tasks, -np.inf), np.full(p.n_tasks, np.inf)
    np.maximum.at(last, owner, ends)
    np.minimum.at(first, owner, ends)
    is_last = ends == last[owner]
    tasks, at = np.unique(owner[is_last], return_index=True)
    rank = p.stream_rank[p.stream[before[is_last][at]]]
    n_ranks = len(p.rank_multiplicity)
    waits_s = (last[tasks] - first[tasks]) * p.multiplicity[tasks]
    found: Floats = np.bincount(rank, waits_s, n_ranks).astype(np.float64)
    return found
