"""The software stack of reproduced training steps."""

from __future__ import annotations

from functools import lru_cache

from ridgeline.parallel.plan.stack_choice import BOUND
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack

UNFUSED = {"kernels.attention": "separate", "gradients.accumulation_fusion": False}
"""Settings of programs before FlashAttention and fused accumulation."""


@lru_cache(maxsize=8)
def program(software: str | None) -> Stack:
    """Return the stack of a name; without one, the bound `ideal` with attention op by op.

    The papers compare machines and plans, and say little of what their programs cost besides.
    """
    return load_software(BOUND, UNFUSED) if software is None else load_software(software)


def software_note(software: str | None) -> str:
    """Say under which stack steps are simulated."""
    if software is None:
        return f"Steps are simulated under the bound {BOUND}, with attention op by op."
    return f"Steps are simulated under the software {software}."
