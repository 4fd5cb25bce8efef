"""The tables that the compiled executor works on, as structured arrays.

What belongs together lies together in memory, and compiled code passes a whole table at the price
of one array. Wherever there is ``first_x`` and ``last_x``, last is one past the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]
Places = npt.NDArray[np.uint32]
"""Numbers of records. Unsigned, as those in the tables: for signed ones compiled code would look at
every access whether it counts from the end."""

NONE = -1
RISING = -1.0

TASK = np.dtype(
    [
        ("crew", "i4"),
        ("missing", "i4"),  # predecessors that have not ended; of a ready task, picks that it lacks
    ]
)

# A cost row: a few legs, one for each phase with work on shared resources, and a tail.
ROW = np.dtype(
    [
        ("first_leg", "i4"),
        ("last_leg", "i4"),
        ("tail_s", "f8"),  # fixed time after the last leg
    ]
)

# A phase with work on shared resources.
LEG = np.dtype(
    [
        ("lead_s", "f8"),  # fixed phases before it
        ("latency_s", "f8"),  # before each round
        ("rounds", "i8"),
        ("size", "f8"),  # units of fluid work in a round, on the most loaded shared resource
        ("cap", "f8"),  # most units of size per second that the private resources allow
        ("weight", "f8"),
        ("first_use", "i8"),
        ("last_use", "i8"),
    ]
)

# The use that a leg makes of a shared resource.
USE = np.dtype(
    [
        ("resource", "i8"),
        ("share", "f8"),  # units of the resource for a unit of size
    ]
)

# What a stream is doing. The first stream of a task's crew plays it; the others are only busy.
# Small, so that those of a thousand streams stay in the nearest cache.
STREAM = np.dtype(
    [
        ("tail_s", "f8"),
        ("first_ready", "i8"),  # where its heap of ready tasks begins
        ("rounds", "i8"),  # of the leg still to be ended
        ("task", "i4"),
        ("leg", "i4"),  # of the task's cost row; the last one: its tail
        ("last_leg", "i4"),
        ("n_ready", "i4"),
        ("pick", "i4"),  # the task that it waits to start, or NONE
        ("is_busy", "?"),
        ("is_marked", "?"),  # to pick in this round
    ],
    align=True,
)

# The fluid work of a stream; a flow is known by the stream that plays it.
FLOW = np.dtype(
    [
        ("left", "f8"),  # units of size left at `since`
        ("rate", "f8"),  # units of size a second
        ("since", "f8"),
        ("cap", "f8"),
        ("weight", "f8"),
        ("first_place", "u4"),  # where its uses are written
        ("last_place", "u4"),
    ],
    align=True,
)

# The use that an active flow makes of a shared resource, by flow and by resource.
PLACE = np.dtype(
    [
        ("share", "f8"),
        ("resource", "u4"),
        ("user", "u4"),  # where it stands among the users of the resource
    ]
)
USER = np.dtype(
    [
        ("free", "f8"),  # units a second left when it was frozen, and those before it
        ("load", "f8"),  # units of the resource for a unit of level
        ("flow", "u4"),
        ("place", "u4"),
    ]
)

RESOURCE = np.dtype(
    [
        ("capacity", "f8"),
        ("load", "f8"),  # units of it for a unit of level of all flows
        # while it is divided
        ("free", "f8"),  # units a second that frozen flows leave
        ("rise", "f8"),  # units of it for a unit of level of the rising flows
        ("first_user", "u4"),  # where the uses of it are written
        ("last_user", "u4"),
        ("first_reached", "u4"),  # the first above the floor
        ("first_rising", "u4"),  # where the next that is frozen is written
        ("is_listed", "?"),  # connected to a change of the flows
    ],
    align=True,
)

# What there is to be divided, and what has happened to it since that was done.
CHANGE = np.dtype(
    [
        ("floor", "f8"),  # level up to which filling goes as before
        ("n_capped", "i8"),  # active flows with a cap
    ]
)
