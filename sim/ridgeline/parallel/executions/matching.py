"""Who meets whom: the same collective on all its ranks, and a send with its receive.

Members of a group issue its collectives in the same order, so the n-th of one rank is the n-th of
every other (as NCCL's communicators demand); the n-th send from a to b with a tag is the n-th
receive there. A task that meets nobody is its own unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.workload.execution import COLLECTIVES, Execution, Indices, Ints, TaskKind


@dataclass(frozen=True)
class Units:
    """What is played as one; T tasks, U units.

    Attributes
    ----------
    of_task
        [T] The unit that a task is part of.
    first
        [U] The first task of every unit; ascending.
    size
        [U] How many tasks it has.
    order
        [T] Tasks sorted by unit, and by number within one.
    ptr
        [U+1] The tasks of unit u are ``order[ptr[u]:ptr[u+1]]``.
    """

    of_task: Ints
    first: Ints
    size: Ints
    order: Ints
    ptr: Ints


def match(execution: Execution) -> Units:
    """Find the tasks of different ranks that are one thing.

    Raises
    ------
    RidgelineError
        If ranks of a group disagree on what they do, or a message has one end only although both
        ranks were traced.
    """
    e = execution
    key = np.arange(e.n_tasks, dtype=np.int64)  # the first task of the unit
    rank = e.rank_of_task()
    for tasks, what in (
        (np.flatnonzero(e.kind == TaskKind.COLLECTIVE), _collective_keys),
        (
            np.flatnonzero((e.kind == TaskKind.SEND) | (e.kind == TaskKind.RECEIVE)),
            _message_keys,
        ),
    ):
        if len(tasks):
            key[tasks] = _first_of_equal(tasks, what(e, tasks, rank))
    first, of_task, size = np.unique(key, return_inverse=True, return_counts=True)
    of_task = of_task.reshape(-1)
    order = np.argsort(of_task, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(size)])
    units = Units(of_task, first, size, order, ptr)
    _check(e, units, rank)
    return units


def _collective_keys(e: Execution, tasks: Ints, rank: Indices) -> Ints:
    """[n, 2] Group, and how many collectives of it the rank issued before."""
    group = e.group[tasks].astype(np.int64)
    return np.stack([group, _counted(np.stack([rank[tasks], group], 1))], 1)


def _message_keys(e: Execution, tasks: Ints, rank: Indices) -> Ints:
    """[n, 4] Source, destination, tag, and how many such messages came before on this side."""
    own, peer = e.ranks[rank[tasks]].astype(np.int64), e.peer[tasks].astype(np.int64)
    sends = e.kind[tasks] == TaskKind.SEND
    ends = [np.where(sends, own, peer), np.where(sends, peer, own), e.tag[tasks]]
    return np.stack([*ends, _counted(np.stack([*ends, sends], 1))], 1)


def _counted(keys: npt.NDArray[Any]) -> Ints:
    """[n] How many equal rows stand before each row."""
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    begin = np.flatnonzero(new)
    place = np.arange(len(keys)) - np.repeat(begin, np.diff([*begin, len(keys)]))
    counted = np.empty(len(keys), np.int64)
    counted[order] = place
    return counted


def _first_of_equal(tasks: Ints, keys: Ints) -> Ints:
    """[n] The least of the tasks that have the same key."""
    order = np.lexsort((tasks, *keys.T[::-1]))
    ordered = keys[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    first = np.empty(len(tasks), np.int64)
    first[order] = tasks[order][np.flatnonzero(new)][np.cumsum(new) - 1]
    return first


def _check(e: Execution, units: Units, rank: Indices) -> None:
    """Check that what meets fits together."""
    first = units.first[units.of_task]
    joint = units.size[units.of_task] > 1
    different = joint & ((e.op != e.op[first]) | _unequal(e.size_bytes, e.size_bytes[first]))
    if different.any():
        task = int(np.argmax(different))
        raise RidgelineError(
            f"{e.name}: {_said(e, task, rank)} meets {_said(e, first[task], rank)}"
        )
    needed = np.ones(len(units.first), np.int64)
    of_collective = e.kind[units.first] == TaskKind.COLLECTIVE
    traced = np.isin(np.arange(e.world), e.ranks)
    n_traced = np.array(
        [int(traced[e.members(group)].sum()) for group in range(-1, len(e.group_ptr) - 1)]
    )
    needed[of_collective] = n_traced[e.group[units.first[of_collective]] + 1]
    lead = units.first
    p2p = (e.kind[lead] == TaskKind.SEND) | (e.kind[lead] == TaskKind.RECEIVE)
    needed[p2p] = 1 + traced[e.peer[lead[p2p]]]
    to_itself = p2p & (e.peer[lead] == e.ranks[rank[lead]])
    wrong = np.flatnonzero((units.size != needed) | to_itself)
    if len(wrong):
        unit = int(wrong[0])
        task = int(units.first[unit])
        raise RidgelineError(
            f"{e.name}: {_said(e, task, rank)} is met on {units.size[unit]} of {needed[unit]} ranks"
            " (its group's other ranks issue fewer collectives, or a message has one end only)"
        )
    tasks = np.flatnonzero((e.kind == TaskKind.COLLECTIVE) & (e.group >= 0))
    own, group = e.ranks[rank[tasks]], e.group[tasks]
    pairs = np.repeat(np.arange(len(e.group_ptr) - 1), np.diff(e.group_ptr)) * e.world
    strange = ~np.isin(group.astype(np.int64) * e.world + own, pairs + e.group_rank)
    if strange.any():
        task = int(tasks[int(np.argmax(strange))])
        raise RidgelineError(f"{e.name}: {_said(e, task, rank)}, but the rank is not in that group")


def _unequal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)), np.bool_)


def _said(e: Execution, task: int, rank: Indices) -> str:
    kind = TaskKind(int(e.kind[task]))
    what = COLLECTIVES[e.op[task]] if kind is TaskKind.COLLECTIVE else kind.name.lower()
    if kind is TaskKind.COLLECTIVE:
        where = (
            f"of group {e.group_names[e.group[task]]!r}" if e.group[task] >= 0 else "of all ranks"
        )
    else:
        where = f"with rank {e.peer[task]}, tag {e.tag[task]}"
    return (
        f"rank {e.ranks[rank[task]]}, node {e.id[task]} ({e.label_names[e.label[task]]!r}): {what}"
        f" {where}, {e.size_bytes[task]:.17g} B,"
    ).rstrip(",")
