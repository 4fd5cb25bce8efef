"""Recomputation of a network as a chain of parts: some kept, some done again, once or more often.

The parts lie between the places where a network is best cut. A state is what one part passes to the
next. What passes over more than one part (the skips of a U-Net, an encoder's output) is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import (
    Block,
    attention_cores,
    cut_places,
    forward_blocks,
    forward_ops,
)
from ridgeline.parallel.checkpointing.ops import (
    Recomputation,
    done_again,
    first_reads,
    insides,
    needed,
    recompute_blocks,
    replay,
)
from ridgeline.parallel.checkpointing.revolve import Action, ForwardChain, best_reversal
from ridgeline.units import show
from ridgeline.workload.graph import Graph, Op, Pass, Role
from ridgeline.workload.liveness import lifetimes, memory_entries, peak

_MOST_PARTS = 64  # of a chain: the dynamic program takes their cube
_TRIES = 9  # bisections of the memory that the chain may plan with
_CLOSE = 0.01  # of the budget: then no more are needed


class DoesNotFit(RidgelineError):
    """Nothing that is tried makes a step fit into memory."""


@dataclass(frozen=True)
class Parts:
    """A graph cut into parts, in order.

    Attributes
    ----------
    ops
        Forward ops of each part.
    inside
        Activations that only the part's own ops read in the forward pass.
    passed
        Activations that it passes to the next part and no further.
    read
        First op after the forward pass that reads a tensor.
    begin
        First op of each part's backward pass; None if it has none.
    """

    ops: tuple[Block, ...]
    inside: tuple[frozenset[str], ...]
    passed: tuple[frozenset[str], ...]
    read: dict[str, int]
    begin: tuple[int | None, ...]


def parts_of(graph: Graph, places: Sequence[int], most: int = _MOST_PARTS) -> Parts:
    """Cut a training graph into at most so many parts that keep about the same number of bytes."""
    order, read = forward_ops(graph), first_reads(graph)
    kept = {
        i: sum(
            graph.tensors[name].bytes
            for name in graph.ops[i].outputs
            if name in read and graph.tensors[name].role is Role.ACTIVATION
        )
        for i in order
    }
    share, ends = sum(kept.values()) / most, set(places)
    blocks: list[Block] = []
    start = held = 0
    for at, i in enumerate(order):
        held += kept[i]
        if i in ends and held >= share and len(blocks) < most - 1:
            blocks.append(order[start : at + 1])
            start, held = at + 1, 0
    if start < len(order):
        blocks.append(order[start:])
    inside = tuple(insides(graph, blocks))
    begin = _begin(graph, blocks, inside, read)
    return Parts(tuple(blocks), inside, _passed(graph, blocks), read, begin)


def _begin(
    graph: Graph,
    blocks: Sequence[Block],
    inside: Sequence[frozenset[str]],
    read: Mapping[str, int],
) -> tuple[int | None, ...]:
    """Find the first backward op of the layers of each part, or that reads its inside."""
    home = {graph.ops[i].layer: k for k, block in enumerate(blocks) for i in block}
    firsts = [[read[name] for name in names if name in read] for names in inside]
    for i, op in enumerate(graph.ops):
        if op.pass_ in {Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT} and op.layer in home:
            firsts[home[op.layer]].append(i)
    return tuple(min(first, default=None) for first in firsts)


def _passed(graph: Graph, blocks: Sequence[Block]) -> tuple[frozenset[str], ...]:
    """For every part, what only the next one reads of what it made."""
    home = {i: number for number, block in enumerate(blocks) for i in block}
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, number in home.items():
        for name in graph.ops[i].inputs:
            last[name] = number
        for name in graph.ops[i].outputs:
            if graph.tensors[name].role is Role.ACTIVATION:
                made[name] = number
    return tuple(
        frozenset(n for n, at in made.items() if at == number and last.get(n, at) == number + 1)
        for number in range(len(blocks))
    )


def sqrt_stretches(graph: Graph) -> tuple[Block, ...]:
    """Cut a chain where checkpoints and the longest stretch together are smallest.

    Of n equal parts that is √n stretches. Chen et al., 2016, algorithm 3: stretches are closed when
    they have reached a size, for the best of all sizes.
    """
    parts = parts_of(graph, cut_places(graph))
    chain = chain_of(graph, parts, [0.0] * len(graph.ops))
    sizes = [keep + state for keep, state in zip(chain.keep_bytes, chain.state_bytes, strict=True)]
    best: tuple[float, list[list[int]]] = (math.inf, [])
    for count in range(1, len(sizes) + 1):
        stretches: list[list[int]] = [[]]
        held, limit = 0.0, sum(sizes) / count * (1 + 1e-9)
        for k, size in enumerate(sizes):
            if stretches[-1] and held + size > limit:
                stretches.append([])
                held = 0.0
            stretches[-1].append(k)
            held += size
        states = sum(chain.state_bytes[stretch[0]] for stretch in stretches)
        longest = max(sum(sizes[k] for k in s) - chain.state_bytes[s[0]] for s in stretches)
        best = min(best, (states + longest, stretches))
    return tuple(tuple(i for k in stretch for i in parts.ops[k]) for stretch in best[1])


def chain_of(graph: Graph, parts: Parts, time_s: Sequence[float] | None) -> ForwardChain:
    """Describe the parts as steps of a chain; without times, the work of an op is its FLOPs."""
    work = [_flops(op) for op in graph.ops] if time_s is None else time_s
    size = {name: t.bytes for name, t in graph.tensors.items()}
    state = [0.0] + [float(sum(size[n] for n in passed)) for passed in parts.passed[:-1]]
    keep = [float(sum(size[n] for n in part if n in parts.read)) for part in parts.inside]
    step = _step_bytes(graph, parts)
    return ForwardChain(
        advance=[sum(work[i] for i in _advance(graph, parts, k).ops) for k in range(len(keep))],
        turn=[sum(work[i] for i in _turn(graph, parts, k).ops) for k in range(len(keep))],
        whole=[sum(work[i] for i in _whole(graph, parts, k).ops) for k in range(len(keep))],
        state_bytes=state,
        keep_bytes=keep,
        turn_bytes=[max(both) for both in zip(_turn_bytes(graph, parts), step, strict=True)],
        step_bytes=step,
    )


def _flops(op: Op) -> float:
    return float(op.matrix_flops + op.vector_flops)


def _advance(graph: Graph, parts: Parts, k: int) -> Recomputation:
    """Do a part again for what it passes on."""
    return needed(graph, parts.ops[k], parts.inside[k] | parts.passed[k], parts.passed[k])


def _turn(graph: Graph, parts: Parts, k: int) -> Recomputation:
    """Do a part again for its backward pass."""
    return needed(graph, parts.ops[k], parts.inside[k], parts.read)


def _whole(graph: Graph, parts: Parts, k: int) -> Recomputation:
    """Do a part again for both."""
    both = {*parts.read, *parts.passed[k]}
    return needed(graph, parts.ops[k], parts.inside[k] | parts.passed[k], both)


def _step_bytes(graph: Graph, parts: Parts) -> list[float]:
    """For every part, the most bytes of what it makes while it is done forward."""
    forward = replace(graph, ops=tuple(op for op in graph.ops if op.pass_ is Pass.FORWARD))
    order = {i: at for at, i in enumerate(forward_ops(graph))}
    spans = lifetimes(forward)
    most = []
    for ops in parts.ops:
        change: Counter[int] = Counter()
        for name in {name for i in ops for name in graph.ops[i].outputs}:
            if name in spans and graph.tensors[name].role is Role.ACTIVATION:
                change[spans[name][0]] += graph.tensors[name].bytes
                change[spans[name][1] + 1] -= graph.tensors[name].bytes
        held = accumulate(change[order[i]] for i in ops)
        most.append(float(max(held)))
    return most


def _turn_bytes(graph: Graph, parts: Parts) -> list[float]:
    """For every part, the most bytes while its backward ops run.

    Gradients of activations, gradients of weights that are there by then, and what the ops still
    read of what the part itself made.
    """
    own = [inside | passed for inside, passed in zip(parts.inside, parts.passed, strict=True)]
    last = {name: 0 for names in own for name in names}
    for i, op in enumerate(graph.ops):
        last |= {name: i for name in op.inputs if name in last}
    begins = {at: k for k, at in enumerate(parts.begin)}
    most, gradients, k = [0.0] * len(own), 0, len(own) - 1
    for i, entries in enumerate(memory_entries(graph).entries):
        k = begins.get(i, k)
        moving = [e for e in entries if e.kind in {"gradients", "workspace"}]
        gradients += sum(e.start_bytes for e in moving)
        if graph.ops[i].pass_ is not Pass.FORWARD:
            read = sum(graph.tensors[n].bytes for n in own[k] if last[n] >= i and n in parts.read)
            most[k] = max(most[k], float(gradients + read))
        gradients += sum(e.end_bytes for e in moving)
    return most


def with_slots(graph: Graph, slots: int | None, time_s: Sequence[float] | None) -> Graph:
    """Recompute as revolve does: with at most so many states, each part kept for its turn only."""
    parts = parts_of(graph, cut_places(graph))
    chain = chain_of(graph, parts, time_s)
    n = len(parts.ops)
    slots = math.isqrt(n) if slots is None else slots
    if slots < 1:
        raise RidgelineError(f"recompute: optimal needs at least 1 slot, not {slots}")
    nothing = [0.0] * n
    equal = ForwardChain(
        chain.advance, chain.turn, chain.whole, [1.0] * n, [math.inf] * n, nothing, nothing
    )
    reversal = best_reversal(equal, slots, levels=slots)
    assert reversal is not None  # a state at a time always does
    return _carried_out(graph, parts, reversal.actions)


def within_budget(graph: Graph, budget_bytes: float, time_s: Sequence[float] | None) -> Graph:
    """Recompute as little as it takes for the step to fit.

    The graph is cut at its narrow places, and anywhere, since either can be better; what is simply
    recomputed once, by blocks or by √n, is tried too.
    """
    if peak(graph).total <= budget_bytes:
        return graph
    work = [_flops(op) for op in graph.ops] if time_s is None else time_s
    before = {op.name: seconds for op, seconds in zip(graph.ops, work, strict=True)}
    tried = [
        recompute_blocks(graph, blocks)
        for blocks in (forward_blocks(graph), attention_cores(graph), sqrt_stretches(graph)[:-1])
    ]
    for places in dict.fromkeys((cut_places(graph), forward_ops(graph))):
        tried += _fitted(graph, parts_of(graph, places), budget_bytes, time_s)
    peaks = [peak(each).total for each in tried]
    fitting = [each for each, total in zip(tried, peaks, strict=True) if total <= budget_bytes]
    if not fitting:
        raise DoesNotFit(
            f"{graph.name}: no recomputation fits into {show(float(budget_bytes), 'B', 4)}; "
            f"the least found is {show(float(min(peaks)), 'B', 4)}"
        )
    return min(fitting, key=lambda each: sum(before[name] for name in done_again(each)))


def _fitted(
    graph: Graph, parts: Parts, budget_bytes: float, time_s: Sequence[float] | None
) -> Iterator[Graph]:
    """Give the graphs that are tried on the way to the one that just fits.

    The chain plans with the bytes of its states, of what it keeps and of gradients. What else is
    there for a moment, only the finished graph shows; so the memory that the chain plans with is
    sought by bisection.
    """
    chain = chain_of(graph, parts, time_s)
    low, high = 0.0, float(peak(graph).total)
    for _ in range(_TRIES):
        planned = (low + high) / 2
        reversal = best_reversal(chain, planned)
        if reversal is None:
            low = planned
            continue
        changed = _carried_out(graph, parts, reversal.actions)
        total = peak(changed).total
        yield changed
        if total > budget_bytes:
            high = planned
        else:
            low = planned
            if total > (1 - _CLOSE) * budget_bytes:
                return


def _carried_out(graph: Graph, parts: Parts, actions: Sequence[Action]) -> Graph:
    """Insert what the actions do again before the backward ops that they are for."""
    before: dict[int, list[Recomputation]] = {}
    waiting: list[Recomputation] = []
    seen = -1
    for what, k in actions:
        if what == "backward":
            at = parts.begin[k]
            if at is not None and waiting:
                before.setdefault(at, []).extend(waiting)
                waiting = []
            continue
        if k > seen:
            seen = k
            continue
        make = {"advance": _advance, "whole": _whole, "turn": _turn}[what]
        repeat = make(graph, parts, k)
        if repeat.ops:
            waiting.append(repeat)
    return replay(graph, before)
