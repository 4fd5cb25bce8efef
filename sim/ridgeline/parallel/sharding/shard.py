"""Shard a training graph over the devices of one dimension of the plan, for any network.

The graph is walked once, forward and backward pass alike. Each op is divided by one of its labels
(`axes`), or done whole by every device. From that follows how every tensor is laid out: whole on
every device, divided along one dimension, or a partial sum. Where an op needs an operand in another
layout than it has, a collective is put in: that is the only place where communication comes from.

=====================  ====================  ======================
from                   to                    collective
=====================  ====================  ======================
partial sum            whole                 all-reduce
partial sum            divided               reduce-scatter
divided                whole                 all-gather
divided                divided otherwise     all-to-all
whole                  divided               none: a local copy
=====================  ====================  ======================

What an op is divided by is chosen by the bytes that its collectives move, in the forward pass those
of its gradient counted in. A product with weights is always divided where that pairs it with
another one, so that what the first leaves divided, the second takes up (Megatron-LM's pairs of
column and row parallel layers, found here in any graph); one that stands alone only if the
arithmetic that is saved takes longer than the bytes that have to move. All else follows its inputs.

The dimension "context" shares the positions of a sequence: every device has all weights and some of
the tokens, so that all ops are divided by positions; attention needs the keys and values of all
positions, which are gathered for it (A. Grattafiori et al., The Llama 3 herd of models, 2024,
arXiv:2407.21783, Section 3.3.2), and the gradients of weights are summed as over replicas.

With sequence parallelism (Korthikanti et al., Reducing activation recomputation in large
transformer models, 2022, arXiv:2205.05198, Section 4.2.2) partial sums of [batch, positions,
features] are scattered along the positions instead of being summed on every device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.layers import kind_of
from ridgeline.parallel.sharding.axes import base, divided_loops
from ridgeline.parallel.sharding.axis_choice import (
    FREE,
    PARTIAL,
    STATIC,
    WEIGHTS,
    WHOLE,
    AxisChoice,
    BySamples,
    need_of,
)
from ridgeline.parallel.sharding.inserted_ops import HALO
from ridgeline.parallel.sharding.kv_head_replication import can_share, with_copied_heads
from ridgeline.workload.builder import settle
from ridgeline.workload.graph import Graph, Op, Pass, Passes, Role, Tensor
from ridgeline.workload.sharding_axes import OpAxes, whole

_HEADS = frozenset({"heads", "kv-heads"})
COLLECTIVES = frozenset(
    {
        *("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "send-recv"),
        *("broadcast", "reduce", HALO),
    }
)
"""Kinds of the ops that are put in; their attribute "dimension" says between which devices."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """What one device of the group does.

    Attributes
    ----------
    graph
        Its ops and its parts of all tensors, with the collectives as ops.
    divided
        Names of the tensors of which every device has a part.
    whole
        Kinds of the ops that every device does whole though they have arithmetic to divide, and
        how many ops of each kind.
    """

    graph: Graph
    divided: frozenset[str]
    whole: dict[str, int]
    apart: frozenset[str] = frozenset()
    """Weights whose gradients are of the device's own samples: summed at the end of the step."""


def shard(
    graph: Graph,
    degree: int,
    *,
    dimension: str = "tensor",
    sequence: bool = False,
    flops_per_byte: float = 1000.0,
    by_samples: BySamples | None = None,
    message_bytes: float = 0.0,
) -> Sharded:
    """Divide a training graph over `degree` devices.

    Parameters
    ----------
    dimension
        Name of the plan's dimension, for the collectives.
    sequence
        Scatter partial sums along the positions of a sequence.
    flops_per_byte
        What a device computes while the group moves one byte: decides about lone products.
    by_samples
        Layers that divide samples instead of features, of a layer-wise plan.
    message_bytes
        What the group could move in the fixed time of a gather: decides about small ones.

    Raises
    ------
    ConfigError
        If attention heads can be neither shared evenly nor copied for the devices.
    """
    if degree == 1:
        return Sharded(graph, frozenset(), {})
    if dimension != "context":
        samples = by_samples.layer if by_samples is not None else None
        graph = with_copied_heads(graph, degree, dimension, samples)
    sharder = Sharder(graph, degree, dimension, sequence, flops_per_byte, by_samples, message_bytes)
    sharder.check()
    sharder.look_ahead()
    for op in graph.ops:
        sharder.take(op)
    return sharder.result()


class Sharder(AxisChoice):
    """Walks a graph and writes what one device does."""

    def check(self) -> None:
        """Raise ConfigError if heads, or positions, can not be shared evenly by the devices."""
        if self.positions:
            tokens = self.graph.tokens_per_sample
            if tokens == 0:
                raise ConfigError(
                    f"context={self.degree} shares the positions of a sequence, and a sample of "
                    f"{self.graph.name} is not one; allowed: 1",
                    field="plan.context",
                )
            if tokens % self.degree:
                raise ConfigError(
                    f"context={self.degree} does not divide the {tokens} positions of a sample of "
                    f"{self.graph.name}",
                    field="plan.context",
                )
            return
        for op in self.forward.values():
            if self.by_samples is not None and self.by_samples.layer(op.layer):
                continue
            sig = self._signature(op)
            for label in sig.strict if sig is not None else ():
                assert sig is not None
                few = sig.units[label]
                heads = sig.grouped.heads if sig.grouped is not None else few
                if heads > 1 and few % self.degree:
                    allowed = [n for n in range(1, heads + 1) if can_share(n, few, heads)]
                    more = f", each for {heads // few} of {heads} queries'," if heads > few else ""
                    raise ConfigError(
                        f"{self._said()} does not divide the {few} heads "
                        f"of keys{more} of {op.layer!r}, nor can they be copied for it; "
                        f"allowed: {', '.join(map(str, allowed))}",
                        field=f"plan.{kind_of(self.dimension)}",
                    )

    def _said(self) -> str:
        """Name the devices that share an op in the words of a plan."""
        return f"{kind_of(self.dimension)}={self.degree}"

    def take(self, op: Op) -> None:
        """Write what one device does of an op."""
        if op.kind in COLLECTIVES and not op.outputs:  # inside an op, on another level
            self._pass_on(op)
            return
        if op.name in self.forward and op.outputs[0] in self.root:
            return  # copies of weights are made first, when it is known how the weights are divided
        sig = self._signature(op)
        if sig is None:
            sig = whole(op, self.tensors)
            if op.matrix_flops or op.vector_flops:
                self.whole[op.kind] += 1
        if self._passes_partial(op):
            self._write(op, sig, None, [self._now(name) for name in op.inputs], PARTIAL)
            return
        label = self._follow(op, sig) or self._choose(op, sig)
        self.chosen[op.name] = label
        if label is None and op.loops is not None and op.pass_ is Pass.FORWARD:
            self.whole[op.kind] += 1
        inputs = [
            self._bring(name, need_of(labels, label), op)
            for name, labels in zip(op.inputs, sig.inputs, strict=True)
        ]
        for part in sig.inner.get(label or "", ()):
            self._inner(part.op, part.size_bytes, part.repeat, op, inputs[0])
        self._write(op, sig, label, inputs)

    def _pass_on(self, op: Op) -> None:
        """Write communication inside an op: of its part, wherever what it reads is divided."""
        inputs = tuple(self._now(name) for name in op.inputs)
        parts = self.degree if any(self._where(name) >= 0 for name in inputs) else 1
        attrs = tuple((k, -(-int(v) // parts) if k == "size_bytes" else v) for k, v in op.attrs)
        self._add(replace(op, inputs=inputs, attrs=attrs))

    def _passes_partial(self, op: Op) -> bool:
        """Whether an op adds or converts partial sums, so that their sum can wait."""
        linear = op.kind == "add" or (op.kind == "cast" and op.pass_ is Pass.WEIGHT_GRADIENT)
        return linear and all(self._where(self._now(name)) == PARTIAL for name in op.inputs)

    def _bring(self, name: str, need: int, op: Op) -> str:
        """Name of the tensor in the layout that is needed; communicates if it has to."""
        name = self._now(name)
        now = self._where(name)
        if now == FREE:
            self.layout[self._root(name)] = now = need
        if name not in self.local:
            self._place(name, now)
        if now == need:
            return name
        once = op.pass_ is Pass.UPDATE and self.tensors[name].role in STATIC
        key = (name, need, "update" if once else op.pass_ is Pass.FORWARD)
        if key not in self.copies:
            self.copies[key] = self._reshape(name, now, need, op)
        return self.copies[key]

    def _reshape(self, name: str, now: int, need: int, op: Op) -> str:
        kind = {
            (True, False, True): "all-reduce",
            (True, False, False): "reduce-scatter",
            (False, True, False): "slice",
            (False, False, True): "all-gather",
            (False, False, False): "all-to-all",
        }[now == PARTIAL, now == WHOLE, need == WHOLE]
        here = self.local[name]
        full = self.tensors[name]
        sums = now == PARTIAL
        new = self._fresh(f"{name}.{kind}")
        shape = self._shape(full.shape, need)
        self.local[new] = Tensor(new, shape, here.format, self._role(here.role, op))
        self.layout[new] = need
        size = here.bytes if kind in {"all-reduce", "all-to-all"} else full.bytes
        maker = self.makers.get(name, op) if sums else op
        attrs = (("dimension", self.dimension), ("size_bytes", size), ("repeat", 1))
        if kind == "slice":
            part: Passes = (Fraction(1, self.degree),)
            self._add(Op(new, kind, op.pass_, maker.layer, (name,), (new,), input_passes=part))
        else:
            self._add(
                Op(
                    new,
                    kind,
                    op.pass_,
                    maker.layer,
                    (name,),
                    (new,),
                    input_passes=(1,),
                    in_place=kind == "all-reduce",
                    attrs=attrs,
                )
            )
        if sums:
            self.stands_for[name] = new
            for original, now_name in list(self.stands_for.items()):
                if now_name == name:
                    self.stands_for[original] = new
        self.tensors[new] = full.renamed(new)
        return new

    def _role(self, role: Role, op: Op) -> Role:
        """Role of a copy in another layout."""
        if role not in WEIGHTS and role is not Role.INPUT:
            return role
        if op.pass_ is not Pass.FORWARD:  # a copy for this micro-batch: not made once a step
            return Role.ACTIVATION_GRADIENT
        return Role.ACTIVATION if role is not Role.WEIGHT else Role.WEIGHT_COPY

    def _inner(self, kind: str, size_bytes: int, repeat: int, op: Op, x: str) -> None:
        """Put in the communication of an op that is divided: before it, on its first input."""
        name = self._fresh(f"{op.name}.{kind}")
        attrs = (("dimension", self.dimension), ("size_bytes", size_bytes), ("repeat", repeat))
        self._add(Op(name, kind, op.pass_, op.layer, (x,), (), input_passes=(1,), attrs=attrs))

    def _write(
        self, op: Op, sig: OpAxes, label: str | None, inputs: Iterable[str], at: int = WHOLE
    ) -> None:
        """Write the op with its local extents, and place its outputs."""
        for name, labels in zip(op.outputs, sig.outputs, strict=True):
            layout = at
            if label is not None:
                sums = self._is_sum(name, label, sig)
                layout = labels.index(label) if label in labels else PARTIAL if sums else WHOLE
                if self.tensors[name].role is Role.WEIGHT_GRADIENT and self._sums_later(name):
                    layout = max(layout, WHOLE)  # summed over these devices as over replicas
            if self.tensors[name].role not in STATIC:
                self.layout[name] = layout
            elif self._where(name) == FREE:
                self.layout[self._root(name)] = max(layout, WHOLE)
            self._place(name, self._where(name))
            self.makers[name] = op
        self._add(self._part(op, sig, label, inputs))

    def _part(self, op: Op, sig: OpAxes, label: str | None, inputs: Iterable[str]) -> Op:
        """Return the op with the extents of one device."""
        inputs = tuple(inputs)
        if label is None:
            return op if inputs == op.inputs else replace(op, inputs=inputs)
        parts = self.degree
        extents = sig.loops.get(label, ())
        attrs = op.attrs
        if op.kind in COLLECTIVES:  # of another dimension of the plan
            attrs = tuple((k, -(-int(v) // parts) if k == "size_bytes" else v) for k, v in attrs)
        elif label in sig.strict:
            attrs = tuple((k, int(v) // parts if k in _HEADS else v) for k, v in attrs)
        return replace(
            op,
            inputs=inputs,
            loops=divided_loops(op.loops, extents, parts),
            vector_flops=-(-op.vector_flops // parts),
            recomputed_flops=-(-op.recomputed_flops // parts),
            attrs=attrs,
        )

    def _sums_later(self, gradient: str) -> bool:
        """Whether gradients of a device's own rows are summed at the end of the step."""
        return self.positions or self._is_apart(base(gradient))

    def _is_apart(self, weight: str) -> bool:
        """Whether all gradients of a weight are of a device's samples, here and on levels beyond.

        A weight that is read by ops that are divided otherwise is summed here, by an all-reduce.
        """
        if self.by_samples is None:
            return False
        weight = self._origin(weight)
        if weight not in self.apart:
            beyond = self.by_samples.beyond
            self.apart[weight] = (beyond is None or weight in beyond) and all(
                self.chosen[op.name] is not None
                and self.chosen[op.name] == self._samples(op, self._signature(op) or whole(op, {}))
                for op in self.readers[weight]
            )
        return self.apart[weight]

    def _place(self, name: str, layout: int) -> None:
        of = self.tensors[name]
        shape, known = self._shape(of.shape, layout), self.local.get(name)
        if known is None or known.shape != shape:
            self.local[name] = of.reshaped(shape)

    def _shape(self, shape: tuple[int, ...], layout: int) -> tuple[int, ...]:
        if layout < 0:
            return shape
        return (*shape[:layout], -(-shape[layout] // self.degree), *shape[layout + 1 :])

    def _fresh(self, name: str) -> str:
        fresh = name
        self.names.setdefault(name, 1)
        while fresh in self.taken:
            self.names[name] += 1
            fresh = f"{name}.{self.names[name]}"
        self.taken.add(fresh)
        return fresh

    def _add(self, op: Op) -> None:
        self.ops.append(op)

    def result(self) -> Sharded:
        """Return the finished graph; each weight is copied just before it is first read."""
        body, self.ops = self.ops, []
        waiting = {op.outputs[0]: op for op in self.casts}
        for op in body:
            for name in op.inputs:
                self._cast(name, waiting)
            self.ops.append(op)
        ops = settle(self.ops, self.local)
        graph = replace(self.graph, tensors=self.local, ops=ops)
        divided = frozenset(name for name in self.local if self._where(name) >= 0)
        apart = frozenset(weight for weight, is_apart in self.apart.items() if is_apart)
        return Sharded(graph, divided, dict(sorted(self.whole.items())), apart)

    def _cast(self, copy: str, waiting: dict[str, Op]) -> None:
        """Write the op that makes a copy of a weight, unless it is there already."""
        op = waiting.pop(copy, None)
        if op is None:
            return
        self._cast(op.inputs[0], waiting)
        layout = max(self._where(copy), WHOLE)
        for name in (op.inputs[0], copy):
            self._place(name, layout)
        parts = self.degree if layout >= 0 else 1
        self._add(replace(op, vector_flops=-(-op.vector_flops // parts)))
