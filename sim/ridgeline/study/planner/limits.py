"""What a model allows: how often it can be cut, and by how many devices its parts can be shared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ridgeline.errors import RidgelineError
from ridgeline.parallel.recompute import Mode
from ridgeline.parallel.recompute_blocks import attention_cores
from ridgeline.parallel.shard import shard
from ridgeline.study.planner.few import Few, n_units
from ridgeline.study.planner.space import divisors
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.model import Model


@dataclass(frozen=True)
class Limits:
    """Limits of a model on so many devices, found with the few layers that tell of it."""

    model: Model
    few: Few
    precision: str
    devices: int

    @cached_property
    def graph(self) -> Graph:
        """The smallest training step that is divided as the whole is."""
        return self.few.smallest.training(1, self.precision)

    @property
    def max_stages(self) -> int:
        """Parts that a pipeline can cut the model into."""
        return n_units(self.model, self.precision)

    @property
    def n_ops(self) -> int:
        """Ops of what tells of the model."""
        return len(self.graph.ops)

    @cached_property
    def n_ops_of_all(self) -> int:
        """Ops of the whole model."""
        return len(self.model.training(1, self.precision).ops)

    def divides(self, tensor: int) -> bool:
        """Whether the model's heads can be shared by so many devices."""
        try:
            shard(self.graph, tensor)
        except RidgelineError:
            return False
        return True

    def expert_degrees(self) -> list[int]:
        """By how many ranks the model's experts can be shared; 1: it has none."""
        sent = (op for op in self.graph.ops if op.kind == "dispatch" and op.pass_ is Pass.FORWARD)
        found = math.gcd(*(self.graph.tensors[op.outputs[0]].shape[0] for op in sent))
        return divisors(found) if found else [1]

    def contexts(self) -> list[tuple[int, int]]:
        """By how many ranks positions can be shared, and whether in a ring; (1, 0): by one."""
        modes = (0, 1) if any(op.kind == "flash-attention" for op in self.graph.ops) else (0,)
        found = [(1, 0)]
        for n in divisors(self.devices)[1:] if self.graph.tokens_per_sample else ():
            try:
                shard(self.graph, n, dimension="context")
            except RidgelineError:
                continue
            found += [(n, ring) for ring in modes]
        return found

    def recomputations(self) -> list[Mode]:
        """Return what the model can compute again: scores of attention only where there is any.

        Stretches of layers (sqrt) only where layers are not all alike: how long they are depends on
        how many layers there are, of which a few would tell nothing.
        """
        some = attention_cores(self.graph)
        modes: list[Mode] = ["none", "selective", "full"] if some else ["none", "full"]
        return modes if self.few.fewer else [*modes, "sqrt"]
