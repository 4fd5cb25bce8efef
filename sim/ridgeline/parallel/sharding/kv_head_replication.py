"""KV-head replication where more devices share attention than there are key-value heads.

Grouped-query attention has fewer heads of keys than of queries (Ainslie et al., GQA, EMNLP 2023,
arXiv:2305.13245). Where d devices share h < d heads of keys, every head stands c = d / h times in
the graph: each device has one copy, and the query heads of one c-th of the head's group. What makes
the keys and values grows with them, weights, their gradients and optimizer state included, while
attention does what it did before. So the graph with copies is divided like any other. Each copy's
gradient is that of its own queries: the gradients of the c neighbours that have copies of one head
are summed once a step, before the update.

Which tensors grow follows from the labels of dimensions: from the operands of attention backwards
through the ops that make them, then forwards through the gradients and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.parallel.sharding.axes import base, forward_name, signature
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass, Role, Tensor
from ridgeline.workload.ops.matrix_update import ORTHOGONALISE
from ridgeline.workload.sharding_axes import OpAxes

NEIGHBOURS = "neighbours"
"""Attribute of a collective that goes on between so many neighbours of the dimension's devices."""


def can_share(devices: int, few: int, heads: int) -> bool:
    """Whether devices can share `heads` heads of queries with `few` of keys, copied or not."""
    return few % devices == 0 or (heads % devices == 0 and devices % few == 0)


def with_copied_heads(
    graph: Graph,
    degree: int,
    dimension: str = "tensor",
    by_samples: Callable[[str], bool] | None = None,
) -> Graph:
    """Return the graph with at least one head of keys for each of `degree` devices.

    Layers that divide samples instead need none (`by_samples`, None: no layer does). A graph whose
    heads need no copies, or can not be shared with them either, stays as it is.

    Raises
    ------
    ConfigError
        If keys or values come from, or go to, an op that can not be divided by heads.
    """
    copies = {
        op.name: _copies(op, graph, degree)
        for op in graph.ops
        if op.pass_ is Pass.FORWARD and not (by_samples is not None and by_samples(op.layer))
    }
    copies = {name: count for name, count in copies.items() if count > 1}
    return _Copying(graph, degree, dimension, copies).result() if copies else graph


def _copies(op: Op, graph: Graph, degree: int) -> int:
    """How often the heads of keys of an op are needed."""
    if op.loops is None or not op.attrs:
        return 1
    sig = signature(op, graph.tensors, None)
    if sig is None or sig.grouped is None:
        return 1
    few = sig.units[sig.grouped.label]
    return degree // few if degree > few and can_share(degree, few, sig.grouped.heads) else 1


@dataclass(frozen=True, slots=True)
class _Growth:
    """The dimension of a tensor that grows, its extents, and how often a head stands there."""

    dim: int
    old: int
    new: int
    copies: int

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.new, self.old)


@dataclass(frozen=True, slots=True)
class _Side:
    """A tensor of an op with a label."""

    name: str
    dim: int
    extent: int
    is_input: bool


class _Copying:
    def __init__(self, graph: Graph, degree: int, dimension: str, copies: dict[str, int]) -> None:
        self.graph, self.degree, self.copies = graph, degree, copies
        self.dimension = dimension
        self.forward = {op.name: op for op in graph.ops if op.pass_ is Pass.FORWARD}
        self.grown: dict[str, _Growth] = {}

    def result(self) -> Graph:
        """Change extents, and sum the gradients of copies."""
        for op in reversed(self.forward.values()):
            self._grow_makers(op)
        for op in self.forward.values():
            self._check_readers(op)
        for op in self.graph.ops:
            if op.pass_ is not Pass.FORWARD:
                self._grow_gradients(op)
        tensors = {name: self._tensor(of) for name, of in self.graph.tensors.items()}
        ops = self._with_sums([self._grown_op(op) for op in self.graph.ops], tensors)
        return replace(self.graph, tensors=tensors, ops=tuple(ops))

    def _signature(self, op: Op) -> OpAxes | None:
        return signature(op, self.graph.tensors, self.forward.get(forward_name(op)))

    def _changes(self, op: Op) -> bool:
        return any(name in self.grown for name in (*op.inputs, *op.outputs))

    # Which tensors grow

    def _grow_makers(self, op: Op) -> None:
        """Let the inputs of an op grow with its outputs; attention begins with keys and values."""
        if op.name not in self.copies:
            if any(name in self.grown for name in op.outputs):
                self._spread(op)
            return
        sig = self._signature(op)
        assert sig is not None
        assert sig.grouped is not None
        for place in sig.grouped.inputs:
            name, dim = op.inputs[place], sig.inputs[place].index(sig.grouped.label)
            extent, copies = self.graph.tensors[name].shape[dim], self.copies[op.name]
            self._grow(name, _Growth(dim, extent, extent * copies, copies), op)

    def _check_readers(self, op: Op) -> None:
        """Find keys and values that not only attention reads, or that no op with weights makes."""
        if op.name in self.copies:
            return
        read = any(name in self.grown for name in op.inputs)
        if read and not any(name in self.grown for name in op.outputs):
            raise self._mistake(op)

    def _grow_gradients(self, op: Op) -> None:
        """Let gradients grow like what they belong to, and states like their weights.

        Updates with whole matrices take them without the copies.
        """
        for name in (*op.inputs, *op.outputs):
            of, shape = self.grown.get(base(name)), self.graph.tensors[name].shape
            if of is not None and len(shape) > of.dim and shape[of.dim] == of.old:
                self._grow(name, of, op)
        whole = op.kind == ORTHOGONALISE.name
        if forward_name(op) not in self.copies and self._changes(op) and not whole:
            self._spread(op)

    def _spread(self, op: Op) -> None:
        """Let all tensors of an op grow that have the label of a dimension that grows."""
        sig = self._signature(op)
        labels = {} if sig is None else dict(self._sides(op, sig))
        for name in (*op.inputs, *op.outputs):
            if name in self.grown and not any(
                side.name == name and side.dim == self.grown[name].dim
                for sides in labels.values()
                for side in sides
            ):
                raise self._mistake(op)
        heads = dict(self.forward.get(forward_name(op), op).attrs).get("heads")
        for sides in labels.values():
            self._spread_label(op, sides, heads)

    def _sides(self, op: Op, sig: OpAxes) -> Iterator[tuple[str, list[_Side]]]:
        """Tensors of an op by label."""
        for label in sig.labels:
            if label in sig.of_grid:
                continue
            found = []
            for is_input, names, axes in (
                (True, op.inputs, sig.inputs),
                (False, op.outputs, sig.outputs),
            ):
                for name, labels in zip(names, axes, strict=True):
                    if label in labels:
                        dim = labels.index(label)
                        extent = self.graph.tensors[name].shape[dim]
                        found.append(_Side(name, dim, extent, is_input))
            yield label, found

    def _spread_label(self, op: Op, sides: list[_Side], heads: object) -> None:
        known = [side for side in sides if self._is_grown(side)]
        if not known:
            return
        extent = max(side.extent for side in sides)
        # statistics of norms within heads have one number a head, and are no part of the features
        parts = [side for side in sides if side.extent < extent and side.extent != heads]
        if any(side in parts for side in known):  # side by side: a fused product, a concatenation
            copies = max(self.grown[side.name].copies for side in known)
            if not all(side.is_input is parts[0].is_input for side in parts):
                raise self._mistake(op)
            of_op = [side for side in sides if side.is_input is parts[0].is_input]
            if sum(side.extent for side in of_op) != extent:
                raise self._mistake(op)
            new = sum(self._extent(side) for side in of_op)
            for side in sides:
                if side.extent == extent:
                    self._grow(side.name, _Growth(side.dim, extent, new, copies), op)
            return
        of = self.grown[max(known, key=lambda side: side.extent).name]
        for side in sides:
            if side.extent == of.old:
                self._grow(side.name, replace(of, dim=side.dim), op)
            elif of.ratio == of.copies:  # heads only
                new = side.extent * of.copies
                self._grow(side.name, _Growth(side.dim, side.extent, new, of.copies), op)

    def _is_grown(self, side: _Side) -> bool:
        return side.name in self.grown and self.grown[side.name].dim == side.dim

    def _extent(self, side: _Side) -> int:
        return self.grown[side.name].new if self._is_grown(side) else side.extent

    def _grow(self, name: str, growth: _Growth, op: Op) -> None:
        if self.grown.setdefault(name, growth) != growth:
            raise self._mistake(op)

    def _mistake(self, op: Op) -> ConfigError:
        return ConfigError(
            f"tensor={self.degree} needs copies of the heads of keys, but {op.name!r} ({op.kind}), "
            "which keys or values come from or go to, can not be divided by heads",
            field="plan.tensor",
        )

    # What changes with them

    def _tensor(self, of: Tensor) -> Tensor:
        growth = self.grown.get(of.name)
        if growth is None:
            return of
        shape = (*of.shape[: growth.dim], growth.new, *of.shape[growth.dim + 1 :])
        return replace(of, shape=shape)

    def _grown_op(self, op: Op) -> Op:
        copies = self.copies.get(forward_name(op))
        if copies is not None:
            return self._regrouped(op, copies)
        if not self._changes(op) or op.kind == ORTHOGONALISE.name:
            return op
        sig = self._signature(op)
        assert sig is not None
        loops = op.loops
        for label, sides in self._sides(op, sig):
            grown = [side for side in sides if self._is_grown(side)]
            if grown and loops is not None:
                ratio = self.grown[max(grown, key=lambda side: side.extent).name].ratio
                changes: dict[str, Any] = {
                    e: int(getattr(loops, e) * ratio) for e in sig.loops.get(label, ())
                }
                loops = replace(loops, **changes)
        names = [n for n in dict.fromkeys((*op.inputs, *op.outputs)) if n in self.grown]
        before = [self.graph.tensors[name] for name in names]
        ratio = Fraction(
            sum(self._tensor(of).elements for of in before), sum(of.elements for of in before)
        )
        counts = {"size_bytes": ratio, "heads": ratio}  # of a collective; of what joins heads
        attrs = tuple((k, int(int(v) * counts[k]) if k in counts else v) for k, v in op.attrs)
        return replace(op, loops=loops, vector_flops=int(op.vector_flops * ratio), attrs=attrs)

    def _regrouped(self, op: Op, copies: int) -> Op:
        """Attention with more heads of keys, each for a smaller group: the same arithmetic."""
        sig = self._signature(op)
        assert sig is not None
        assert sig.grouped is not None
        assert op.loops is not None
        more = {e: getattr(op.loops, e) * copies for e in sig.loops[sig.grouped.label]}
        less = {e: getattr(op.loops, e) // copies for e in sig.loops[sig.grouped.rows]}
        attrs = tuple((k, int(v) * copies if k == "kv-heads" else v) for k, v in op.attrs)
        return replace(op, loops=replace(op.loops, **more, **less), attrs=attrs)

    def _with_sums(self, ops: list[Op], tensors: dict[str, Tensor]) -> list[Op]:
        """Sum the gradients of copies before the first op of the update that reads them."""
        waiting = {
            gradient: self.grown[weight]
            for weight, gradient in weight_gradients(self.graph).items()
            if weight in self.grown and tensors[weight].role is Role.WEIGHT
        }
        summed: dict[str, str] = {}
        result: list[Op] = []
        for op in ops:
            if op.pass_ is not Pass.UPDATE:
                result.append(op)
                continue
            for name in op.inputs:
                if name in waiting:
                    result.append(self._sum(op, name, waiting.pop(name), tensors))
                    summed[name] = result[-1].name
            inputs = tuple(summed.get(name, name) for name in op.inputs)
            result.append(replace(op, inputs=inputs))
        return result

    def _sum(self, op: Op, gradient: str, growth: _Growth, tensors: dict[str, Tensor]) -> Op:
        """Write the all-reduce of a gradient: of those rows only that there are copies of."""
        name = f"{gradient}.all-reduce"
        tensors[name] = replace(tensors[gradient], name=name)
        copied = Fraction(growth.new - growth.old, growth.copies - 1) * growth.copies
        size = int(tensors[gradient].bytes * copied / growth.new)
        attrs = (
            ("dimension", self.dimension),
            ("size_bytes", size),
            ("repeat", 1),
            (NEIGHBOURS, growth.copies),
        )
        return Op(
            name, "all-reduce", Pass.UPDATE, op.layer, (gradient,), (name,),
            input_passes=(1,), in_place=True, attrs=attrs,
        )  # fmt: skip
