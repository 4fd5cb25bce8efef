"""Recurrent layers: the rows of kind ``lstm``, ``gru`` and ``rnn_vanilla`` in a table of kernels.

DeepBench runs cuDNN with skipped input products, so that a layer is its recurrence alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.kernels import price
from ridgeline.study.validate import kernels
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import Row
from ridgeline.workload import numerics, ops
from ridgeline.workload.autodiff import training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.ops.recurrent import Cell, recurrent
from ridgeline.workload.optimizers import find as find_optimizer

COLUMNS = (*kernels.COLUMNS, "batch", "hidden", "timesteps")
SHIPPED = "kernels.csv"
CELLS: dict[str, Cell] = {"lstm": "lstm", "gru": "gru", "rnn_vanilla": "rnn-relu"}
PASSES = {
    "fwd": (Pass.FORWARD,),
    "bwd_input": (Pass.INPUT_GRADIENT,),
    "bwd_weight": (Pass.WEIGHT_GRADIENT,),
    "bwd_total": (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT),
}
PRECISIONS = {"fp16": "fp16-mixed", "bf16": "bf16-mixed"}


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every pass over a recurrent layer."""
    return kernels.predict_kernels(rows, frozenset(CELLS), _layer)


def _layer(row: Row, device: Device, format_: str) -> tuple[float, str, float, float]:
    batch, hidden, steps = (row.whole(name) for name in ("batch", "hidden", "timesteps"))
    if not (batch and hidden and steps) or min(batch, hidden, steps) < 0:
        raise RidgelineError("the size of the layer is not given")
    if row.text("pass_") not in PASSES:
        raise RidgelineError(f"unknown pass {row.text('pass_')}")
    cell = CELLS[row.text("kind")]
    graph = layer(cell, batch, hidden, steps, PRECISIONS.get(format_, format_))
    wanted = [op for op in graph.ops if op.kind == cell and op.pass_ in PASSES[row.text("pass_")]]
    time_s = sum(price(op, graph, device).time_s(device) for op in wanted)
    moved = sum(graph.read_bytes(op) + graph.write_bytes(op) for op in wanted)
    flops = sum(op.matrix_flops for op in wanted)
    return time_s, f"{cell} of {hidden} x {steps} steps, batch {batch}", flops, moved


@cache
def layer(cell: Cell, batch: int, hidden: int, steps: int, precision: str) -> Graph:
    """Return the training graph of one recurrent layer, with a loss behind it."""
    b = GraphBuilder("layer", batch, numerics.find(precision))
    labels = b.input("labels", (batch, steps), "int64")
    x = b.input("x", (batch, steps, hidden))
    y = recurrent(b, "layer", x, hidden, cell, bias="one")
    return training_graph(b.graph(ops.cross_entropy(b, "loss", y, labels)), find_optimizer("sgd"))
