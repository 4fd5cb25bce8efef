"""Plays a graph that is divided over rows and columns of devices on real data (`sharded_data`).

Columns are divided first. What they do not divide along an axis that rows do divide, stands on a
device as blocks, one of each column, of which it has its part: as it comes from a gathering of
columns that have parts each.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from oracles.sharded_data import Array, Devices
from ridgeline.parallel.choice import WHOLE
from ridgeline.parallel.labels import GRID, signature
from ridgeline.workload.graph import Pass, Role

_ROWS, _COLUMNS = 0, 1


class GridDevices(Devices):
    """All devices of a grid; norms add up statistics of rows inside, so that they are done once."""

    together = Devices.together | {"layer-norm", "rms-norm"}

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

    def _level(self, dimension: str) -> int:
        return {GRID[0]: _COLUMNS, GRID[1]: _ROWS}[dimension]

    def _replicas(self, weight: str) -> range:
        own = self.layouts.divided.own_rows
        return range(_ROWS, _ROWS + 1) if own.get(weight) == "data.grid" else range(0)

    def _blocks(self, value: Array, level: int, axis: int, name: str, parts: int) -> list[Array]:
        columns = self.sizes[_COLUMNS]
        pieces = super()._blocks(value, level, axis, name, parts)
        if level != _ROWS or self.layouts.of[_COLUMNS].get(name, WHOLE) == axis:
            return pieces
        found = []
        for piece in pieces:
            size = self.units.get((self._weight(name), axis), piece.shape[axis] * parts)
            cut = columns if size % (columns * self.sizes[_ROWS]) == 0 else 1
            found += np.split(piece, cut, axis=axis)
        return found

    def _beyond(self, level: int, axis: int, name: str) -> int:
        return 1
