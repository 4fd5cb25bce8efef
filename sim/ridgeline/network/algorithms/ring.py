"""Ring algorithms on all channels of the group at once.

With p ranks, latency α, bandwidth B and size S, a ring reduce-scatter or all-gather of one channel
takes (p-1)(α + S/(pB)), an all-reduce twice that (Patarasuk and Yuan, J. Parallel Distrib. Comput.
69(2), 2009; Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005).
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.network.rings import ring_channels
from ridgeline.network.schedule import ALGORITHMS, Phase, Schedule, check_size
from ridgeline.network.topology import Topology


@ALGORITHMS.register(("all-reduce", "ring"))
def all_reduce_ring(topology: Topology, ranks: Sequence[int], size_bytes: float) -> Schedule:
    """Reduce-scatter and then all-gather: 2(p-1) rounds.

    Parameters
    ----------
    ranks
        Distinct ranks of the topology. A single rank has nothing to do.
    size_bytes
        Size of the buffer of each rank.

    Raises
    ------
    RidgelineError
        If the size or a rank is impossible, or two neighbours on the ring have no route.
    """
    return _ring("all-reduce", 2, topology, ranks, size_bytes)


@ALGORITHMS.register(("reduce-scatter", "ring"))
def reduce_scatter_ring(topology: Topology, ranks: Sequence[int], size_bytes: float) -> Schedule:
    """Leave each rank the sum of its part: p-1 rounds; see `all_reduce_ring`.

    Parameters
    ----------
    size_bytes
        Size of the whole, of which each rank keeps a p-th part.
    """
    return _ring("reduce-scatter", 1, topology, ranks, size_bytes)


@ALGORITHMS.register(("all-gather", "ring"))
def all_gather_ring(topology: Topology, ranks: Sequence[int], size_bytes: float) -> Schedule:
    """Give each rank the parts of all: p-1 rounds; see `all_reduce_ring`.

    Parameters
    ----------
    size_bytes
        Size of the whole, of which each rank brings a p-th part.
    """
    return _ring("all-gather", 1, topology, ranks, size_bytes)


def _ring(
    op: str, passes: int, topology: Topology, ranks: Sequence[int], size_bytes: float
) -> Schedule:
    """Go round `passes` times, less one hop each.

    In every round each hop of a channel carries a p-th of the channel's share. The p-th is taken
    exactly: buffers are not padded to whole elements. A round waits for the slowest hop of all
    channels.
    """
    check_size(size_bytes)
    ranks = tuple(ranks)
    channels = ring_channels(topology, ranks)
    phases: list[Phase] = []
    if len(ranks) > 1:
        part = size_bytes / len(ranks)
        loads = {link: share * part for link, share in channels.load.items()} if part else {}
        if topology.collective_latency_s:
            phases.append(Phase(topology.collective_latency_s, 1, {}))
        phases.append(Phase(channels.latency_s, passes * (len(ranks) - 1), loads))
    return Schedule(op, "ring", len(ranks), float(size_bytes), tuple(phases))
