"""Stalls and DRAM traffic as SCALE-Sim 3.0.0 counts them: double-buffered SRAMs, word by word.

Words are one byte. Of each SRAM one half is active: read by the array, or written by it; the other
half is filled from DRAM, or drained to it, at the same time.

``USER``
    Each operand has a DRAM port of its own. Words are fetched in the order in which the array wants
    them once (folds below each other, by diagonals where the array skews them), and the buffer is
    a window of that order which only moves forward, and around its end. A request that is not in
    the active half moves the window by the other half, which takes the words of one half divided by
    the words a cycle, and one cycle; the array waits twice the time that is missing. When words are
    wanted again, the window goes all the way round.
``CALC``
    Reads never wait. New words fill the active half; when it is full, it is emptied, and all words
    count as new. What was new is read from DRAM in the time in which the half before was filled.

Results wait for the drain of half a buffer in both modes; in CALC mode as many words leave in a
cycle as the array has columns.

The rules were read in SCALE-Sim's code (``memory/*.py``, ``compute/*.py``) and are checked against
its output. What is odd in them is kept: `docs/from-scalesim.md` names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import ConfigError
from ridgeline.hardware.array import Dataflow
from ridgeline.kernels.systolic.closed_form import folds
from ridgeline.kernels.systolic.scalesim import scalesim_product
from ridgeline.kernels.systolic.sparsity import StructuredSparsity
from ridgeline.workload.graph import Conv, Gemm

_KB = 1024
_SETS = 100
"""Parts of a buffer, the grain in which it is looked up and replaced."""
_MOST_WORDS = 2**28
_NEVER = 2**62


class BufferSizes(NamedTuple):
    """Sizes of the SRAMs, in KiB; SCALE-Sim takes a word for a byte."""

    ifmap_kb: int
    filter_kb: int
    ofmap_kb: int


class PortWords(NamedTuple):
    """DRAM words a cycle of each operand's port in USER mode."""

    ifmap: int
    filter: int
    ofmap: int


@dataclass(frozen=True, slots=True)
class OperandTraffic:
    """What SCALE-Sim reports of one operand's SRAM and DRAM requests.

    Attributes
    ----------
    sram_start, sram_stop, dram_start, dram_stop
        Cycles of the first and last request; what is fetched before the array starts is below 0.
    dram_words
        Read, or written.
    """

    sram_start: int
    sram_stop: int
    dram_start: int
    dram_stop: int
    dram_words: int

    @property
    def dram_words_per_cycle(self) -> float:
        """Average bandwidth between first and last request."""
        return self.dram_words / (self.dram_stop - self.dram_start + 1)


@dataclass(frozen=True, slots=True)
class MemoryReplay:
    """A layer as SCALE-Sim's memory serves it.

    Attributes
    ----------
    total_cycles
        "Total Cycles": index of the last cycle, with stalls.
    stall_cycles
        "Stall Cycles".
    """

    total_cycles: int
    stall_cycles: int
    ifmap: OperandTraffic
    filter: OperandTraffic
    ofmap: OperandTraffic

    @property
    def cycles_with_prefetch(self) -> int:
        """Cycles from the first word that is fetched to the last that is written."""
        return self.ofmap.dram_stop - min(self.ifmap.dram_start, self.filter.dram_start)


def replay_memory(
    loops: Conv | Gemm,
    rows: int,
    columns: int,
    dataflow: Dataflow,
    buffers: BufferSizes,
    ports: PortWords | None,
    *,
    sparsity: StructuredSparsity | None = None,
) -> MemoryReplay:
    """Replay one layer against SCALE-Sim's buffers.

    Parameters
    ----------
    loops
        The layer; of a grouped convolution, one group.
    rows, columns
        Cells of the array.
    ports
        Words a cycle in USER mode; None: CALC mode.
    sparsity
        Layer-wise N:M weights.

    Raises
    ------
    ConfigError
        If SCALE-Sim does not know such a layer, would itself stop, or the layer is larger than
        what a replay can hold in memory.
    """
    m, n, k = scalesim_product(loops)
    image = _Image.of(loops, sparsity)
    kept = len(image.window_rows)
    if max(m * kept, kept * n) > _MOST_WORDS:
        raise ConfigError(
            f"a product of {m} x {n} x {k} has an operand of more than {_MOST_WORDS} words, too"
            " many to replay one by one; without compat='scalesim' a layer may have any size"
        )
    stationary = {"os": None, "ws": "filter", "is": "ifmap"}[dataflow]
    size_rows, size_columns, steps = {
        "os": (m, n, kept), "ws": (kept, n, m), "is": (kept, m, n),
    }[dataflow]  # fmt: skip
    ifmap = _Operand(
        image=image,
        stationary=stationary == "ifmap",
        height={"os": kept, "ws": m, "is": kept}[dataflow],
        size={"os": m, "ws": kept, "is": m}[dataflow],
        lanes=columns if dataflow == "is" else rows,
        prefix=rows if dataflow == "ws" else 0,
        by_column=dataflow == "is",
        transposed=dataflow != "ws",
    )
    filter_ = _Operand(
        image=None,
        stationary=stationary == "filter",
        height={"os": kept, "ws": kept, "is": n}[dataflow],
        size={"os": n, "ws": n, "is": kept}[dataflow],
        lanes=rows if dataflow == "is" else columns,
        prefix=rows if dataflow == "is" else 0,
        by_column=dataflow != "is",
        transposed=False,
    )
    return _replay(
        ifmap, filter_, rows=rows, columns=columns, size_rows=size_rows,
        size_columns=size_columns, steps=steps, output_stationary=dataflow == "os",
        buffers=buffers, ports=ports,
    )  # fmt: skip


class _Image(NamedTuple):
    """The image of a convolution as the rows and columns that its windows touch."""

    tops: NDArray[np.int64]
    lefts: NDArray[np.int64]
    window_rows: NDArray[np.int64]
    window_columns: NDArray[np.int64]
    window_channels: NDArray[np.int64]
    height: int
    width: int
    channels: int

    @classmethod
    def of(cls, loops: Conv | Gemm, sparsity: StructuredSparsity | None) -> _Image:
        if isinstance(loops, Gemm):  # an image of one window a row
            h, w, r, s, channels, stride = loops.m, loops.k, 1, loops.k, 1, (1, 1)
        else:
            h, w, r, s = loops.h_in, loops.w_in, loops.r, loops.s
            channels, stride = loops.c_in // loops.groups, loops.stride
        place = np.arange(r * s * channels)
        if sparsity is not None:  # the first N of every block of M are kept
            place = place[place % sparsity.block < sparsity.kept]
        window_rows, rest = np.divmod(place, s * channels)
        window_columns, window_channels = np.divmod(rest, channels)
        return cls(
            np.arange(folds(h - r + stride[0], stride[0])) * stride[0],
            np.arange(folds(w - s + stride[1], stride[1])) * stride[1],
            window_rows, window_columns, window_channels, h, w, channels,
        )  # fmt: skip

    def ids(self) -> NDArray[np.int32]:
        """Address of every word of every window, [windows, words]; below 0 outside the image."""
        top, left = np.meshgrid(self.tops, self.lefts, indexing="ij")
        row = top.reshape(-1, 1) + self.window_rows
        column = left.reshape(-1, 1) + self.window_columns
        found = (row * self.width + column) * self.channels + self.window_channels
        found[(row >= self.height) | (column >= self.width)] = -1
        return found.astype(np.int32)

    @property
    def overhangs(self) -> bool:
        return bool(
            self.tops[-1] + self.window_rows.max() >= self.height
            or self.lefts[-1] + self.window_columns.max() >= self.width
        )

    @property
    def repeats(self) -> bool:
        """Whether two windows may share a word."""
        return bool(
            (len(self.tops) > 1 and self.tops[1] <= self.window_rows.max())
            or (len(self.lefts) > 1 and self.lefts[1] <= self.window_columns.max())
        )


@dataclass(frozen=True, slots=True)
class _Operand:
    """How an operand lies: `size` words in each of `height` lines, `lanes` enter at once.

    A streamed operand enters a line a cycle, skewed, from `prefix` on; its lanes are columns of the
    array if `by_column`. A stationary one enters from its last line on. `image` is None where no
    word is there twice.
    """

    image: _Image | None
    stationary: bool
    height: int
    size: int
    lanes: int
    prefix: int
    by_column: bool
    transposed: bool

    @property
    def fetched(self) -> int:
        """Words that are fetched, with those that fill up the last lanes."""
        return self.height * folds(self.size, self.lanes) * self.lanes

    def ids(self) -> NDArray[np.int32]:
        """Flat addresses; empty if every word has its own, in order."""
        image = self.image
        if image is None or not (image.repeats or image.overhangs):
            return np.zeros(0, np.int32)
        ids = image.ids()
        return np.ascontiguousarray(ids.T if self.transposed else ids).reshape(-1)

    def shape(self, counted: bool) -> NDArray[np.int64]:
        return np.array(
            [
                self.stationary, self.lanes, self.size, self.height, self.prefix, self.by_column,
                counted,
            ],
            np.int64,
        )  # fmt: skip


class _Reading(NamedTuple):
    """An operand as the compiled loop wants it."""

    shape: NDArray[np.int64]
    ids: NDArray[np.int32]
    begin: NDArray[np.int64]
    sets: NDArray[np.int32]
    buffer: NDArray[np.int64]


def _replay(
    ifmap: _Operand, filter_: _Operand, *, rows: int, columns: int, size_rows: int,
    size_columns: int, steps: int, output_stationary: bool, buffers: BufferSizes,
    ports: PortWords | None,
) -> MemoryReplay:  # fmt: skip
    from ridgeline.kernels.systolic import scalesim_replay as compiled

    if ports is None:
        first = _calc_reading(ifmap, buffers.ifmap_kb * _KB)
        second = _calc_reading(filter_, buffers.filter_kb * _KB)
    else:
        first = _user_reading(ifmap, buffers.ifmap_kb * _KB, ports.ifmap)
        second = _user_reading(filter_, buffers.filter_kb * _KB, ports.filter)
    capacity = buffers.ofmap_kb * _KB
    writer = np.zeros(compiled.WRITER_FIELDS, np.int64)
    writer[compiled.FREE] = capacity
    writer[compiled.DRAIN] = capacity - (capacity + 1) // 2
    writer[compiled.WIDTH] = columns if ports is None else ports.ofmap
    writer[compiled.DRAM_FIRST], writer[compiled.DRAM_LAST] = _NEVER, -_NEVER
    marks = np.full(6, -1, np.int64)
    fold_lines = steps + (1 if output_stationary else 2) * rows + columns - 2
    total, stall = compiled.replay(
        ports is None, output_stationary, rows, columns, folds(size_rows, rows),
        folds(size_columns, columns), fold_lines, size_rows, size_columns, steps, capacity,
        *first, *second, writer, marks,
    )  # fmt: skip
    dram = [
        _calc_dram(reading.buffer) if ports is None else _user_dram(reading.buffer)
        for reading in (first, second)
    ]
    dram.append(
        (
            int(writer[compiled.DRAM_FIRST]),
            int(writer[compiled.DRAM_LAST]),
            int(writer[compiled.WRITES]),
        )
    )
    traffic = [
        OperandTraffic(int(marks[2 * place]), int(marks[2 * place + 1]), *dram[place])
        for place in range(3)
    ]
    return MemoryReplay(int(total), int(stall), *traffic)


def _user_reading(operand: _Operand, capacity: int, words: int) -> _Reading:
    """Place the words of an operand in the sets of a buffer with `words` a cycle from DRAM."""
    from ridgeline.kernels.systolic import scalesim_replay as compiled

    active = (capacity + 1) // 2
    per_set = folds(capacity, _SETS)
    image = operand.image
    if image is not None and image.overhangs:
        valid = int((image.ids() >= 0).sum())
    else:
        valid = operand.height * operand.size
    sets = valid // per_set + 1
    active_sets = min(folds(active, per_set), sets)
    lines = min(folds(active, words), folds(operand.fetched, words))
    buffer = np.zeros(compiled.BUFFER_FIELDS, np.int64)
    buffer[compiled.SETS] = sets
    buffer[compiled.ACTIVE] = active_sets
    buffer[compiled.AHEAD] = min(folds(capacity - active, per_set), sets - active_sets)
    buffer[compiled.FETCH_LINES] = folds(capacity - active, words)
    buffer[compiled.FETCH_WORDS] = folds(capacity - active, words) * words
    buffer[compiled.LAST] = -1
    buffer[compiled.READS] = lines * words
    buffer[compiled.DRAM_START] = -lines
    if active_sets == sets and not (image is not None and image.overhangs):
        return _all_there(operand, buffer)
    ids = operand.ids()
    at = np.empty(operand.height * operand.size, np.int32)
    place = compiled.place_stationary if operand.stationary else compiled.place_stream
    place(at, ids, operand.height, operand.size, operand.lanes, per_set)
    if not ids.size:
        return _Reading(operand.shape(False), ids, np.zeros(0, np.int64), at, buffer)
    begin, sets_of = compiled.by_address(at, ids, int(ids.max()) + 1)
    return _Reading(operand.shape(False), ids, begin, sets_of, buffer)


def _calc_reading(operand: _Operand, capacity: int) -> _Reading:
    from ridgeline.kernels.systolic import scalesim_replay as compiled

    buffer = np.zeros(compiled.BUFFER_FIELDS, np.int64)
    items = capacity // _SETS
    buffer[compiled.ITEMS] = items
    buffer[compiled.FIRST] = -1
    image = operand.image
    words = operand.height * operand.size  # at most, where windows share them
    if words < compiled.HALF_SETS * items and (
        image is None or not (image.repeats or image.overhangs)
    ):
        buffer[compiled.FOUND] = words
        buffer[compiled.CURRENT], buffer[compiled.FILLED] = divmod(words, items)
        return _all_there(operand, buffer)
    ids = operand.ids()
    last_set = np.full(int(ids.max()) + 1 if ids.size else words, -1, np.int32)
    return _Reading(operand.shape(False), ids, np.zeros(0, np.int64), last_set, buffer)


def _all_there(operand: _Operand, buffer: NDArray[np.int64]) -> _Reading:
    """Leave out the words: all are in the buffer from the start."""
    none = np.zeros(0, np.int32)
    return _Reading(operand.shape(True), none, np.zeros(0, np.int64), none, buffer)


def _user_dram(buffer: NDArray[np.int64]) -> tuple[int, int, int]:
    from ridgeline.kernels.systolic import scalesim_replay as compiled

    return tuple(  # type: ignore[return-value]
        int(buffer[field]) for field in (compiled.DRAM_START, compiled.LAST, compiled.READS)
    )


def _calc_dram(buffer: NDArray[np.int64]) -> tuple[int, int, int]:
    from ridgeline.kernels.systolic import scalesim_replay as compiled

    found = int(buffer[compiled.FOUND])
    if not buffer[compiled.FILLS]:
        sets = int(buffer[compiled.CURRENT]) + bool(buffer[compiled.FILLED])
        took = folds(sets * int(buffer[compiled.ITEMS]), compiled.CALC_WORDS)
        return -took, -1, found
    end = int(buffer[compiled.END])
    if buffer[compiled.STOPS] or end < buffer[compiled.BEGIN]:
        raise ConfigError(
            "SCALE-Sim itself stops here: half a buffer is filled twice in one cycle, and it"
            " divides by the cycles between"
        )
    return int(buffer[compiled.DRAM_START]), end + 1, found
