"""The slide "Storage is quadratic function of network depth": which training it is true of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ridgeline.parallel.partition.chain import units
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.model import Model

_WIDTH = 500
_LAYERS = (8, 16, 32, 64, 128)
_CIFAR = ("resnet-cifar-20", "resnet-cifar-32", "resnet-cifar-44", "resnet-cifar-56",
          "resnet-cifar-110")  # fmt: skip
_TOLERANCE = 0.1


def reproduce() -> Reproduction:
    """Fit the exponent of storage against depth, of two families and two ways to train."""
    perceptrons = [
        load_network("mlp", {"widths": [*(_WIDTH for _ in range(layers)), 10]})
        for layers in _LAYERS
    ]
    residual = [load_network(name) for name in _CIFAR]
    depths = [float(name.rpartition("-")[2]) for name in _CIFAR]
    return Reproduction(
        name="storage-depth",
        title="Activations held against depth, as a power of depth",
        source=(
            "A. Pedram, C. Lynch, G. Lauterbach, slide 'Storage is quadratic function of network "
            "depth', which cites H. Zhu, 'How to Train a Very Large and Deep Model on One GPU?', "
            "2017; pipelined: Y. Li, A. Pedram, CATERPILLAR, ASAP 2017, arXiv:1706.00517: layer i "
            "of L holds L - i + 1 activations"
        ),
        rows=(
            *_family("perceptrons of 8 to 128 equal layers", perceptrons, list(_LAYERS)),
            *_family("ResNets for CIFAR of 20 to 110 layers", residual, depths),
        ),
        fits=(),
        notes=(
            "The cited article does not speak of a square. In a synchronous step storage is "
            "linear in depth; it is quadratic where each layer is a stage of a pipeline that "
            "never drains, because a stage holds one activation for every stage behind it.",
            "Exponents are slopes of logarithms by least squares; that of L (L + 1) / 2 itself, "
            "over 8 to 128 layers, is 1.96.",
        ),
    )


def _family(
    group: str, models: Sequence[Model], depths: Sequence[float]
) -> Iterator[ReproducedFigure]:
    graphs = [model.training(1, "fp32") for model in models]
    for quantity, exponent, held in (
        ("in step", 1.0, [float(graph.activation_bytes) for graph in graphs]),
        ("pipelined by layers", 2.0, [pipelined_bytes(graph) for graph in graphs]),
    ):
        slope = _slope(depths, held)
        yield ReproducedFigure(
            group=f"{group}, exponent",
            quantity=quantity,
            unit="",
            published=(exponent, exponent),
            predicted=slope,
            unfitted=slope,
            tolerance=_TOLERANCE,
        )


def pipelined_bytes(graph: Graph) -> float:
    """Bytes that all stages hold of a pipeline without flushes that has a stage for every unit."""
    schedule, parts = SCHEDULES["continuous"], units(graph)
    again = {n for op in graph.ops if op.pass_ is not Pass.FORWARD for n in op.inputs}
    total = 0.0
    for stage, part in enumerate(parts):
        made = {n for i in part.ops for n in graph.ops[i].outputs if n in again}
        kept = sum(graph.tensors[n].bytes for n in made if graph.tensors[n].role is Role.ACTIVATION)
        total += kept * schedule.in_flight(stage, len(parts), len(parts), 1)
    return total


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of log y against log x, by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True)) / sum(
        (p - mean_a) ** 2 for p in a
    )
