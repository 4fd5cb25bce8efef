"""Ring attention: keys and values travel round the devices of "context" instead of being gathered.

Liu et al., Ring attention with blockwise transformers for near-infinite context, 2023,
arXiv:2310.01889, Section 3: each of c devices has the queries, keys and values of its positions. In
c steps it computes the attention of its queries to one block of keys and values while that block is
on its way to the next device. What the steps give is merged by the sums of their rows, which fused
attention keeps anyway. In the backward pass keys and values go round again, and the gradients of a
block go on with it, so that every device adds its part; what the block's own device adds waits
there, and c-1 hops bring them home, as the ring of a reduce-scatter does.

Causal masks: positions lie in a zig-zag (device i has the i-th and the i-th last of 2c parts; Llama
3, 2024, arXiv:2407.21783, Section 3.3.2; Megatron-Core), so that every step but the first, that on
the diagonal, computes half of its scores on every device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.axes import base, forward_name
from ridgeline.workload.builder import settle
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, free_name
from ridgeline.workload.ops.attention import FLASH, MERGE, OFF_DIAGONAL

HOP = "send-recv"
"""Kind of the ops that pass a block on to the next device, and take that of the one before."""
_UNFUSED = frozenset({"attention-scores", "attention-context", "additive-attention", "matmul"})


def with_rings(graph: Graph, degree: int) -> Graph:
    """Let keys and values go round `degree` devices, where fused attention reads gathered ones.

    Parameters
    ----------
    graph
        What one of the devices does, as `shard` divides it by "context".

    Raises
    ------
    ConfigError
        If attention is not fused, or a causal mask can not be shared evenly.
    """
    return graph if degree == 1 else _Rings(graph, degree).result()


class _Rings:
    def __init__(self, graph: Graph, degree: int) -> None:
        self.graph, self.degree = graph, degree
        self.tensors = dict(graph.tensors)
        self.readers: dict[str, list[Op]] = defaultdict(list)
        for op in graph.ops:
            for name in op.inputs:
                self.readers[name].append(op)
        moves = [op for op in graph.ops if ("dimension", "context") in op.attrs]
        self.gathers = {op.outputs[0]: op for op in moves if op.kind == "all-gather"}
        self.scatters = {op.inputs[0]: op for op in moves if op.kind == "reduce-scatter"}
        self.gone: set[str] = set()  # collectives that are no longer needed

    def result(self) -> Graph:
        """Return the graph with all steps and hops."""
        ops: list[Op] = []
        for op in self.graph.ops:
            ops += self._steps(op) if self._is_ring(op) else (op,)
        ops = [op for op in ops if op.name not in self.gone]
        read = {name for op in ops for name in op.inputs}
        ops = [op for op in ops if op.name not in self.gathers or op.name in read]
        there = {name for op in ops for name in (*op.inputs, *op.outputs)}
        unused = {name for op in self.graph.ops for name in (*op.inputs, *op.outputs)} - there
        tensors = {name: of for name, of in self.tensors.items() if name not in unused}
        return replace(self.graph, tensors=tensors, ops=settle(ops, tensors))

    def _is_ring(self, op: Op) -> bool:
        """Whether an op is fused attention to keys and values of all devices."""
        gathered = [name for name in op.inputs if name in self.gathers]
        if op.kind in _UNFUSED and gathered:
            raise ConfigError(
                f"cp_comm_type=ring needs fused attention, and {op.layer!r} of {self.graph.name} is"
                f" done by separate ops ({op.kind}); allowed: gather, or a model whose attention"
                " has kernel: flash",
                field="plan.cp_comm_type",
            )
        return op.kind == FLASH.name and bool(gathered)

    def _steps(self, op: Op) -> Iterator[Op]:
        assert isinstance(op.loops, Gemm)
        if len(op.inputs) > 6:
            raise ConfigError(
                f"cp_comm_type=ring has no gradient of the sums of {op.layer!r}, which its sinks"
                " need; allowed: all-gather",
                field="plan.cp_comm_type",
            )
        if op.met_share < 1:
            raise ConfigError(
                f"cp_comm_type=ring hands the keys of all devices around, and {op.layer!r} meets"
                " only those of a window or chunk, which is not modelled; allowed: all-gather",
                field="plan.cp_comm_type",
            )
        if op.causal and op.loops.n % (2 * self.degree):
            raise ConfigError(
                f"cp_comm_type=ring shares a causal mask in {2 * self.degree} parts (a zig-zag), "
                f"which do not divide the {op.loops.n} positions of {op.layer!r}; allowed: gather",
                field="plan.cp_comm_type",
            )
        return self._forward(op) if op.pass_ is Pass.FORWARD else self._backward(op)

    def _part(self, op: Op, step: int, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Op:
        """Return one step of attention: its share of the keys."""
        assert isinstance(op.loops, Gemm)
        of = forward_name(op)
        return replace(
            op,
            name=f"{of}.step{step}{op.name.removeprefix(of)}",
            inputs=inputs,
            outputs=outputs,
            loops=replace(op.loops, n=op.loops.n // self.degree),
            vector_flops=-(-op.vector_flops // self.degree),
            recomputed_flops=-(-op.recomputed_flops // self.degree),
            attrs=(*op.attrs, (OFF_DIAGONAL, 1)) if step else op.attrs,
        )

    def _forward(self, op: Op) -> Iterator[Op]:
        query, *held = op.inputs[0], *self._own(op)
        done: tuple[str, ...] = ()
        for step in range(self.degree):
            ahead = [self._hop(op, name) for name in held] if step + 1 < self.degree else []
            yield from ahead
            last = step + 1 == self.degree
            found = tuple(self._like(f"{name}.step{step}", name) for name in op.outputs)
            yield self._part(op, step, (query, *held), found)
            if step:
                kept = tuple(self._like(f"{name}.to-step{step}", name) for name in op.outputs)
                yield self._merged(op, done, found, op.outputs if last else kept)
                done = kept
            else:
                done = found
            held = [hop.outputs[0] for hop in ahead]

    def _merged(
        self, op: Op, done: tuple[str, ...], found: tuple[str, ...], into: tuple[str, ...]
    ) -> Op:
        return Op(
            f"{found[0]}.merge",
            MERGE.name,
            op.pass_,
            op.layer,
            (*done, *found),
            into,
            vector_flops=MERGE.forward.of(self.tensors[into[0]].elements),
            input_passes=(1,) * 4,
            in_place=True,
        )

    def _backward(self, op: Op) -> Iterator[Op]:
        """Compute with every block; its gradients go on behind it, those of queries stay."""
        query, _, _, *rest = op.inputs
        held = self._own(op)
        keys = {base(name) for name in op.inputs[1:3]}
        homes = {name: self._home(op, name) for name in op.outputs if base(name) in keys}
        first: dict[str, str] = {}
        so_far: dict[str, str] = {}  # of queries: their sum; of a block: what came with it
        for step in range(self.degree):
            ahead = [self._hop(op, name) for name in held] if step + 1 < self.degree else []
            yield from ahead
            shapes = {name: homes.get(name, name) for name in op.outputs}
            found = {n: self._like(f"{base(n)}.grad", like) for n, like in shapes.items()}
            yield self._part(op, step, (query, *held, *rest), tuple(found.values()))
            held = [hop.outputs[0] for hop in ahead]
            for name, part in found.items():
                if not step:
                    (first if name in homes else so_far)[name] = part
                    continue
                if name in so_far:
                    last = name not in homes and step + 1 == self.degree
                    add = self._sum(op, so_far[name], part, name if last else None)
                    yield add
                    part = add.outputs[0]  # noqa: PLW2901  what is known of it now
                so_far[name] = part
            for name in homes:
                if step:
                    hop = self._hop(op, so_far[name])
                    yield hop
                    so_far[name] = hop.outputs[0]
        for name, home in homes.items():
            yield self._sum(op, first[name], so_far[name], home)

    def _own(self, op: Op) -> list[str]:
        """Return the keys and values of the device's own positions."""
        alone = [name for name in op.inputs[1:3] if name not in self.gathers]
        if alone:
            raise ConfigError(
                f"cp_comm_type=ring needs keys and values of the same positions, and every device "
                f"has {alone[0]!r} whole; allowed: gather",
                field="plan.cp_comm_type",
            )
        return [self.gathers[name].inputs[0] for name in op.inputs[1:3]]

    def _home(self, op: Op, gradient: str) -> str:
        """Return what the scattered sum of a gradient of keys or values is called."""
        scatter = self.scatters.get(gradient)
        if scatter is None or len(self.readers[gradient]) != 1:
            raise ConfigError(
                f"cp_comm_type=ring needs keys and values that only {op.layer!r} reads; allowed: "
                "gather",
                field="plan.cp_comm_type",
            )
        self.gone.add(scatter.name)
        return scatter.outputs[0]

    def _hop(self, op: Op, name: str) -> Op:
        new = self._like(f"{name}.{HOP}", name)
        size = self.tensors[name].bytes
        attrs = (("dimension", "context"), ("size_bytes", size), ("repeat", 1))
        return Op(new, HOP, op.pass_, op.layer, (name,), (new,), input_passes=(1,), attrs=attrs)

    def _sum(self, op: Op, one: str, other: str, into: str | None) -> Op:
        new = into or self._like(f"{other}.sum", other)
        flops = self.tensors[new].elements
        return Op(
            f"{other}.add", "add", op.pass_, op.layer, (one, other), (new,),
            vector_flops=flops, input_passes=(1, 1), in_place=True,
        )  # fmt: skip

    def _like(self, name: str, like: str) -> str:
        """Enter a tensor of the shape of another; return its name, which is new."""
        fresh = free_name(name, self.tensors)
        self.tensors[fresh] = replace(self.tensors[like], name=fresh)
        return fresh
