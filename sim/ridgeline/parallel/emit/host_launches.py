"""Host launches: the host issues the kernels of a device one after another.

A framework that runs op by op spends some time of one processor core on each (Python, dispatch,
autograd, the driver's launch), ahead of the device. While ops are longer than that, nothing is seen
of it; a step of small ops takes as long as issuing them. Ops are issued a few at a time here, which
is what a block's program grows by.

A mixture's products have as many rows as the router gives each expert, which only the device knows.
A library without a kernel for all of them waits for these numbers, then issues the product of each
expert, and before it the kernels that convert its rows: Transformer Engine up to 2.14 is given them
as a list of the host (`GroupedLinear`, `m_splits`). A public profile of Nemotron 3 Super on GH200
(GeodesicResearch, 120b-gbs64-host-overhead-investigation) counts one kernel for each expert, and
its steps became 42 us shorter for each where one kernel took their place: an op, on this host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.engine.blocks import Block
from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role
from ridgeline.workload.ops.routing import DISPATCH

ISSUE = "issue"
"""Kind of the host's tasks."""
HOST = "host"
"""Name of the queue of a rank's host thread."""
_TOGETHER = 8
_OF_ROWS = frozenset({"gemm", "quantise"})
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


def experts_of(graph: Graph) -> dict[str, int]:
    """Return the ops that multiply rows of experts, or convert them for that, and of how many.

    Weights are left out: they are converted once a step.
    """
    layers = {
        op.layer: op.loops.batch
        for op in graph.ops
        if op.pass_ is Pass.FORWARD and isinstance(op.loops, Gemm) and op.loops.batch > 1
        if graph.tensors[op.inputs[1]].role in _WEIGHTS
    }
    return {
        op.name: layers[op.layer]
        for op in graph.ops
        if op.layer in layers and op.kind in _OF_ROWS
        if graph.tensors[op.outputs[0]].role is not Role.WEIGHT_COPY
    }


@dataclass
class HostEmitter:
    """Writes the host's tasks of all blocks.

    Attributes
    ----------
    issue_s
        Of one op; 0 where the host is never waited for.
    waits
        Whether the host waits for the device before every block, as Megatron-LM does around the
        messages of a pipeline.
    updating
        Time to issue an op of an update, over that of another.
    apart
        Whether the products of experts are issued one by one, as soon as their rows are known.
    """

    builder: ProgramBuilder
    issue_s: float
    waits: bool
    updating: float
    apart: bool = False

    def row(self, count: float) -> int:
        """Return the cost row of issuing so many ops."""
        return self.builder.add_cost([WorkPhase(count * self.issue_s, {})], {})

    def experts(self, graph: Graph) -> dict[str, int]:
        """Return the ops that it issues once for each of some experts, and of how many."""
        return experts_of(graph) if self.apart else {}


@dataclass
class Issuing:
    """The host's queues while one block is written.

    Attributes
    ----------
    streams, multiplicity
        The host's queue of each simulated rank, and how many real ranks each stands for.
    after
        By rank, what the host waits for before it begins.
    experts
        Ops that it issues for each of so many experts.
    final
        Name of the last op.
    awaited
        Whether the host waits for the op that it issued last before it issues another.
    """

    host: HostEmitter
    block: Block
    streams: Sequence[int]
    multiplicity: Sequence[int]
    after: Sequence[Sequence[int]]
    pending: float = 0.0
    experts: Mapping[str, int] = field(default_factory=dict)
    final: str = ""
    awaited: bool = False

    def begin(self, graph: Graph, ops: Sequence[int]) -> None:
        """Say which ops of a graph it will issue, in order."""
        self.experts = self.host.experts(graph)
        self.final = graph.ops[ops[-1]].name if ops else ""

    def issue(self, op: Op, done: Sequence[int]) -> list[tuple[int, ...]]:
        """Issue an op, when the one before is at these places; return what it has to wait for."""
        if self.awaited:
            self.after = [(*after, place) for after, place in zip(self.after, done, strict=True)]
        self.awaited = self.host.apart and op.kind == DISPATCH.name and op.priced_as is Pass.FORWARD
        times = self.host.updating if op.pass_ is Pass.UPDATE else self.experts.get(op.name, 1)
        last = op.name == self.final or self.awaited
        return self.add(op.name, last=last, count=op.kernels * times)

    def add(self, label: str, *, last: bool, count: float = 1.0) -> list[tuple[int, ...]]:
        """Issue one more op, or so many; return by rank what it has to wait for."""
        self.pending += count
        if self.pending < _TOGETHER and not last:
            return [()] * len(self.streams)
        row = self.host.row(self.pending)
        places = [
            self.host.builder.add_to_block(
                self.block,
                ISSUE,
                label,
                cost=row,
                stream=stream,
                deps=deps,
                multiplicity=many,
            )
            for stream, deps, many in zip(self.streams, self.after, self.multiplicity, strict=True)
        ]
        self.pending = 0.0
        self.after = [(place,) for place in places]
        return [(place,) for place in places]
