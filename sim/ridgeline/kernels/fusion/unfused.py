"""Ops between fused groups, one after the other, and what stays on chip from one to the next.

Where all ops of a step run alone, `cache_residency` says which operands are on chip: whole tensors,
by least recently used. In a stretch between two groups an operand is on chip if it is there, and if
an op of that stretch touched its memory last: a group needs the room for itself. What is read
behind the stretch, or is a result of the step, is written to the far memory. In training, where
steps follow each other, the stretch of all ops is the step as it runs without fusion, with what the
step before has left on chip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.device import Device
from ridgeline.kernels.cache_residency import Found, keeping, last_touched, residence
from ridgeline.kernels.op_signature import OpSignature, op_signatures
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.liveness import STATIC_ROLES

Costs = NDArray[np.float64]
"""Time, energy, far bytes and so on (`groups.GroupCost`), along the last axis."""


class UnfusedStretches:
    """Prices stretches of a graph's ops.

    Parameters
    ----------
    price
        Returns what ops cost: one row for each, in equal columns.
    """

    def __init__(
        self, graph: Graph, device: Device, price: Callable[[Sequence[OpSignature]], Costs]
    ) -> None:
        self.graph, self.price = graph, price
        self.levels = len(keeping(device))
        self.again = any(op.pass_ is Pass.UPDATE for op in graph.ops)
        found = residence(graph, device).found
        self.found = [found[id(op)] for op in graph.ops]
        self.since = last_touched(graph, device)
        read_last = {name: at for at, op in enumerate(graph.ops) for name in op.inputs}
        self.until = [[self._until(name, read_last) for name in op.outputs] for op in graph.ops]
        self._costs: dict[tuple[int, Found | None], Costs] = {}

    def _until(self, name: str, read_last: dict[str, int]) -> float:
        """Return the last op that reads an output; inf of a result of the step."""
        lasts = self.graph.tensors[name].role in STATIC_ROLES or name == self.graph.loss
        return math.inf if lasts else read_last.get(name, -1)

    def each(self, first: int, end: int) -> list[Costs]:
        """Return what each op of a stretch costs."""
        return [self._of((at, self.pattern(at, first, end))) for at in range(first, end)]

    def place(self, at: int, first: int, end: int) -> Found:
        """Return where an op of a stretch finds its operands, those in the far memory too."""
        op = self.graph.ops[at]
        beyond = (float(self.levels),) * (len(op.inputs) + len(op.outputs))
        return self.pattern(at, first, end) or beyond

    def pattern(self, at: int, first: int, end: int) -> Found | None:
        """Return where an op of a stretch finds its operands; None: all in the far memory."""
        if self.again and (first, end) == (0, len(self.graph.ops)):
            return self.found[at]
        op, beyond = self.graph.ops[at], self.levels
        behind = [*(-1.0 for _ in op.inputs), *self.until[at]]
        found = tuple(
            place if since >= first and until < end else beyond
            for place, since, until in zip(self.found[at], self.since[at], behind, strict=True)
        )
        return None if all(place >= beyond for place in found) else found

    def totals(self) -> Iterator[Costs]:
        """Yield for each end, from 1 on, what the stretches up to it cost, by their first op.

        Sums of many numbers: the last digits are those of `each`.
        """
        ops = len(self.graph.ops)
        ending: list[list[int]] = [[] for _ in range(ops + 1)]
        for at, untils in enumerate(self.until):
            for until in {until for until in untils if at < until < ops}:
                ending[int(until) + 1].append(at)
        self._price_all()
        sums = np.zeros((ops, self._of((0, None)).size))
        whole = np.sum(self.each(0, ops), axis=0)
        for end in range(1, ops + 1):
            self._add(sums, end - 1, end, 1.0)
            for at in ending[end]:  # what it wrote has met its last reader
                if at < end - 1:
                    self._add(sums, at, end, 1.0)
                    self._add(sums, at, end - 1, -1.0)
            found = sums[:end].copy()
            if end == ops:
                found[0] = whole
            yield found

    def _add(self, sums: Costs, at: int, end: int, sign: float) -> None:
        for first, behind in self._firsts(at):
            sums[first:behind] += sign * self._of((at, self.pattern(at, first, end)))

    def _firsts(self, at: int) -> list[tuple[int, int]]:
        """Return the spans of first ops for which an op finds the same operands."""
        marks = {0, at + 1} | {since + 1 for since in self.since[at] if 0 <= since < at}
        places = sorted(marks)
        return list(itertools.pairwise(places))

    def _price_all(self) -> None:
        """Price every op in every way that it can find its operands, all together."""
        ops = len(self.graph.ops)
        wanted: set[tuple[int, Found | None]] = {
            (at, found) for at, found in enumerate(self.found) if self.again
        }
        for at, untils in enumerate(self.until):
            ends = {at + 1, ops, *(int(u) + 1 for u in untils if at <= u < ops)}
            for first, _ in self._firsts(at):
                wanted |= {(at, self.pattern(at, first, end)) for end in ends}
        self._find(list(wanted))

    def _of(self, wanted: tuple[int, Found | None]) -> Costs:
        if wanted not in self._costs:
            self._find([wanted])
        return self._costs[wanted]

    def _find(self, wanted: Sequence[tuple[int, Found | None]]) -> None:
        ops: list[Op] = [self.graph.ops[at] for at, _ in wanted]
        kinds = op_signatures(ops, self.graph, [found for _, found in wanted])
        distinct = list(dict.fromkeys(kinds))
        costs = dict(zip(distinct, self.price(distinct), strict=True))
        self._costs |= {way: costs[kind] for way, kind in zip(wanted, kinds, strict=True)}
