"""Input of a run by epoch: the first is read from storage, later ones from what was kept of it.

`input_stages` says what each stage of the pipeline takes of a mini-batch, `read_by_epoch` plays the
pipeline (`input_pipeline`) once for each phase of a run and kind of epoch. What a cache keeps of a
data set that does not fit depends on what it drops. Pinned samples stay. If the least recently used
one is dropped, a sample is found again if fewer than the capacity C of the N were read since: it
was at place u of one random order and is at v of the next, (1 - u) + v - (1 - u) v of all samples
were read between, so with x = C / N the share that is found is x + (1 - x) ln(1 - x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.offload import host_link
from ridgeline.report.pipeline import preparing
from ridgeline.report.result import Result
from ridgeline.training.input_pipeline import InputStages, InputWaits, input_waits
from ridgeline.training.node_adapters import adapter_rate
from ridgeline.training.run_file import InputSource
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.workload.dataset import DataSet

_PREFETCHED = 2  # mini-batches a worker: prefetch_factor of PyTorch's DataLoader


@dataclass(frozen=True)
class InputSummary:
    """Input of the longest phase of a run.

    Attributes
    ----------
    stages_s
        Time between two mini-batches if one stage alone set the pace, while all is read from
        storage.
    later_stages_s
        The same once a cache is filled.
    limit
        Slowest stage in the epochs that most steps belong to.
    step_s
        Time of a step that has its input.
    wait_s, later_wait_s
        What a step waits besides, in the first epoch and in later ones.
    fill_s
        From an empty pipeline to the first step.
    begun_s, banked_s
        Waiting that is spared after the first step, as mini-batches were ready together with the
        first; and after a stop of the job, at most.
    nodes
        Whose input was played; fewer than the job has make waiting a lower bound, if times vary.
    """

    dataset: str
    stages_s: dict[str, float]
    later_stages_s: dict[str, float]
    limit: str
    step_s: float
    wait_s: float
    later_wait_s: float
    fill_s: float
    begun_s: float
    banked_s: float
    nodes: int


def kept_share(source: InputSource, size_bytes: float) -> float:
    """Return the share of a data set that a cache still has when it is read again."""
    held = min(1.0, source.cache / size_bytes)
    if source.eviction == "pinned" or held == 1.0:
        return held
    return held + (1.0 - held) * math.log1p(-held)


def input_stages(
    source: InputSource, dataset: DataSet, step: Result, kept: float = 0.0
) -> InputStages:
    """Return what the input of one node takes for its part of a mini-batch.

    Parameters
    ----------
    kept
        Share of the samples that come from the cache.

    Raises
    ------
    ConfigError
        If the machine or the run does not say how fast a stage is, or buffers do not fit.
    """
    plan, cluster = step.details.plan, step.details.cluster
    tokens = step.details.graph.tokens_per_sample
    if dataset.unit == "token" and not tokens:
        raise ConfigError(
            f"{dataset.name} is of tokens, and a sample of the network has none", field="dataset"
        )
    each = tokens if dataset.unit == "token" else 1
    nodes = len(cluster.nodes_of(plan.devices))
    held = min(plan.devices, cluster.nodes.count)  # devices of a node
    units = plan.global_batch / nodes * each
    cores, clock_hz = _cores(cluster)
    workers = source.workers or min(cores, step.details.plan.stack.input.workers * held or cores)
    prefetch = source.prefetch or _PREFETCHED * workers
    busy = max(1.0, workers / cores)  # workers that share cores
    stored, decoded = dataset.stored.value, dataset.decoded.value
    rate = _storage_rate(source, cluster, nodes)
    reading_s = _request_s(source, dataset) / (source.connections or workers)
    buffered = source.shuffle * each * stored + units * (workers * stored + prefetch * decoded)
    memory = cluster.nodes.host.memory
    if memory is not None and buffered > memory.value:
        raise ConfigError(
            f"buffers of the input take {buffered / 1e9:.4g} GB a node, and a node has "
            f"{memory.value / 1e9:.4g} GB: fewer workers, prefetch or shuffle",
            field="input",
        )
    unit_s = max(stored / rate, reading_s)
    cached_s = 0.0 if source.cached is None else nodes * stored / source.cached
    cycles = dataset.decoding.value * preparing(step)
    return InputStages(
        storage_s=(1.0 - kept) * units * unit_s,
        cache_s=kept * units * cached_s,
        decode_s=units * cycles / clock_hz * busy,
        workers=workers,
        staging_s=units * decoded / held / _staging_rate(source, cluster),
        prefetch=prefetch,
        shuffle_s=source.shuffle * each * unit_s,
        spread=source.spread,
    )


def read_by_epoch(
    times: StepTimes,
    source: InputSource,
    dataset: DataSet,
    steps: Sequence[Result],
    samples: int | None,
    seed: int = 0,
) -> tuple[StepTimes, InputSummary]:
    """Return the steps of a run with what they wait for their input.

    Parameters
    ----------
    times
        Steps that have their input.
    steps
        Of each phase, as simulated.
    samples
        Of an epoch; None: not known, so nothing can be kept.

    Raises
    ------
    ConfigError
        If a stage of the pipeline is not stated, or a cache is filled with an unknown amount.
    """
    if source.cache and samples is None:
        raise ConfigError(
            f"{dataset.title} does not state its samples: give dataset_samples", field="input.cache"
        )
    left = math.inf if samples is None else float(samples)
    phases: list[StepPhase] = []
    found: list[tuple[InputStages, InputWaits, int]] = []
    for phase, step in zip(times.phases, steps, strict=True):
        if phase.start_share != 1.0:
            raise ConfigError("the input of a batch that grows is not simulated", field="input")
        plan = step.details.plan
        nodes = len(step.details.cluster.nodes_of(plan.devices))
        first = phase.count
        if source.cache and left < math.inf:
            first = min(math.ceil(left / plan.global_batch), phase.count)
            left = max(0.0, left - first * plan.global_batch)
        for count, is_first in ((first, True), (phase.count - first, False)):
            if not count:
                continue
            each = step.details.graph.tokens_per_sample if dataset.unit == "token" else 1
            size = (samples or 0) * each * dataset.stored.value
            kept = 0.0 if is_first else kept_share(source, size)
            stages = input_stages(source, dataset, step, kept)
            waits = input_waits(stages, phase.time_s, nodes, seed)
            time_s = phase.time_s + waits.wait_s
            wait_s = phase.input_s + waits.wait_s
            phases.append(replace(phase, count=count, time_s=time_s, input_s=wait_s))
            found.append((stages, waits, count))
    longest = max(found, key=lambda of: of[2])
    return StepTimes(tuple(phases)), InputSummary(
        dataset=dataset.name,
        stages_s=found[0][0].limits_s,
        later_stages_s=found[-1][0].limits_s,
        limit=longest[0].limit,
        step_s=times.time_s,
        wait_s=found[0][1].wait_s,
        later_wait_s=found[-1][1].wait_s,
        fill_s=found[0][1].fill_s,
        begun_s=found[0][1].begun_s,
        banked_s=longest[1].banked_s,
        nodes=longest[1].nodes,
    )


def _cores(cluster: Cluster) -> tuple[int, float]:
    """Return the cores of a node and their clock."""
    host = cluster.nodes.host
    if host.cores is None or host.clock is None:
        raise ConfigError(
            f"{cluster.nodes.name} does not say what cores its host has: set "
            "cluster.node.host.cores and cluster.node.host.clock",
            field="input",
        )
    return host.cores.value, host.clock.value


def _storage_rate(source: InputSource, cluster: Cluster, nodes: int) -> float:
    """Return how fast one node reads while all do."""
    disks = cluster.nodes.host.storage
    shared = source.place in ("parallel-file-system", "object-store")
    if source.place is None:
        shared = source.storage is not None or cluster.storage is not None or disks is None
    if not shared:
        if source.storage is not None:
            return source.storage / nodes
        if disks is None:
            raise ConfigError(
                f"{cluster.nodes.name} does not say how fast it reads its disks", field="input"
            )
        return disks.value
    if source.storage is not None:
        rate = source.storage / nodes
    elif cluster.storage is not None:
        rate = cluster.storage.bandwidth.value / nodes
    else:
        raise ConfigError(
            f"{cluster.name} states no storage: give its rate for the whole job",
            field="input.storage",
        )
    return rate if cluster.fabric is None else min(rate, adapter_rate(cluster))


def _request_s(source: InputSource, dataset: DataSet) -> float:
    """Return the time that one connection takes for a sample."""
    stored = dataset.stored.value
    stream_s = 0.0 if source.stream is None else stored / source.stream
    if not source.latency:
        return stream_s
    if dataset.layout == "files":
        return source.latency + stream_s
    if source.request is None:
        raise ConfigError(
            f"{dataset.name} is kept in large files: give the bytes of one request",
            field="input.request",
        )
    return source.latency * stored / source.request + stream_s


def _staging_rate(source: InputSource, cluster: Cluster) -> float:
    """Return how fast a device is fed from its host."""
    if source.staging is not None:
        return source.staging
    try:
        return host_link(from_cluster(cluster, 1)).bytes_per_s
    except RidgelineError as error:
        raise ConfigError(
            f"{error}; give the rate of copies to each device", field="input.staging"
        ) from error
