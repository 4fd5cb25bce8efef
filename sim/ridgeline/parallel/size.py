"""Size of a step of which every rank is simulated: it is refused before memory is taken for it."""

from __future__ import annotations

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.resolved import ResolvedPlan

TASK_BYTES = 400
"""What a task takes at most while a step is written and played, and its account made. Measured: 250
to 350 (GPT-2, every rank of 64 H100s, 0.3 and 1.3 million tasks)."""
MOST_BYTES = 6e9
"""Of memory for one step."""


def check_size(plan: ResolvedPlan, ranks: int, ops: int, once: int) -> None:
    """Refuse a step that would take too much memory.

    Parameters
    ----------
    ranks
        That are simulated.
    ops
        Of a micro-batch, on all stages together.
    once
        Of them, those that are done once a step.

    Raises
    ------
    RidgelineError
        With what it would take, what is taken at most, and what makes it less.
    """

    def tasks(micro_batch: int, ranks: int = ranks) -> int:
        count = plan.rank_batch // micro_batch
        return ranks * (((ops - once) * count + once) // plan.pipeline)

    most = int(MOST_BYTES / TASK_BYTES)
    needed = tasks(plan.micro_batch_size)
    if needed <= most:
        return
    remedies = []
    if ranks > 1 and (fewer := most // tasks(plan.micro_batch_size, 1)):
        remedies.append(f"use {fewer:,} devices or fewer")
    larger = range(plan.micro_batch_size + 1, min(plan.rank_batch, 2**16) + 1)
    sizes = (m for m in (*larger, plan.rank_batch) if plan.rank_batch % m == 0)
    enough = next((m for m in sizes if tasks(m) <= most), None)
    if enough is not None:
        remedies.append(f"use micro_batch={enough} or more")
    if plan.micro_batches > 1 and plan.pipeline == 1:
        remedies.append("play the first micro-batches alone (--most-micro-batches 64)")
    if ranks > 1:
        remedies.append("describe a fault that leaves ranks alike")
    if not remedies:
        remedies.append("make the batch smaller")
    reason = (
        f"each of the {ranks:,} ranks would have to be simulated, as they are not equivalent (each"
        " has jitter, replicas of its own, or a place of its own beside a fault)"
        if ranks > 1
        else f"micro_batch={plan.micro_batch_size} makes {plan.micro_batches:,} micro-batches a"
        " step, each of which would be simulated"
    )
    raise RidgelineError(
        f"{reason}: about {needed:,} tasks, {units.show(float(needed) * TASK_BYTES, 'B', 2)} of"
        f" memory; at most {units.show(MOST_BYTES, 'B', 2)} are taken; {', or '.join(remedies)}"
    )
