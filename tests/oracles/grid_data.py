"""Plays a graph that is divided over rows and columns of devices on real data (`sharded_data`).

Columns are divided first. What they do not divide along an axis that rows do divide, stands on a
device as blocks, one of each column, of which it has its part: as it comes from a gathering of
columns that have parts each.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from itertools import count

import numpy as np

from oracles.graph_interpreter import GRADIENT
from oracles.sharded_data import WITHOUT_SAMPLES, Array, Devices, Layouts
from ridgeline.parallel.sharding.axes import signature
from ridgeline.parallel.sharding.axis_choice import WHOLE
from ridgeline.parallel.sharding.inserted_ops import GRID
from ridgeline.workload.graph import Graph, Op, Pass, Role

_ROWS, _COLUMNS = 0, 1


class GridDevices(Devices):
    """All devices of a grid; norms add up statistics of rows inside, so that they are done once.

    Of products in steps, panels are sent by who has them and summed where they belong.
    """

    together = Devices.together | {"layer-norm", "rms-norm"}

    def __init__(self, graph: Graph, layouts: Layouts, mode: str) -> None:
        super().__init__(graph, layouts)
        self.mode = mode
        self.counts: dict[tuple[str, str], count[int]] = {}
        self.panels: dict[tuple[tuple[int, ...], str], list[Array]] = {}

    @cached_property
    def units(self) -> dict[tuple[str, int], int]:
        """Parts that a dimension of a weight can have at most: channels of a flattened image."""
        found: dict[tuple[str, int], int] = {}
        for op in self.full.ops:
            sig = signature(op, self.full.tensors, None) if op.pass_ is Pass.FORWARD else None
            for name, labels in zip(op.inputs, sig.inputs if sig is not None else (), strict=False):
                if self.full.tensors[name].role in {Role.WEIGHT, Role.WEIGHT_COPY}:
                    for axis, label in enumerate(labels):
                        if sig is not None and label in sig.units:
                            found[self._weight(name), axis] = sig.units[label]
        return found

    def is_padded(self) -> bool:
        """Whether some part, or some panel, is larger than its share."""
        moved = [op for op in self.graph.ops if op.kind == "broadcast"]
        return super().is_padded() or any(
            self.graph.tensors[op.inputs[0]].shape[-1] % self._panels(op) for op in moved
        )

    @cached_property
    def in_steps(self) -> frozenset[str]:
        """Weights of which panels are sent, which lie one after the other."""
        moved = [op for op in self.graph.ops if op.kind == "broadcast"]
        return frozenset(self._weight(op.inputs[0]) for op in moved)

    @property
    def steps(self) -> int:
        return math.lcm(*self.sizes)

    def _panels(self, op: Op) -> int:
        """Panels of one device."""
        return self.steps // self.sizes[self._level(str(dict(op.attrs)["dimension"]))]

    def _collective(self, op: Op) -> None:
        if op.kind not in {"broadcast", "reduce"}:
            super()._collective(op)
            return
        level, each = self._level(str(dict(op.attrs)["dimension"])), self._panels(op)
        (name,) = op.inputs
        step = next(self.counts.setdefault((op.kind, name), count())) % self.steps
        if op.kind == "reduce":
            step = int(name.rpartition(".panel")[2].partition(".")[0])
        for group in self._groups(level):
            mine = [self.env[place][name] for place in group]
            owner, number = divmod(step, each)
            if op.kind == "broadcast":
                panel = np.split(mine[owner], each, axis=-1)[number]
                for place in group:
                    self.env[place][op.outputs[0]] = panel.copy()
                continue
            key = name.rpartition(".panel")[0]
            self.panels.setdefault((group[owner], key), []).append(sum(mine))
            for place in group if op.outputs else ():
                whole = np.concatenate(self.panels.pop((place, key)), axis=-1)
                assert whole.shape == self.graph.tensors[op.outputs[0]].shape, op.name
                self.env[place][op.outputs[0]] = whole

    def _play(self, op: Op, graph: Graph, inputs: list[Array]) -> list[Array]:
        if ".step" not in op.name:
            return super()._play(op, graph, inputs)
        step = int(re.findall(r"\.step(\d+)", op.name)[-1])
        inputs = [
            np.split(value, self.steps, axis=-1)[step] if passes != int(passes) else value
            for value, passes in zip(inputs, op.input_passes, strict=True)
        ]
        if op.pass_ is Pass.FORWARD:
            return super()._play(op, graph, inputs)
        shapes = [graph.tensors[name].shape for name in op.outputs]
        if op.output_passes != (1,) * len(op.outputs):  # a panel of what is whole
            shapes = [(*shape[:-1], shape[-1] // self.steps) for shape in shapes]
        return GRADIENT[op.kind](op, inputs, shapes)

    def _keep(self, op: Op, place: tuple[int, ...], results: list[Array]) -> None:
        """Add what a step makes to what was there, or put it beside that."""
        if ".step" in op.name and op.pass_ is Pass.FORWARD and op.output_passes[0] != 1:
            results = [self.env[place][n] + new for n, new in zip(op.outputs, results, strict=True)]
        elif ".step" in op.name and op.output_passes[0] not in {1, 2}:
            found = []
            for name, new in zip(op.outputs, results, strict=True):
                panels = self.panels.setdefault((place, name), [])
                panels.append(new)
                found.append(np.concatenate(panels, axis=-1))
            if found[0].shape != self.graph.tensors[op.outputs[0]].shape:
                return
            results = found
        super()._keep(op, place, results)

    def _level(self, dimension: str) -> int:
        return {GRID[0]: _COLUMNS, GRID[1]: _ROWS}[dimension]

    def _replicas(self, weight: str) -> range:
        own = self.layouts.divided.own_rows
        return range(_ROWS, _ROWS + 1) if own.get(weight) == "data.grid" else range(0)

    def _blocks(self, value: Array, level: int, axis: int, name: str, parts: int) -> list[Array]:
        pieces = super()._blocks(value, level, axis, name, parts)
        in_panels = level == _ROWS and self._weight(name) in self.in_steps
        if in_panels or any(piece.shape[axis] * parts % self.sizes[level] for piece in pieces):
            return [value]  # weights that rows gather as they have cut them
        of_samples = axis == 0 and self.graph.tensors[name].role not in WITHOUT_SAMPLES
        is_cut = self.layouts.of[_COLUMNS].get(name, WHOLE) == axis
        if level != _ROWS or is_cut or (of_samples and self.mode != "stationary"):
            return pieces
        found, columns = [], self.sizes[_COLUMNS]
        for piece in pieces:
            size = self.units.get((self._weight(name), axis), piece.shape[axis] * parts)
            cut = columns if size % (columns * self.sizes[_ROWS]) == 0 else 1
            found += np.split(piece, cut, axis=axis)
        return found

    def _beyond(self, level: int, axis: int, name: str) -> int:
        return 1
