"""What the all-to-alls of experts put on links, over one whose messages are all alike.

Every token goes to several experts. Where each choice is a message of its own, links carry as much
as rows are computed, more or less for ranks that are fuller than others (`experts.LOADS`). Kernels
for experts send a token once to each node that has one of its experts, where it is passed on to the
ranks that need it, once each (DeepEP, github.com/deepseek-ai/DeepEP, forwarding between the domains
of NVLink and RDMA; DeepSeek-V3, arXiv:2412.19437, Section 3.2.2). Results come back the same way,
added up in each node before they leave it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology

Ints = npt.NDArray[np.int64]


def link_ratio(loads: str, topology: Topology, ranks: tuple[int, ...]) -> Floats:
    """Return by link what it carries, over what it would if all messages were alike; [L].

    Parameters
    ----------
    loads
        ``to:1.5`` or ``from:1.5``: the first rank gets or sends so many times the mean, and the
        others what is left. ``nodes:8:256``: 8 of 256 experts for each token, which are chosen
        alike and independently, and a token goes once to each node.
    """
    n, ends = len(ranks), topology.devices[list(ranks)].astype(np.int64)
    source, target = np.divmod(np.arange(n * n), n)
    source, target = source[source != target], target[source != target]
    way, _, numbers = loads.partition(":")
    if way == "nodes":
        choices, experts = (int(number) for number in numbers.split(":"))
        weight = _once(source, target, topology.node_of[ends].astype(np.int64), choices, experts)
    else:
        full = (target if way == "to" else source) == 0
        weight = np.where(full, float(numbers), (n - float(numbers)) / (n - 1))
    found = routes(topology, ends[source], ends[target])
    per_message = np.diff(found.ptr)
    even, mine = (
        np.bincount(found.links, np.repeat(each, per_message), minlength=topology.n_links)
        for each in (np.ones(len(weight)), weight)
    )
    return np.divide(mine, even, out=np.ones_like(mine), where=even > 0)


def reached(choices: int, experts: int, some: int) -> float:
    """Return the chance that a token's experts are in part among `some` of all."""
    return 1.0 - math.comb(experts - some, choices) / math.comb(experts, choices)


def _once(source: Ints, target: Ints, node: Ints, choices: int, experts: int) -> Floats:
    """Return what ranks send each other, over an even message; [pairs].

    Tokens enter a node by all of its ranks alike, and each of these passes on what others need.

    Parameters
    ----------
    source, target
        [pairs] Of ranks.
    node
        [n] Of each rank.
    """
    n = len(node)
    sizes = np.array([np.count_nonzero(node == node[rank]) for rank in range(n)])
    into_node = {int(size): reached(choices, experts, experts // n * int(size)) for size in sizes}
    between = np.array([into_node[int(size)] / size for size in sizes]) * n / choices
    inside = reached(choices, experts, experts // n) * n / choices * n / sizes
    weight: Floats = np.where(node[source] == node[target], inside[target], between[target])
    return weight
