"""Updates on the host: its memory keeps master weights and the optimizer's state, and it computes.

The gradient of each weight goes to the host when the passes have ended and gradients are summed,
the host updates the weight while the next gradient comes, and what the passes compute with goes
back: three queues, so that the slowest of link out, host and link back decides (Ren et al.,
ZeRO-Offload, USENIX ATC 2021, arXiv:2101.06840, Section 4; Megatron-Core's
`HybridDeviceOptimizer`, core/optimizer/cpu_offloading, which moves a share of the weights, in
order, until the share is reached). A host's update is bound by its memory.

Rules with whole matrices stay on the device, all but what they leave to another rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import ConfigError
from ridgeline.hardware.node import Node
from ridgeline.workload import optimizers
from ridgeline.workload.graph import Graph, Op, Pass, Role

HOST = "host-bytes"
"""Attribute of an update that the host does: bytes that it reads and writes of its memory."""
OUT, BACK = "to-host-bytes", "from-host-bytes"
"""Attributes of such an update: bytes of its gradient, and of what comes back."""
ATTAINED = 0.8
"""Share of a host's memory bandwidth that streaming kernels reach: STREAM's triad on servers of two
processors (McCalpin, STREAM benchmark; assumed for all hosts)."""


@dataclass(frozen=True, slots=True)
class HostRate:
    """What a device has of its host's memory, while all devices of its node use it."""

    bytes_per_s: float

    @staticmethod
    def of(node: Node, devices: int) -> HostRate:
        """Return the share of one of so many devices of a plan.

        Raises
        ------
        ConfigError
            If the node does not say how fast its host's memory is.
        """
        bandwidth = node.host.memory_bandwidth
        if bandwidth is None:
            raise ConfigError(
                f"{node.name} does not say how fast the memory of its host is, which updates there"
                " need; say it: --set cluster.nodes.host.memory_bandwidth='300 GB/s'",
                field="cluster.nodes.host.memory_bandwidth",
            )
        return HostRate(ATTAINED * bandwidth.value / min(node.count, devices))

    def update_s(self, size_bytes: float) -> float:
        """Return the seconds of an update that moves so many bytes."""
        return size_bytes / self.bytes_per_s


def with_host_updates(graph: Graph, share: float) -> Graph:
    """Let the host do the updates of a share of the parameters, those that come first.

    State, and master weights that have a copy in another format, then take no memory of the device.

    Parameters
    ----------
    graph
        What one device does, after it is divided and ranks share states.
    share
        From 0 to 1, of the weights that are updated element by element.
    """
    if not share:
        return graph
    copies = {
        op.inputs[0]: op.outputs[0]
        for op in graph.ops
        if len(op.outputs) == 1 and _copied(graph, op)
    }
    able = [op for op in graph.ops if op.kind == "optimizer" and _by_element(op)]
    left = share * sum(graph.tensors[op.inputs[0]].elements for op in able)
    there: dict[str, Op] = {}
    for op in able:
        if left <= 0:
            break
        left -= graph.tensors[op.inputs[0]].elements
        there[op.name] = _on_host(op, graph, copies)
    masters = {op.inputs[0] for op in there.values() if op.inputs[0] in copies}
    away = masters.union(n for op in there.values() for n in op.inputs[2:])
    tensors = {
        name: replace(t, role=Role.HOST) if name in away else t for name, t in graph.tensors.items()
    }
    ops = (there.get(op.name, _arrived(op) if _is_cast(op, masters) else op) for op in graph.ops)
    return replace(graph, ops=tuple(ops), tensors=tensors)


def _copied(graph: Graph, op: Op) -> bool:
    """Whether an op makes, or makes a rank's part of, a copy of a weight once a step."""
    return (
        op.kind in {"cast", "quantise"}
        and op.pass_ is Pass.FORWARD
        and graph.tensors[op.inputs[0]].role is Role.WEIGHT
    )


def _by_element(op: Op) -> bool:
    return not optimizers.find(str(dict(op.attrs)["rule"])).products


def _on_host(op: Op, graph: Graph, copies: dict[str, str]) -> Op:
    """Return the update as the host does it."""
    weight, gradient, *_ = op.inputs
    rule = optimizers.find(str(dict(op.attrs)["rule"]))
    passes = op.input_passes or (1,) * len(op.inputs)
    out = float(passes[1]) / rule.gradient_passes * graph.tensors[gradient].bytes
    writes = op.output_passes or (1,) * len(op.outputs)
    updated = float(writes[0]) / rule.weight_writes * graph.tensors[weight].elements
    back = graph.tensors[copies.get(weight, weight)]
    width = back.bytes / max(back.elements, 1)
    host = graph.read_bytes(op) + graph.write_bytes(op) + out + updated * width
    said = ((HOST, round(host)), (OUT, round(out)), (BACK, round(updated * width)))
    return replace(op, attrs=(*op.attrs, *said))


def _is_cast(op: Op, masters: set[str]) -> bool:
    return op.pass_ is Pass.FORWARD and bool(op.inputs) and op.inputs[0] in masters


def _arrived(op: Op) -> Op:
    """Return a copy of a weight that has come from the host: nothing is left to do."""
    nothing = (0,) * len(op.outputs)
    return replace(op, vector_flops=0, input_passes=(0,) * len(op.inputs), output_passes=nothing)


def is_host_update(op: Op) -> bool:
    """Whether the host does an update."""
    return op.kind == "optimizer" and any(name == HOST for name, _ in op.attrs)
