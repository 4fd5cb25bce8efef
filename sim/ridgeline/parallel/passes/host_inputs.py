"""Mini-batches that a device waits for at the beginning of a step.

The matrix unit of a TPU v1 stalls until its inputs have come over PCIe: the input data stalls of
Jouppi et al. (ISCA 2017, Table 3, row 8). Labels are left out: the host, which has them, does the
loss.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.parallel.pass_manager import PassContext, graph_pass
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.ops.shape import HOST_INPUT


def _are_waited_for(to: PassContext) -> tuple[()] | None:
    host = to.device.host
    return () if host is not None and host.inputs == "waited" else None


@graph_pass("host-inputs", 95, _are_waited_for)
def with_host_inputs(graph: Graph) -> Graph:
    """Return the graph with an op that brings each input before the first op that reads it."""
    tensors, ops = dict(graph.tensors), list[Op]()
    losses = (op for op in graph.ops if graph.loss in op.outputs and op.loops is None)
    labels = {name for op in losses for name in op.inputs}
    for op in graph.ops:
        for name in op.inputs if op.pass_ is Pass.FORWARD else ():
            if tensors[name].role is Role.INPUT and name not in labels:
                tensors[name] = replace(tensors[name], role=Role.ACTIVATION)
                ops.append(
                    Op(
                        f"{name}.{HOST_INPUT.name}",
                        HOST_INPUT.name,
                        op.pass_,
                        op.layer,
                        (),
                        (name,),
                    )
                )
        ops.append(op)
    return replace(graph, tensors=tensors, ops=tuple(ops))
