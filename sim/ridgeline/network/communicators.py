"""What NCCL's communicators take of each device's memory: buffers of the channels' connections.

A communicator connects its rings and trees when it is made, whatever it is used for later (but for
versions from 2.22 on). In each channel a rank receives from one neighbour of the ring and, of a
tree, from one above and one below (leaves fewer, ranks that join nodes one more), and sends to as
many. The buffers lie with the receiver: 4 MiB for Simple, 0.5 for LL (8 steps of 8 lines of 16 B
for 512 threads), 4.7 for LL128 (8 steps of 120 words of 8 B for 640 threads; src/include/devcomm.h
and comm.h), in whole pieces of 2 MiB, of which a sender takes one (10 and 2 MiB are what a user
counts in github.com/NVIDIA/nccl/issues/1685). There, one communicator takes "about 1.6 GB" with the
context (issue 864).
"""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.network.nccl import CHANNELS
from ridgeline.network.rings import ring_channels
from ridgeline.network.topology import Topology

_PIECE = 2 * 2**20
_BUFFERS = 4 * 2**20 + 8 * 8 * 512 * 16 + 8 * 120 * 640 * 8
_CONNECTIONS = 3
_OF_CONNECTION = -(-_BUFFERS // _PIECE) * _PIECE + _PIECE


def communicator_bytes(topology: Topology, ranks: tuple[int, ...]) -> int:
    """Return the bytes that a communicator of some ranks takes of each of them.

    Raises
    ------
    RidgelineError
        If it is not known how many channels NCCL has on the links of one node.
    """
    if len(ranks) < 2:
        return 0
    if len({int(topology.node_of[topology.devices[rank]]) for rank in ranks}) > 1:
        n = len(ring_channels(topology, ranks).channels)
    else:
        fast = [
            of.channels or CHANNELS[of.generation]
            for name, of in topology.library.items()
            if name in topology.link_classes
        ]
        if not fast:
            classes = ", ".join(sorted(topology.link_classes))
            raise RidgelineError(
                "communicators: channels are known of links with a collective library, not of "
                f"{classes}"
            )
        n = max(fast)
    return n * _CONNECTIONS * _OF_CONNECTION
