"""Stages of a pipeline with different numbers of replicas.

PipeDream (Narayanan et al., SOSP 2019, section 3.1) gives a stage with much work and few weights
many devices, and one with little work and many weights few: ``9-5-1-1``. Micro-batches go round the
replicas of every stage, i to replica i mod r (section 3.2, 1F1B-RR), so that a micro-batch meets
the same replica on its way forward and back. Stage k, with r_k replicas and s_k devices from it on,
starts ceil(s_k / r_k) micro-batches a replica before the first backward pass; as many are under way
there. Since r_k (ceil(s_k / r_k) - 1) does not grow with k, no stage waits for one behind that
waits for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ridgeline.parallel.schedule import Orders, Slot, one_forward_one_backward

SCHEDULES_WITH_REPLICAS = ("1f1b", "gpipe", "pipedream", "continuous")
"""Those that pass micro-batches from replica to replica of unlike stages."""
_EXAMPLE = "for example 2-1-1: two on the first stage, one on each of two others"


def written_counts(raw: object) -> str:
    """Return replicas of every stage as text, ``9-5-1-1``.

    Raises
    ------
    ValueError
        If it is something else, or a stage has none.
    """
    parts = [str(part).strip() for part in raw] if isinstance(raw, list | tuple) else None
    text = "-".join(parts) if parts is not None else str(raw).strip()
    if isinstance(raw, bool) or not re.fullmatch(r"([1-9][0-9]{0,5}(-[1-9][0-9]{0,5})*)?", text):
        raise ValueError(f"expected replicas of every stage, found {text!r}; {_EXAMPLE}")
    return text


def counts_of(text: str) -> tuple[int, ...]:
    """Return replicas of every stage; none where all stages have the same."""
    return tuple(int(part) for part in text.split("-")) if text else ()


def in_flight(counts: Sequence[int], stage: int) -> int:
    """Return how many micro-batches a replica of a stage has under way (NOAM of section 3.2)."""
    return math.ceil(sum(counts[stage:]) / counts[stage])


def replica_orders(schedule: str, counts: Sequence[int], micro_batches: int) -> Orders:
    """Return what every replica of every stage does, stage after stage.

    Parameters
    ----------
    schedule
        "1f1b" or "gpipe".
    micro_batches
        A multiple of every count.
    """
    orders: Orders = []
    for stage, count in enumerate(counts):
        for replica in range(count):
            own = range(replica, micro_batches, count)
            if schedule == "gpipe":
                forward = [Slot("F", i) for i in own]
                orders.append(forward + [Slot("B", i) for i in reversed(own)])
            else:
                warm_up = min(in_flight(counts, stage) - 1, len(own))
                orders += one_forward_one_backward(own, 0, 0, warm_up).orders()
    return orders
