"""Input pipeline of a step: what reading and decoding its samples takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ridgeline.workload.dataset import DataSet

STORAGE, DECODING = "storage bandwidth", "decoding on the host"


@dataclass(frozen=True)
class InputPipeline:
    """What feeding one step takes.

    Attributes
    ----------
    storage_s, decoding_s
        Time to read and to decode the samples of one step, each alone.
    read_bytes
        Read from disks for one step.
    trained_s
        Time of the step of the devices by themselves.
    """

    dataset: DataSet
    storage_s: float
    decoding_s: float
    read_bytes: float
    trained_s: float = 0.0

    @property
    def limit(self) -> str:
        """Name of the slower of the two."""
        return STORAGE if self.storage_s >= self.decoding_s else DECODING

    def exposed_s(self, step_time_s: float) -> float:
        """Time by which input prolongs a step."""
        return max(0.0, max(self.storage_s, self.decoding_s) - step_time_s)

    def manifest(self) -> dict[str, Any]:
        """Return what a manifest records."""
        return {
            "dataset": self.dataset.name,
            "storage_s": self.storage_s,
            "decoding_s": self.decoding_s,
            "read_bytes": self.read_bytes,
            "model": "reading, decoding and training overlap; the slowest sets the pace",
        }
