"""The compiled executor: plays a Program by the rules at the head of ``program.py``.

Work per event is logarithmic in the number of streams and independent of the number of tasks.
Within a round the order of ends and of starts does not matter: ends only count predecessors down,
and every free stream has one pick, so no two starts compete.

The *crew* of a task are the streams that it occupies: its group, or its one stream. The first of
them plays it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ridgeline._jit import kernel, kernel_part
from ridgeline.engine.buffer_sizing import count_room, count_users, reverse
from ridgeline.engine.pricing import price_rows
from ridgeline.engine.program import MOMENT, Floats, Indices, Ints, Program
from ridgeline.engine.queues import (
    append,
    empty_list,
    first_leaf,
    heap_pop,
    heap_push,
    set_time,
    tournament,
)
from ridgeline.engine.sharing import begin_flow, divide, end_flow, no_change
from ridgeline.engine.tables import FLOW, NONE, PLACE, RESOURCE, STREAM, TASK, USER, Places, Records
from ridgeline.engine.timeline import Timeline
from ridgeline.engine.validate import check_program

SLICE = 1 << 19
"""Task ends between two looks at the outside world: a tenth of a second without sharing."""


def run(program: Program, progress: Callable[[int, int], None] | None = None) -> Timeline:
    """Play a program.

    Compiled code plays some hundred thousand tasks at a time. In between an interruption (Ctrl-C)
    is raised as it always is; nothing outside this call has been changed by then.

    Parameters
    ----------
    progress
        Called now and then with how many tasks have ended, and of how many.

    Raises
    ------
    RidgelineError
        If the program is malformed, or if tasks wait for each other in a circle.
    """
    check_program(program)
    p = program
    n_streams, n_resources = len(p.stream_rank), len(p.capacity)
    rows, legs, uses = price_rows(p)
    # A crew of one for each stream follows the groups.
    tasks = np.empty(p.n_tasks, TASK)
    tasks["crew"] = np.where(p.group == NONE, p.stream + (len(p.group_ptr) - 1), p.group)
    np.subtract(p.dep_ptr[1:], p.dep_ptr[:-1], out=tasks["missing"], casting="unsafe")
    crew_ptr = np.concatenate((p.group_ptr, p.group_ptr[-1] + np.arange(1, n_streams + 1)))
    crew_stream = np.concatenate((p.group_stream, np.arange(n_streams, dtype=np.int32)))
    successor_ptr = np.zeros(p.n_tasks + 1, np.int64)
    successor = np.empty(len(p.dep_index), np.uint32)
    reverse(p.dep_ptr, p.dep_index, successor_ptr, successor)
    n_ready, n_places = np.zeros(n_streams, np.int64), np.zeros(n_streams, np.int64)
    count_room(tasks, crew_ptr, crew_stream, p.cost, rows, legs, n_ready, n_places)
    streams = np.zeros(n_streams, STREAM)
    streams["pick"] = NONE
    streams["first_ready"] = np.cumsum(n_ready) - n_ready
    flows = np.zeros(n_streams, FLOW)
    flows["first_place"] = np.cumsum(n_places) - n_places
    resources = np.zeros(n_resources, RESOURCE)
    resources["capacity"] = p.capacity
    n_users = np.zeros(n_resources, np.int64)
    count_users(tasks, crew_ptr, crew_stream, p.cost, rows, legs, uses, n_streams, n_users)
    resources["first_user"] = resources["last_user"] = np.cumsum(n_users) - n_users
    start_s, end_s = np.full(p.n_tasks, math.nan), np.full(p.n_tasks, math.nan)
    clock = np.zeros(CLOCK)
    state = (
        tasks,
        crew_ptr,
        crew_stream,
        p.cost,
        p.priority,
        successor_ptr,
        successor,
        start_s,
        end_s,
        rows,
        legs,
        uses,
        streams,
        flows,
        np.empty(n_streams),
        resources,
        np.zeros(n_places.sum(), PLACE),
        np.zeros(n_users.sum(), USER),
        np.empty(n_ready.sum(), np.uint32),
        empty_list(n_streams),
        empty_list(n_streams),
        empty_list(n_resources),
        tournament(n_streams),
        tournament(n_streams),
        np.empty(n_users.sum(), np.uint32),
        np.empty(n_resources + n_streams + 1),
        np.empty(n_resources + n_streams, np.uint32),
        no_change(),
        clock,
    )
    while _play(*state, SLICE):
        if progress is not None:
            progress(int(clock[ENDED]), p.n_tasks)
    if progress is not None:
        progress(int(clock[ENDED]), p.n_tasks)
    return Timeline(p, start_s, end_s)


CLOCK, NOW, ENDED = 2, 0, 1  # length and places of what `_play` remembers from call to call


@kernel
def _play(
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    cost: Indices,  # [T]
    priority: Indices,  # [T]
    successor_ptr: Ints,  # [T+1]
    successor: Places,
    start_s: Floats,  # [T] result
    end_s: Floats,  # [T] result
    rows: Records,
    legs: Records,
    uses: Records,
    streams: Records,
    flows: Records,
    frozen_at: Floats,  # levels of the flows
    resources: Records,
    places: Records,
    users: Records,
    ready: Places,  # heaps of ready tasks, one for each stream
    marked: Places,  # list of the streams that are to pick in this round
    picked: Places,  # list of the tasks that got all their picks in this round
    listed: Places,  # list of the resources connected to a change of the flows
    fixed_ends: Floats,  # tournaments of the streams: when their fixed times and flows end
    fluid_ends: Floats,
    reached: Places,  # room to divide resources anew
    levels: Floats,  # heap of what stops rising flows
    stops: Places,
    change: Records,
    clock: Floats,
    most: int,
) -> bool:
    """Play until about `most` more tasks have ended, or to the end; tell whether some are left."""
    now = clock[NOW]
    ended = 0
    if now == 0.0 and clock[ENDED] == 0.0:
        for task in range(len(tasks)):
            if tasks[task]["missing"] == 0:
                _make_ready(task, tasks, crew_ptr, crew_stream, priority, streams, ready, marked)
    while ended < most:
        _pick(tasks, streams, ready, marked, picked)
        for i in range(1, picked[0] + 1):
            task = picked[i]
            # otherwise it has lost a pick again, or is listed twice
            if tasks[task]["missing"] == 0:
                tasks[task]["missing"] = NONE
                start_s[task] = now
                _occupy(task, tasks, crew_ptr, crew_stream, priority, streams, ready)
                player = crew_stream[crew_ptr[tasks[task]["crew"]]]
                _begin_task(task, player, now, cost, rows, legs, streams, fixed_ends)
        if listed[0] > 0 and fixed_ends[0] > now:
            divide(
                now,
                flows,
                frozen_at,
                resources,
                places,
                users,
                listed,
                change[0],
                fluid_ends,
                reached,
                levels,
                stops,
            )
        now = fluid_ends[0]
        if fixed_ends[0] <= now * (1.0 + MOMENT):
            now = fixed_ends[0]
        if now == math.inf:
            clock[ENDED] += ended
            return False
        while fluid_ends[0] <= now * (1.0 + MOMENT):
            player = first_leaf(fluid_ends)
            set_time(fluid_ends, player, math.inf)
            end_flow(player, flows, frozen_at, resources, places, users, listed, change[0])
            _end_round(player, now, legs, streams, fixed_ends)
        while fixed_ends[0] == now:
            player = first_leaf(fixed_ends)
            set_time(fixed_ends, player, math.inf)
            if streams[player]["leg"] < streams[player]["last_leg"]:
                begin_flow(
                    player,
                    streams[player]["leg"],
                    now,
                    flows,
                    frozen_at,
                    legs,
                    uses,
                    resources,
                    places,
                    users,
                    listed,
                    change[0],
                )
                continue
            task = streams[player]["task"]
            end_s[task] = now
            ended += 1
            _vacate(task, tasks, crew_ptr, crew_stream, streams, marked)
            for i in range(successor_ptr[task], successor_ptr[task + 1]):
                after = successor[i]
                tasks[after]["missing"] -= 1
                if tasks[after]["missing"] == 0:
                    _make_ready(
                        after,
                        tasks,
                        crew_ptr,
                        crew_stream,
                        priority,
                        streams,
                        ready,
                        marked,
                    )
    clock[NOW] = now
    clock[ENDED] += ended
    return True


@kernel_part
def _make_ready(
    task: int,
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    priority: Indices,
    streams: Records,
    ready: Places,
    marked: Places,
) -> None:
    """Add a task to the ready ones of all its streams."""
    first, last = crew_ptr[tasks[task]["crew"]], crew_ptr[tasks[task]["crew"] + 1]
    tasks[task]["missing"] = last - first
    for member in range(first, last):
        stream = streams[crew_stream[member]]
        heap_push(ready, stream["first_ready"], stream["n_ready"], task, priority)
        stream["n_ready"] += 1
        _mark(crew_stream[member], streams, marked)


@kernel_part
def _mark(stream: int, streams: Records, marked: Places) -> None:
    if not streams[stream]["is_marked"]:
        streams[stream]["is_marked"] = True
        append(marked, stream)


@kernel_part
def _pick(tasks: Records, streams: Records, ready: Places, marked: Places, picked: Places) -> None:
    """Let all free marked streams pick, and list the tasks that are then picked by their crew.

    A listed task may lose a pick to a task that another of its streams prefers, in this round.
    """
    picked[0] = 0
    for i in range(1, marked[0] + 1):
        stream = streams[marked[i]]
        stream["is_marked"] = False
        if stream["is_busy"] or stream["n_ready"] == 0:
            continue
        task = ready[stream["first_ready"]]
        if task == stream["pick"]:
            continue
        if stream["pick"] != NONE:
            tasks[stream["pick"]]["missing"] += 1
        stream["pick"] = task
        tasks[task]["missing"] -= 1
        if tasks[task]["missing"] == 0:
            append(picked, task)
    marked[0] = 0


@kernel_part
def _occupy(
    task: int,
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    priority: Indices,
    streams: Records,
    ready: Places,
) -> None:
    for member in range(crew_ptr[tasks[task]["crew"]], crew_ptr[tasks[task]["crew"] + 1]):
        stream = streams[crew_stream[member]]
        heap_pop(ready, stream["first_ready"], stream["n_ready"], priority)
        stream["n_ready"] -= 1
        stream["is_busy"] = True
        stream["pick"] = NONE


@kernel_part
def _vacate(
    task: int,
    tasks: Records,
    crew_ptr: Ints,
    crew_stream: Indices,
    streams: Records,
    marked: Places,
) -> None:
    for member in range(crew_ptr[tasks[task]["crew"]], crew_ptr[tasks[task]["crew"] + 1]):
        streams[crew_stream[member]]["is_busy"] = False
        _mark(crew_stream[member], streams, marked)


@kernel_part
def _begin_task(
    task: int,
    player: int,
    now: float,
    cost: Indices,
    rows: Records,
    legs: Records,
    streams: Records,
    fixed_ends: Floats,
) -> None:
    row = rows[cost[task]]
    stream = streams[player]
    stream["task"] = task
    stream["leg"] = row["first_leg"]
    stream["last_leg"] = row["last_leg"]
    stream["tail_s"] = row["tail_s"]
    _begin_leg(player, now, legs, streams, fixed_ends)


@kernel_part
def _begin_leg(
    player: int, now: float, legs: Records, streams: Records, fixed_ends: Floats
) -> None:
    """Begin the fixed time before the first round of the stream's leg, or its tail."""
    stream = streams[player]
    if stream["leg"] == stream["last_leg"]:
        set_time(fixed_ends, player, now + stream["tail_s"])
        return
    leg = legs[stream["leg"]]
    stream["rounds"] = leg["rounds"]
    set_time(fixed_ends, player, now + (leg["lead_s"] + leg["latency_s"]))


@kernel_part
def _end_round(
    player: int, now: float, legs: Records, streams: Records, fixed_ends: Floats
) -> None:
    """Begin the fixed time before what follows a round of fluid work."""
    stream = streams[player]
    stream["rounds"] -= 1
    if stream["rounds"] > 0:
        set_time(fixed_ends, player, now + legs[stream["leg"]]["latency_s"])
        return
    stream["leg"] += 1
    _begin_leg(player, now, legs, streams, fixed_ends)
