"""Pipeline schedules by name; each is a module of its own, with the decorator `schedule`.

A schedule is called with stages, micro-batches and chunks and gives for every stage its slots in
order; its attributes say what is published of it (bubble, activations in flight) in closed form.
"""

from __future__ import annotations

from ridgeline.errors import ConfigError
from ridgeline.parallel.schedule.slots import (
    PHASES,
    SCHEDULES,
    Orders,
    Phase,
    PipelineSchedule,
    Slot,
    SlotArrays,
    one_forward_one_backward,
    schedule,
    slot_arrays,
)

_PUBLISHED = {"zb-h1": "zero-bubble", "zb-h2": "zero-bubble-h2", "zb-v": "zero-bubble-v"}
"""Names that papers give to schedules."""

__all__ = [
    "PHASES",
    "SCHEDULES",
    "Orders",
    "Phase",
    "PipelineSchedule",
    "Slot",
    "SlotArrays",
    "named",
    "one_forward_one_backward",
    "schedule",
    "slot_arrays",
]


def named(raw: object) -> object:
    """Return the name of a schedule, read by its published name, too.

    Raises
    ------
    ValueError
        If there is no such schedule, or its order depends on times, which are not known when a step
        is written.
    """
    name = str(raw).lower()
    if name in {"zb-1p", "zb-2p"}:
        most, like = ("one", "zero-bubble") if name == "zb-1p" else ("two", "zero-bubble-h2")
        raise ValueError(
            f"{raw} is an order searched for measured times of passes; with at most {most} times"
            f" the memory of 1f1b there is {like}"
        )
    found = _PUBLISHED.get(name, raw)
    try:
        SCHEDULES[str(found)]
    except ConfigError as error:
        raise ValueError(error.message) from error
    return found
