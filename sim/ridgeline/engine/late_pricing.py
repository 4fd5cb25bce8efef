"""Late pricing: programs emitted with open cost rows, filled for one machine.

Which tasks there are and what waits for what does not depend on how fast a machine is. So a step is
written once, with open rows (`ProgramBuilder.add_open_cost`), and filled for every machine of a
study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.engine.program import Account, Ints, Program

Array = npt.NDArray[Any]


@dataclass
class Filling:
    """What open rows get: for each a latency, works and events.

    Attributes
    ----------
    rows
        Numbers of the rows.
    latency_s
        Of each.
    work_ptr, work_resource, work_amount
        Works of row i are those from ``work_ptr[i]`` to ``work_ptr[i + 1]``.
    event_ptr, event_account, event_count
        Events likewise.
    """

    rows: list[int]
    latency_s: list[float] = field(default_factory=list)
    work_ptr: list[int] = field(default_factory=lambda: [0])
    work_resource: list[int] = field(default_factory=list)
    work_amount: list[float] = field(default_factory=list)
    event_ptr: list[int] = field(default_factory=lambda: [0])
    event_account: list[int] = field(default_factory=list)
    event_count: list[float] = field(default_factory=list)


def filled(
    program: Program, filling: Filling, capacity: Sequence[float], accounts: Sequence[Account]
) -> Program:
    """Return a program with its open rows filled, on a machine of other speed.

    Parameters
    ----------
    capacity, accounts
        Replace those of the first resources and the first accounts.
    """
    p, rows = program, np.array(filling.rows, np.int64)
    phases = p.phase_ptr[rows]  # an open row has one phase
    latency_s = p.latency_s.copy()
    latency_s[phases] = filling.latency_s
    works = (
        (p.work_resource, filling.work_resource), (p.work_amount, filling.work_amount)
    )  # fmt: skip
    events = (
        (p.event_account, filling.event_account), (p.event_count, filling.event_count)
    )  # fmt: skip
    work_ptr, (work_resource, work_amount) = _inserted(p.work_ptr, phases, filling.work_ptr, works)
    event_ptr, (event_account, event_count) = _inserted(
        p.event_ptr, rows, filling.event_ptr, events
    )
    return replace(
        p,
        capacity=np.concatenate((np.array(capacity, np.float64), p.capacity[len(capacity) :])),
        accounts=(*accounts, *p.accounts[len(accounts) :]),
        latency_s=latency_s,
        work_ptr=work_ptr,
        work_resource=work_resource,
        work_amount=work_amount,
        event_ptr=event_ptr,
        event_account=event_account,
        event_count=event_count,
    )


def with_rows(
    program: Program,
    filling: Filling,
    names: Sequence[str],
    capacity: Sequence[float],
    accounts: Sequence[Account],
) -> Program:
    """Return a program with more cost rows of one phase, private resources and accounts behind."""
    p, n = program, len(filling.latency_s)
    works = p.work_ptr[-1] + np.array(filling.work_ptr[1:], np.int64)
    events = p.event_ptr[-1] + np.array(filling.event_ptr[1:], np.int64)
    more = np.array(capacity, np.float64)
    return replace(
        p,
        resource_names=(*p.resource_names, *names),
        capacity=np.concatenate((p.capacity, more)),
        shared=np.concatenate((p.shared, np.zeros(len(more), np.bool_))),
        accounts=(*p.accounts, *accounts),
        phase_ptr=np.concatenate((p.phase_ptr, p.phase_ptr[-1] + 1 + np.arange(n))),
        latency_s=np.concatenate((p.latency_s, np.array(filling.latency_s, np.float64))),
        repeat=np.concatenate((p.repeat, np.ones(n, np.int64))),
        weight=np.concatenate((p.weight, np.ones(n))),
        work_ptr=np.concatenate((p.work_ptr, works)),
        work_resource=np.concatenate((p.work_resource, np.array(filling.work_resource, np.int32))),
        work_amount=np.concatenate((p.work_amount, np.array(filling.work_amount, np.float64))),
        event_ptr=np.concatenate((p.event_ptr, events)),
        event_account=np.concatenate((p.event_account, np.array(filling.event_account, np.int32))),
        event_count=np.concatenate((p.event_count, np.array(filling.event_count, np.float64))),
    )


def _inserted(
    pointer: Ints, where: Ints, more_ptr: Sequence[int], columns: Sequence[tuple[Array, Any]]
) -> tuple[Ints, list[Array]]:
    """Put entries into those lists of a CSR table that are empty so far."""
    ends = np.array(more_ptr, np.int64)
    more_counts, counts = ends[1:] - ends[:-1], pointer[1:] - pointer[:-1]
    kept = np.repeat(np.arange(len(counts)), counts)
    added = np.repeat(where, more_counts)
    order = np.argsort(np.concatenate((kept, added)), kind="stable")
    counts[where] = more_counts
    joined = [np.concatenate((old, np.array(new, old.dtype)))[order] for old, new in columns]
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), joined
