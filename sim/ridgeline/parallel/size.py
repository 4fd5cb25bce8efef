"""Size of a step of which every rank is simulated: it is refused before memory is taken for it."""

from __future__ import annotations

from ridgeline import units
from ridgeline.errors import RidgelineError

TASK_BYTES = 400
"""What a task takes at most while a step is written and played, and its account made. Measured: 250
to 350 (GPT-2, every rank of 64 H100s, 0.3 and 1.3 million tasks)."""
MOST_BYTES = 6e9
"""Of memory for one step."""


def check_size(ranks: int, tasks_of_rank: int) -> None:
    """Refuse a step that would take too much memory.

    Parameters
    ----------
    ranks
        That are simulated.
    tasks_of_rank
        Ops of one rank in a step.

    Raises
    ------
    RidgelineError
        With what it would take, what is taken at most, and what makes it less.
    """
    needed = float(ranks) * tasks_of_rank * TASK_BYTES
    if needed <= MOST_BYTES:
        return
    fewer = max(1, int(MOST_BYTES / TASK_BYTES / tasks_of_rank))
    raise RidgelineError(
        f"each of the {ranks:,} ranks would have to be simulated, as they are not equivalent (each"
        f" has jitter, replicas of its own, or a place of its own beside a fault): about"
        f" {ranks * tasks_of_rank:,} tasks, {units.show(needed, 'B', 2)} of memory; at most"
        f" {units.show(MOST_BYTES, 'B', 2)} are taken; use {fewer:,} devices or fewer, or fewer"
        " micro-batches, or a fault that leaves ranks alike"
    )
