"""Pipeline schedules by name; each is a module of its own.

A schedule is called with stages, micro-batches and chunks and gives for every stage its slots in
order; its attributes say what is published of it (bubble, activations in flight) in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.errors import RidgelineError, nearest
from ridgeline.parallel.schedule import (
    continuous,
    gpipe,
    interleaved,
    one_f_one_b,
    pipedream,
    zero_bubble,
    zero_bubble_h2,
    zero_bubble_v,
)
from ridgeline.parallel.schedule.slots import (
    PHASES,
    Orders,
    Phase,
    PipelineSchedule,
    Slot,
    SlotArrays,
    one_forward_one_backward,
    slot_arrays,
)

SCHEDULES: Mapping[str, PipelineSchedule] = MappingProxyType(
    {
        module.SCHEDULE.name: module.SCHEDULE
        for module in (
            gpipe,
            one_f_one_b,
            interleaved,
            zero_bubble,
            zero_bubble_h2,
            zero_bubble_v,
            pipedream,
            continuous,
        )
    }
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
    "find",
    "named",
    "one_forward_one_backward",
    "slot_arrays",
]


def find(name: str) -> PipelineSchedule:
    """Return a schedule by name.

    Raises
    ------
    RidgelineError
        If it is unknown.
    """
    if name not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise RidgelineError(
            f"unknown schedule {name!r}{nearest(name, SCHEDULES)} (known: {known})"
        )
    return SCHEDULES[name]


def named(raw: object) -> object:
    """Read a schedule by its published name, too.

    Raises
    ------
    ValueError
        If its order depends on times, which are not known when a step is written.
    """
    name = str(raw).lower()
    if name in {"zb-1p", "zb-2p"}:
        most, like = ("one", "zero-bubble") if name == "zb-1p" else ("two", "zero-bubble-h2")
        raise ValueError(
            f"{raw} is an order searched for measured times of passes; with at most {most} times"
            f" the memory of 1f1b there is {like}"
        )
    return _PUBLISHED.get(name, raw)
