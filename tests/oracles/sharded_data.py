"""Plays a divided training graph on real data: every device of a "tensor" group with its own arrays.

Devices do each op on what they hold; collectives move numbers between the arrays of a group. What
an op does differently because others have the rest (the loss of classes that are divided, random
masks, tables, recurrences, statistics of a batch) is done once on the whole, and cut up again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from oracles.graph_interpreter import FORWARD, GRADIENT, SAME
from ridgeline.parallel.choice import PARTIAL, WHOLE
from ridgeline.parallel.divide import Divided, Division, divide
from ridgeline.parallel.layers import levels
from ridgeline.parallel.shard import COLLECTIVES, _Sharder
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Graph, Op, Pass

Array = npt.NDArray[Any]
_TOGETHER = {
    *("loss", "bce-loss", "mse-loss", "smooth-l1-loss", "ctc-loss", "dropout", "embedding"),
    *("batch-norm", "lstm", "gru", "rnn-tanh", "rnn-relu"),
}


def updates(graph: Graph) -> dict[str, str]:
    """Gradient that the update of each weight reads."""
    return {op.inputs[0]: op.inputs[1] for op in graph.ops if op.kind == "optimizer"}


@dataclass
class Layouts:
    """Where every tensor is on each level, the innermost first."""

    divided: Divided
    sizes: tuple[int, ...]
    of: list[dict[str, int]]


def divided_with_layouts(graph: Graph, division: Division) -> Layouts:
    """Divide a graph, and look over the shoulder of what does it."""
    seen: list[dict[str, int]] = []
    result = _Sharder.result

    def watched(self: _Sharder) -> Any:
        found = result(self)
        seen.append({name: self._where(name) for name in self.local})
        return found

    with mock.patch.object(_Sharder, "result", watched):
        divided = divide(graph, division)
    layouts = Layouts(divided, levels(division.layers, division.tensor), seen[::-1])
    for op in divided.graph.ops:
        if op.kind in COLLECTIVES or op.kind == "slice":
            for where in layouts.of:  # what one level moves stays where it is on the others
                for name in op.outputs:
                    where.setdefault(name, where[op.inputs[0]])
    return layouts


class Devices:
    """All devices of the group, each with its arrays."""

    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self.full, self.layouts, self.sizes = graph, layouts, layouts.sizes
        self.graph = layouts.divided.graph
        self.places = list(product(*(range(size) for size in self.sizes)))
        self.env: dict[tuple[int, ...], dict[str, Array]] = {place: {} for place in self.places}
        self.whole_op = {op.name: op for op in graph.ops}

    def run(self, values: Mapping[str, Array]) -> None:
        """Do all ops but the updates on inputs, weights and buffers."""
        for name, value in values.items():
            if name in self.graph.tensors:
                self._deal(name, np.array(value))
        for op in self.graph.ops:
            if op.kind == "optimizer":
                continue
            if op.kind in COLLECTIVES:
                if op.outputs:
                    self._collective(op)
            elif op.kind == "slice" and op.name not in self.whole_op:
                self._cut(op)
            elif op.kind in _TOGETHER:
                self._together(op)
            else:
                for place in self.places:
                    inputs = [self.env[place][name] for name in op.inputs]
                    self._keep(op, place, self._play(op, self.graph, inputs))

    def gradient(self, weight: str) -> Array:
        """Sum what updates of a weight read over its replicas, and put the parts together."""
        gradient = updates(self.graph)[weight]
        first = self.layouts.divided.apart.get(weight, len(self.sizes))
        summed = {}
        for place in self.places:
            same = [p for p in self.places if p[:first] == place[:first]]
            summed[place] = sum(self.env[p][gradient] for p in same)
        return self._assembled([summed[place] for place in self.places], gradient)

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
        root = {g: w for w, g in weight_gradients(self.full).items()}.get(name, "")
        first = self.layouts.divided.apart.get(root, len(self.sizes))
        for place in self.places:
            mine = value
            for level in reversed(range(len(self.sizes))):
                where = self.layouts.of[level].get(name, WHOLE)
                if where >= 0:
                    mine = np.split(mine, self.sizes[level], axis=where)[place[level]]
                elif (where == PARTIAL or level >= first) and place[level]:
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
                    joined[other] = np.concatenate(mine, axis=where)
                elif where == PARTIAL:
                    joined[other] = sum(mine)
                else:
                    joined[other] = mine[0]
            of = joined
        return of[()]

    def _groups(self, level: int) -> list[list[tuple[int, ...]]]:
        others = {(*place[:level], *place[level + 1 :]) for place in self.places}
        return [
            [(*other[:level], i, *other[level:]) for i in range(self.sizes[level])]
            for other in sorted(others)
        ]

    def _collective(self, op: Op) -> None:
        level = int(str(dict(op.attrs)["dimension"]).partition(".")[2])
        (name,), (new,) = op.inputs, op.outputs
        before, after = self.graph.tensors[name].shape, self.graph.tensors[new].shape
        grown = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if b > a]
        cut = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if b < a]
        size = self.sizes[level]
        moved = dict(op.attrs)["size_bytes"]
        larger = max(math.prod(before), math.prod(after)) if op.kind != "all-to-all" else 0
        format_bytes = self.graph.tensors[new].bytes / math.prod(after)
        assert moved == (larger or math.prod(before)) * format_bytes, op.name
        for group in self._groups(level):
            mine = [self.env[place][name] for place in group]
            if op.kind in {"all-reduce", "reduce-scatter"}:
                whole = sum(mine)
            else:
                whole = np.concatenate(mine, axis=grown[0])
            parts = np.split(whole, size, axis=cut[0]) if cut else [whole] * size
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
            parts = np.split(self.env[place][name], self.sizes[level], axis=axis)
            self.env[place][new] = parts[place[level]].copy()
