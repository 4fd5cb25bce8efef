"""A Program: all tasks of the simulated ranks as flat arrays, ready to be played by an executor.

The engine knows neither networks nor machines: resources, streams, ranks, ledger accounts and
memory kinds are integers, and their names are carried along only for the reader of a Timeline.

Words
-----
*Resource*   something with a capacity in units per second: FLOP/s of an engine, B/s of a memory
             level, B/s of a link. A *private* resource only bounds how fast one task can go; a
             *shared* one is divided between the tasks that use it at the same moment (max-min).
*Cost row*   what a task does, stored once for all equal tasks: a sequence of *phases*. A phase is
             a fixed latency followed by fluid work on one or more resources, repeated ``repeat``
             times. A compute task has one phase; a ring all-reduce of p ranks is one phase
             repeated 2(p-1) times, so that its messages are generated while it is played and
             never stored.
*Stream*     a queue of one rank that plays one task at a time.
*Group*      the streams that a task occupies together when it needs more than one (a collective).
*Event*      a counted thing on a cost row (FLOPs, bytes at a level) that a ledger account prices.

How a Program is played (both executors)
----------------------------------------
1. A task is *ready* when all its predecessors have ended. A free stream picks the ready task with
   the least (priority, task number); a task with a group starts when it is the pick of every
   stream of its group and all of them are free. A stream waits for such a task and does not
   overtake it. (The ready task with the least key of all is the pick of all its streams, so gangs
   cannot lock each other out: only a cycle of dependencies can leave tasks unplayed.)
2. A started task plays its phases in order. A phase without work on shared resources takes
   ``repeat * (latency + bound)`` where ``bound = max(work / capacity)`` over its resources (0 when
   there are none). A phase with work on shared resources plays ``repeat`` rounds, each a latency
   and then fluid work. Fixed times that follow each other are added up in order before they are
   added to the clock, so a task without fluid work has ``end = start + sum(phases)``.
3. Fluid work on shared resources: let ``size`` be the largest work of the phase on a shared
   resource and ``a[r] = work[r] / size``. The task advances at rate ``x`` (units of size per
   second), ``x <= size / bound`` with `bound` over its private resources. The rates are the
   weighted max-min fair ones: all ``x / weight`` rise together until a task meets its cap or a
   shared resource is full (``sum a[r] * x = capacity[r]``), which freezes it; the others go on.
   `weight` is 1 for one flow; a phase that stands for m equal flows through one resource (folded
   ranks) has m times the work there and weight m, and gets what the m flows would get. Where the
   largest work of the phase was on a resource that turned out to be private, the weight is less by
   as much as `size` is (`Program.with_private_resources`): shares do not depend on what is private.
4. Time moves from moment to moment. The next moment is the earliest fixed end (of a latency or of
   a phase without fluid work), or the earliest fluid end where that comes first by more than a
   relative 1e-12; fluid ends up to a relative 1e-12 after a moment belong to it. So flows that end
   together in exact arithmetic end together in float64.
5. A moment goes in rounds: all that ends, ends; then every stream picks; then again, for tasks of
   no length, until nothing more ends. Only then are the rates of fluid work divided anew.
   Times are float64 and absolute: ``end = now + duration``, ``fluid end = now + left / x``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError, nearest

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

MOMENT = 1e-12  # rule 4: fluid ends this close together, relative to the time, are one moment


@dataclass(frozen=True, slots=True)
class Account:
    """One line of the ledger: `unit` things that happen at `place`, priced by `component`.

    Attributes
    ----------
    component
        The key of ``energy_j`` this is summed under: compute, registers, sram, dram, network.
    place
        Engine and format, memory level or link class, e.g. ``"tensor-cores.fp16"``, ``"hbm"``.
    unit
        "FLOP" or "B".
    price_j
        Joules per unit.
    """

    component: str
    place: str
    unit: str
    price_j: float


@dataclass(frozen=True)
class Program:
    """Tasks, cost rows, resources, streams and ranks as arrays; see the module's head for meaning.

    Shapes: R resources, C cost rows, P phases, W works, E events, T tasks, D dependencies,
    S streams, K ranks, G groups, M memory entries, A accounts, Q memory kinds.
    """

    # resources [R]
    resource_names: tuple[str, ...]
    capacity: Floats  # units (FLOP or B) a second
    shared: Flags

    # cost rows
    phase_ptr: Ints  # [C+1] cost c plays phases phase_ptr[c]:phase_ptr[c+1]
    latency_s: Floats  # [P]
    repeat: Ints  # [P] >= 1
    weight: Floats  # [P] how many equal flows the phase stands for on its shared resources
    work_ptr: Ints  # [P+1]
    work_resource: Indices  # [W]
    work_amount: Floats  # [W] units of that resource, for one repetition
    event_ptr: Ints  # [C+1]
    event_account: Indices  # [E]
    event_count: Floats  # [E] units of that account, for the whole task
    accounts: tuple[Account, ...]  # [A]

    # tasks [T]
    kind: npt.NDArray[np.uint8]  # index into kind_names
    stream: Indices  # the stream it runs on; for a grouped task one of the group's
    group: Indices  # -1, or the group of streams that it occupies together
    cost: Indices
    priority: Indices  # least first
    multiplicity: Indices  # how many equal tasks of the real machine this one stands for
    label: Indices  # index into label_names
    dep_ptr: Ints  # [T+1] predecessors of task t are dep_index[dep_ptr[t]:dep_ptr[t+1]]
    dep_index: Indices  # [D]
    kind_names: tuple[str, ...]  # "compute", "collective", "optimizer", ...
    label_names: tuple[str, ...]

    # groups of streams
    group_ptr: Ints  # [G+1]
    group_stream: Indices

    # streams and ranks
    stream_names: tuple[str, ...]  # [S]
    stream_rank: Indices  # [S]
    rank_multiplicity: Indices  # [K] how many real ranks each simulated one stands for

    # memory: entry m of task t (memory_ptr[t]:memory_ptr[t+1]) takes `memory_start[m]` bytes of its
    # kind from its rank when the task starts and `memory_end[m]` when it ends; negative gives back
    memory_ptr: Ints  # [T+1]
    memory_rank: Indices  # [M]
    memory_kind: Indices  # [M]
    memory_start: Ints  # [M] bytes
    memory_end: Ints  # [M] bytes
    memory_kinds: tuple[str, ...]  # [Q]
    memory_initial: Ints  # [K, Q] bytes held from the beginning

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.kind)

    def scaled(self, factors: Mapping[str, float]) -> Program:
        """Return the same program with some resources' capacities multiplied (what-if).

        Nothing is built anew: cost rows hold work, not time.

        Parameters
        ----------
        factors
            By name of a resource, or a pattern of names as of files: ``"*nvlink*"``, ``"up ?"``.

        Raises
        ------
        RidgelineError
            If no resource has the name, or a factor is not a finite number above 0.
        """
        capacity = self.capacity.copy()
        for name, factor in factors.items():
            if not 0 < factor < math.inf:
                raise RidgelineError(
                    f"resource {name!r}: {factor} times its capacity is no machine"
                )
            found = [i for i, known in enumerate(self.resource_names) if known == name] or [
                i for i, known in enumerate(self.resource_names) if fnmatchcase(known, name)
            ]
            if not found:
                raise RidgelineError(
                    f"no resource is called {name!r}{nearest(name, self.resource_names)}"
                )
            capacity[found] *= factor
        return replace(self, capacity=capacity)

    def with_private_resources(self) -> Program:
        """Return the same program, in which shared resources that one stream has alone are private.

        A stream plays one task at a time, so these are never divided. Fair shares stay those of
        the largest work on any resource that was shared: weights are rescaled to what is left.
        """
        n_streams = len(self.stream_names)
        plays = np.zeros((len(self.event_ptr) - 1, n_streams), np.bool_)
        plays[self.cost, self.stream] = True
        row = np.repeat(np.arange(len(self.phase_ptr) - 1), np.diff(self.work_ptr[self.phase_ptr]))
        used = np.zeros((len(self.shared), n_streams), np.bool_)
        np.logical_or.at(used, self.work_resource, plays[row])
        shared = self.shared & (used.sum(axis=1) > 1)
        phase = np.repeat(np.arange(len(self.repeat)), np.diff(self.work_ptr))
        largest = np.zeros((2, len(self.repeat)))
        for size, which in zip(largest, (self.shared, shared), strict=True):
            mine = which[self.work_resource]
            np.maximum.at(size, phase[mine], self.work_amount[mine])
        ratio = np.divide(
            largest[1], largest[0], out=np.ones_like(largest[0]), where=largest[1] > 0
        )
        return replace(self, shared=shared, weight=self.weight * ratio)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the numeric fields by name, for hashing and for writing to disk."""
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}


def no_memory(n_tasks: int, n_ranks: int) -> dict[str, Any]:
    """Return the columns of a program whose tasks neither take nor give back memory."""
    return {
        "memory_ptr": np.zeros(n_tasks + 1, np.int64),
        "memory_rank": np.zeros(0, np.int32),
        "memory_kind": np.zeros(0, np.int32),
        "memory_start": np.zeros(0, np.int64),
        "memory_end": np.zeros(0, np.int64),
        "memory_kinds": (),
        "memory_initial": np.zeros((n_ranks, 0), np.int64),
    }
