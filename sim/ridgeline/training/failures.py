"""Failures: what interrupts or slows a run, how often, and until when.

Rates add up over nodes: a job on N nodes of rate r has a mean time between failures of 1 / (r N).
Published rates count failures per 1,000 node-days. Times between the failures of a node are
exponential, or Weibull with a shape below 1 where young machines fail more often (B. Schroeder and
G. A. Gibson, "A large-scale study of failures in high-performance computing systems", DSN 2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import simpy
from pydantic import Field

from ridgeline import units
from ridgeline.config import Strict

DAY_S = 86400.0


class FailureCause(Strict):
    """A cause of failures: how often it strikes a node, what it does, how it is found."""

    per_1000_node_days: float = Field(gt=0, le=1e6)
    """Mean failures of 1,000 nodes in a day."""
    shape: float = Field(default=1.0, gt=0.05, le=20)
    """Weibull shape of the times between failures of a node; 1: exponential."""
    effect: Literal["stop", "slow"] = "stop"
    """"stop": training stops; "slow": steps take `factor` as long until it is found."""
    factor: float = Field(default=1.0, ge=1, le=1000)
    """Of a slow-down: time of a step over that before."""
    detection: units.Seconds | None = None
    """Until it is noticed; without it, that of the run."""
    replaces_node: bool = True
    """Whether the node leaves the job until it is repaired."""
    source: str = ""
    """Where the rate was read."""


@dataclass(frozen=True)
class Failure:
    """One failure that struck.

    Attributes
    ----------
    time_s
        On the run's clock.
    node
        Its number.
    """

    time_s: float
    cause: str
    node: int


def between_failures_s(causes: Sequence[FailureCause], nodes: int) -> float:
    """Return the mean time between failures of a job, in seconds; infinite without causes."""
    rate = math.fsum(cause.per_1000_node_days for cause in causes)
    return math.inf if not rate else 1000.0 * DAY_S / (rate * nodes)


class FailureSource:
    """Failures of the nodes of a job, as a SimPy process that strikes when they are due.

    Parameters
    ----------
    struck
        Called at the moment of every failure.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        causes: dict[str, FailureCause],
        nodes: int,
        random: np.random.Generator,
        struck: Callable[[Failure, FailureCause], None],
    ) -> None:
        self.environment = environment
        self.random = random
        self.struck = struck
        for name, cause in causes.items():
            environment.process(self._strike(name, cause, nodes))

    def _strike(
        self, name: str, cause: FailureCause, nodes: int
    ) -> Generator[simpy.Event, Any, None]:
        """Strike nodes by one cause for ever."""
        mean_s = 1000.0 * DAY_S / cause.per_1000_node_days
        if cause.shape == 1.0:  # memoryless: the nodes together are one source
            while True:
                yield self.environment.timeout(self.random.exponential(mean_s / nodes))
                node = int(self.random.integers(nodes))
                self.struck(Failure(self.environment.now, name, node), cause)
        scale_s = mean_s / math.gamma(1.0 + 1.0 / cause.shape)
        due_s = scale_s * self.random.weibull(cause.shape, nodes)
        while True:
            node = int(due_s.argmin())
            yield self.environment.timeout(due_s[node] - self.environment.now)
            self.struck(Failure(self.environment.now, name, node), cause)
            due_s[node] += scale_s * self.random.weibull(cause.shape)
