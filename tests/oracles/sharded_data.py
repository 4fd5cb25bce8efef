"""Plays a divided training graph on real data: every device of a group with its own arrays.

Devices do each op on what they hold; collectives move numbers between the arrays of a group. What
an op does differently because others have the rest (the loss of classes that are divided, random
masks, tables, recurrences, statistics of a batch) is done once on the whole, and cut up again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from oracles.graph_interpreter import FORWARD, GRADIENT, SAME
from ridgeline.parallel.plan.layers import levels
from ridgeline.parallel.sharding.axes import base, forward_name
from ridgeline.parallel.sharding.axis_choice import CASTS, PARTIAL, WHOLE
from ridgeline.parallel.sharding.divide import ShardedGraph, ShardingSpec, divide
from ridgeline.parallel.sharding.shard import COLLECTIVES, Sharder
from ridgeline.workload.graph import Graph, Op, Pass, Role

Array = npt.NDArray[Any]
_TOGETHER = {
    *("loss", "bce-loss", "mse-loss", "smooth-l1-loss", "ctc-loss", "dropout", "embedding"),
    *("batch-norm", "lstm", "gru", "rnn-tanh", "rnn-relu", "concat", "split", "additive-attention"),
    *("flash-attention", "join-heads", "dispatch", "combine", "state-space"),
    *("linear-attention", "causal-filter", "selective-scan", "sink-scale", "index-scores"),
    "softmax-with-sinks",
}


WITHOUT_SAMPLES = {
    *(Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE, Role.BUFFER),
}


def updates(graph: Graph) -> dict[str, str]:
    """Gradient that the update of each weight reads."""
    return {op.inputs[0]: op.inputs[1] for op in graph.ops if op.kind == "optimizer"}


@dataclass
class Layouts:
    """Where every tensor is on each level, the innermost first."""

    divided: ShardedGraph
    sizes: tuple[int, ...]
    of: list[dict[str, int]]


def whole_of(name: str) -> str:
    """Name of the tensor that a panel is of; any other name as it is."""
    return re.sub(r"\.panel\d+$", "", name)


def sizes_of(division: ShardingSpec) -> tuple[int, ...]:
    """Devices of every level, that which is divided last first: of a grid, rows and columns."""
    if division.two is not None:
        return division.two.rows, division.two.columns
    return levels(division.layers, division.tensor)


def divided_with_layouts(graph: Graph, division: ShardingSpec) -> Layouts:
    """Divide a graph, and look over the shoulder of what does it."""
    seen: list[dict[str, int]] = []
    result = Sharder.result

    def watched(self: Sharder) -> Any:
        found = result(self)
        seen.append({name: self._where(name) for name in self.local})
        return found

    with mock.patch.object(Sharder, "result", watched):
        divided = divide(graph, division)
    layouts = Layouts(divided, sizes_of(division), seen[::-1])
    for op in divided.graph.ops:
        if op.kind in COLLECTIVES or op.kind == "slice":
            for where in layouts.of:  # what one level moves stays where it is on the others
                for name in op.outputs:
                    where.setdefault(name, where[whole_of(op.inputs[0])])
    return layouts


class Devices:
    """All devices of the group, each with its arrays."""

    together = frozenset(_TOGETHER)
    """Kinds of the ops that are done once on the whole."""

    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self.full, self.layouts, self.sizes = graph, layouts, layouts.sizes
        self.graph = layouts.divided.graph
        self.places = list(product(*(range(size) for size in self.sizes)))
        self.env: dict[tuple[int, ...], dict[str, Array]] = {place: {} for place in self.places}
        self.whole_op = {op.name: op for op in graph.ops}
        self.origin = {
            name: op.inputs[0]
            for op in self.graph.ops
            for name in op.outputs
            if op.kind in COLLECTIVES or (op.kind == "slice" and op.name not in self.whole_op)
        }
        self.fused = self._fused()
        self.rows = self._rows()
        of_batches = [op for op in graph.ops if op.kind == "batch-norm"]
        self.statistics = {name for op in of_batches for name in op.outputs[1:]}

    def run(self, values: Mapping[str, Array]) -> None:
        """Do all ops but the updates on inputs, weights and buffers."""
        for name, value in values.items():
            if name in self.graph.tensors:
                self._deal(name, np.array(value))
        for op in self.graph.ops:
            if op.kind == "optimizer":
                continue
            if op.kind in COLLECTIVES:
                if op.outputs or op.kind == "reduce":
                    self._collective(op)
            elif op.kind == "slice" and op.name not in self.whole_op:
                self._cut(op)
            elif op.kind in self.together:
                self._together(op)
            else:
                for place in self.places:
                    inputs = [self.env[place][name] for name in op.inputs]
                    self._keep(op, place, self._play(op, self.graph, inputs))

    def gradient(self, weight: str) -> Array:
        """Sum what updates of a weight read over its replicas, and put the parts together."""
        gradient, summed = updates(self.graph)[weight], {}
        alike = self._replicas(weight)
        for place in self.places:
            mine = [i for level, i in enumerate(place) if level not in alike]
            same = [
                p for p in self.places if mine == [i for k, i in enumerate(p) if k not in alike]
            ]
            summed[place] = sum(self.env[p][gradient] for p in same)
        return self._assembled([summed[place] for place in self.places], gradient)

    def _replicas(self, weight: str) -> range:
        """Levels whose devices have the same of a weight, and samples of their own."""
        return range(self.layouts.divided.apart.get(weight, len(self.sizes)), len(self.sizes))

    def is_padded(self) -> bool:
        """Whether some part is larger than its share: of a vocabulary."""

        def parts(name: str) -> int:
            places = zip(self.sizes, self.layouts.of, strict=True)
            return math.prod(size for size, where in places if where.get(name, WHOLE) >= 0)

        mine = self.graph.tensors
        return any(
            mine[name].elements * parts(name) != of.elements
            for name, of in self.full.tensors.items()
            if name in mine
        )

    def _fused(self) -> dict[str, list[int]]:
        """Widths of the outputs of products that make several, by what has them side by side."""
        found: dict[str, list[int]] = {}
        for op in self.full.ops:
            made = self.whole_op.get(forward_name(op))
            if made is None or made.kind != "gemm" or len(made.outputs) < 2:
                continue
            widths = [self.full.tensors[name].shape[-1] for name in made.outputs]
            for name in (op.inputs[0] if op is not made else made.inputs[1], made.inputs[1]):
                found[self._weight(name)] = widths
        return found

    def _rows(self) -> set[str]:
        """Rows of experts, whose samples are in the second dimension."""
        rows: set[str] = set()
        for op in self.full.ops:
            if op.kind == "dispatch" and op.pass_ is Pass.FORWARD:
                rows.add(op.outputs[0])
            elif op.kind != "combine" and op.pass_ is Pass.FORWARD and rows & {*op.inputs}:
                rows.update(op.outputs)
            elif op.kind in {"concat", "quantise"} and rows & set(map(base, op.inputs)):
                rows.update(map(base, op.outputs))  # gradients of fused products, side by side
        return rows

    def _weight(self, name: str) -> str:
        """Weight that a copy or a gradient of it is of; any other name as it is."""
        while name in self.origin:
            name = whole_of(self.origin[name])
        name = base(name) if base(name) in self.full.tensors else name
        if name not in self.full.tensors:
            return name
        casts = {op.outputs[0]: op.inputs[0] for op in self.full.ops if op.kind in CASTS}
        while self.full.tensors[name].role is Role.WEIGHT_COPY:
            name = casts[name]
        return name

    def _play(self, op: Op, graph: Graph, inputs: list[Array]) -> list[Array]:
        forward = op.pass_ in {Pass.FORWARD, Pass.RECOMPUTE} or op.kind in SAME
        rule = (FORWARD if forward else GRADIENT)[op.kind]
        return rule(op, inputs, [graph.tensors[name].shape for name in op.outputs])

    def _keep(self, op: Op, place: tuple[int, ...], results: list[Array]) -> None:
        for name, result in zip(op.outputs, results, strict=True):
            assert np.shape(result) == self.graph.tensors[name].shape, (op.name, name)
            self._write(op, place, name, np.array(result))

    def _write(self, op: Op, place: tuple[int, ...], name: str, result: Array) -> None:
        env = self.env[place]
        if op.in_place and name == op.outputs[0]:
            env[op.inputs[0]][...] = result
            result = env[op.inputs[0]]
        env[name] = result

    def _together(self, op: Op) -> None:
        whole = self.whole_op[op.name]
        inputs = [
            self._assembled([self.env[place][name] for place in self.places], name)
            for name in op.inputs
        ]
        for name, result in zip(op.outputs, self._play(whole, self.full, inputs), strict=True):
            self._deal(name, np.array(result))

    def _deal(self, name: str, value: Array) -> None:
        """Give every device its part; of a sum that is open, one device has all."""
        alike = range(0)
        if self.graph.tensors[name].role is Role.WEIGHT_GRADIENT:
            alike = self._replicas(self._weight(name))
        for place in self.places:
            mine = value
            for level in reversed(range(len(self.sizes))):
                where = self.layouts.of[level].get(name, WHOLE)
                if where >= 0:
                    mine = self._split(mine, level, where, name)[place[level]]
                elif (where == PARTIAL or level in alike) and place[level]:
                    mine = np.zeros_like(mine)
            assert mine.shape == self.graph.tensors[name].shape, name
            self.env[place][name] = mine.copy()

    def _assembled(self, parts: list[Array], name: str) -> Array:
        """Put the parts of a tensor together, the inner levels first."""
        of = dict(zip(self.places, parts, strict=True))
        for level, size in enumerate(self.sizes):
            where = self.layouts.of[level].get(name, WHOLE)
            rest = {place[level + 1 :] for place in self.places}
            joined = {}
            for other in rest:
                mine = [of[(i, *other)] for i in range(size)]
                if where >= 0:
                    joined[other] = self._join(mine, level, where, name)
                elif where == PARTIAL:
                    joined[other] = sum(mine)
                else:
                    joined[other] = mine[0]
            of = joined
        return of[()]

    def _beyond(self, level: int, axis: int, name: str) -> int:
        """Blocks of samples of outer levels that a device has: each is divided by itself."""
        samples = 1 if base(name) in self.rows else 0
        without = name in self.statistics or self.graph.tensors[name].role in WITHOUT_SAMPLES
        if axis != samples or without:
            return 1
        outer = range(level + 1, len(self.sizes))
        return math.prod(self.sizes[i] for i in outer if self.layouts.of[i].get(name) != samples)

    def _blocks(self, value: Array, level: int, axis: int, name: str, parts: int) -> list[Array]:
        """Cut what is divided block by block: samples of outer levels, outputs of one product.

        The value is one of so many parts.
        """
        if (root := self._weight(name)) in self.fused:
            widths = self.fused[root]
            is_weight = self.graph.tensors[name].role in WITHOUT_SAMPLES
            if axis == value.ndim - (2 if is_weight else 1):
                scale = value.shape[axis] / sum(widths)
                ends = [round(end * scale) for end in accumulate(widths)][:-1]
                return np.split(value, ends, axis=axis)
        return np.split(value, self._beyond(level, axis, name), axis=axis)

    def _split(self, value: Array, level: int, axis: int, name: str) -> list[Array]:
        blocks = self._blocks(value, level, axis, name, 1)
        cut = [np.split(block, self.sizes[level], axis=axis) for block in blocks]
        return [np.concatenate(parts, axis=axis) for parts in zip(*cut, strict=True)]

    def _join(self, parts: list[Array], level: int, axis: int, name: str) -> Array:
        cut = [self._blocks(part, level, axis, name, len(parts)) for part in parts]
        return np.concatenate(
            [block for blocks in zip(*cut, strict=True) for block in blocks], axis=axis
        )

    def _groups(self, level: int) -> list[list[tuple[int, ...]]]:
        others = {(*place[:level], *place[level + 1 :]) for place in self.places}
        return [
            [(*other[:level], i, *other[level:]) for i in range(self.sizes[level])]
            for other in sorted(others)
        ]

    def _level(self, dimension: str) -> int:
        return int(dimension.partition(".")[2] or 0)

    def _collective(self, op: Op) -> None:
        level = self._level(str(dict(op.attrs)["dimension"]))
        (name,), (new,) = op.inputs, op.outputs
        before, after = self.graph.tensors[name].shape, self.graph.tensors[new].shape
        grown = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if b > a]
        cut = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if b < a]
        size = self.sizes[level]
        moved = dict(op.attrs)["size_bytes"]
        larger = max(math.prod(before), math.prod(after)) if op.kind != "all-to-all" else 0
        format_bytes = self.graph.tensors[new].bytes / math.prod(after)
        expected = (larger or math.prod(before)) * format_bytes
        assert abs(moved - expected) <= 0.1 * expected + 4, op.name  # shared exponents
        for group in self._groups(level):
            mine = [self.env[place][name] for place in group]
            if op.kind in {"all-reduce", "reduce-scatter"}:
                whole = sum(mine)
            else:
                whole = self._join(mine, level, grown[0], name)
            parts = self._split(whole, level, cut[0], new) if cut else [whole] * size
            for place, part in zip(group, parts, strict=True):
                assert part.shape == after, op.name
                self._write(op, place, new, part.copy())

    def _cut(self, op: Op) -> None:
        (name,), (new,) = op.inputs, op.outputs
        before, after = self.graph.tensors[name].shape, self.graph.tensors[new].shape
        (axis,) = (d for d, (a, b) in enumerate(zip(before, after, strict=True)) if b < a)
        level = next(
            i for i, where in enumerate(self.layouts.of) if where[new] == axis != where[name]
        )
        for place in self.places:
            parts = self._split(self.env[place][name], level, axis, new)
            self.env[place][new] = parts[place[level]].copy()
