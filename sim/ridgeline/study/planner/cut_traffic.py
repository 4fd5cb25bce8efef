"""Cut traffic: what pipeline stages send each other, wherever the network is cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.parallel.checkpointing.ops import once
from ridgeline.parallel.partition.stage_of import HELD
from ridgeline.study.planner.execution_order import OpFacts
from ridgeline.study.planner.layer_extrapolation import RepresentativeGraph
from ridgeline.workload.graph import Pass, Role

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEFT = HELD | {Role.WEIGHT_GRADIENT}  # sums over stages are left to collectives


class Crossing(NamedTuple):
    """Tensors that units read of others, an entry for each unit that reads one.

    Attributes
    ----------
    tensor, maker, reader
        [E] a number of the tensor; units.
    size_bytes
        [E] what a rank sends of it.
    """

    tensor: Ints
    maker: Ints
    reader: Ints
    size_bytes: Floats

    def between(self, part: Ints) -> Floats:
        """Return [P, P] bytes of a micro-batch from each part to each: a tensor goes once.

        Parameters
        ----------
        part
            [U] part of every unit.
        """
        n = int(part.max()) + 1
        source, target = part[self.maker], part[self.reader]
        goes = np.flatnonzero(source != target)
        _, first = np.unique(self.tensor[goes] * n + target[goes], return_index=True)
        found = np.zeros((n, n))
        np.add.at(found, (source[goes[first]], target[goes[first]]), self.size_bytes[goes[first]])
        return found


def crossing(told: RepresentativeGraph, taken: OpFacts, tensor: int) -> Crossing:
    """Return what units read of each other in a micro-batch, of ranks that share every op.

    What is computed again elsewhere is not sent, as a stage may keep what it got in the forward
    pass (`partition`).
    """
    graph, maker = told.graph, dict[str, int]()
    numbers: dict[str, int] = {}
    rows: dict[tuple[int, int, int], float] = {}
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.UPDATE or taken.once[i]:
            continue
        reader = int(taken.home[i])
        for name in op.inputs:
            made = maker.get(name, reader)
            if made != reader and graph.tensors[name].role not in _LEFT and once(name) == name:
                size = graph.tensors[name].bytes / (1 if name in taken.divided else tensor)
                rows[numbers.setdefault(name, len(numbers)), made, reader] = size
        for name in op.outputs:
            maker.setdefault(name, reader)
    columns = np.array(list(rows), np.int64).reshape(-1, 3)
    number, made_in, read_in = columns.T
    sizes = np.array(list(rows.values()), np.float64)
    return _whole(told, Crossing(number, made_in, read_in, sizes))


def _whole(told: RepresentativeGraph, few: Crossing) -> Crossing:
    """Write out repeated layers: what one reads of the layer before, and of far ones, each does."""
    if not told.more:
        return few
    at, layer, more = told.at, told.per_layer, told.more
    ends = np.stack((few.maker, few.reader))
    repeated = (ends >= at) & (ends < at + layer)
    before = (ends >= at - layer) & (ends < at)
    later = ends >= at + layer
    copied = repeated.any(axis=0) & ~later.any(axis=0)
    moves = repeated | (before & repeated.any(axis=0))
    behind = (ends + (ends >= at) * more * layer)[:, ~copied]
    parts = [Crossing(few.tensor[~copied], behind[0], behind[1], few.size_bytes[~copied])]
    number = int(few.tensor.max(initial=0)) + 1
    for j in range(more + 1):
        moved = (ends + moves * j * layer)[:, copied]
        own = few.tensor[copied] + np.where(moves[0, copied], j * number, 0)
        parts.append(Crossing(own, moved[0], moved[1], few.size_bytes[copied]))
    return Crossing(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
