"""What a layout of a nest on an array takes: cycles, and words on every network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.kernels.spatial.cycle_model import (
    BUSY,
    END,
    FILLED,
    IN_WORDS,
    OUT_WORDS,
    PASSES,
    STEPS,
    W_WORDS,
    X_WORDS,
    CycleMachine,
    LayoutArrays,
    play,
    scratch_of,
)
from ridgeline.kernels.spatial.nest import LOOPS, SUMMED, ConvolutionNest, SpatialLayout


@dataclass(frozen=True, slots=True)
class Counts:
    """What an array does.

    Attributes
    ----------
    cycles
        From the first operand to the last result.
    busy_cycles
        In which the elements multiply; the rest is waiting for operands and room.
    fill_cycles, drain_cycles
        Of the rest, before the first product is begun and after the last one is done.
    x_words, w_words, in_words, out_words
        That the networks carry: a word that goes to many elements at once is one.
    passes, steps
        Times that the array came to rest, and exchanges of operands.
    """

    cycles: int
    busy_cycles: int
    x_words: int
    w_words: int
    in_words: int
    out_words: int
    passes: int
    steps: int
    fill_cycles: int = 0
    drain_cycles: int = 0

    @property
    def wait_cycles(self) -> int:
        """Between products: the elements wait for the networks of the buffer."""
        return self.cycles - self.busy_cycles - self.fill_cycles - self.drain_cycles


def work_of(nest: ConvolutionNest, layout: SpatialLayout) -> LayoutArrays:
    """Lay a nest out as the arrays that the recurrence and the array of elements play.

    A loop is spread over no more elements than have work, and runs no oftener than is needed.
    """
    sizes = np.array(nest.sizes, np.int64)
    element = np.array([layout.element.get(d, 1) for d in LOOPS], np.int64)
    element = np.minimum(element, sizes)
    parts = -(-sizes // element)
    rows = np.array([layout.rows.get(d, 1) for d in LOOPS], np.int64)
    rows = np.minimum(rows, parts)
    columns = np.array([layout.columns.get(d, 1) for d in LOOPS], np.int64)
    columns = np.minimum(columns, -(-parts // rows))
    reach = element * rows * columns
    inner: list[tuple[int, int, int]] = []
    for loop in reversed(layout.loops):
        d = LOOPS.index(loop.of)
        trips = min(loop.trips, -(-int(sizes[d]) // int(reach[d])))
        if trips > 1:
            inner.append((d, trips, int(reach[d])))
            reach[d] *= trips
    of, trips_, reaches = zip(*reversed(inner), strict=True) if inner else ((), (), ())
    summed = [LOOPS.index(d) for d in sorted(SUMMED)]
    return LayoutArrays(
        sizes=sizes,
        element=element,
        rows=rows,
        columns=columns,
        window=np.array([*nest.stride, *nest.dilation], np.int64),
        of=np.array(of, np.int64),
        trips=np.array(trips_, np.int64),
        reach=np.array(reaches, np.int64),
        hops=int(np.prod(rows[summed]) + np.prod(columns[summed]) - 2),
    )


def count(
    nest: ConvolutionNest, layout: SpatialLayout, machine: CycleMachine, *, skip: bool = True
) -> Counts:
    """Count the cycles and the words of a layout.

    Parameters
    ----------
    skip
        Whether to leave out iterations that repeat the one before; the counts are the same.
    """
    work = work_of(nest, layout)
    room = scratch_of(work)
    longest = 1 + max(
        -(-words // width)
        for words, width in zip(_most(work, machine), machine[:4], strict=True)
    )  # fmt: skip
    cycles = play(work, machine, room, longest + machine.setup, skip)
    found = [int(n) for n in room.counted]
    return Counts(
        cycles=int(cycles),
        busy_cycles=found[BUSY],
        x_words=found[X_WORDS],
        w_words=found[W_WORDS],
        in_words=found[IN_WORDS],
        out_words=found[OUT_WORDS],
        passes=found[PASSES],
        steps=found[STEPS],
        fill_cycles=found[FILLED],
        drain_cycles=int(cycles - room.state[END]),
    )


def _most(work: LayoutArrays, machine: CycleMachine) -> tuple[int, int, int, int]:
    """Words that one exchange brings or takes away, at most."""
    tile = np.minimum(work.element * work.rows * work.columns, work.sizes)
    n, g, k, c, p, q, r, s = (int(size) for size in tile)
    everywhere = int(np.prod(work.rows) * np.prod(work.columns))
    x, w, y = n * g * c * p * r * q * s, g * k * c * r * s, n * g * k * p * q
    return (
        x if machine.x_multicast else x * everywhere,
        w if machine.w_multicast else w * everywhere,
        y,
        y,
    )
