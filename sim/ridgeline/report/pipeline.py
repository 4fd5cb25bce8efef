"""The input pipeline in its steady state: reading, decoding and training overlap.

The loader works ahead, so a step takes as long as the slowest of: the devices, the disks, the cores
that decode. What the slowest of the last two adds to the devices' time is the exposed input. Data
are read once a step, each sample by one node (Mohan et al., "Analyzing and mitigating data stalls
in DNN training", VLDB 2021, Section 3, calls the two fetch and prep stalls).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.report.input_pipeline import InputPipeline
from ridgeline.report.result import Result
from ridgeline.workload.dataset import DataSet
from ridgeline.workload.model import Model

_PIXELS = 224 * 224


def pipeline(
    dataset: DataSet,
    cluster: Cluster,
    devices: int,
    batch: int,
    tokens_per_sample: int,
    prepared: float = 1.0,
    workers: int = 0,
) -> InputPipeline:
    """Time the input of one step.

    Parameters
    ----------
    batch
        Samples of the step over all devices.
    prepared
        What a core does with a sample, over decoding it.
    workers
        Processes that prepare for one device, at most; 0: as many as there are cores.

    Raises
    ------
    RidgelineError
        If the machine does not say how fast it reads or decodes, or the data set is of tokens and
        the network has none.
    """
    if dataset.unit == "token" and not tokens_per_sample:
        raise RidgelineError(
            f"the data set {dataset.name!r} is of tokens, and a sample of the network has none"
        )
    units = batch * (tokens_per_sample if dataset.unit == "token" else 1)
    node = cluster.nodes
    nodes = -(-devices // node.count)
    host = node.host
    if cluster.storage is not None:
        read = cluster.storage.bandwidth.value
    elif host.storage is not None:
        read = host.storage.value * nodes
    else:
        raise RidgelineError(
            f"{node.name} does not say how fast it reads its disks; set cluster.node.host.storage"
            " or name no data set"
        )
    if host.cores is None or host.clock is None:
        raise RidgelineError(
            f"{node.name} does not say what cores its host has; set cluster.node.host.cores and"
            " cluster.node.host.clock or name no data set"
        )
    cycles = host.cores.value * host.clock.value * nodes
    busy = min(host.cores.value, workers * min(devices, node.count) or host.cores.value)
    each = prepared * dataset.decoding.value * host.cores.value / busy
    size = units * dataset.stored.value
    return InputPipeline(dataset, size / read, units * each / cycles, size)


def with_input(result: Result, dataset: DataSet) -> Result:
    """Return the result of a step that waits for its input where that is slower."""
    details = result.details
    plan, cluster = details.plan, details.cluster
    feed = pipeline(
        dataset,
        cluster,
        plan.devices,
        plan.global_batch,
        details.graph.tokens_per_sample,
        preparing(result),
        plan.stack.input.workers,
    )
    exposed = feed.exposed_s(result.step_time_s)
    step_time_s = result.step_time_s + exposed
    slower = result.step_time_s / step_time_s
    parts = {name: seconds for name, seconds in result.time_s.items() if name != "total"}
    parts["input"] += exposed
    limits = dict(result.limits_s)
    if exposed:
        limits[feed.limit] = exposed
    energy = {name: joules for name, joules in result.energy_j.items() if name != "total"}
    energy["static"] += cluster.device.idle_power.value * plan.devices * exposed
    tokens = result.tokens_per_s
    ordered = dict(sorted(limits.items(), key=lambda item: -item[1]))
    return replace(
        result,
        step_time_s=step_time_s,
        samples_per_s=plan.global_batch / step_time_s,
        tokens_per_s=None if tokens is None else tokens * slower,
        mfu=result.mfu * slower,
        hfu=result.hfu * slower,
        time_s={**parts, "total": step_time_s},
        energy_j={**energy, "total": math.fsum(energy.values())},
        traffic_bytes={**result.traffic_bytes, "storage": feed.read_bytes},
        bound=next(iter(ordered)),
        limits_s=ordered,
        details=replace(details, feed=replace(feed, trained_s=result.step_time_s)),
    )


def preparing(result: Result) -> float:
    """Return what a core does with a sample of a step's program, over decoding it."""
    settings = result.details.plan.stack.input
    return settings.preparing + settings.pixels * _images(result.details.model)


def _images(model: Model) -> float:
    """Return how many images of 224 x 224 pixels a sample is as large as; 0 of what is none."""
    image = getattr(model.network, "image", None)
    return 0.0 if image is None else image.height * image.width / _PIXELS
