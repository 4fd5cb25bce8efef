"""Plays every op of a network on rows of images that devices share, with arrays.

Which rows an op needs is not asked of the program: a row of an input is changed, and what changes
in the output shows it. Each device then does the op of the undivided network on arrays that have
only its own rows and those that it copies from the devices that have them; all else is nonsense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.graph_interpreter import FORWARD, GRADIENT, SAME
from ridgeline.workload.graph import Graph, Op, Pass

Array = npt.NDArray[Any]
_OF_POSITIONS = "max-pool"  # its gradient reads where each maximum was


@dataclass(frozen=True)
class Copied:
    """Rows that device `reader` needs of device `owner`, of one input of an op."""

    input: int
    reader: int
    owner: int
    rows: int


def shares(rows: int, parts: int) -> list[list[int]]:
    """Rows of each device, as evenly as can be, the first ones having more."""
    return [part.tolist() for part in np.array_split(np.arange(rows), parts)]


class SharedRows:
    """Ops of a network whose tensors are known, done by `parts` devices along one axis."""

    def __init__(self, graph: Graph, env: Mapping[str, Array], parts: int, axis: int) -> None:
        self.graph, self.env, self.parts, self.axis = graph, env, parts, axis
        self.known: dict[tuple[str, int, int], Array] = {}
        self.forward = {op.name: op for op in graph.ops if op.pass_ is Pass.FORWARD}

    def play(self, op: Op, inputs: list[Array]) -> list[Array]:
        """Do an op of the undivided network."""
        forward = op.pass_ is Pass.FORWARD or op.kind in SAME
        shapes = [self.graph.tensors[name].shape for name in op.outputs]
        with np.errstate(invalid="ignore", over="ignore"):
            return (FORWARD if forward else GRADIENT)[op.kind](op, inputs, shapes)

    def size(self, name: str) -> int:
        """Rows of an image; 0: none."""
        shape = self.graph.tensors[name].shape
        return shape[self.axis] if len(shape) == 4 and ".weight" not in name else 0

    def needs(self, op: Op, at: int, reader: int) -> set[int]:
        """Rows of an input without which a device cannot make its own rows of the output."""
        own = shares(self.size(op.inputs[at]), self.parts)[reader]
        if op.pass_ is Pass.WEIGHT_GRADIENT:
            if op.inputs[at] == self._gradient_of(op):
                return set(own)
            key = (op.name, at, reader)
        else:
            key = (op.name, at, -1)
        if key not in self.known:
            self.known[key] = self._changes(op, at, reader)
        changes = self.known[key]  # [rows of the input, rows of the output]
        if op.pass_ is not Pass.WEIGHT_GRADIENT:
            changes = changes[:, shares(changes.shape[1], self.parts)[reader]]
        return set(np.flatnonzero(changes.any(axis=1)).tolist())

    def _changes(self, op: Op, at: int, reader: int) -> Array:
        """Change one row of an input after the other, and see which rows of the output change."""
        if op.kind == _OF_POSITIONS and op.pass_ is not Pass.FORWARD:
            # whatever the maxima are: each row that a window reaches
            return self._changes(self.forward[op.name.rpartition(".")[0]], 0, reader).T
        inputs = [np.array(self.env[name], float) for name in op.inputs]
        if op.pass_ is Pass.WEIGHT_GRADIENT:  # a device's own part of the sum
            inputs = self._own_part(op, inputs, reader)
        before, found = self.play(op, inputs)[0], []
        for row in range(self.size(op.inputs[at])):
            changed = inputs[at].copy()
            self._row(changed, row)[...] += 1e6
            after = self.play(op, [*inputs[:at], changed, *inputs[at + 1 :]])[0]
            differs = np.abs(after - before) > 1e-3
            found.append(np.moveaxis(differs, self.axis, 0).any(axis=(1, 2, 3)))
        return np.array(found)

    def copied(self, op: Op) -> Iterator[Copied]:
        """Yield what devices copy from each other for an op."""
        for at, name in enumerate(op.inputs):
            if not self.size(name):
                continue
            own = shares(self.size(name), self.parts)
            for reader in range(self.parts):
                needed = self.needs(op, at, reader)
                for owner in range(self.parts):
                    rows = len(needed.intersection(own[owner]))
                    if owner != reader and rows:
                        yield Copied(at, reader, owner, rows)

    def check(self, op: Op) -> None:
        """Assert that own and copied rows are enough for every device to make its own rows."""
        whole = self.play(op, [np.array(self.env[name]) for name in op.inputs])
        rng, total = np.random.default_rng(0), 0.0
        for reader in range(self.parts):
            inputs = []
            for at, name in enumerate(op.inputs):
                x = np.array(self.env[name])
                if self.size(name):
                    mine = shares(self.size(name), self.parts)[reader]
                    known = self.needs(op, at, reader).union(mine)
                    hidden = [row for row in range(self.size(name)) if row not in known]
                    zero = op.kind == _OF_POSITIONS or x.dtype.kind == "i"
                    for row in hidden:
                        part = self._row(x, row)
                        part[...] = 0 if zero else rng.normal(size=part.shape) * 1e3
                inputs.append(x)
            if op.pass_ is Pass.WEIGHT_GRADIENT:
                total = total + self.play(op, self._own_part(op, inputs, reader))[0]
                continue
            mine_, all_ = (
                self._own_rows(op, made, reader) for made in (self.play(op, inputs), whole)
            )
            np.testing.assert_allclose(mine_, all_, rtol=1e-7, atol=1e-7, err_msg=op.name)
        if op.pass_ is Pass.WEIGHT_GRADIENT:
            np.testing.assert_allclose(total, whole[0], rtol=1e-7, atol=1e-7, err_msg=op.name)

    def _row(self, x: Array, row: int) -> Array:
        return np.moveaxis(x, self.axis, 0)[row]

    def _own_rows(self, op: Op, made: list[Array], reader: int) -> Array:
        if op.pass_ is Pass.WEIGHT_GRADIENT:
            return made[0]
        return np.moveaxis(made[0], self.axis, 0)[
            shares(self.size(op.outputs[0]), self.parts)[reader]
        ]

    def _gradient_of(self, op: Op) -> str:
        """Name of the output's gradient that the gradient of a weight reads."""
        return next(name for name in op.inputs if ".grad" in name)

    def _own_part(self, op: Op, inputs: list[Array], reader: int) -> list[Array]:
        """Leave of the output's gradient only a device's own rows."""
        name = self._gradient_of(op)
        at, kept = op.inputs.index(name), shares(self.size(name), self.parts)[reader]
        moved = np.moveaxis(inputs[at].copy(), self.axis, 0)
        moved[[row for row in range(len(moved)) if row not in kept]] = 0
        return [*inputs[:at], np.moveaxis(moved, 0, self.axis), *inputs[at + 1 :]]
