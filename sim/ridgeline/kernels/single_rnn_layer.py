"""Single recurrent layer on one device: the recurrence, without its input products."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, get_args

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.pricing import price
from ridgeline.workload import numerics, ops
from ridgeline.workload.autodiff import training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.ops.recurrent import Cell, recurrent
from ridgeline.workload.optimizers import find as find_optimizer

CELLS: tuple[Cell, ...] = get_args(Cell)
PASSES = {
    "forward": (Pass.FORWARD,),
    "input-gradient": (Pass.INPUT_GRADIENT,),
    "weight-gradient": (Pass.WEIGHT_GRADIENT,),
    "backward": (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT),
}
PRECISIONS = {"fp16": "fp16-mixed", "bf16": "bf16-mixed"}
"""Precision of a network whose products are in a format, where that has another name."""


@dataclass(frozen=True)
class LayerResult:
    """Time of one pass over a recurrent layer on one device.

    Attributes
    ----------
    time_s
        Of all kernels of the pass, one after the other.
    flops
        Of its products.
    compulsory_bytes
        What its kernels read and write.
    """

    op: str
    device: str
    format: str
    time_s: float
    flops: int
    compulsory_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def rnn(
    batch: int,
    hidden: int,
    steps: int,
    device: str | Device,
    *,
    cell: str = "lstm",
    pass_: str = "forward",
    format: str = "fp32",
) -> LayerResult:
    """Price one pass over a recurrent layer on a device.

    Parameters
    ----------
    batch, hidden, steps
        Sequences, features of the state, and positions.
    cell
        lstm, gru, rnn-tanh or rnn-relu.
    pass_
        forward, input-gradient, weight-gradient, or backward for both gradients.
    format
        Number format of the products.

    Raises
    ------
    RidgelineError
        If a size is not positive, or there is no such cell, pass or format.
    """
    for what, value, known in (("cell", cell, CELLS), ("pass", pass_, PASSES)):
        if value not in known:
            raise RidgelineError(
                f"there is no {what} {value!r}{nearest(value, known)} (allowed: {', '.join(known)})"
            )
    for what, size in (("batch", batch), ("hidden", hidden), ("steps", steps)):
        if size < 1:
            raise RidgelineError(f"{what} must be at least 1, found {size}")
    machine = load_device(device) if isinstance(device, str) else device
    graph = layer(cell, batch, hidden, steps, PRECISIONS.get(format, format))
    wanted = [op for op in graph.ops if op.kind == cell and op.pass_ in PASSES[pass_]]
    return LayerResult(
        op=f"{cell} of {hidden} x {steps} steps, batch {batch}",
        device=machine.name,
        format=format,
        time_s=sum(price(op, graph, machine).time_s(machine) for op in wanted),
        flops=sum(op.matrix_flops for op in wanted),
        compulsory_bytes=sum(graph.read_bytes(op) + graph.write_bytes(op) for op in wanted),
    )


@cache
def layer(cell: Any, batch: int, hidden: int, steps: int, precision: str) -> Graph:
    """Return the training graph of one recurrent layer, with a loss behind it."""
    b = GraphBuilder("layer", batch, numerics.find(precision))
    labels = b.input("labels", (batch, steps), "int64")
    x = b.input("x", (batch, steps, hidden))
    y = recurrent(b, "layer", x, hidden, cell, bias="one")
    return training_graph(b.graph(ops.cross_entropy(b, "loss", y, labels)), find_optimizer("sgd"))
