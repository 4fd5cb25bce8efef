"""Goodput: where the time of a run goes, by the categories that operators report.

The categories are those of Google's goodput library (AI-Hypercomputer/ml-goodput-measurement,
goodput_utils.py, BadputType), under names that need no glossary; `GOOGLE_NAMES` has theirs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

PRODUCTIVE = "training"
START_UP = "start-up"
DATA_LOADING = "data loading"
STRAGGLERS = "stragglers"
SLOWDOWN = "silent slow-down"
SAVE = "checkpoint save"
RESTORE = "checkpoint restore"
LOST_WORK = "lost work"
DETECTION = "detection"
RECOVERY = "restart"
SPARES = "waiting for nodes"
SMALLER = "fewer nodes"
PREEMPTED = "pre-empted"
QUEUED = "queue"
EVALUATION = "evaluation"
MAINTENANCE = "maintenance"
CURTAILED = "curtailed power"
CATEGORIES = (
    PRODUCTIVE, DATA_LOADING, STRAGGLERS, SLOWDOWN, CURTAILED, SMALLER, EVALUATION, START_UP, SAVE,
    LOST_WORK, DETECTION, QUEUED, RECOVERY, RESTORE, SPARES, MAINTENANCE, PREEMPTED,
)  # fmt: skip
"""In the order in which they are printed; the first alone is goodput."""
OF_STEPS = (PRODUCTIVE, DATA_LOADING, STRAGGLERS, SLOWDOWN, CURTAILED, SMALLER)
"""Categories of steps: what a failure undoes since the last checkpoint."""
AWAY = frozenset({PREEMPTED, QUEUED})
"""Categories in which the job holds no nodes."""
GOOGLE_NAMES = {
    START_UP: "PROGRAM_STARTUP",
    DATA_LOADING: "DATA_LOADING_SYNC",
    STRAGGLERS: "OTHER",
    SLOWDOWN: "OTHER",
    SAVE: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    RESTORE: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    LOST_WORK: "WASTED_PROGRESS_FROM_DISRUPTION",
    DETECTION: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    RECOVERY: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    SPARES: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    SMALLER: "ELASTIC_SLICE_DOWN",
    PREEMPTED: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    QUEUED: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    EVALUATION: "CUSTOM_BADPUT_EVENTS",
    MAINTENANCE: "CUSTOM_BADPUT_EVENTS",
    CURTAILED: "OTHER",
}


@dataclass
class GoodputAccount:
    """Time of a run by category, in seconds; the categories sum to the wall clock."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, category: str, time_s: float) -> None:
        """Count time in a category; work that turns out lost is moved by `move`."""
        self.seconds[category] += time_s

    def move(self, source: str, target: str, time_s: float) -> None:
        """Count time that stands in one category in another."""
        self.seconds[source] -= time_s
        self.seconds[target] += time_s

    @property
    def total_s(self) -> float:
        """Wall clock so far."""
        return sum(self.seconds.values())

    def ordered(self) -> dict[str, float]:
        """Return every category with its time, largest concerns as in `CATEGORIES`."""
        return {name: self.seconds.get(name, 0.0) for name in CATEGORIES}
