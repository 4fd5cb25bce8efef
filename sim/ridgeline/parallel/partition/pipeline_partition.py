"""Pipeline partition: a training graph split into its stages.

Forward ops are cut between layers (`chain.units`), by time as evenly as can be or where the plan
says; the ops of the backward pass and of the update go with the forward ops of their layer. What an
op reads of another stage has to be sent. Weights that several stages read (tied embeddings) are
held and updated by each of them; the sum of their gradients over the stages is left to a collective
at the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ConfigError
from ridgeline.parallel.checkpointing.ops import once
from ridgeline.parallel.partition.chain import Unit, layer_starts, layers, pass_times, units
from ridgeline.parallel.partition.overheads import Overheads
from ridgeline.parallel.partition.partition_dp import (
    Pace,
    StageLayers,
    balance,
    balance_given,
    balance_step,
    best_cut,
    crowded_share,
    memory_shares,
    step_share,
)
from ridgeline.parallel.partition.stage_of import HELD, copies, places
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass

Cut = Literal["even", "layers", "ends"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Tensors that a stage gets from another one in each micro-batch.

    Attributes
    ----------
    source
        Number of the stage that sends.
    forward
        Whether they are read in the forward pass, or in the backward pass.
    tensors
        Their names.
    """

    source: int
    forward: bool
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class StagePart:
    """What one stage of the pipeline does.

    Attributes
    ----------
    graph
        Its ops, in order, and the tensors that they touch.
    receipts
        What it gets from other stages.
    """

    graph: Graph
    receipts: tuple[Receipt, ...] = ()


@dataclass(frozen=True, slots=True)
class Tie:
    """A weight that several stages hold: by stage, the gradient that each makes of it."""

    weight: str
    gradients: dict[int, str]
    size_bytes: int


@dataclass(frozen=True)
class PipelinePartition:
    """The stages in order, and the weights that they share.

    Attributes
    ----------
    shortest
        Seconds of the pipeline that is cut wherever it ends first, over those of this one.
    memory_shares
        What each stage's device holds, over its capacity, as the cut knows it (`part_memory`);
        empty where they were not cut so.
    shortest_memory_share
        The same of the fullest device of the pipeline that `shortest` is of; 0: not known.
    crowded_share
        By what share the pipeline is longer if all that it sends takes twice as long, where it is
        cut wherever it ends first.
    """

    parts: tuple[StagePart, ...]
    ties: tuple[Tie, ...] = ()
    shortest: float = 1.0
    memory_shares: tuple[float, ...] = ()
    shortest_memory_share: float = 0.0
    crowded_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaShares:
    """Stages with different numbers of replicas, and what their network costs.

    Attributes
    ----------
    replicas
        [K] of every stage.
    sync_s_per_byte
        [K] time of a stage's replicas to make gradients equal, once for each micro-batch of one.
    send_s_per_byte
        [K - 1] time that a byte of each micro-batch takes between two stages.
    """

    replicas: tuple[int, ...]
    sync_s_per_byte: tuple[float, ...]
    send_s_per_byte: tuple[float, ...]


def partition(
    graph: Graph,
    time_s: Sequence[float],
    n_stages: int,
    cut: Cut = "even",
    shares: ReplicaShares | None = None,
    pace: Pace | None = None,
    besides: Overheads | None = None,
) -> PipelinePartition:
    """Cut a graph into stages.

    Parameters
    ----------
    time_s
        Of every op.
    cut
        Where (`Plan.stage_balance`).
    shares
        Of stages with different numbers of replicas.
    pace
        Of a step, which even cuts make as short as can be, and others are compared by; None: only
        stages' times count.
    besides
        What units have besides the work of a micro-batch.

    Raises
    ------
    ConfigError
        If there are more stages than places to cut.
    """
    if n_stages == 1:
        return PipelinePartition((StagePart(graph),))
    found = units(graph)
    if cut == "even":
        parts = [unit.ops for unit in found]
        each_s = pass_times(graph, time_s, parts)
    else:
        parts = layers(graph, found, ends=cut == "ends")
        each_s = np.ones((len(parts), 1))
    if len(parts) < n_stages:
        between = "" if cut == "even" else " between its layers"
        raise ConfigError(
            f"{graph.name} can be cut into {len(parts)} stages at most{between}, but pipeline x "
            f"chunks is {n_stages}; allowed: 1 to {len(parts)}",
            field="plan.pipeline",
        )
    home = [0] * len(graph.ops)
    stages = _balanced(graph, found, parts, each_s, n_stages, cut, shares, pace, besides)
    for number, stage in enumerate(stages):
        for part in parts[stage.first : stage.stop]:
            for i in part:
                home[i] = number
    done = _Cutter(graph, home, n_stages).cut()
    if pace is None:
        return done
    sizes = _sizes(found)
    if cut == "even":
        where = [0, *(stage.stop for stage in stages)]
        return replace(
            done,
            memory_shares=memory_shares(where, pace, besides),
            crowded_share=crowded_share(each_s, where, sizes, pace, besides),
        )
    starts = [*layer_starts(graph, found, ends=cut == "ends"), len(found)]
    where = [*(starts[stage.first] for stage in stages), len(found)]
    each_s = pass_times(graph, time_s, [unit.ops for unit in found])
    best = best_cut(each_s, n_stages, sizes, pace, besides)
    return replace(
        done,
        shortest=step_share(each_s, (best, where), sizes, pace, besides),
        shortest_memory_share=max(memory_shares(best, pace, besides), default=0.0),
    )


def _sizes(found: Sequence[Unit]) -> list[int]:
    return [unit.send_bytes for unit in found]


def _balanced(
    graph: Graph,
    found: Sequence[Unit],
    parts: Sequence[tuple[int, ...]],
    each_s: npt.NDArray[np.float64],
    n_stages: int,
    cut: Cut,
    shares: ReplicaShares | None,
    pace: Pace | None,
    besides: Overheads | None,
) -> tuple[StageLayers, ...]:
    if shares is None and pace is not None and cut == "even":
        return balance_step(each_s, n_stages, _sizes(found), pace, besides)
    weights = each_s.sum(axis=1).tolist()
    if shares is None:
        return balance(weights, n_stages)
    if cut != "even":  # so many layers of every stage's replicas together
        none = np.zeros((len(parts), n_stages))
        return balance_given(weights, shares.replicas, send_s=none[:, 1:], sync_s=none)
    gradients = weight_gradients(graph).values()
    made = {name: graph.tensors[name].bytes for name in gradients}
    summed = [
        sum(made.get(name, 0) for i in unit.ops for name in graph.ops[i].outputs) for unit in found
    ]
    return balance_given(
        weights,
        shares.replicas,
        send_s=np.outer([unit.send_bytes for unit in found], shares.send_s_per_byte),
        sync_s=np.outer(summed, shares.sync_s_per_byte),
    )


class _Cutter:
    def __init__(self, graph: Graph, home: Sequence[int], n_stages: int) -> None:
        self.graph, self.home, self.n_stages = graph, home, n_stages
        self.ops: list[list[Op]] = [[] for _ in range(n_stages)]
        self.copied: dict[str, Op] = {}  # copies of weights: the op that makes them
        self.held: list[set[str]] = [set() for _ in range(n_stages)]
        self.made_by: dict[str, int] = {}
        self.read: list[set[str]] = [set() for _ in range(n_stages)]  # in the forward pass
        # of a gradient whose sum over stages is open: by stage, what it has of it; and the same
        # of what it was made of, before the ops of the update
        self.shares: dict[str, dict[int, str]] = {}
        self.reduced: dict[str, dict[int, str]] = {}
        self.tied: dict[str, dict[int, str]] = {}

    def cut(self) -> PipelinePartition:
        """Give every stage its ops."""
        of_ops = places(self.graph, self.home)
        for op, stage in zip(self.graph.ops, of_ops, strict=True):
            if op.pass_ is Pass.WEIGHT_GRADIENT and op.kind == "add":
                self._sum(op, stage)
            elif any(name in self.shares for name in op.inputs):
                self._spread(op)
            elif copies(op, self.graph):
                self.copied[op.outputs[0]] = op  # made where it is read
            else:
                self._put(op, stage)
        ties = tuple(
            Tie(weight, stages, self.graph.tensors[next(iter(stages.values()))].bytes)
            for weight, stages in self.tied.items()
        )
        return PipelinePartition(tuple(self._part(stage) for stage in range(self.n_stages)), ties)

    def _put(self, op: Op, stage: int) -> None:
        """Add an op; copies of weights that it reads are made on its own stage."""
        for name in op.inputs:
            copy = self.copied.get(name)
            if copy is not None and name not in self.held[stage]:
                self._put(copy, stage)
        if op.pass_ is Pass.FORWARD:
            self.read[stage].update(op.inputs)
        else:
            inputs = tuple(self._kept(name, stage) for name in op.inputs)
            op = op if inputs == op.inputs else replace(op, inputs=inputs)
        self.held[stage].update(op.outputs)
        self.ops[stage].append(op)
        for name in op.outputs:
            if self.graph.tensors[name].role not in HELD:
                self.made_by.setdefault(name, stage)

    def _kept(self, name: str, stage: int) -> str:
        """Take what a stage has received, and keeps, for what another stage computes again.

        A stage would otherwise wait for another one's backward pass.
        """
        first = once(name)
        elsewhere = first != name and self.made_by.get(name, stage) != stage
        return first if elsewhere and first in self.read[stage] else name

    def _sum(self, op: Op, stage: int) -> None:
        """Add gradients of a weight; those of different stages stay apart."""
        parts: dict[int, list[str]] = {}
        for name in op.inputs:
            alone = {self.made_by.get(name, stage): name}
            for where, part in self.shares.get(name, alone).items():
                parts.setdefault(where, []).append(part)
        if len(parts) == 1:
            self._put(op, next(iter(parts)))
            return
        (total,) = op.outputs
        self.shares[total] = {}
        for where, names in parts.items():
            self.shares[total][where] = names[0]
            if len(names) > 1:
                self._put(replace(op, inputs=tuple(names)), where)
                self.shares[total][where] = total

    def _spread(self, op: Op) -> None:
        """Do an op on every stage that has a share of the gradient that it reads."""
        open_ = next(name for name in op.inputs if name in self.shares)
        shares = self.shares[open_]
        for stage, name in shares.items():
            renamed = tuple(name if n == open_ else n for n in op.inputs)
            self._put(replace(op, inputs=renamed), stage)
        if op.kind == "optimizer":
            self.tied[op.inputs[0]] = self.reduced.get(open_, shares)
            return
        for output in op.outputs:
            self.shares[output] = dict.fromkeys(shares, output)
            if op.pass_ is Pass.UPDATE:
                self.reduced[output] = self.reduced.get(open_, shares)

    def _part(self, stage: int) -> StagePart:
        ops = tuple(self.ops[stage])
        made = {name for op in ops for name in op.outputs}
        wanted: dict[tuple[int, bool], list[str]] = {}
        got: set[str] = set()
        for op in ops:
            for name in op.inputs:
                if name in made or name in got or self.graph.tensors[name].role in HELD:
                    continue
                got.add(name)
                key = (self.made_by[name], op.pass_ is Pass.FORWARD)
                wanted.setdefault(key, []).append(name)
        used = dict.fromkeys(name for op in ops for name in (*op.inputs, *op.outputs))
        graph = replace(
            self.graph, ops=ops, tensors={name: self.graph.tensors[name] for name in used}
        )
        receipts = [Receipt(*key, tuple(names)) for key, names in wanted.items()]
        return StagePart(graph, tuple(receipts))
