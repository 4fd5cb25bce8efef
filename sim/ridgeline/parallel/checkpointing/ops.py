"""Recomputed ops: what the backward pass does again, and the graph that results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import Block
from ridgeline.workload.builder import settle
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor, free_name

AGAIN = ".again"
_MADE = frozenset({Role.ACTIVATION})


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Forward ops to be done again, in order, and which of their outputs are then read anew."""

    ops: tuple[int, ...]
    tensors: frozenset[str]


def recompute_blocks(
    graph: Graph,
    blocks: Iterable[Block],
    *,
    kept: frozenset[str] = frozenset(),
    outputs: bool = False,
    more: bool = False,
    whole: bool = False,
) -> Graph:
    """Return the graph in which each block forms again what the backward pass reads of its inside.

    What is read of a block by forward ops outside of it is kept, unless `outputs` are formed again,
    too, and so are the tensors `kept`. With `more`, the graph may recompute something else already;
    with `whole`, all ops of a block are done again, needed or not.
    """
    if not more and any(op.pass_ is Pass.RECOMPUTE for op in graph.ops):
        raise RidgelineError(f"{graph.name}: this graph recomputes already")
    first_read = first_reads(graph)
    before: dict[int, list[Recomputation]] = {}
    within = (made_by if outputs else insides)(graph, blocks := tuple(blocks))
    for block, inside in zip(blocks, within, strict=True):
        repeat = needed(graph, block, inside - kept, first_read.keys())
        if repeat.ops and whole:
            made = (i for i in block if graph.tensors[graph.ops[i].outputs[0]].role in _MADE)
            repeat = Recomputation(tuple(made), repeat.tensors | inside)
        if repeat.ops:
            at = min(first_read[name] for name in repeat.tensors if name in first_read)
            before.setdefault(at, []).append(repeat)
    return replay(graph, before)


def made_by(graph: Graph, blocks: Sequence[Block]) -> list[frozenset[str]]:
    """For every block, the activations that its ops make in the forward pass."""
    return [
        frozenset(
            name
            for i in block
            for name in graph.ops[i].outputs
            if graph.tensors[name].role is Role.ACTIVATION and name != graph.loss
        )
        for block in blocks
    ]


def insides(graph: Graph, blocks: Sequence[Block]) -> list[frozenset[str]]:
    """For every block, the activations that only its own ops read in the forward pass."""
    home = {i: number for number, block in enumerate(blocks) for i in block}
    inside = [set(names) for names in made_by(graph, blocks)]
    made = {name: number for number, names in enumerate(inside) for name in names}
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.FORWARD:
            for name in op.inputs:
                if made.get(name, home.get(i)) != home.get(i):
                    inside[made[name]].discard(name)
    return [frozenset(names) for names in inside]


def needed(
    graph: Graph, block: Block, inside: frozenset[str], read: Iterable[str]
) -> Recomputation:
    """Return what a block must do again so that the tensors `read` of its inside are there."""
    wanted = inside.intersection(read)
    ops: list[int] = []
    for i in reversed(block):
        if not wanted.isdisjoint(graph.ops[i].outputs):
            ops.append(i)
            wanted = wanted.union(inside.intersection(graph.ops[i].inputs))
    return Recomputation(tuple(reversed(ops)), wanted)


def replay(graph: Graph, before: Mapping[int, Sequence[Recomputation]]) -> Graph:
    """Insert repeated ops `before` ops of the graph; who reads a tensor reads its latest copy."""
    tensors, latest = dict(graph.tensors), dict[str, str]()
    names = {op.name for op in graph.ops}
    ops: list[Op] = []
    for i, op in enumerate(graph.ops):
        for repeat in before.get(i, ()):
            for j in repeat.ops:
                op_again = _of_read(graph.ops[j], tensors, repeat.tensors)
                again = _again(op_again, tensors, latest, names)
                ops.append(again)
                made = zip(op_again.outputs, again.outputs, strict=True)
                latest.update((old, new) for old, new in made if old in repeat.tensors)
        inputs = tuple(latest.get(name, name) for name in op.inputs)
        ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    return replace(graph, tensors=tensors, ops=settle(ops, tensors))


def _of_read(op: Op, tensors: Mapping[str, Tensor], read: frozenset[str]) -> Op:
    """Leave a product of several results, side by side in its columns, those that are read.

    Its weights still count as read in full; "columns" of its attributes says which rows count.
    """
    wanted = tuple(name for name in op.outputs if name in read)
    if not isinstance(op.loops, Gemm) or wanted in {(), op.outputs}:
        return op
    ends = list(accumulate(tensors[name].shape[-1] for name in op.outputs))
    if ends[-1] != op.loops.n:
        return op
    spans = [
        span for name, *span in zip(op.outputs, [0, *ends], ends, strict=False) if name in read
    ]
    columns = ("columns", ",".join(f"{start}:{end}" for start, end in spans))
    loops = replace(op.loops, n=sum(end - start for start, end in spans))
    return replace(op, outputs=wanted, loops=loops, attrs=(*op.attrs, columns))


def _again(op: Op, tensors: dict[str, Tensor], latest: Mapping[str, str], names: set[str]) -> Op:
    """Return a forward op once more: it reads the latest copies and writes new ones."""
    name = free_name(op.name + AGAIN, names)
    names.add(name)
    outputs = []
    for output in op.outputs:
        copy = output
        if tensors[output].role is Role.ACTIVATION:
            copy = free_name(output + AGAIN, tensors)
            tensors[copy] = tensors[output].renamed(copy)
        outputs.append(copy)
    inputs = tuple(latest.get(tensor, tensor) for tensor in op.inputs)
    return replace(
        op,
        name=name,
        pass_=Pass.RECOMPUTE,
        inputs=inputs,
        outputs=tuple(outputs),
        recomputed_flops=op.matrix_flops,
    )


def done_again(graph: Graph) -> Iterator[str]:
    """Name the forward ops that a graph does again, as often as it does."""
    for op in graph.ops:
        if op.pass_ is Pass.RECOMPUTE:
            yield op.name.rsplit(AGAIN, 1)[0]


def once(name: str) -> str:
    """Name of the tensor of the forward pass that a repeated op forms again; itself if none."""
    if AGAIN not in name:
        return name
    return re.sub(rf"{re.escape(AGAIN)}(\.\d+)?$", "", name)


def first_reads(graph: Graph) -> dict[str, int]:
    """For every tensor that ops after the forward pass read, the first of these."""
    first: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        if op.pass_ is not Pass.FORWARD:
            for name in op.inputs:
                first.setdefault(name, i)
    return first
