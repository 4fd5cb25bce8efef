"""What jobs do to each other: steps, flow-completion times and slow-down of each, and fairness."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.study.jobs.shared_links import SharedLink

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Completion:
    """Flow-completion times: from the start of a message or a collective to its end.

    Attributes
    ----------
    flows
        How many there are.
    p50_s, p95_s, p99_s
        Percentiles; None of no flows.
    """

    flows: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, times_s: Floats) -> Completion:
        """Return the percentiles of some times."""
        if not len(times_s):
            return cls(0, None, None, None)
        return cls(len(times_s), *(float(x) for x in np.percentile(times_s, _PERCENTILES)))


@dataclass(frozen=True)
class JobResult:
    """A job beside its neighbours.

    Attributes
    ----------
    devices
        Its devices, as ranks of the fabric, in the order of its own ranks.
    arrival_s, end_s
        When it begins and ends.
    step_times_s
        Of each of its steps.
    alone_s
        What a step takes alone on the same devices.
    completion, completion_alone
        Of its collectives and messages.
    sent_bytes
        What one step puts on the links.
    """

    name: str
    model: str
    plan: str
    software: str
    placement: str
    devices: tuple[int, ...]
    arrival_s: float
    end_s: float
    step_times_s: tuple[float, ...]
    alone_s: float
    completion: Completion
    completion_alone: Completion
    sent_bytes: float

    @property
    def step_time_s(self) -> float:
        """Mean time of a step."""
        return math.fsum(self.step_times_s) / len(self.step_times_s)

    @property
    def slowdown(self) -> float:
        """Mean time of a step over that alone."""
        return self.step_time_s / self.alone_s

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            **asdict(self),
            "step_time_s": self.step_time_s,
            "slowdown": self.slowdown,
        }


@dataclass(frozen=True)
class TrafficResult:
    """Background traffic while the jobs ran.

    Attributes
    ----------
    flows
        Pairs of devices.
    rate_bytes_per_s
        What they offered together.
    completion
        Of messages that ended before the last job; none of steady streams.
    """

    name: str
    flows: int
    rate_bytes_per_s: float
    completion: Completion


@dataclass(frozen=True)
class Neighbours:
    """Jobs that share a fabric, and what they do to each other.

    Attributes
    ----------
    level
        How the network was simulated.
    end_s
        When the last job ended.
    manifest
        What repeats it: the file as it was read, the placement that was asked for, the version.
    links
        Those that several jobs were at work on together, the most wanted first.
    """

    name: str
    cluster: str
    level: str
    jobs: tuple[JobResult, ...]
    background: tuple[TrafficResult, ...]
    links: tuple[SharedLink, ...]
    end_s: float
    manifest: dict[str, Any]

    @property
    def fairness(self) -> float:
        """Jain's index of the progress of the jobs, each over its progress alone.

        (Sum x)^2 / (n sum x^2) with x = step time alone / step time: 1 if all are slowed alike, 1/n
        if one alone goes on (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984).
        """
        progress = [1.0 / job.slowdown for job in self.jobs]
        return sum(progress) ** 2 / (len(progress) * sum(x * x for x in progress))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "name": self.name,
            "cluster": self.cluster,
            "level": self.level,
            "end_s": self.end_s,
            "fairness": self.fairness,
            "jobs": [job.to_dict() for job in self.jobs],
            "background": [asdict(one) for one in self.background],
            "links": [{**asdict(link), "wanted_s": link.wanted_s} for link in self.links],
            "manifest": self.manifest,
        }
