"""What the all-to-alls of experts put on links, over one whose messages are all alike.

Every token goes to several experts. Where each choice is a message of its own, links carry as much
as rows are computed, more or less for ranks that are fuller than others (`experts.LOADS`). Kernels
for experts send a token once to each node that has one of its experts, to the rank with the same
place in that node, which passes it on to the ranks that need it, once each (DeepEP,
github.com/deepseek-ai/DeepEP, forwarding between the domains of NVLink and RDMA; DeepSeek-V3,
arXiv:2412.19437, Section 3.2.2: over InfiniBand "to the GPUs with the same in-node index on its
target nodes"). So a rail carries what its own ranks send, and nothing passes the switches above.
Results come back the same way, added up in each node before they leave it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ridgeline.network.routing import routes
from ridgeline.network.topology import Floats, Topology

Ints = npt.NDArray[np.int64]

_SAME = 1.0 + 1e-9
"""Longer by less than this is rounding."""


def link_ratio(loads: str, topology: Topology, ranks: tuple[int, ...]) -> Floats:
    """Return by link what it carries, over what it would if all messages were alike; [L].

    Parameters
    ----------
    loads
        ``to:1.5`` or ``from:1.5``: the first rank gets or sends so many times the mean, and the
        others what is left. ``nodes:8:256``: 8 of 256 experts for each token, which are chosen
        alike and independently, and a token goes once to each node, to the rank of the same place.
    """
    n, ends = len(ranks), topology.devices[list(ranks)].astype(np.int64)
    source, target = np.divmod(np.arange(n * n), n)
    source, target = source[source != target], target[source != target]
    way, _, numbers = loads.partition(":")
    found = routes(topology, ends[source], ends[target])
    per_message = np.diff(found.ptr)

    def by_link(weight: Floats) -> Floats:
        each = np.repeat(weight, per_message)
        sent: Floats = np.bincount(found.links, each, minlength=topology.n_links).astype(float)
        return sent

    if way == "nodes":
        choices, experts = (int(number) for number in numbers.split(":"))
        node = topology.node_of[ends].astype(np.int64)
        # By the rank of the same place, unless two of a node then share an adapter while another
        # has nothing to do: programs give each device one of its own, which routes do not know.
        mine, alike = (
            by_link(_once(source, target, node, choices, experts, entering(source, target, node)))
            for entering in (_by_the_same_place, _by_all_alike)
        )
        if _longest_at_nodes(mine, topology) > _SAME * _longest_at_nodes(alike, topology):
            mine = alike
    else:
        full = (target if way == "to" else source) == 0
        mine = by_link(np.where(full, float(numbers), (n - float(numbers)) / (n - 1)))
    even = by_link(np.ones(len(source)))
    return np.divide(mine, even, out=np.ones_like(mine), where=even > 0)


def _longest_at_nodes(sent: Floats, topology: Topology) -> float:
    """Return the longest time of a link into or out of a node."""
    here, there = topology.node_of[topology.source], topology.node_of[topology.target]
    seconds = np.where(here != there, sent / topology.bandwidth_bytes_per_s, 0.0)
    return float(seconds.max(initial=0.0))


def reached(choices: int, experts: int, some: int) -> float:
    """Return the chance that a token's experts are in part among `some` of all."""
    return 1.0 - math.comb(experts - some, choices) / math.comb(experts, choices)


def _by_the_same_place(source: Ints, target: Ints, node: Ints) -> Floats:
    """Return the share of a rank's tokens for a node that enters it by each of its ranks; [pairs].

    All by the rank that has the sender's place there, counted again from the first where that node
    has fewer ranks.
    """
    n = len(node)
    place = np.array([np.count_nonzero(node[:rank] == node[rank]) for rank in range(n)])
    sizes = _sizes(node)
    enters: Floats = np.where(place[source] % sizes[target] == place[target], 1.0, 0.0)
    return enters


def _by_all_alike(_: Ints, target: Ints, node: Ints) -> Floats:
    """Return the same where tokens enter a node by all of its ranks alike."""
    shares: Floats = 1.0 / _sizes(node)[target]
    return shares


def _sizes(node: Ints) -> Ints:
    """Return how many ranks are on the node of each."""
    return np.array([np.count_nonzero(node == one) for one in node])


def _once(
    source: Ints, target: Ints, node: Ints, choices: int, experts: int, entering: Floats
) -> Floats:
    """Return what ranks send each other, over an even message; [pairs].

    What has entered a node is passed on to the ranks that need it.

    Parameters
    ----------
    source, target
        [pairs] Of ranks.
    node
        [n] Of each rank.
    entering
        [pairs] Of what a rank sends to a node, the share that its target takes in.
    """
    n, sizes = len(node), _sizes(node)
    away = node[source] != node[target]
    into_node = {int(size): reached(choices, experts, experts // n * int(size)) for size in sizes}
    between = np.array([into_node[int(size)] for size in sizes]) * n / choices
    # Ranks whose tokens a rank has to pass on: those that enter by it, and itself.
    served = np.bincount(target[away], entering[away], minlength=n) + 1.0
    inside = reached(choices, experts, experts // n) * n / choices * served
    weight: Floats = np.where(away, between[target] * entering, inside[source])
    return weight
