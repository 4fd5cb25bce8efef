"""Axis choice: an op is split along the axis whose collectives move the fewest bytes.

A first pass over the forward ops, backwards, finds along which dimensions every activation is taken
up by a later product; so a product can be told from its position whether it begins a pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ridgeline.parallel.plan.samples import ROUTED, samples_label, with_samples
from ridgeline.parallel.sharding.axes import base, forward_name, signature
from ridgeline.workload.graph import Graph, Op, Pass, Role, Same, Tensor
from ridgeline.workload.numerics import find, is_discrete
from ridgeline.workload.sharding_axes import OpAxes, whole

WHOLE, PARTIAL, FREE = -1, -2, -3
"""Layouts besides "divided along dimension 0, 1, ..."; a weight is free until an op decides."""

STATIC = frozenset({Role.WEIGHT, Role.WEIGHT_COPY, Role.STATE, Role.BUFFER})
_OF_SAMPLES = frozenset({Role.INPUT, Role.ACTIVATION, Role.ACTIVATION_GRADIENT})
WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})
CASTS = frozenset({"cast", "quantise"})
_GRADIENTS = frozenset({Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT})


def need_of(labels: tuple[str, ...], label: str | None) -> int:
    """Layout in which an op that is divided by a label needs an operand with these labels."""
    return labels.index(label) if label is not None and label in labels else WHOLE


@lru_cache(maxsize=64)
def _signatures(same: Same, by_samples: bool, by_positions: bool) -> dict[str, OpAxes | None]:
    """Return what is known of the labels of a graph's ops; samples may be one of them."""
    return {}


@dataclass(frozen=True)
class BySamples:
    """Which layers of a layer-wise plan divide samples on one level of "tensor" (`layers`).

    Attributes
    ----------
    layer
        Whether a layer does.
    beyond
        Weights whose gradients are summed at the end of the step on all levels beyond; None: this
        is the outermost level.
    positions
        They divide the positions of samples (`Plan.expert_tensor_parallel`); all others are as
        without.
    """

    layer: Callable[[str], bool]
    beyond: frozenset[str] | None
    positions: bool = False


class AxisChoice:
    """Where every tensor is, so far, and what the next op is divided by."""

    of_grid = False
    """Whether the devices are a row or a column of a grid (`grid`)."""

    def __init__(
        self,
        graph: Graph,
        degree: int,
        dimension: str,
        sequence: bool,
        flops_per_byte: float,
        by_samples: BySamples | None = None,
        message_bytes: float = 0.0,
    ) -> None:
        self.by_samples, self.message_bytes = by_samples, message_bytes
        self.folded = by_samples is not None and by_samples.positions
        self.graph, self.degree, self.dimension = graph, degree, dimension
        self.sequence, self.flops_per_byte = sequence, flops_per_byte
        self.positions = dimension == "context"
        self.tensors = dict(graph.tensors)  # whole; also of what is put in
        self.local: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.layout: dict[str, int] = {}  # of every tensor that is there, weights by their root
        self.stands_for: dict[str, str] = {}  # a partial sum that was summed up: its successor
        # (tensor, layout, in which pass): backward passes come once a micro-batch, updates once
        self.copies: dict[tuple[str, int, bool | str], str] = {}
        self.forward = {op.name: op for op in graph.ops if op.pass_ is Pass.FORWARD}
        self.root: dict[str, str] = {}  # weight copy: weight
        self.origin: dict[str, str] = {}  # copy of a weight, or what is formed from it: weight
        self.casts: list[Op] = []
        self.makers: dict[str, Op] = {}
        self.good: dict[str, frozenset[int]] = {}
        self.pads: set[tuple[str, int]] = set()
        self.whole: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.taken = {*graph.tensors, *(op.name for op in graph.ops if not op.outputs)}
        self.chosen: dict[str, str | None] = {}
        self.signatures = _signatures(Same(graph), by_samples is not None, self.folded)
        self.apart: dict[str, bool] = {}  # weights whose gradients are of a device's samples
        for op in self.forward.values():
            if op.kind in CASTS and graph.tensors[op.inputs[0]].role in WEIGHTS:
                self.root[op.outputs[0]] = self._root(op.inputs[0])
                self.casts.append(op)
        self.readers: dict[str, list[Op]] = {}  # of weights and their copies, in the forward pass
        if by_samples is not None:
            self._find_readers()

    def _find_readers(self) -> None:
        for op in self.forward.values():
            if self._makes_weights(op):
                self.origin |= dict.fromkeys(op.outputs, self._origin(op.inputs[0]))
                continue
            for name in op.inputs:
                if self.graph.tensors[name].role in WEIGHTS:
                    self.readers.setdefault(self._origin(name), []).append(op)

    def _origin(self, name: str) -> str:
        """Return the weight that another one is a copy of, or is formed from."""
        return self.origin.get(name, self._root(name))

    def _root(self, name: str) -> str:
        return self.root.get(name, name)

    def _signature(self, op: Op) -> OpAxes | None:
        if op.name not in self.signatures:
            of = self.forward.get(forward_name(op)) if op.pass_ in _GRADIENTS else None
            found = signature(op, self.graph.tensors, of)
            if found is not None and self.by_samples is not None:
                found = with_samples(op, of or op, found, self.graph.tensors, self.folded)
            self.signatures[op.name] = found
        return self.signatures[op.name]

    def look_ahead(self) -> None:
        """Find along which dimensions each activation is taken up by a later product."""
        for op in reversed(self.forward.values()):
            if not op.outputs:
                continue  # communication inside an op on another level: that op says what it reads
            sig = self._signature(op) or whole(op, self.tensors)
            taken_up = {label for label in sig.labels if self._is_taken_up(label, op, sig)}
            for name, labels in zip(op.inputs, sig.inputs, strict=True):
                if self.tensors[name].role in STATIC:
                    self._mark_pads(self._root(name), labels, op, sig)
                    continue
                self._mark_pads(name, labels, op, sig)
                dims = frozenset(d for d, label in enumerate(labels) if label in taken_up)
                self.good[name] = self.good.get(name, dims) & dims

    def _is_taken_up(self, label: str, op: Op, sig: OpAxes) -> bool:
        if not self._divides(label, op, sig):
            return False
        after = [
            name
            for name, labels in zip(op.outputs, sig.outputs, strict=True)
            if label in labels and labels.index(label) in self.good.get(name, ())
        ]
        if after or label in sig.inner:
            return True
        summed = not any(label in labels for labels in sig.outputs)
        return summed and self._has_weight(label, op, sig)

    def _has_weight(self, label: str, op: Op, sig: OpAxes) -> bool:
        for name, labels in zip(op.inputs, sig.inputs, strict=True):
            if label in labels and self.tensors[name].role in WEIGHTS:
                return True
        return False

    def _mark_pads(self, name: str, labels: tuple[str, ...], op: Op, sig: OpAxes) -> None:
        for dim, label in enumerate(labels):
            if label and self._is_padded(label, op, sig):
                self.pads.add((name, dim))

    def _is_padded(self, label: str, op: Op, sig: OpAxes) -> bool:
        if label in sig.padded:
            return True
        if not self.pads:
            return False
        for names, of in ((op.inputs, sig.inputs), (op.outputs, sig.outputs)):
            for name, labels in zip(names, of, strict=True):
                if label in labels:
                    dim = labels.index(label)
                    if (self._root(name), dim) in self.pads:
                        return True
                    if (self._root(base(name)), dim) in self.pads:
                        return True
        return False

    def _divides(self, label: str, op: Op, sig: OpAxes) -> bool:
        if label in sig.windows:
            return False  # only `spatial` knows what a part needs of its neighbours
        if label in sig.of_grid and not self.of_grid:
            return False
        size = sig.size(label, op, self.tensors)
        if size % self.degree == 0:
            return True
        return size > self.degree and self._is_padded(label, op, sig)

    def _now(self, name: str) -> str:
        return self.stands_for.get(name, name)

    def _where(self, name: str) -> int:
        """Layout of a tensor; what no op has made is free if it is held, else whole."""
        name = self.root.get(name, name)
        known = self.layout.get(name)
        if known is None:
            of = self.tensors[name]
            known = FREE if of.role in STATIC else WHOLE
            if self.positions:
                known = self._by_position(of)
            elif self.by_samples is not None and not self.folded and of.role is Role.INPUT:
                known = FREE  # every device reads what it needs of the mini-batch
            self.layout[name] = known
        return known

    def _follow(self, op: Op, sig: OpAxes) -> str | None:
        """Return the label that divides the forward op of a gradient op, if it can."""
        label = self.chosen.get(forward_name(op)) if op.pass_ in _GRADIENTS else None
        return label if label is not None and label in sig.labels else None

    def _by_position(self, of: Tensor) -> int:
        """Lay out what is there at first, where devices share the positions of a sequence."""
        if of.role is Role.BUFFER:
            return FREE
        divides = len(of.shape) > 1 and of.shape[1] % self.degree == 0
        return 1 if of.role is Role.INPUT and divides else WHOLE

    def _choose(self, op: Op, sig: OpAxes) -> str | None:
        """Return the label by which an op is divided, or None."""
        weighted = op.loops is not None and op.pass_ is Pass.FORWARD
        samples = self._samples(op, sig) if self.by_samples is not None else None
        ruled = op.pass_ is Pass.FORWARD and (
            weighted or op.kind in ROUTED or self._makes_weights(op)
        )
        if self.by_samples is not None and ruled and self.by_samples.layer(op.layer):
            return samples
        costs: dict[str, float] = {}
        paired: list[str] = []
        for label in sig.labels:
            if weighted and samples is not None and label == samples:
                continue  # its rule says that devices share the features
            if self._is_candidate(label, op, sig) and self._divides(label, op, sig):
                costs[label] = self._cost(label, op, sig)
                begins = op.pass_ is Pass.FORWARD and self._begins(label, op, sig)
                if begins and self._pairs(label, op, sig):
                    paired.append(label)
        if not costs:
            return samples if weighted else None
        if paired:
            begun = [label for label in costs if self._begins(label, op, sig)]
            return min(begun, key=costs.__getitem__)
        best = min(costs, key=costs.__getitem__)
        if self.positions or (samples is not None and weighted):
            return best
        alone = self._cost(None, op, sig)
        if weighted:
            saved = 3 * op.matrix_flops * (1 - 1 / self.degree)
            alone += saved / self.flops_per_byte
        return best if costs[best] <= alone else None

    def _samples(self, op: Op, sig: OpAxes) -> str | None:
        """Return the label of an op's samples, if they can be divided.

        They are the first dimension of what it reads besides weights, or the rows of experts; where
        mixtures divide positions, the second, and other layers have none.
        """
        assert self.by_samples is not None
        if self.folded and not self.by_samples.layer(op.layer):
            return None
        static: set[str] = set()
        label = ""
        for name, labels in zip(op.inputs, sig.inputs, strict=True):
            if self.tensors[name].role in STATIC:
                static.update(labels)
            elif not label and labels:
                label = labels[1] if self.folded else samples_label(labels)
        able = label and label not in static and self._divides(label, op, sig)
        return label if able else None

    def _is_candidate(self, label: str, op: Op, sig: OpAxes) -> bool:
        """Whether something is divided by the label already, or an op may begin to be."""
        for name, labels in zip(op.inputs, sig.inputs, strict=True):
            if label not in labels:
                continue
            dim, now = labels.index(label), self._where(self._now(name))
            if now == dim:
                return True
            if now == FREE and op.pass_ is Pass.FORWARD and self._begins(label, op, sig):
                return True
            if self.sequence and now == PARTIAL and dim == 1 and len(labels) == 3:
                return True
            of_samples = self.by_samples is not None and self.tensors[name].role in _OF_SAMPLES
            if of_samples and now in {PARTIAL, FREE} and label == self._samples(op, sig):
                return True
        for name, labels in zip(op.outputs, sig.outputs, strict=True):
            if label in labels and (of := base(name)) != name:
                of_gradient = self.layout.get(self._root(of)) == labels.index(label)
                if of_gradient:
                    return True
        return False

    def _begins(self, label: str, op: Op, sig: OpAxes) -> bool:
        """Whether an op may be divided though nothing is yet: a product with weights, a table."""
        if self.positions:
            return False
        begins = op.loops is not None or label in sig.padded or self._makes_weights(op)
        return begins and self._has_weight(label, op, sig)

    def _makes_weights(self, op: Op) -> bool:
        """Whether an op forms what a product then takes for weights, such as rows of length 1."""
        return bool(op.outputs) and all(self.tensors[name].role in WEIGHTS for name in op.outputs)

    def _pairs(self, label: str, op: Op, sig: OpAxes) -> bool:
        """Whether dividing a product takes up what is divided, or leaves what will be taken up."""
        if op.loops is None:
            return True  # a table: no device could hold a large vocabulary
        x, labels = self._now(op.inputs[0]), sig.inputs[0]
        if label in labels:
            return self._where(x) == labels.index(label)
        return any(
            label in labels and labels.index(label) in self.good.get(name, ())
            for name, labels in zip(op.outputs, sig.outputs, strict=True)
        )

    def _cost(self, label: str | None, op: Op, sig: OpAxes) -> float:
        """Bytes that the collectives of an op move, about; in the forward pass also backward.

        What else could be moved in the fixed time of a collective counts as bytes, too.
        """
        forward = op.pass_ is Pass.FORWARD
        moved = 0.0
        for name, labels in zip(op.inputs, sig.inputs, strict=True):
            tensor, now = self.tensors[name], self._where(self._now(name))
            size = tensor.bytes + self.message_bytes
            need = need_of(labels, label)
            if now == FREE:
                continue
            learns = forward and tensor.role is Role.ACTIVATION
            if now == PARTIAL:
                moved += size * (2 if need == WHOLE else 1 + learns)
            elif now != need:
                moved += size * (learns + (now != WHOLE))
            elif need == WHOLE and label is not None and learns:
                moved += 2 * size  # its gradient is a partial sum
        if label is None:
            return moved
        for name, labels in zip(op.outputs, sig.outputs, strict=True):
            tensor = self.tensors[name]
            size = tensor.bytes + self.message_bytes
            if label not in labels:
                if self._is_sum(name, label, sig) and tensor.role not in STATIC:
                    moved += 2 * size
            elif forward and self._leaves(op):
                is_taken_up = labels.index(label) in self.good.get(name, ())
                moved += 0 if is_taken_up else size
        return moved

    def _leaves(self, op: Op) -> bool:
        """Whether what an op leaves divided counts as moved where no later product takes it up."""
        return op.loops is not None

    def _is_discrete(self, tensor: Tensor) -> bool:
        return is_discrete(tensor.format, find(self.graph.precision))

    def _is_sum(self, output: str, label: str, sig: OpAxes) -> bool:
        """Whether an output without the label is a partial sum."""
        of = self.tensors[output]
        if label in sig.inner or not of.shape or self._is_discrete(of):
            return False
        if label in sig.local and of.role is not Role.WEIGHT_GRADIENT:
            return False
        return any(label in labels for labels in sig.inputs)
