"""Draws of a machine's jitter in batches: here, in several processes, or on a Dask cluster."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import NamedTuple

from ridgeline.errors import ConfigError
from ridgeline.report.fault_distribution import Draw, draw, samples_of
from ridgeline.report.result import Result
from ridgeline.study.parallel_run import mapped
from ridgeline.study.point import Point
from ridgeline.study.point_files import NO_FILES, files_of

_BATCH = 8  # draws that are played together


class Step(NamedTuple):
    """A step that any process can simulate; arguments as of `Point.simulate`."""

    point: Point
    dataset: str | None
    most_micro_batches: int | None


class _Batch(NamedTuple):
    step: bytes
    first: int
    stop: int


def drawn(step: Step, result: Result, processes: int, address: str | None) -> list[Draw]:
    """Return all draws of a step's jitter; the same wherever they are played.

    Parameters
    ----------
    result
        The step, simulated here.
    processes, address
        As of `parallel_run.mapped`.

    Raises
    ------
    ConfigError
        If there is no jitter, of which there are draws.
    """
    count = samples_of(result.details.cluster.faults)
    if processes == 1 and address is None:
        return [draw(result, sample) for sample in range(count)]
    if count == 1:
        raise ConfigError(
            "draws of jitter are played in several processes, and there is one draw; add for"
            ' example --fault "jitter normal relative=0.1 samples=100"',
            field="--processes" if address is None else "--cluster-address",
        )
    said = pickle.dumps(step)
    batches = [_Batch(said, at, min(at + _BATCH, count)) for at in range(0, count, _BATCH)]
    files = files_of([step.point]) if address is not None else NO_FILES
    played = mapped(_play, batches, processes, address, files=files)
    return [one for batch in played for one in batch]


def _play(batch: _Batch) -> list[Draw]:
    result = _simulated(batch.step)
    return [draw(result, sample) for sample in range(batch.first, batch.stop)]


@lru_cache(maxsize=1)
def _simulated(step: bytes) -> Result:
    """Simulate the step of the batches of this process once."""
    point, dataset, most = pickle.loads(step)
    result: Result = point.simulate(dataset, most_micro_batches=most)
    return result
