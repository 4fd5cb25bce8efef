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

The uses of a resource stand in the order in which their flows were frozen, each with what it left
free. So what is below the floor is a beginning of every list that nothing has to look at, and a
change costs as much as it changes.

`listed` lists the resources that are divided anew.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline._jit import kernel_part
from ridgeline.engine.program import Floats
from ridgeline.engine.queues import ONE, append, hold_again, leaf_node, set_time, sink
from ridgeline.engine.tables import CHANGE, RISING, Places, Records

BELOW = 1.0 - 1e-9
"""Levels that are equal in exact arithmetic lie above a floor, however they are rounded."""


MANY = 8
"""When more than this part of all ends change, the tournament is held again as a whole."""


MOST = 4
"""When more than this part of all resources are divided anew, all are: that asks no flow for its
resources, and those with nothing above the floor cost one look."""


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
    frozen_at: Floats,
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
    weight = leg["weight"]
    flow["left"] = leg["size"]
    flow["rate"] = 0.0
    flow["since"] = now
    flow["cap"] = leg["cap"]
    flow["weight"] = weight
    frozen_at[stream] = math.inf  # above any floor
    change["n_capped"] += flow["cap"] < math.inf
    floor = min(change["floor"], leg["cap"] / weight * BELOW)
    place = flow["first_place"]
    for use in range(leg["first_use"], leg["last_use"]):
        number, share = uses[use]["resource"], uses[use]["share"]
        resource = resources[number]
        user = resource["last_user"]
        resource["last_user"] += 1
        users[user]["load"] = share * weight
        users[user]["flow"] = stream
        users[user]["place"] = place
        here = places[place]
        here["resource"] = number
        here["share"] = share
        here["user"] = user
        resource["load"] += share * weight
        floor = min(floor, resource["capacity"] / resource["load"] * BELOW)
        _list_resource(number, resources, listed)
        place += 1
    flow["last_place"] = place
    change["floor"] = floor


@kernel_part
def end_flow(
    stream: int,
    flows: Records,
    frozen_at: Floats,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    change: Records,
) -> None:
    """Take a flow off its resources.

    The last use of a resource fills the gap. That leaves the order only among the uses above the
    floor, which are frozen anew.
    """
    flow = flows[stream]
    change["floor"] = min(change["floor"], frozen_at[stream] * BELOW)
    change["n_capped"] -= flow["cap"] < math.inf
    for place in range(flow["first_place"], flow["last_place"]):
        here = places[place]
        resource = resources[here["resource"]]
        resource["load"] -= here["share"] * flow["weight"]
        resource["last_user"] -= 1
        last = resource["last_user"]
        if last == resource["first_user"]:
            resource["load"] = 0.0  # leave no rounding error behind
        else:
            gap = here["user"]
            users[gap]["load"] = users[last]["load"]
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
    frozen_at: Floats,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    change: Records,
    ends: Floats,
    reached: Places,
    levels: Floats,
    stops: Places,
) -> None:
    """Give all flows that a change may concern their fair rates and their new ends.

    `frozen_at` holds the level of each flow, and `reached` is room for a copy of those in `users`.
    `levels` and `stops` are room for the heap of what stops the rising flows, and at what level:
    number r is resource r, and number R + f the cap of flow f.
    """
    n_stops, rising = _reach(
        flows,
        frozen_at,
        resources,
        places,
        users,
        listed,
        change,
        reached,
        levels,
        stops,
    )
    many = MANY * rising > len(frozen_at)
    _fill(
        now,
        flows,
        frozen_at,
        resources,
        places,
        users,
        ends,
        reached,
        levels,
        stops,
        n_stops,
        rising,
        many,
    )
    if many:
        hold_again(ends)
    for i in range(1, listed[0] + 1):
        resources[listed[i]]["is_listed"] = False
    listed[0] = 0
    change["floor"] = math.inf


@kernel_part
def _reach(
    flows: Records,
    frozen_at: Floats,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    change: Records,
    reached: Places,
    levels: Floats,
    stops: Places,
) -> tuple[int, int]:
    """Let the flows above the floor rise that are connected to the listed resources.

    Each resource of theirs is listed, and gets what is free of it for them. Returns the number of
    stops in the heap, and of rising flows.
    """
    floor = change["floor"]
    n_stops = rising = 0
    has_all = False
    i = 1
    while i <= listed[0]:
        if not has_all and MOST * listed[0] > len(resources):
            for number in range(len(resources)):
                _list_resource(number, resources, listed)
            has_all = True
        resource = resources[listed[i]]
        first, user, rise = resource["first_user"], resource["last_user"], 0.0
        while user > first:
            stream = users[user - ONE]["flow"]
            level = frozen_at[stream]
            if level != RISING:
                if level < floor:
                    break
                frozen_at[stream] = RISING
                rising += 1
                if not has_all:
                    for place in range(flows[stream]["first_place"], flows[stream]["last_place"]):
                        _list_resource(places[place]["resource"], resources, listed)
                if change["n_capped"] > 0 and flows[stream]["cap"] < math.inf:
                    levels[n_stops] = flows[stream]["cap"] / flows[stream]["weight"]
                    stops[n_stops] = len(resources) + stream
                    n_stops += 1
            user -= ONE
            reached[user] = stream
            rise += users[user]["load"]
        resource["free"] = users[user - ONE]["free"] if user > first else resource["capacity"]
        resource["rise"] = rise
        resource["first_reached"] = resource["first_rising"] = user
        if user < resource["last_user"]:
            levels[n_stops] = max(resource["free"] / rise, floor)
            stops[n_stops] = listed[i]
            n_stops += 1
        i += 1
    return n_stops, rising


@kernel_part
def _fill(
    now: float,
    flows: Records,
    frozen_at: Floats,
    resources: Records,
    places: Records,
    users: Records,
    ends: Floats,
    reached: Places,
    levels: Floats,
    stops: Places,
    n_stops: int,
    rising: int,
    many: bool,
) -> None:
    """Raise the level of all rising flows until caps and full resources have frozen all.

    A resource's level can only rise when flows freeze below it, so that in the heap may be too low
    but never too high; it is brought up to date when it comes first.
    """
    levels[n_stops] = math.inf
    for hole in range(n_stops // 2 - 1, -1, -1):
        sink(levels, stops, n_stops, hole)
    n_resources = len(resources)
    while rising > 0:
        level = levels[0]
        stop = stops[0]
        if stop >= n_resources:
            stream = stop - n_resources
            if frozen_at[stream] == RISING:
                frozen_at[stream] = level
                rate = flows[stream]["cap"]
                _freeze(stream, rate, flows, resources, places, users)
                _set_rate(stream, rate, now, flows, ends, many)
                rising -= 1
        else:
            resource = resources[stop]
            if resource["first_rising"] < resource["last_user"]:
                current = resource["free"] / resource["rise"]
                if current > level:  # rounding alone can make it full below the present level
                    levels[0] = current
                    sink(levels, stops, n_stops, 0)
                    continue
                for user in range(resource["first_reached"], resource["last_user"]):
                    stream = reached[user]
                    if frozen_at[stream] == RISING:
                        frozen_at[stream] = level
                        rate = level * flows[stream]["weight"]
                        _freeze(stream, rate, flows, resources, places, users)
                        _set_rate(stream, rate, now, flows, ends, many)
                        rising -= 1
        n_stops -= 1
        levels[0] = levels[n_stops]
        stops[0] = stops[n_stops]
        levels[n_stops] = math.inf
        sink(levels, stops, n_stops, 0)


@kernel_part
def _freeze(
    stream: int,
    rate: float,
    flows: Records,
    resources: Records,
    places: Records,
    users: Records,
) -> None:
    """Give a rising flow its rate, take that from what is free, and put its uses in order."""
    flow = flows[stream]
    for place in range(flow["first_place"], flow["last_place"]):
        here = places[place]
        resource = resources[here["resource"]]
        free = resource["free"] - here["share"] * rate
        user = resource["first_rising"]
        load = here["share"] * flow["weight"]
        users[user]["free"] = free
        users[user]["load"] = load
        users[user]["flow"] = stream
        users[user]["place"] = place
        here["user"] = user
        resource["free"] = free
        resource["rise"] -= load
        resource["first_rising"] = user + 1


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
            ends[leaf_node(ends, stream)] = end
        else:
            set_time(ends, stream, end)
