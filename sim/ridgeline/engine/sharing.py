"""Max-min fair division of shared resources among the flows that are active at one moment.

Each stream plays at most one task, so a flow is known by the stream that plays it. Every resource
has a linked list of the uses that active flows make of it. When flows come or go, only the flows
that are connected to them through shared resources are divided anew, by progressive filling
(Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2).

`listed` lists the resources and `reached` the streams of the component that has changed.
"""

from __future__ import annotations

import math

from ridgeline._jit import kernel_part
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.queues import append, first_leaf, set_time
from ridgeline.engine.tables import NONE, Records


@kernel_part
def begin_flow(
    stream: int,
    now: float,
    streams: Records,
    legs: Records,
    uses: Records,
    resources: Records,
    places: Records,
    listed: Ints,
) -> None:
    """Let the fluid work of one round of the stream's leg begin; `divide` gives it a rate."""
    flow = streams[stream]
    leg = legs[flow["leg"]]
    flow["left"] = leg["size"]
    flow["rate"] = 0.0
    flow["since"] = now
    flow["cap"] = leg["cap"]
    flow["weight"] = leg["weight"]
    place = flow["first_place"]
    for use in range(leg["first_use"], leg["last_use"]):
        resource = uses[use]["resource"]
        following = resources[resource]["place"]
        if following != NONE:
            places[following]["preceding"] = place
        resources[resource]["place"] = place
        here = places[place]
        here["stream"] = stream
        here["resource"] = resource
        here["share"] = uses[use]["share"]
        here["following"] = following
        here["preceding"] = NONE
        _list_resource(resource, resources, listed)
        place += 1
    flow["last_place"] = place


@kernel_part
def end_flow(
    stream: int, streams: Records, resources: Records, places: Records, listed: Ints
) -> None:
    """Take a flow off its resources."""
    for place in range(streams[stream]["first_place"], streams[stream]["last_place"]):
        here = places[place]
        if here["preceding"] == NONE:
            resources[here["resource"]]["place"] = here["following"]
        else:
            places[here["preceding"]]["following"] = here["following"]
        if here["following"] != NONE:
            places[here["following"]]["preceding"] = here["preceding"]
        _list_resource(here["resource"], resources, listed)


@kernel_part
def _list_resource(resource: int, resources: Records, listed: Ints) -> None:
    if not resources[resource]["is_listed"]:
        resources[resource]["is_listed"] = True
        append(listed, resource)


@kernel_part
def divide(
    now: float,
    streams: Records,
    resources: Records,
    places: Records,
    listed: Ints,
    reached: Ints,
    ends: Floats,
    race: Floats,
) -> None:
    """Give all flows connected to a change their fair rates and their new ends."""
    _reach_component(streams, resources, places, listed, reached)
    _fill(streams, resources, places, listed, reached, race)
    for i in range(1, reached[0] + 1):
        flow = streams[reached[i]]
        flow["is_reached"] = False
        if flow["fair"] != flow["rate"]:
            flow["left"] = max(flow["left"] - flow["rate"] * (now - flow["since"]), 0.0)
            flow["rate"] = flow["fair"]
            flow["since"] = now
            set_time(ends, reached[i], now + flow["left"] / flow["rate"])
    for i in range(1, listed[0] + 1):
        resources[listed[i]]["is_listed"] = False
    listed[0] = 0
    reached[0] = 0


@kernel_part
def _reach_component(
    streams: Records, resources: Records, places: Records, listed: Ints, reached: Ints
) -> None:
    """Extend the listed resources to all that are connected to them, and list the flows."""
    i = 1
    while i <= listed[0]:
        place = resources[listed[i]]["place"]
        while place != NONE:
            stream = places[place]["stream"]
            flow = streams[stream]
            if not flow["is_reached"]:
                flow["is_reached"] = True
                append(reached, stream)
                for other in range(flow["first_place"], flow["last_place"]):
                    _list_resource(places[other]["resource"], resources, listed)
            place = places[place]["following"]
        i += 1


@kernel_part
def _fill(
    streams: Records,
    resources: Records,
    places: Records,
    listed: Ints,
    reached: Ints,
    race: Floats,
) -> None:
    """Raise ``level = rate / weight`` of all flows until caps and full resources have frozen all.

    `race` knows the level at which each resource fills and each flow is capped. A resource's level
    can only rise when flows freeze below it, so it may be too low but never too high; it is
    brought up to date when it comes first.
    """
    for i in range(1, reached[0] + 1):
        flow = streams[reached[i]]
        flow["fair"] = NONE
        if flow["cap"] < math.inf:
            set_time(race, len(resources) + reached[i], flow["cap"] / flow["weight"])
    for i in range(1, listed[0] + 1):
        set_time(race, listed[i], _filling_level(listed[i], streams, resources, places))
    while race[1] < math.inf:
        level = race[1]
        first = first_leaf(race)
        if first >= len(resources):
            flow = streams[first - len(resources)]
            if flow["fair"] == NONE:
                flow["fair"] = flow["cap"]
            set_time(race, first, math.inf)
            continue
        current = _filling_level(first, streams, resources, places)
        if current <= level:
            _freeze(first, level, streams, resources, places)
            current = math.inf
        set_time(race, first, current)


@kernel_part
def _filling_level(resource: int, streams: Records, resources: Records, places: Records) -> float:
    """Return the level at which a resource is full, infinity if all its flows are frozen."""
    free = resources[resource]["capacity"]
    rise = 0.0  # units of the resource for a unit of level
    place = resources[resource]["place"]
    while place != NONE:
        here = places[place]
        flow = streams[here["stream"]]
        if flow["fair"] == NONE:
            rise += here["share"] * flow["weight"]
        else:
            free -= here["share"] * flow["fair"]
        place = here["following"]
    return free / rise if rise > 0.0 else math.inf


@kernel_part
def _freeze(
    resource: int, level: float, streams: Records, resources: Records, places: Records
) -> None:
    place = resources[resource]["place"]
    while place != NONE:
        flow = streams[places[place]["stream"]]
        if flow["fair"] == NONE:
            flow["fair"] = level * flow["weight"]
        place = places[place]["following"]
