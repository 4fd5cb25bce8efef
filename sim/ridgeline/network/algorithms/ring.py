"""Ring algorithms on all channels of the group at once.

With p ranks, latency α, bandwidth B and size S, a ring reduce-scatter or all-gather of one channel
takes (p-1)(α + S/(pB)), an all-reduce twice that (Patarasuk and Yuan, J. Parallel Distrib. Comput.
69(2), 2009; Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005). The
p-th is taken exactly: buffers are not padded to whole elements. A round waits for the slowest hop
of all channels.
"""

from __future__ import annotations

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, ring_algorithm
from ridgeline.network.message_schedule import MessageSchedule
from ridgeline.network.parallel_rings import Lane, lanes_script
from ridgeline.network.rings import Channel, ring_channels


@ring_algorithm("ring")
def ring(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Pass parts round: p-1 rounds that sum them, p-1 that gather them."""
    return lanes_script(group, op, _channels(group))


def _channels(group: CollectiveGroup) -> list[Lane]:
    return [
        lane_of(channel, group) for channel in ring_channels(group.topology, group.ranks).channels
    ]


def lane_of(channel: Channel, group: CollectiveGroup) -> Lane:
    """Return a ring channel as a lane of one dimension, over the channel's own links."""
    place = {rank: position for position, rank in enumerate(group.ranks)}
    position = np.array([place[rank] for rank in channel.ranks], np.int64)
    return Lane((group.n,), position, channel.share, routes=channel.ways)


@ring_algorithm("bidirectional-ring")
def bidirectional_ring(group: CollectiveGroup, op: str) -> MessageSchedule:
    """Send half of the payload round in each direction: half the time where links are duplex."""
    return lanes_script(group, op, _both_ways(group))


def _both_ways(group: CollectiveGroup) -> list[Lane]:
    order = np.arange(group.n)
    return [Lane((group.n,), order, 0.5, direction) for direction in (1, -1)]
