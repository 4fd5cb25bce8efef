"""Input of a run by epoch: the first is read from storage, later ones from what was kept of it.

Reading runs beside the steps, ahead of them, so a step waits only where reading its samples takes
longer than the step. What a cache keeps of a data set that does not fit is read from it again, the
rest from storage (with a cache of random or pinned samples; least-recently-used order would keep
nothing of a data set that is read round and round).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import ConfigError
from ridgeline.training.run_file import InputSource
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.workload.dataset import DataSet


def read_by_epoch(
    times: StepTimes, source: InputSource, dataset: DataSet, batches: Sequence[int]
) -> StepTimes:
    """Return the steps of a run with what they wait for its storage.

    Parameters
    ----------
    times
        Steps that wait for no storage.
    batches
        Of each phase.

    Raises
    ------
    ConfigError
        If the data set does not state its samples.
    """
    if dataset.samples is None:
        raise ConfigError(f"{dataset.title} does not state its samples", field="input")
    samples, sample_bytes = dataset.samples.value, dataset.stored.value
    kept = min(1.0, source.cache / (samples * sample_bytes))
    left = float(samples)
    phases: list[StepPhase] = []
    for phase, batch in zip(times.phases, batches, strict=True):
        step_bytes = batch * sample_bytes
        first_s = step_bytes / source.storage
        later_s = (1.0 - kept) * step_bytes / source.storage
        if source.cached is not None:  # both are read beside each other
            later_s = max(later_s, kept * step_bytes / source.cached)
        if phase.start_share != 1.0:
            raise ConfigError("a batch that grows is not read by epoch", field="input")
        first = min(math.ceil(left / batch), phase.count)
        left = max(0.0, left - first * batch)
        for count, read_s in ((first, first_s), (phase.count - first, later_s)):
            if count:
                time_s = max(phase.time_s, read_s)
                wait_s = phase.input_s + time_s - phase.time_s
                phases.append(replace(phase, count=count, time_s=time_s, input_s=wait_s))
    return StepTimes(tuple(phases))
