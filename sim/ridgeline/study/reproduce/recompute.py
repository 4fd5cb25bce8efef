"""The slide "25 % more compute saves 80 % memory": ResNets that keep the inputs of their blocks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from importlib import resources

from ridgeline.parallel.checkpointing.blocks import Block, forward_blocks, forward_ops
from ridgeline.parallel.checkpointing.ops import recompute_blocks
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import FORMAT_BYTES, Graph, Pass, Role

_NETWORKS = ("resnet50", "resnet101", "resnet152")
_BATCH = 16
_POINTS = 0.03


def reproduce() -> Reproduction:
    """Compute what each network saves, and what that costs."""
    return Reproduction(
        name="recompute",
        title="25 % more compute saves 80 % memory: ResNets, batch 16, fp16",
        source=(
            "S. Knowles, 'Graphcore Intelligent Processing Unit (IPU)', Deep Learning at "
            "Supercomputer Scale Workshop, NIPS 2017, as shown by Pedram, Lynch and Lauterbach: "
            "activations are memorised only at the input of each residual block; memory is that "
            "of weights (a single copy) and activations; all in fp16"
        ),
        rows=tuple(row for name in _NETWORKS for row in _network(name, _published())),
        fits=(),
        notes=(
            "Without recomputation every tensor that an op makes is recorded, as frameworks did "
            "that did not work in place. Against what the gradients really read, the same "
            "recomputation saves 64 to 68 %.",
            "Everything from one checkpoint to the next is done again. The last convolution of a "
            "block gives what only its batch norm reads; the printed 25 % leaves it out. With it, "
            "as the gradient of a batch norm needs, a third more compute is done.",
        ),
    )


def _published() -> dict[str, float]:
    text = resources.files(__package__).joinpath("recompute.csv").read_text("utf-8")
    return {row["quantity"]: float(row["published"]) for row in csv.DictReader(text.splitlines())}


def _network(name: str, slide: dict[str, float]) -> Iterator[ReproducedFigure]:
    graph = load_network(name).training(_BATCH, "fp16-mixed")
    blocks = forward_blocks(graph)
    stem = tuple(i for i in forward_ops(graph) if i < blocks[0][0])
    changed = recompute_blocks(graph, (stem, *blocks))
    weights = graph.parameters * FORMAT_BYTES["fp16"]
    saved = 1 - (weights + changed.activation_bytes) / (weights + recorded_bytes(graph))
    whole = changed.recomputed_flops / graph.flops()
    less = _last_flops(graph, blocks) / graph.flops()
    for quantity, published, predicted, tolerance in (
        ("memory saved", slide["memory"], saved, _POINTS),
        ("compute, last convolutions not done again", slide["compute"], whole - less, _POINTS),
        ("compute, last convolutions done again", slide["compute"], whole, None),
    ):
        yield ReproducedFigure(
            group=load_network(name).title,
            quantity=quantity,
            unit="",
            published=(published, published),
            predicted=predicted,
            unfitted=predicted,
            points=True,
            tolerance=tolerance,
        )


def recorded_bytes(graph: Graph) -> int:
    """Bytes of all activations that forward ops make, none of them in place of another."""
    made = {n for op in graph.ops if op.pass_ is Pass.FORWARD for n in op.outputs}
    return sum(graph.tensors[n].bytes for n in made if graph.tensors[n].role is Role.ACTIVATION)


def _last_flops(graph: Graph, blocks: Sequence[Block]) -> int:
    """FLOPs of the convolutions whose output nothing but a last batch norm of a block reads."""
    total = 0
    for block in blocks:
        main = [graph.ops[i] for i in block if "downsample" not in graph.ops[i].layer]
        total += [op for op in main if op.loops is not None][-1].matrix_flops
    return total
