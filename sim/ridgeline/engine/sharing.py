"""Max-min fair division of shared resources among the flows that are active at one moment.

Each stream plays at most one task, so a flow is known by the stream that plays it. Every resource
has a list of the uses that active flows make of it, without gaps. When flows come or go, what they
may have changed is divided anew by progressive filling (Bertsekas and Gallager, Data Networks, 2nd
ed., section 6.5.2):

The *level* ``rate / weight`` of all flows rises until caps and full resources freeze them one after
the other. A flow that ends was rising up to its own level, and none of its resources was full
before; without it they fill even later. A flow that begins cannot fill a resource before the level
at which all flows on it together would. So up to the least of these levels, the *floor*, filling
goes as it went before: flows below it keep their rates, and filling goes on from there with those
flows above it that are connected to a change through resources.

`listed` lists the resources and `reached` the streams that are divided anew.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline._jit import kernel_part
from ridgeline.engine.program import Floats
from ridgeline.engine.queues import append, first_leaf, hold_again, set_time
from ridgeline.engine.tables import CHANGE, NONE, Places, Records

BELOW = 1.0 - 1e-9
"""Levels that are equal in exact arithmetic lie above a floor, however they are rounded."""


MANY = 8
"""When more than this part of all ends change, the tournament is held again as a whole."""


def no_change() -> Records:
    """Return the table in which changes of the flows are noted."""
    change = np.zeros(1, CHANGE)
    change["floor"] = math.inf
    return change


@kernel_part
def begin_flow(
    stream: int,
    leg_number: int,
    now: float,
    flows: Records,
    legs: Records,
    uses: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    change: Records,
) -> None:
    """Let the fluid work of one round of the stream's leg begin; `divide` gives it a rate."""
    flow = flows[stream]
    leg = legs[leg_number]
    flow["left"] = leg["size"]
    flow["rate"] = 0.0
    flow["since"] = now
    flow["cap"] = leg["cap"]
    flow["weight"] = leg["weight"]
    flow["level"] = math.inf  # above any floor
    place = flow["first_place"]
    for use in range(leg["first_use"], leg["last_use"]):
        number, share = uses[use]["resource"], uses[use]["share"]
        resource = resources[number]
        user = resource["last_user"]
        resource["last_user"] += 1
        users[user]["share"] = share
        users[user]["flow"] = stream
        users[user]["place"] = place
        here = places[place]
        here["resource"] = number
        here["share"] = share
        here["user"] = user
        resource["load"] += share * leg["weight"]
        change["floor"] = min(change["floor"], resource["capacity"] / resource["load"] * BELOW)
        _list_resource(number, resources, listed)
        place += 1
    flow["last_place"] = place


@kernel_part
def end_flow(
    stream: int,
    flows: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    change: Records,
) -> None:
    """Take a flow off its resources."""
    flow = flows[stream]
    change["floor"] = min(change["floor"], flow["level"] * BELOW)
    for place in range(flow["first_place"], flow["last_place"]):
        here = places[place]
        resource = resources[here["resource"]]
        resource["load"] -= here["share"] * flow["weight"]
        resource["last_user"] -= 1
        last = resource["last_user"]
        if last == resource["first_user"]:
            resource["load"] = 0.0  # leave no rounding error behind
        else:
            gap = here["user"]  # the last one fills it
            users[gap]["share"] = users[last]["share"]
            users[gap]["flow"] = users[last]["flow"]
            users[gap]["place"] = users[last]["place"]
            places[users[gap]["place"]]["user"] = gap
        _list_resource(here["resource"], resources, listed)


@kernel_part
def _list_resource(resource: int, resources: Records, listed: Places) -> None:
    if not resources[resource]["is_listed"]:
        resources[resource]["is_listed"] = True
        append(listed, resource)


@kernel_part
def divide(
    now: float,
    flows: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    reached: Places,
    change: Records,
    ends: Floats,
    full: Floats,
    capped: Floats,
    frozen: Places,
) -> None:
    """Give all flows that a change may concern their fair rates and their new ends."""
    _reach(flows, resources, places, users, listed, reached, change, capped)
    many = MANY * reached[0] > len(ends) >> 1
    _fill(now, flows, resources, places, users, listed, full, capped, ends, many, frozen)
    if many:
        hold_again(ends)
    for i in range(1, listed[0] + 1):
        resources[listed[i]]["is_listed"] = False
    listed[0] = 0
    reached[0] = 0
    change["floor"] = math.inf


@kernel_part
def _reach(
    flows: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    reached: Places,
    change: Records,
    capped: Floats,
) -> None:
    """List the flows above the floor that are connected to the listed resources, and theirs.

    They begin to rise: each listed resource gets what is free of it for them.
    """
    floor = change["floor"]
    known = 1
    i = 1
    while i <= listed[0]:
        resource = resources[listed[i]]
        free, rise, rising = resource["capacity"], 0.0, 0
        n = np.uint64(reached[0])
        for number in range(resource["first_user"], resource["last_user"]):
            here = users[number]
            flow = flows[here["flow"]]
            share = here["share"]
            if flow["level"] < floor:
                free -= share * flow["rate"]
                continue
            rise += share * flow["weight"]
            rising += 1
            n += np.uint64(1)
            reached[n] = here["flow"]
            n -= np.uint64(flow["fair"] == NONE)
            flow["fair"] = NONE
        reached[0] = n
        resource["free"], resource["rise"], resource["rising"] = free, rise, rising
        while known <= reached[0]:
            flow = flows[reached[known]]
            if flow["cap"] < math.inf:
                set_time(capped, reached[known], flow["cap"] / flow["weight"])
            for place in range(flow["first_place"], flow["last_place"]):
                _list_resource(places[place]["resource"], resources, listed)
            known += 1
        i += 1


@kernel_part
def _fill(
    now: float,
    flows: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    full: Floats,
    capped: Floats,
    ends: Floats,
    many: bool,
    frozen: Places,
) -> None:
    """Raise the level of all reached flows until caps and full resources have frozen all.

    The tournaments know the level at which each resource is full and each flow capped. A resource's
    level can only rise when flows freeze below it, so it may be too low but never too high; it is
    brought up to date when it comes first.
    """
    half = len(full) >> 1
    all_at_once = MANY * listed[0] > half
    for i in range(1, listed[0] + 1):
        resource = resources[listed[i]]
        if resource["rising"] > 0:
            level = resource["free"] / resource["rise"]
            if all_at_once:
                full[half + listed[i]] = level
            else:
                set_time(full, listed[i], level)
    if all_at_once:
        hold_again(full)
    while True:
        level = full[1]
        if capped[1] < level:
            stream = first_leaf(capped)
            if flows[stream]["fair"] == NONE:
                rate = flows[stream]["cap"]
                _freeze(stream, capped[1], rate, flows, resources, places)
                _set_rate(stream, rate, now, flows, ends, many)
            set_time(capped, stream, math.inf)
            continue
        if level == math.inf:
            return
        first = first_leaf(full)
        resource = resources[first]
        if resource["rising"] > 0:
            # Rounding alone can make a resource full below the present level.
            current = max(resource["free"] / resource["rise"], level)
            if current > level:
                set_time(full, first, current)
                continue
            n = np.uint64(0)
            for number in range(resource["first_user"], resource["last_user"]):
                stream = users[number]["flow"]
                frozen[n] = stream
                n += np.uint64(flows[stream]["fair"] == NONE)  # no branch to be mispredicted
            for i in range(n):
                stream = frozen[i]
                if flows[stream]["fair"] == NONE:  # it may use the resource twice
                    rate = level * flows[stream]["weight"]
                    _freeze(stream, level, rate, flows, resources, places)
                    _set_rate(stream, rate, now, flows, ends, many)
        set_time(full, first, math.inf)


@kernel_part
def _freeze(
    stream: int, level: float, rate: float, flows: Records, resources: Records, places: Records
) -> None:
    """Give a rising flow its rate, and take that from what is free of its resources."""
    flow = flows[stream]
    flow["fair"] = rate
    flow["level"] = level
    for place in range(flow["first_place"], flow["last_place"]):
        here = places[place]
        resource = resources[here["resource"]]
        resource["free"] -= here["share"] * rate
        resource["rise"] -= here["share"] * flow["weight"]
        resource["rising"] -= 1


@kernel_part
def _set_rate(
    stream: int, rate: float, now: float, flows: Records, ends: Floats, many: bool
) -> None:
    """Let a flow go on at its new rate; `many` leaves the tournament of its ends to be held."""
    flow = flows[stream]
    if rate != flow["rate"]:
        flow["left"] = max(flow["left"] - flow["rate"] * (now - flow["since"]), 0.0)
        flow["rate"] = rate
        flow["since"] = now
        end = now + flow["left"] / rate
        if many:
            ends[(len(ends) >> 1) + stream] = end
        else:
            set_time(ends, stream, end)
