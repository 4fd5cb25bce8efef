"""Step with compressed gradients: the same step on links that carry as many fewer bytes.

Of a data-parallel plan everything between nodes is gradients (on one node, between devices). Sent
in f times fewer bytes they take the time that they would take on links f times as fast, latencies
and overlap as they are. Passes over the gradient in far memory, to pack and unpack it, come on top.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import ConfigError
from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.training.compression import COMPRESSIONS, GradientCompression, warm_up_gain
from ridgeline.training.run_file import SentGradients
from ridgeline.workload.graph import Role

_FP32_BYTES = 4.0


def compressed_step_s(point: Point, step: Result, sent: SentGradients) -> float:
    """Return the time of a step whose gradients are compressed, in seconds.

    A method that sends some steps in full (`warm_up_share`) gives the mean over the run.

    Raises
    ------
    ConfigError
        If the plan is not data-parallel alone, or nothing is sent.
    """
    plan, cluster = step.details.plan, step.details.cluster
    if plan.devices != plan.data or plan.zero_stage:
        raise ConfigError(
            "compressed gradients are of plans that are data-parallel alone", field="gradients",
        )  # fmt: skip
    nodes = len(cluster.nodes_of(plan.devices))
    workers = nodes if nodes > 1 else plan.devices
    if workers < 2:
        raise ConfigError("one device sends no gradients", field="gradients")
    method = COMPRESSIONS[sent.compression]
    weights = [t for t in step.details.graph.tensors.values() if t.role is Role.WEIGHT]
    numbers = sum(tensor.elements for tensor in weights)
    dense = 2.0 * (workers - 1) / workers * numbers * _FP32_BYTES  # a ring, each way once
    if method.rank:
        factors = method.low_rank_bytes(tuple(tensor.shape for tensor in weights))
        packed = 2.0 * (workers - 1) / workers * factors
    elif method.density < 1.0:
        packed = method.all_reduce_bytes(numbers, workers, sent.fill_in)
    else:
        packed = dense / method.ratio()
    faster = max(1.0, dense / packed)
    links = _links(step, nodes)
    compressed = replace(
        point,
        overrides={
            **point.overrides,
            **{path: f"{rate * faster!r} B/s" for path, rate in links.items()},
        },
    ).simulate()
    packing_s = _packing_s(method, numbers, step)
    gain = step.step_time_s / (compressed.step_time_s + packing_s)
    return step.step_time_s / warm_up_gain(method.warm_up_share, gain)


def _links(step: Result, nodes: int) -> dict[str, float]:
    """Return the bandwidths of the links that gradients pass, by their paths."""
    cluster = step.details.cluster
    if nodes > 1:
        assert cluster.fabric is not None  # more than one node needs it
        names, types, head = [cluster.fabric.link], cluster.link_types, "cluster.link_types"
    else:
        types, head = cluster.nodes.link_types, "cluster.node.link_types"
        names = list(types)
    return {f"{head}.{name}.bandwidth": types[name].bandwidth.value for name in names}


def _packing_s(method: GradientCompression, numbers: int, step: Result) -> float:
    """Return the time of the passes over the gradient in the device's far memory."""
    device = step.details.cluster.device
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None  # the farthest level has one
    return method.passes * numbers * _FP32_BYTES / (far.bandwidth.value * far.achievable.value)
