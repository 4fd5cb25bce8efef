"""Expert parallelism: data-parallel ranks share the experts and send each other their tokens.

Lepikhin et al., GShard, ICLR 2021, arXiv:2006.16668, Section 3.3: of e ranks each holds E/e experts
of a mixture and computes the rows that all e ranks have for them, so that the arithmetic of a rank
stays as it was; rows are exchanged by an all-to-all before and after the experts, and their
gradients likewise.

Experts are evenly loaded, as the network's own shapes are, unless an imbalance says that one of
them gets so many times the mean, and the others what is left. The rank that has this expert is the
one that is simulated: the others wait for it. Where a network states a capacity, experts compute
as many rows in any case, and what is above it is dropped (`dropped_share`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.samples import ROUTED
from ridgeline.parallel.sharding.axes import base
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.ops.matrix_update import DIRECTION, OF, ORTHOGONALISE
from ridgeline.workload.ops.routing import IN_ORDER, SCATTER_ADD

LOADS = "loads"
"""Attribute of an all-to-all whose messages are not alike (`expert_links.link_ratio`)."""
_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


def with_experts(graph: Graph, ranks: int, imbalance: float = 1.0, *, once: bool = False) -> Graph:
    """Return what the one with most work of `ranks` data-parallel ranks does.

    Parameters
    ----------
    imbalance
        Rows of the fullest expert over the mean of all.
    once
        Each token is sent once to a node (`Plan.dispatch`).

    Raises
    ------
    ConfigError
        If the network has no experts, the ranks do not divide them, or no expert can be so full.
    """
    if imbalance > 1:
        _check_imbalance(graph, imbalance)
    if ranks == 1:
        return graph  # all experts together have as many rows
    sharing = _Sharing(graph, ranks, imbalance, once=once)
    sharing.find()
    return sharing.result()


def _load(op: Op, graph: Graph) -> tuple[int, int, float]:
    """Experts of a mixture, experts that compute a token, capacity over an even load."""
    experts, rows, _ = graph.tensors[op.outputs[0]].shape
    tokens, choices = graph.tensors[op.outputs[1]].shape
    return experts, choices, rows / -(-tokens * choices // experts)


def _check_imbalance(graph: Graph, imbalance: float) -> None:
    mixtures = [op for op in graph.ops if op.kind == "dispatch" and op.pass_ is Pass.FORWARD]
    if not mixtures:
        raise ConfigError(
            f"expert_load_factor={imbalance:g} is of experts, and {graph.name} has none;"
            " allowed: 1",
            field="model.expert_load_factor",
        )
    for op in mixtures:
        experts, choices, _ = _load(op, graph)
        if imbalance > experts / choices:
            raise ConfigError(
                f"expert_load_factor={imbalance:g}: an expert of {op.layer!r} has all tokens at"
                f" {experts / choices:g} times the mean ({choices} of {experts} experts for each);"
                f" allowed: 1 to {experts / choices:g}",
                field="model.expert_load_factor",
            )


def dropped_share(graph: Graph, imbalance: float) -> float:
    """Return which share of the tokens' choices are above the capacity of the fullest expert.

    Networks that state no capacity drop nothing.
    """
    dropped = [0.0]
    for op in graph.ops:
        if op.kind == "dispatch" and op.pass_ is Pass.FORWARD:
            experts, _, capacity = _load(op, graph)
            dropped.append(max(0.0, imbalance - capacity) / experts if capacity > 1 else 0.0)
    return max(dropped)


def expert_weights(graph: Graph) -> frozenset[str]:
    """Weights of experts, and copies of them: those that are read behind an all-to-all."""
    moved = {n for op in graph.ops if _exchanges(op) for n in (*op.inputs, *op.outputs)}
    inside = {base(name) for name in moved}
    weights: set[str] = set()
    for op in graph.ops:
        if op.pass_ is not Pass.FORWARD or _exchanges(op) or op.kind in _ENDS:
            continue
        if inside.intersection(map(base, op.inputs)):
            inside.update(map(base, op.outputs))
            weights.update(n for n in op.inputs if graph.tensors[n].role in _WEIGHTS)
    for op in graph.ops:
        if op.outputs and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY:
            both = {op.inputs[0], op.outputs[0]}
            weights.update(both if weights & both else ())
    return frozenset(weights)


_ENDS = ROUTED | {SCATTER_ADD.name}
_JOINED = frozenset({"concat", "quantise"})
"""Make of gradients what products read: of fused ones, and in another format."""


def _exchanges(op: Op) -> bool:
    return ("dimension", "expert") in op.attrs


class _Sharing:
    def __init__(self, graph: Graph, ranks: int, imbalance: float, *, once: bool) -> None:
        self.graph, self.ranks, self.imbalance, self.once = graph, ranks, imbalance, once
        self.loads = ""  # of all-to-alls whose tokens go once to a node
        self.fuller = Fraction(1)  # rows of the fullest rank over the mean
        self.tensors = dict(graph.tensors)
        self.rows: set[str] = set()  # activations [experts, rows, features]
        self.weights: set[str] = set()  # weights and copies [experts, ...]
        self.sent: set[str] = set()  # what a dispatch makes
        # gradients that the gradient of a combine makes, for the tokens of its own rank
        self.made_outside: set[str] = set()

    def find(self) -> None:
        """Find the activations and weights of the experts."""
        for op in self.graph.ops:
            if op.pass_ is not Pass.FORWARD:
                if op.kind == "combine":
                    self.made_outside.update(op.outputs)
                elif op.kind in _JOINED and self.rows.intersection(map(base, op.inputs)):
                    self.rows.update(map(base, op.outputs))
                continue
            if op.kind == "dispatch":
                self._check(op)
                self.sent.add(op.outputs[0])
                if self.once:
                    experts, choices, _ = _load(op, self.graph)
                    self.loads = f"nodes:{choices}:{experts}"
            elif op.kind != "combine" and (self.rows | self.sent).intersection(op.inputs):
                self.rows.update(op.outputs)
                self.weights.update(n for n in op.inputs if self.graph.tensors[n].role in _WEIGHTS)
        if not self.sent:
            raise ConfigError(
                f"{self.graph.name} has no experts that rows of tokens are dispatched to (code that"
                " is traced picks them one by one); allowed: 1",
                field="plan.expert",
            )
        for op in reversed(self.graph.ops):
            if op.pass_ is Pass.FORWARD and self._copies(op) and op.outputs[0] in self.weights:
                self.weights.add(op.inputs[0])

    def _copies(self, op: Op) -> bool:
        return bool(op.outputs) and self.graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY

    def _check(self, op: Op) -> None:
        experts = self.graph.tensors[op.outputs[0]].shape[0]
        if experts % self.ranks:
            allowed = [n for n in range(1, experts + 1) if experts % n == 0]
            raise ConfigError(
                f"expert={self.ranks} does not divide the {experts} experts of {op.layer!r}; "
                f"allowed: {', '.join(map(str, allowed))}",
                field="plan.expert",
            )
        _, _, capacity = _load(op, self.graph)
        if capacity == 1 and experts > 1:  # else every expert computes its capacity
            full, here = Fraction(self.imbalance), experts // self.ranks
            others = (here - 1) * (experts - full) / (experts - 1)
            self.fuller = max(self.fuller, (full + others) / here)

    def result(self) -> Graph:
        """Change extents and put in the all-to-alls."""
        ops: list[Op] = []
        changed: dict[str, str] = {}  # what is read instead of a tensor
        for op in self.graph.ops:
            inside = self._is_inside(op)
            for name in op.inputs:
                if name not in changed and self._crosses(name, inside):
                    ops += self._exchange(op, name, inside)
                    changed[name] = ops[-1].outputs[0]
            inputs = tuple(
                changed[n] if n in changed and self._crosses(n, inside) else n for n in op.inputs
            )
            ops.append(self._part(replace(op, inputs=inputs), inside))
        for name, tensor in self.graph.tensors.items():
            if self._is_inner(name):
                self.tensors[name] = self._rows_of(tensor)
            elif self._is_weight(name):
                shape = (tensor.shape[0] // self.ranks, *tensor.shape[1:])
                self.tensors[name] = replace(tensor, shape=shape)
        return replace(self.graph, ops=tuple(ops), tensors=self.tensors)

    def _is_inner(self, name: str) -> bool:
        """Whether a tensor is of the experts' rows: made by an op of the experts."""
        of = base(name)
        if name in self.made_outside:
            return False
        return of in self.rows or (of in self.sent and name != of)

    def _is_weight(self, name: str) -> bool:
        of = base(name)
        if of in self.weights:
            return self.graph.tensors[of].shape[0] == self.tensors[name].shape[0]
        tensor = self.tensors[name]
        weight, direction, _ = name.partition(DIRECTION)
        if direction:
            return weight in self.weights and len(tensor.shape) > 1
        if tensor.role is not Role.STATE:
            return False
        return any(name.startswith(f"{w}.") for w in self.weights) and len(tensor.shape) > 1

    def _is_inside(self, op: Op) -> bool:
        """Whether an op is of the experts."""
        if op.kind in _ENDS:
            return False
        if op.kind == ORTHOGONALISE.name:
            return dict(op.attrs)[OF] in self.weights
        return any(self._is_inner(name) for name in op.outputs) or any(
            base(name) in self.weights for name in (*op.inputs, *op.outputs)
        )

    def _crosses(self, name: str, inside: bool) -> bool:
        """Whether an op on one side reads rows of the other."""
        of = base(name)
        if of not in self.rows | self.sent:
            return False
        return self._is_inner(name) is not inside

    def _exchange(self, op: Op, name: str, inside: bool) -> list[Op]:
        """Send rows to the experts or back; with several experts a rank, put them in order there.

        Rows arrive by the rank that sent them, experts compute them by expert: a copy behind the
        first all-to-all and before the second (Megatron-Core, `sort_chunks_by_idxs`; the transpose
        of an einsum's operand in GShard).
        """
        tensor = self.graph.tensors[name]
        there = self._rows_of(tensor)
        attrs: tuple[tuple[str, int | float | str], ...]
        attrs = (("dimension", "expert"), ("size_bytes", tensor.bytes), ("repeat", 1))
        if self.loads:
            attrs = (*attrs, (LOADS, self.loads))
        elif self.fuller > 1:
            attrs = (*attrs, (LOADS, f"{'to' if inside else 'from'}:{float(self.fuller):.9g}"))
        sorts = tensor.shape[0] > self.ranks
        kinds = ["all-to-all", *[IN_ORDER.name] * sorts]
        ops, read = [], name
        for kind in kinds if inside else reversed(kinds):
            made = f"{read}.{kind}"
            arrived = inside if kind == "all-to-all" else True
            self.tensors[made] = replace(there if arrived else tensor, name=made)
            of_kind = attrs if kind == "all-to-all" else ()
            ops.append(
                Op(
                    made,
                    kind,
                    op.pass_,
                    op.layer,
                    (read,),
                    (made,),
                    input_passes=(1,),
                    attrs=of_kind,
                )
            )
            read = made
        return ops

    def _rows_of(self, tensor: Tensor) -> Tensor:
        experts, rows, *rest = tensor.shape
        return replace(tensor, shape=(experts // self.ranks, self._many(rows), *rest))

    def _many(self, rows: int) -> int:
        """Rows of each expert of the fullest rank, of so many that one rank has for it."""
        return math.ceil(rows * self.ranks * self.fuller)

    def _part(self, op: Op, inside: bool) -> Op:
        """Fewer experts with more rows; an update or a copy of fewer weights."""
        if not inside:
            return op
        if op.kind == ORTHOGONALISE.name:
            assert isinstance(op.loops, Gemm)
            fewer = replace(op.loops, batch=op.loops.batch // self.ranks)
            return replace(op, loops=fewer, vector_flops=-(-op.vector_flops // self.ranks))
        if isinstance(op.loops, Gemm):
            rows = "k" if op.pass_ is Pass.WEIGHT_GRADIENT else "m"
            more = {rows: self._many(getattr(op.loops, rows))}
            return replace(op, loops=replace(op.loops, batch=op.loops.batch // self.ranks, **more))
        if any(self._is_inner(name) for name in op.outputs):
            return replace(op, vector_flops=math.ceil(op.vector_flops * self.fuller))
        return replace(op, vector_flops=-(-op.vector_flops // self.ranks))
