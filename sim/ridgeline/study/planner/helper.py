"""A second process that works for a search: it prices groups of plans and plays plans.

It is a fork, so it knows all that this process knows, and only keys, plans and answers are sent.
Every answer is what this process would find itself, to the last bit: a search says the same with a
helper and without. Groups that differ in recomputation alone belong to the same process, since one
is priced with the other; so every second family is the helper's, which also prices ahead what this
process has not asked for yet.
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
from ridgeline.parallel.plan import Plan
from ridgeline.study.planner.found import Replay
from ridgeline.study.planner.made import Key

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ridgeline.study.planner.search import Searcher

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


class Helper:
    """The other process, which ends with the search.

    Attributes
    ----------
    is_free
        Whether it answers at once: not while it plays a plan, nor when it was killed.
    """

    def __init__(self, one: Searcher, families: Iterable[Key]) -> None:
        import multiprocessing

        self.own = frozenset(list(families)[1::2])
        self.is_free, self._lost = True, False
        fork = multiprocessing.get_context("fork")
        self._line, there = fork.Pipe()
        self._process = fork.Process(target=_work, args=(one, there, self._line), daemon=True)
        with warnings.catch_warnings():  # of threads: only idle ones of numpy's products are left
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def owns(self, key: Key) -> bool:
        """Whether it prices a group, and is free to."""
        return self.is_free and family(key) in self.own

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


def family(key: Key) -> Key:
    """Return the group that has the same ops as this one, but recomputes nothing."""
    return key._replace(recompute="none")


def play(one: Searcher, plan: Plan, bound_s: float) -> Replay | None:
    """Play a plan; None where the engine cannot play its schedule for this cut."""
    try:
        return one.replay(plan, bound_s)
    except RidgelineError:
        return None


def _work(one: Searcher, line: Connection, other: Connection) -> None:
    """Answer until the other process ends; price ahead in between."""
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other one, which ends this
    gc.disable()  # next to nothing of a search is in circles
    groups = one.groups
    tasks: dict[str, Callable[..., Any]] = {
        "least": lambda keys: [groups.least(key) for key in keys],
        "least_again": groups.least_again,
        "group": groups.group,
        "play": lambda plan, bound_s: play(one, plan, bound_s),
    }
    ahead: list[Key] = []
    while True:
        while ahead and not line.poll():
            key = ahead.pop()
            groups.group(key) if key.recompute == "none" else groups.least_again(key)
        try:
            task, given = line.recv()
        except EOFError:
            return
        if task == "ahead":
            ahead = list(reversed(given[0]))
            continue
        try:
            answer = tasks[task](*given), True
        except Exception:  # the other process will meet it, too, and say so
            answer = None, False
        line.send(answer)
