"""Buffer sizing: how much room a Program needs while it runs, counted once."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Indices, Ints
from ridgeline.engine.tables import NONE, Places, Records


@kernel
def reverse(dep_ptr: Ints, dep_index: Indices, successor_ptr: Ints, successor: Places) -> None:
    """Turn lists of predecessors into lists of successors, by counting."""
    for before in dep_index:
        successor_ptr[before] += 1
    for task in range(len(dep_ptr) - 1):
        successor_ptr[task + 1] += successor_ptr[task]
    # Each pointer is at the end of its list; filling from the last task down moves it to the head.
    for task in range(len(dep_ptr) - 2, -1, -1):
        for dep in range(dep_ptr[task], dep_ptr[task + 1]):
            before = dep_index[dep]
            successor_ptr[before] -= 1
            successor[successor_ptr[before]] = task


@kernel
def count_room(
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    cost: Indices,
    rows: Records,
    legs: Records,
    n_ready: Ints,
    n_places: Ints,
) -> None:
    """Count each stream's tasks, and the shared resources that the widest leg it plays uses."""
    widest = np.zeros(len(rows), np.int64)
    for row in range(len(rows)):
        for leg in range(rows[row]["first_leg"], rows[row]["last_leg"]):
            widest[row] = max(widest[row], legs[leg]["last_use"] - legs[leg]["first_use"])
    for task in range(len(tasks)):
        first = crew_ptr[tasks[task]["crew"]]
        for member in range(first, crew_ptr[tasks[task]["crew"] + 1]):
            n_ready[crew_stream[member]] += 1
        player = crew_stream[first]
        n_places[player] = max(n_places[player], widest[cost[task]])


@kernel
def count_users(
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    cost: Indices,
    rows: Records,
    legs: Records,
    uses: Records,
    n_streams: int,
    n_users: Ints,
) -> None:
    """Count the streams that ever play a leg on each shared resource."""
    if len(uses) == 0:
        return
    n_rows, n_resources = len(rows), len(n_users)
    # the players of each row
    player_ptr = np.zeros(n_rows + 1, np.int64)
    for row in cost:
        player_ptr[row + 1] += rows[row]["first_leg"] < rows[row]["last_leg"]
    player_ptr = np.cumsum(player_ptr)
    player = np.empty(player_ptr[-1], np.int32)
    n_players = np.zeros(n_rows, np.int64)
    for task in range(len(cost)):
        row = cost[task]
        if rows[row]["first_leg"] < rows[row]["last_leg"]:
            stream = crew_stream[crew_ptr[tasks[task]["crew"]]]
            at = player_ptr[row] + n_players[row]
            if n_players[row] == 0 or player[at - 1] != stream:  # the rest is sorted out below
                player[at] = stream
                n_players[row] += 1
    # the rows that use each resource
    row_ptr = np.zeros(n_resources + 1, np.int64)
    for use in range(len(uses)):
        row_ptr[uses[use]["resource"] + 1] += 1
    row_ptr = np.cumsum(row_ptr)
    row_of = np.empty(len(uses), np.int32)
    filled = row_ptr[:-1].copy()
    for row in range(n_rows):
        for leg in range(rows[row]["first_leg"], rows[row]["last_leg"]):
            for use in range(legs[leg]["first_use"], legs[leg]["last_use"]):
                resource = uses[use]["resource"]
                row_of[filled[resource]] = row
                filled[resource] += 1
    counted = np.full(n_streams, NONE, np.int64)
    for resource in range(n_resources):
        before = NONE
        for i in range(row_ptr[resource], row_ptr[resource + 1]):
            row = row_of[i]
            if row == before:
                continue
            before = row
            for at in range(player_ptr[row], player_ptr[row] + n_players[row]):
                if counted[player[at]] != resource:
                    counted[player[at]] = resource
                    n_users[resource] += 1
