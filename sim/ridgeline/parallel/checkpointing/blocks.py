"""What is recomputed together: the repeated blocks of any network, and its attention cores.

Blocks are found in the names of the layers, whoever wrote them (``blocks.3.attention.query``,
``layer1.0.conv2``, ``model.layers.7.mlp.up_proj``): a part of a dotted name that contains a digit
numbers the copies of something. Where the names number nothing, blocks are stretches of the chain
of ops between its narrow places.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

from ridgeline.workload.graph import Graph, Op, Pass, Role

Block = tuple[int, ...]
"""Indices of forward ops, ascending."""

_MOST = 0.8  # of the contractions of something must be in its numbered parts for these to be blocks

_FUSED = frozenset({"flash-attention", "merge-attention"})
_SUMS = frozenset({"all-reduce", "reduce-scatter"})  # of partial results of several devices
_FEW = 8  # contractions of a network that is too small to be cut evenly


def forward_ops(graph: Graph) -> tuple[int, ...]:
    """Return the indices of the ops of the forward pass."""
    return tuple(i for i, op in enumerate(graph.ops) if op.pass_ is Pass.FORWARD)


def forward_blocks(graph: Graph) -> tuple[Block, ...]:
    """Return the blocks of a network, in the order in which they begin; each op is in one at most.

    A numbered part counts as a block if it has at least two contractions; parts of it are taken
    instead where each of these has two and together they have most of its contractions (the blocks
    of a stage, but not the branches or the single convolutions of a block). Where the numbered
    parts hold less than half of what the backward pass reads, stretches of the rest are added.
    """
    order = forward_ops(graph)
    named = [tuple(i for i, _ in b) for b in _named([(i, graph.ops[i]) for i in order], 0, True)]
    taken = {i for block in named for i in block}
    if _kept_bytes(graph, taken) * 2 >= _kept_bytes(graph, set(order)):
        return tuple(sorted(named))
    runs: list[list[int]] = [[]]
    for i in order:
        if i in taken:
            runs.append([])
        else:
            runs[-1].append(i)
    return tuple(sorted((*named, *_stretches(graph, runs))))


def counted_blocks(graph: Graph, how: str, count: int, runs: int = 1) -> tuple[Block, ...]:
    """Return some blocks, or stretches of several.

    "full": each whose number, from 1, is a multiple of `count`; "block": the first `count` of each
    of `runs` equal parts of all; "uniform": all, `count` to a stretch.
    """
    blocks = forward_blocks(graph)
    if how == "full":
        return blocks[count - 1 :: count]
    each = -(-len(blocks) // runs)
    if how == "block":
        return tuple(block for n, block in enumerate(blocks) if n % each < count)
    parts = [blocks[at : at + each] for at in range(0, len(blocks), each)]
    stretches = (part[at : at + count] for part in parts for at in range(0, len(part), count))
    return tuple(tuple(i for block in stretch for i in block) for stretch in stretches)


def every_other(graph: Graph, blocks: Iterable[Block]) -> frozenset[str]:
    """Return the results of every other product of weights in blocks."""
    return frozenset(name for names in _of_products(graph, blocks) for name in names[::2])


def product_results(graph: Graph, blocks: Iterable[Block]) -> frozenset[str]:
    """Return the results of all products of weights in blocks, summed up where they are partial."""
    sums = (graph.ops[i] for i in forward_ops(graph) if graph.ops[i].kind in _SUMS)
    summed = {name: op.outputs[0] for op in sums for name in op.inputs if op.outputs}
    made = (name for names in _of_products(graph, blocks) for name in names)
    return frozenset(summed.get(name, name) for name in made)


def fused_results(graph: Graph) -> frozenset[str]:
    """Return the results of fused attention and its kind."""
    fused = (graph.ops[i] for i in forward_ops(graph) if graph.ops[i].kind in _FUSED)
    return frozenset(name for op in fused for name in op.outputs)


def _of_products(graph: Graph, blocks: Iterable[Block]) -> Iterator[list[str]]:
    """Results of the products of weights of each block, in order."""
    for block in blocks:
        ops = (graph.ops[i] for i in block)
        products = (op for op in ops if op.loops is not None and _reads_weights(graph, op))
        yield [name for op in products for name in op.outputs]


def _reads_weights(graph: Graph, op: Op) -> bool:
    return any(graph.tensors[name].role in {Role.WEIGHT, Role.WEIGHT_COPY} for name in op.inputs)


def _kept_bytes(graph: Graph, ops: Container[int]) -> int:
    """Bytes that some forward ops make and the backward pass reads."""
    read = {name for op in graph.ops if op.pass_ is not Pass.FORWARD for name in op.inputs}
    made = {n for i in forward_ops(graph) if i in ops for n in graph.ops[i].outputs if n in read}
    return sum(graph.tensors[n].bytes for n in made if graph.tensors[n].role is Role.ACTIVATION)


def _named(
    ops: Sequence[tuple[int, Op]], depth: int, root: bool = False
) -> list[Sequence[tuple[int, Op]]]:
    """Blocks among ops whose names share their first `depth` numbered prefixes."""
    parts: dict[str, list[tuple[int, Op]]] = defaultdict(list)
    for i, op in ops:
        prefixes = _numbered_prefixes(op.layer)
        if len(prefixes) > depth:
            parts[prefixes[depth]].append((i, op))
    busy = [part for part in parts.values() if _contractions(part)]
    blocks = [part for part in busy if _contractions(part) >= 2]
    covered = sum(map(_contractions, blocks))
    partly = len(blocks) < len(busy) or covered < _MOST * _contractions(ops)
    if not blocks or (partly and not root):
        return [] if root else [ops]
    return [block for part in blocks for block in _named(part, depth + 1)]


def _contractions(ops: Iterable[tuple[int, Op]]) -> int:
    return sum(op.loops is not None for _, op in ops)


@cache
def _numbered_prefixes(layer: str) -> tuple[str, ...]:
    """Prefixes of a layer's name that end in a numbered part: ``a.0.b.1.c`` has a.0 and a.0.b.1."""
    ends = [m.end() for m in re.finditer(r"[^./]*\d[^./]*", layer)]
    return tuple(layer[:end] for end in ends)


def crossing_bytes(graph: Graph) -> list[int]:
    """Return, after each forward op, the bytes that later ones still read of what is made so far.

    Mini-batch, weights and statistics apart.
    """
    order = forward_ops(graph)
    change = [0] * (len(order) + 1)
    for name, (born, died) in _spans(graph, order).items():
        change[born] += graph.tensors[name].bytes
        change[died] -= graph.tensors[name].bytes
    return list(accumulate(change[:-1]))


def cut_places(graph: Graph) -> tuple[int, ...]:
    """Forward ops after which a network is best cut: where a single tensor passes on.

    Besides tensors that pass over more than a quarter of all contractions, as an encoder's output.
    After any forward op, if more than a quarter of all contractions lies between two such places.
    """
    order = forward_ops(graph)
    done = list(accumulate(graph.ops[i].loops is not None for i in order))
    far = max(done[-1] / 4, _FEW)
    change = [0] * (len(order) + 1)
    for born, died in _spans(graph, order).values():
        if done[died] - done[born] <= far:
            change[born] += 1
            change[died] -= 1
    narrow = [at for at, count in enumerate(accumulate(change[:-1])) if count == 1]
    gaps = pairwise([0, *(done[at] for at in narrow), done[-1]])
    few = any(after - before > far for before, after in gaps)
    return order if few else tuple(order[at] for at in narrow)


def _spans(graph: Graph, order: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Positions of the op that writes and of the last op that reads each activation."""
    spans: dict[str, tuple[int, int]] = {}
    for at, i in enumerate(order):
        for name in graph.ops[i].inputs:
            if name in spans:
                spans[name] = (spans[name][0], at)
        for name in graph.ops[i].outputs:
            if graph.tensors[name].role is Role.ACTIVATION:
                spans[name] = (at, at)
    return spans


def _stretches(graph: Graph, runs: Iterable[Sequence[int]]) -> Iterator[Block]:
    """Cut runs of forward ops where little passes on, after every two contractions at least.

    A stretch ends where no more bytes of it pass on than on average of its `cut_places`.
    """
    order, places = forward_ops(graph), set(cut_places(graph))
    position = {i: at for at, i in enumerate(order)}
    spans = _spans(graph, order)
    for run in runs:
        start, sizes, contractions = 0, [], 0
        passing: dict[str, int] = {}  # what the stretch has made, and where it is read last
        for at, i in enumerate(run):
            contractions += graph.ops[i].loops is not None
            passing |= {name: spans[name][1] for name in graph.ops[i].outputs if name in spans}
            passing = {name: last for name, last in passing.items() if last > position[i]}
            if i in places and contractions:
                sizes.append(sum(graph.tensors[name].bytes for name in passing))
                if contractions >= 2 and sizes[-1] * len(sizes) <= sum(sizes):
                    yield tuple(run[start : at + 1])
                    start, sizes, contractions, passing = at + 1, [], 0, {}


def attention_cores(graph: Graph) -> tuple[Block, ...]:
    """Return, for every attention that keeps its scores, the ops from scores to probabilities.

    A core is a softmax, the ops without contraction that lead to it from a contraction of two
    activations (scores of queries and keys), that contraction, the ops without contraction
    (dropout) between the softmax and the contraction that reads it, and this one, whose output is
    kept: "selective activation recomputation" (Korthikanti et al., Reducing activation
    recomputation in large transformer models, MLSys 2023, arXiv:2205.05198, section 5).
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for i in forward_ops(graph):
        for name in graph.ops[i].outputs:
            writer.setdefault(name, i)
        for name in graph.ops[i].inputs:
            readers[name].append(i)
    cores = (_core(graph, i, writer, readers) for i in forward_ops(graph))
    return tuple(core for core in cores if core)


def _core(
    graph: Graph, softmax: int, writer: dict[str, int], readers: dict[str, list[int]]
) -> Block:
    if graph.ops[softmax].kind != "softmax":
        return ()
    core, above = {softmax}, [softmax]
    scores = 0
    while above:
        for name in graph.ops[above.pop()].inputs:
            i = writer.get(name, -1)
            if i < 0 or i in core or graph.tensors[name].role is not Role.ACTIVATION:
                continue
            core.add(i)
            if _forms_scores(graph, graph.ops[i]):
                scores += 1
            elif graph.ops[i].loops is not None:
                return ()  # logits of a router or of a classifier, not of an attention
            else:
                above.append(i)
    below, contexts = [softmax], 0
    while below:
        for name in graph.ops[below.pop()].outputs:
            for i in readers[name]:
                if graph.ops[i].loops is not None:
                    contexts += 1
                elif i not in core:
                    below.append(i)
                core.add(i)
    return tuple(sorted(core)) if scores and contexts else ()


def _forms_scores(graph: Graph, op: Op) -> bool:
    """Whether an op makes scores of queries and keys: one for each pair of their positions."""
    of_activations = all(graph.tensors[name].role is Role.ACTIVATION for name in op.inputs)
    return op.kind == "additive-attention" or (op.loops is not None and of_activations)
