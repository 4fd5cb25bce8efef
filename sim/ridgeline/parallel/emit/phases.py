"""What a stage does when: at the beginning, forward, backward, gradients of weights, updates."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ridgeline.kernels.cache_residency import makes_weights
from ridgeline.parallel.emit.microbatch_instances import BACKWARD, BEGIN, END, FORWARD, WEIGHTS
from ridgeline.parallel.emit.zero import SHARD
from ridgeline.parallel.sharding.shard import COLLECTIVES
from ridgeline.workload.graph import Graph, Op, Pass, Same


def phases_of(
    graph: Graph, splits: bool, sent: frozenset[str] = frozenset()
) -> dict[int, list[int]]:
    """Ops of a part by phase, in order.

    Where the backward pass is split, what it reads of the gradients of weights is made in it, and
    so is what other parts get of it (`sent`), which do not wait for gradients of weights.
    """
    phase_of = [END] * len(graph.ops)
    read = set(sent)  # by the ops of the backward pass that follow
    later = _after_a_backward_pass(graph)
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        if op.pass_ is Pass.FORWARD:
            phase_of[i] = BEGIN if _begins(op, graph) else BACKWARD if i > later else FORWARD
        elif op.pass_ is not Pass.UPDATE:
            waits = splits and op.pass_ is Pass.WEIGHT_GRADIENT and read.isdisjoint(op.outputs)
            phase_of[i] = WEIGHTS if waits else BACKWARD
            if not waits:
                read.update(op.inputs)
    phases: dict[int, list[int]] = {p: [] for p in (BEGIN, FORWARD, BACKWARD, WEIGHTS, END)}
    for i, phase in enumerate(phase_of):
        phases[phase].append(i)
    return {phase: ops for phase, ops in phases.items() if ops}


def _after_a_backward_pass(graph: Graph) -> int:
    """Where the first of several backward passes begins: forward ops behind it stay there."""
    ops = enumerate(graph.ops) if graph.backwards else ()
    backward = {Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT}
    return next((i for i, op in ops if op.pass_ in backward), len(graph.ops))


@lru_cache(maxsize=64)
def as_played(same: Same, sent: frozenset[str]) -> Graph:
    """Put the gradients of weights behind the backward pass: so long does what they read live."""
    graph = same.graph
    order = [i for ops in phases_of(graph, True, sent).values() for i in ops]
    return replace(graph, ops=tuple(graph.ops[i] for i in order))


def sends(op: Op) -> bool:
    """Whether an op is a collective."""
    return op.kind in COLLECTIVES


def _begins(op: Op, graph: Graph) -> bool:
    """Whether an op of the forward pass makes or gathers weights: done once a step."""
    return makes_weights(op, graph) or bool(op.outputs and op.outputs[0].endswith(SHARD))
