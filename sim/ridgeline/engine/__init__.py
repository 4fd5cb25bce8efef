"""The event engine: Programs, how they are built and played, and the Timelines that come of it.

Names are imported when they are first used, so that this package costs neither numba nor simpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.engine.builder import ProgramBuilder, WorkPhase
    from ridgeline.engine.chunks import in_chunks
    from ridgeline.engine.executor import run
    from ridgeline.engine.memory import RankMemory
    from ridgeline.engine.program import Account, Program
    from ridgeline.engine.reference import run_reference
    from ridgeline.engine.stochastic import with_failures, with_jitter
    from ridgeline.engine.timeline import TaskRow, Timeline
    from ridgeline.engine.validate import check_program

_HOME = {
    "Account": "program",
    "RankMemory": "memory",
    "WorkPhase": "builder",
    "Program": "program",
    "ProgramBuilder": "builder",
    "TaskRow": "timeline",
    "Timeline": "timeline",
    "check_program": "validate",
    "in_chunks": "chunks",
    "run": "executor",
    "run_reference": "reference",
    "with_failures": "stochastic",
    "with_jitter": "stochastic",
}

__all__ = [
    "Account",
    "Program",
    "ProgramBuilder",
    "RankMemory",
    "TaskRow",
    "Timeline",
    "WorkPhase",
    "check_program",
    "in_chunks",
    "run",
    "run_reference",
    "with_failures",
    "with_jitter",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
