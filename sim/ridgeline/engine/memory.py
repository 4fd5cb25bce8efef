"""Memory of the ranks over a played program, computed from the starts and ends of its tasks.

All that is taken and given back at one moment is netted: a buffer that passes from one task to
the next at that moment, or that lives for no time, does not count twice. Bytes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgeline.engine.program import Flags, Floats, Ints, Program
from ridgeline.errors import RidgelineError


@dataclass(frozen=True)
class RankMemory:
    """The fullest moment of one rank.

    Attributes
    ----------
    peak_bytes
        Most bytes held at once.
    peak_s
        The first moment at which that was so.
    by_kind
        Bytes of each memory kind at that moment; sums to `peak_bytes`.
    """

    peak_bytes: int
    peak_s: float
    by_kind: dict[str, int]


class _Changes(NamedTuple):
    """Changes of held bytes, sorted by rank and time; what is there at the beginning comes at 0."""

    rank: Ints
    time_s: Floats
    kind: Ints
    delta: Ints


def memory_use(program: Program, start_s: Floats, end_s: Floats) -> list[RankMemory]:
    """Return the peak of every rank; see `Timeline.memory`."""
    n_ranks, n_kinds = program.memory_initial.shape
    if n_kinds == 0:
        return [RankMemory(0, 0.0, {}) for _ in range(n_ranks)]
    changes = _changes(program, start_s, end_s, np.ones(len(program.memory_rank), np.bool_))
    _check_never_negative(program, changes)
    first = np.flatnonzero(np.diff(changes.rank, prepend=-1))  # every rank has a first change
    held = np.where(_last_of_moment(changes), _running_total(changes, first), -1)
    peaks = np.maximum.reduceat(held, first)
    is_peak = np.flatnonzero(held == peaks[changes.rank])
    _, where = np.unique(changes.rank[is_peak], return_index=True)
    peak = is_peak[where]  # [K] the change that completes the first fullest moment of each rank
    by_kind = np.zeros((n_ranks, n_kinds), np.int64)
    before = np.arange(len(changes.rank)) <= peak[changes.rank]
    np.add.at(by_kind, (changes.rank[before], changes.kind[before]), changes.delta[before])
    return [
        RankMemory(total, moment, dict(zip(program.memory_kinds, parts, strict=True)))
        for total, moment, parts in zip(
            peaks.tolist(), changes.time_s[peak].tolist(), by_kind.tolist(), strict=True
        )
    ]


def memory_profile(
    program: Program, start_s: Floats, end_s: Floats, rank: int
) -> tuple[Floats, Ints]:
    """Return one rank's memory over time; see `Timeline.memory_profile`."""
    changes = _changes(program, start_s, end_s, program.memory_rank == rank)
    mine = changes.rank == rank
    time_s, kind, delta = changes.time_s[mine], changes.kind[mine], changes.delta[mine]
    table = np.zeros((len(time_s), program.memory_initial.shape[1]), np.int64)
    table[np.arange(len(time_s)), kind] = delta
    last = np.flatnonzero(_last_of_moment(changes)[mine])
    return time_s[last], np.cumsum(table, axis=0)[last]


def _changes(program: Program, start_s: Floats, end_s: Floats, chosen: Flags) -> _Changes:
    p = program
    n_ranks, n_kinds = p.memory_initial.shape
    task = np.repeat(np.arange(p.n_tasks), np.diff(p.memory_ptr))
    at_start = np.flatnonzero(chosen & (p.memory_start != 0))
    at_end = np.flatnonzero(chosen & (p.memory_end != 0))
    both = np.concatenate((at_start, at_end))
    rank: Ints = np.concatenate((np.repeat(np.arange(n_ranks), n_kinds), p.memory_rank[both]))
    kind: Ints = np.concatenate((np.tile(np.arange(n_kinds), n_ranks), p.memory_kind[both]))
    zero = np.zeros(n_ranks * n_kinds)
    time_s = np.concatenate((zero, start_s[task[at_start]], end_s[task[at_end]]))
    taken = p.memory_start[at_start], p.memory_end[at_end]
    delta = np.concatenate((p.memory_initial.reshape(-1), *taken))
    order = np.lexsort((time_s, rank))
    return _Changes(rank[order], time_s[order], kind[order], delta[order])


def _last_of_moment(changes: _Changes) -> Flags:
    """[N] Whether no further change of the same rank comes at the same time."""
    differs = (np.diff(changes.rank) != 0) | (np.diff(changes.time_s) != 0)
    return np.append(differs, True)


def _check_never_negative(program: Program, changes: _Changes) -> None:
    n_kinds = len(program.memory_kinds)
    # Sorted by rank, kind and time, the running total of each (rank, kind) is a segment.
    series = changes.rank * n_kinds + changes.kind
    order = np.argsort(series, kind="stable")
    by_series = _Changes(
        series[order], changes.time_s[order], changes.kind[order], changes.delta[order]
    )
    held = _running_total(by_series, np.flatnonzero(np.diff(by_series.rank, prepend=-1)))
    bad = np.flatnonzero(_last_of_moment(by_series) & (held < 0))
    if len(bad):
        rank, kind = divmod(int(by_series.rank[bad[0]]), n_kinds)
        raise RidgelineError(
            f"rank {rank} holds {held[bad[0]]} bytes of {program.memory_kinds[kind]!r} at "
            f"{by_series.time_s[bad[0]]:g} s: more was given back than taken"
        )


def _running_total(changes: _Changes, first: Ints) -> Ints:
    """[N] Sum of the changes of the same series so far; `first` are the series' first changes."""
    total = np.cumsum(changes.delta)
    return total - (total[first] - changes.delta[first])[changes.rank]
