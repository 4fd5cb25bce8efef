"""What NCCL would choose: its rings, trees and protocols, by its own published constants.

NCCL prices every algorithm and protocol as a latency and a bandwidth and takes the cheapest
(src/graph/tuning.cc, version 2.30.7; constants are facts cited from there). Here the same is done
on the machine's own links: the plain ``ring`` is NCCL's ring with the protocol Simple; what the
protocols LL and LL128 change is taken as the ratio of their constants to those of Simple, so that a
machine described with other latencies or bandwidths is priced with these.

=========  ============================================  ==========================
protocol   latency                                       of the link's bandwidth
=========  ============================================  ==========================
Simple     the machine's own                             all
LL128      1.9/3.4 of a hop in a node, 14/8.4 to start   92 %; tree 7/9 (120/128)
LL         0.6/3.4 of a hop in a node, 6.6/8.4 to start  50 %; tree 1/3.8; at most
                                                         ``_LL_MOST`` in all
=========  ============================================  ==========================

A ring of n ranks takes one operation more than it has rounds: what the last round brings lies in
the ring's buffer, and the channels' processors copy it to where it belongs. They go on at the pace
at which they feed the links, so that this costs as much as one more round of bandwidth; NCCL's own
formula leaves it out and is too fast by that much. Links whose share is taken from a measured bus
bandwidth (`_COPY_INCLUDED`) have it in there.

Not modelled: CollNet, PAT, and NCCL's limits on the number of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ridgeline.network.rings import Channels, ring_channels
from ridgeline.network.schedule import Loads, Phase, Schedule
from ridgeline.network.topology import Topology

_PROTOCOLS = ("ll", "ll128", "simple")
# microseconds: baseLat, hwLat NVLINK, hwLat NET; in the order of _PROTOCOLS
_BASE = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_INTRA = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)}
_INTER = {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)}
_NVLS_US = 25.0  # hwLat NVLINK, nvls, Simple; its baseLat is 0
_NVLS_SHARE = {"nvlink4": 0.85, "nvlink5": 0.74}  # nvlsEfficiency; links whose switches can add
_NVLS_RATIO = 5 / 6  # algorithm over bus bandwidth
_NVLS_TREE_US = 20.9  # hwLat NET, nvlsTree, Simple
_COPY_INCLUDED = frozenset({"nvlink2"})
_LL_MOST = {  # llMaxBw, GB/s: one node, two nodes, more
    "nvlink2": (39.0, 39.0, 20.4),
    "nvlink3": (87.7, 22.5, 19.0),
    "nvlink4": (141.0, 45.0, 35.0),
    "nvlink5": (282.0, 90.0, 70.0),
}
_RING_SHARE = (0.5, 0.92, 1.0)
_TREE_SHARE = 0.92
_TREE_LL, _TREE_LL128 = 1 / 3.8, (7 / 9, 120 / 128)
_MANY_NODES = 1.4  # latency of a ring with Simple over several nodes, large messages
# treeCorrectionFactor: from 64 B on, by powers of two
_CORRECTION = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
           1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9,
              0.9, 0.9, 1, 1, 1),
    "simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7,
               0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}  # fmt: skip
_PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}


def candidates(
    op: str, topology: Topology, ranks: Sequence[int], size_bytes: float
) -> list[Schedule]:
    """Return what NCCL chooses from; nothing if there is no NVLink.

    Raises
    ------
    RidgelineError
        If two ranks have no route between them.
    """
    if op not in _PASSES or len(ranks) < 2:
        return []
    link = next((name for name in _LL_MOST if name in topology.link_class), None)
    if link is None:
        return []
    machine = _Machine.of(topology, tuple(ranks), link)
    found = [machine.ring(op, protocol, size_bytes) for protocol in range(len(_PROTOCOLS))]
    if op == "all-reduce":
        found += [machine.tree(protocol, size_bytes) for protocol in range(len(_PROTOCOLS))]
        if link in _NVLS_SHARE and len(ranks) > 2 * machine.nodes:
            found.append(machine.in_switch(size_bytes))
    return found


@dataclass(frozen=True)
class _Machine:
    """A group of ranks on a machine, as NCCL's formulas see it."""

    topology: Topology
    ranks: tuple[int, ...]
    link: str
    channels: Channels
    nodes: int
    intra_s: float
    """Latency of the slowest hop inside a node."""
    inter_s: float

    @classmethod
    @lru_cache(maxsize=32)  # the sizes of a plan, and the plans of a search, ask for the same
    def of(cls, topology: Topology, ranks: tuple[int, ...], link: str) -> _Machine:
        channels = ring_channels(topology, ranks)
        node = topology.node_of[topology.devices[list(ranks)]]
        node_of = dict(zip(ranks, node.tolist(), strict=True))
        latency_s = {False: 0.0, True: 0.0}
        for channel in channels.channels:
            after = (*channel.ranks[1:], channel.ranks[0])
            for a, b, links in zip(channel.ranks, after, channel.routes, strict=True):
                leaves = node_of[a] != node_of[b]
                hop_s = float(sum(topology.latency_s[list(links)]))
                latency_s[leaves] = max(latency_s[leaves], hop_s)
        nodes = len(set(node_of.values()))
        return cls(topology, ranks, link, channels, nodes, latency_s[False], latency_s[True])

    def ring(self, op: str, protocol: int, size_bytes: float) -> Schedule:
        """Ring of a protocol; see `_schedule`."""
        name, n, passes = _PROTOCOLS[protocol], len(self.ranks), _PASSES[op]
        rounds, crossings = passes * (n - 1), passes * (self.nodes - 1)
        intra_s = self.intra_s * _INTRA["ring"][protocol] / _INTRA["ring"][-1]
        inter_s = self.inter_s * _INTER["ring"][protocol] / _INTER["ring"][-1]
        hops_s = (rounds - crossings) * intra_s + crossings * inter_s
        start_s = self._start_s("ring", protocol)
        large = op == "all-reduce" and size_bytes / n >= 65536
        if name == "simple" and large and self.nodes > 1:
            hops_s, start_s = hops_s * _MANY_NODES, start_s * _MANY_NODES
        share = _RING_SHARE[protocol]
        if name == "ll":
            share = min(share, self._ll_most())
        sent = passes * (n - 1) / n * size_bytes / share
        if self.link not in _COPY_INCLUDED:
            hops_s += size_bytes / n / (share * self.channels.bandwidth_bytes_per_s)
        return self._schedule(op, f"ring-{name}", size_bytes, start_s + hops_s, sent)

    def tree(self, protocol: int, size_bytes: float) -> Schedule:
        """All-reduce on NCCL's double tree: a chain in the nodes and a binary tree of the nodes."""
        name, n = _PROTOCOLS[protocol], len(self.ranks)
        intra_s = self.intra_s * _INTRA["tree"][protocol] / _INTRA["ring"][-1]
        inter_s = self.inter_s * _INTER["tree"][protocol] / _INTER["ring"][-1]
        hops_s = 2 * ((n / self.nodes - 1) * intra_s + math.log2(self.nodes) * inter_s)
        share = _TREE_SHARE
        if name == "ll":
            share = min(share * _TREE_LL, self._ll_most())
        elif name == "ll128":
            share *= _TREE_LL128[self.nodes > 1]
        power = math.floor(math.log2(size_bytes / 64)) if size_bytes >= 64 else -1
        if 0 <= power < len(_CORRECTION[name]):
            share *= _CORRECTION[name][power]
        latency_s = self._start_s("tree", protocol) + hops_s
        sent = 2 * size_bytes / share
        return self._schedule("all-reduce", f"tree-{name}", size_bytes, latency_s, sent)

    def in_switch(self, size_bytes: float) -> Schedule:
        """All-reduce added up by the NVSwitches (NVLS): every device sends all and gets all.

        Several nodes are joined by a double binary tree (NVLSTree): all but one of them send their
        sum up and get the whole down, so that on average (nodes - 1) / nodes of the payload goes
        through the NICs of a node twice each way, spread over all of them.
        """
        topology = self.topology
        members = topology.devices[list(self.ranks)]
        fast = np.array([name == self.link for name in topology.link_class])
        links = np.flatnonzero(
            fast & (np.isin(topology.source, members) | np.isin(topology.target, members))
        )
        sent = size_bytes / (_NVLS_SHARE[self.link] * _NVLS_RATIO)
        load = np.zeros(topology.n_links)
        load[links] = sent
        latency_s = self.intra_s * _NVLS_US / _INTRA["ring"][-1]
        if self.nodes > 1:
            outside = [i for i in self.channels.load if not fast[i]]
            through = 2 * (self.nodes - 1) / self.nodes * size_bytes
            load[outside] = [through * self.channels.load[i] for i in outside]
            hop_s = self.inter_s * _NVLS_TREE_US / _INTER["ring"][-1]
            latency_s += 2 * math.log2(self.nodes) * hop_s
        used = np.flatnonzero(load)
        phases = (Phase(latency_s, 1, Loads(used.astype(np.int32), load[used])),)
        name = "nvls" if self.nodes == 1 else "nvls-tree"
        return Schedule("all-reduce", name, len(self.ranks), float(size_bytes), phases)

    def _start_s(self, algorithm: str, protocol: int) -> float:
        base = _BASE[algorithm][protocol] / _BASE["ring"][-1]
        return self.topology.collective_latency_s * base

    def _ll_most(self) -> float:
        """Share of the channels' bandwidth that LL reaches at most."""
        most = _LL_MOST[self.link][min(self.nodes, 3) - 1] * 1e9
        return most / self.channels.bandwidth_bytes_per_s

    def _schedule(
        self, op: str, name: str, size_bytes: float, latency_s: float, sent_bytes: float
    ) -> Schedule:
        """Send `sent_bytes` along every hop of all channels together, after all latencies.

        Bytes include what a protocol loses (the flags of LL, and what LL128 does not reach).
        """
        load = {i: share * sent_bytes for i, share in self.channels.load.items()}
        phases = (Phase(latency_s, 1, load if sent_bytes else {}),)
        return Schedule(op, name, len(self.ranks), float(size_bytes), phases)
