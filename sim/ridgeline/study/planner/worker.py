"""Worker process of a search: opens nodes of the frontier and simulates plans.

It is a fork, so it knows all that this process knows, and only entries, plans and answers are sent.
Every answer is what this process would find itself, to the last bit: a search says the same with a
helper and without. Groups that differ in recomputation alone belong to the same process, since one
is priced with the other; so every second family is the helper's. Both open what comes next of their
own while nothing is asked of them (`opener`).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.study.planner.branching import ExpandedNode, NodeExpander, SearchNode
from ridgeline.study.planner.cost_cache import GroupKey
from ridgeline.study.planner.search_result import SimulatedPlan
from ridgeline.study.planner.searcher import Searcher

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
MANY = 10_000
"""Ops to divide and price from which on a second process is worth its start: about a second's."""


def can_fork() -> bool:
    """Whether this process can have a helper: one alone, on Linux, with a core to spare.

    A fork would copy the locks of other threads, as those of a notebook, and nobody opens them.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    from multiprocessing import current_process

    return len(os.sched_getaffinity(0)) > 1 and not current_process().daemon


class SearchWorker:
    """The other process, which ends with the search.

    Attributes
    ----------
    is_free
        Whether it answers at once: not while it plays a plan, nor when it was killed.
    """

    def __init__(self, opener: NodeExpander, families: Iterable[GroupKey]) -> None:
        import multiprocessing

        self.own = frozenset(list(families)[1::2])
        self._family = opener.one.groups.family
        self.is_free, self._lost = True, False
        fork = multiprocessing.get_context("fork")
        self._line, there = fork.Pipe()
        self._process = fork.Process(
            target=_work, args=(opener, self.own, there, self._line), daemon=True
        )
        with warnings.catch_warnings():  # of threads: only idle ones of numpy's products are left
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def owns(self, key: GroupKey) -> bool:
        """Whether it opens what belongs to a group."""
        return self._family(key) in self.own

    def begin(self, task: str, *given: object) -> None:
        """Let it do something; the answer is fetched later, if there is one."""
        try:
            self._line.send((task, given))
        except OSError:  # it was killed
            self._lost = True
        self.is_free = task != "play" and not self._lost

    def answer(self, instead: Callable[[], T]) -> T:
        """Return what it has found; where it could not find it, what this process does."""
        found, is_found = None, False
        if not self._lost:
            try:
                found, is_found = self._line.recv()
            except (EOFError, OSError):
                self._lost = True
        self.is_free = not self._lost
        return cast("T", found) if is_found else instead()

    def has_answer(self) -> bool:
        """Whether there is no need to wait for it."""
        return self._lost or self._line.poll()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join()
        self._line.close()


def play(one: Searcher, plan: Plan, bound_s: float) -> SimulatedPlan | None:
    """Play a plan; None where the engine cannot play its schedule for this cut."""
    try:
        return one.replay(plan, bound_s)
    except RidgelineError:
        return None


def _work(
    opener: NodeExpander, own: frozenset[GroupKey], line: Connection, other: Connection
) -> None:  # fmt: skip
    """Answer until the other process ends; go on with its own in between."""
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other one, which ends this
    gc.disable()  # next to nothing of a search is in circles
    one = opener.one
    opener.own = lambda key: one.groups.family(key) in own

    def opened(*entries: SearchNode) -> dict[SearchNode, ExpandedNode]:
        found = {entry: opener.opened(entry) for entry in entries}
        return found | opener.taken()

    tasks: dict[str, Callable[..., Any]] = {
        "leasts": one.groups.leasts,
        "open": opened,
        "play": lambda plan, bound_s: play(one, plan, bound_s),
    }
    while True:
        while not line.poll() and opener.go_on():
            pass
        try:
            task, given = line.recv()
        except EOFError:
            return
        if task == "ahead":
            opener.begin(*given)
            continue
        try:
            answer = tasks[task](*given), True
        except Exception:  # the other process will meet it, too, and say so
            answer = None, False
        line.send(answer)
