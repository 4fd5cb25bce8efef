"""Fair rates of flows that never end: what `sharing.divide` gives them at one moment."""

from __future__ import annotations

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.queues import empty_list, tournament
from ridgeline.engine.sharing import begin_flow, divide, no_change
from ridgeline.engine.tables import FLOW, LEG, PLACE, RESOURCE, USE, USER, Places, Records


def fair_rates(capacity: Floats, use_ptr: Ints, use_resource: Ints, use_share: Floats) -> Floats:
    """Return the max-min fair rates of some flows.

    Parameters
    ----------
    capacity
        [R] of each resource, in units a second.
    use_ptr, use_resource, use_share
        Flow f takes ``use_share[u]`` units of ``use_resource[u]`` for each unit it moves, for u in
        ``use_ptr[f]:use_ptr[f + 1]``; at least one.

    Returns
    -------
    [F] units a second.
    """
    n_flows, n_resources = len(use_ptr) - 1, len(capacity)
    legs = np.zeros(n_flows, LEG)
    legs["first_use"], legs["last_use"] = use_ptr[:-1], use_ptr[1:]
    legs["cap"], legs["weight"], legs["size"] = np.inf, 1.0, 1.0
    uses = np.zeros(len(use_resource), USE)
    uses["resource"], uses["share"] = use_resource, use_share
    flows = np.zeros(n_flows, FLOW)
    flows["first_place"] = use_ptr[:-1]
    resources = np.zeros(n_resources, RESOURCE)
    resources["capacity"] = capacity
    n_users = np.bincount(use_resource, minlength=n_resources)
    resources["first_user"] = resources["last_user"] = np.cumsum(n_users) - n_users
    _divide_once(
        flows,
        np.empty(n_flows),
        legs,
        uses,
        resources,
        np.zeros(len(uses), PLACE),
        np.zeros(len(uses), USER),
        empty_list(n_resources),
        tournament(n_flows),
        np.empty(len(uses), np.uint32),
        np.empty(n_resources + n_flows + 1),
        np.empty(n_resources + n_flows, np.uint32),
        no_change(),
    )
    rates: Floats = flows["rate"].copy()
    return rates


@kernel
def _divide_once(
    flows: Records,
    frozen_at: Floats,
    legs: Records,
    uses: Records,
    resources: Records,
    places: Records,
    users: Records,
    listed: Places,
    ends: Floats,
    reached: Places,
    levels: Floats,
    stops: Places,
    change: Records,
) -> None:
    for flow in range(len(flows)):
        begin_flow(
            flow,
            flow,
            0.0,
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
    divide(
        0.0,
        flows,
        frozen_at,
        resources,
        places,
        users,
        listed,
        change[0],
        ends,
        reached,
        levels,
        stops,
    )
