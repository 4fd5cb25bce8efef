"""What NCCL chooses, and what it then takes: rings, trees, NVLS and protocols.

NCCL prices every algorithm and protocol as a latency and a bandwidth and takes the cheapest
(src/graph/tuning.cc, version 2.30.7; constants are facts cited from there). `choice` does the same
on the machine's own links; what protocols change is taken relative to Simple, whose latencies are
the machine's own, so that a machine described with other latencies or bandwidths is priced with
these. Which links the library drives, and which column of its tables applies, is a property of the
link (``link_types.*.library``, `Topology.library`), as are measured latencies and rates of its
protocols, which the time is then taken from; RCCL is the same without reduction in switches.

=========  ============================================  ==========================
protocol   latency                                       of the link's bandwidth
=========  ============================================  ==========================
Simple     the machine's own                             all
LL128      1.9/3.4 of a hop in a node, 5.6 us more to    92 %, of NVLink 3 at most
           start                                         ``_LL128_MOST``; tree 7/9
                                                         (120/128)
LL         0.6/3.4 of a hop in a node, 1.8 us less to    50 %; tree 1/3.8; at most
           start                                         ``_LL_MOST`` in all
=========  ============================================  ==========================

What is taken differs from what NCCL chooses by, in six ways (docs/network.md has the residuals):

- A ring of n ranks takes one operation more than it has rounds: what comes last lies in the ring's
  buffer and is copied to its place, at the speed of the device's memory (read and written).
- With Simple a rank passes on a chunk in two slices, of at most 1 MiB a channel; one slice's time
  passes until the last one is through.
- NVLS works in chunks that pass stages: what is read into the buffers, added up, and sent to all.
  Two more chunks' time than there are chunks pass until the last is through. Chunks are of 128 KiB
  a channel and head, smaller for small payloads (src/enqueue.cc, src/transport/nvls.cc).
- NVLSTree joins nodes by NCCL's double binary tree; an inner node sends the payload twice.
- LL128 reaches ``_LL128_REACHED`` of the bandwidth of some links, where it was measured.
- All-to-alls are sends and receives, which reach ``exchanged`` of NVLink, where it was measured.

Not modelled: CollNet, PAT, and fewer channels for small payloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.algorithms.pipelines import double_tree_sent
from ridgeline.network.library import PROTOCOLS, LinkLibrary, PairFigures
from ridgeline.network.node_constants import kinds_of_ranks, slower_library, slower_pairs
from ridgeline.network.rings import Channels, hops_s, ring_channels
from ridgeline.network.routing import routes
from ridgeline.network.schedule import (
    CollectiveSchedule,
    LinkLoads,
    SchedulePhase,
    closed_form_time_s,
    loads_of,
    loads_of_links,
)
from ridgeline.network.topology import Floats, Topology

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_PROTOCOLS = PROTOCOLS
_PAIRS = "send-receive"
NAMES = (
    *(f"{way}-{name}" for way in ("ring", "tree") for name in _PROTOCOLS),
    *("nvls", "nvls-tree", _PAIRS),
)
"""Algorithms with their protocols, as `candidates` names them."""
# microseconds: baseLat, hwLat NVLINK, hwLat NET; in the order of _PROTOCOLS
_BASE = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_INTRA = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)}
_BUS = {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)}  # hwLat PCI
_INTER = {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)}
_NVLS_US = 25.0  # hwLat NVLINK, nvls, Simple; its baseLat is 0
_NVLS_CHANNELS = {"hopper": 16, "blackwell": 24}  # NVLS_NCHANNELS_SM90, NVLS_NCHANNELS_SM100_NVL
_NVLS_HEADS = 32  # NCCL_MAX_NVLS_ARITY
_NVLS_CHUNKS = ((64, 131072), (2.5, 65536), (2, 32768), (0, 16384))
"""Bytes a channel and head; taken where the payload has so many chunks of all of them at least.
Measured on 8 H100 and 8 B200 (aiconfigurator), whose 32 MiB already have chunks of 64 KiB."""
_NVLS_STAGES = 2  # after the first
_NVLS_TREE_US = 20.9  # hwLat NET, nvlsTree, Simple
_NVLS_TREE_MOST = {"hopper": (57.7, 45.5), "blackwell": (96.0, 80.0)}
"""perChMaxNVLSTreeBw, GB/s of bus bandwidth a channel: two nodes, more."""
_LL128_CHANNELS = {"ampere": 12}  # rings of one node before each is doubled
_LL128_MOST = {"broadcast": 18.8, "reduce": 12.0, "all-gather": 18.3, "reduce-scatter": 15.2,
               "all-reduce": 16.9}  # fmt: skip
"""GB/s a channel that NCCL 2.8 expects of LL128 (ll128MaxBwPerCh). Two machines of A100 took Simple
for 16 MiB on 8 GPUs, as these constants say; those of 2.30.7 (20 GB/s) say LL128."""
_LL_MOST = {  # llMaxBw, GB/s: one node, two nodes, more
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
CHANNELS = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 24, "cdna": 28}
"""Of one node's rings. RCCL has four on each of seven links (assumed)."""
_CHANNEL_BYTES = 512
"""Of a rank's part of a payload for one more channel: a warp's lines of 16 B (LL)."""
NOT_IN_SWITCH = frozenset({"int8", "uint8", "fp8", "fp8-e4m3", "fp8-e5m2"})
"""Number formats that NVSwitches do not add up (ncclNvlsSupported)."""
_SLICES = 2  # of a chunk
_SLICE_BYTES = 2**20  # of a channel: two of eight steps of a buffer of 4 MiB
_LEAST_SLICE_BYTES = 2**15  # a 32nd of it
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
_PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1, "broadcast": 1, "reduce": 1}
_WHOLE = frozenset({"broadcast", "reduce"})  # every hop carries all of the payload
_ADDING = frozenset({"all-reduce", "reduce-scatter", "reduce"})


def choice(
    op: str,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
    number_format: str | None = None,
) -> CollectiveSchedule | None:
    """Return what NCCL takes of `candidates`, or None if there are none.

    Parameters
    ----------
    number_format
        Of the values; some are not added up by switches. None: one that is.

    Raises
    ------
    RidgelineError
        If two ranks have no route between them.
    """
    found = _options(op, topology, ranks, size_bytes, number_format)
    if not found:
        return None
    return min(found, key=lambda one: (one.expected_s, one.schedule.algorithm)).schedule


class RingParts(NamedTuple):
    """What a ring with the protocol Simple does, apart from how long it takes.

    Attributes
    ----------
    slices
        Sent by a rank one after the other: two a round, one where a chunk is too small for two.
    wire_s
        Time of all bytes on the links at full bandwidth.
    copied_bytes
        The part that comes last and is copied to its place.
    buffered_bytes
        Of the ring's buffers, all channels: two chunks.
    full_slices
        Whether a chunk of a channel fills two slices of the least size.
    """

    slices: int
    wire_s: float
    copied_bytes: float
    buffered_bytes: float
    full_slices: bool


def ring_parts(op: str, topology: Topology, ranks: Sequence[int], size_bytes: float) -> RingParts:
    """Return what a ring of these ranks does for a collective.

    Raises
    ------
    RidgelineError
        If there is no such ring, or two ranks have no route between them.
    """
    if op not in _PASSES or op in _WHOLE or len(ranks) < 2 or not has_library(topology):
        raise RidgelineError(
            f"the parts of a ring are those of all-reduce, reduce-scatter or all-gather on two "
            f"ranks or more with a collective library; found {op!r} on {len(ranks)}"
        )
    machine = _Machine.of(topology, tuple(ranks))
    n, channels = len(ranks), machine.n_channels
    rounds, part = _PASSES[op] * (n - 1), size_bytes / n
    per_round = max(1, min(_SLICES, math.ceil(part / channels / _LEAST_SLICE_BYTES)))
    return RingParts(
        slices=rounds * per_round,
        wire_s=rounds * part / machine.channels.bandwidth_bytes_per_s,
        copied_bytes=part,
        buffered_bytes=_SLICES * min(part, _SLICES * channels * _SLICE_BYTES),
        full_slices=part >= _SLICES * channels * _LEAST_SLICE_BYTES,
    )


def candidates(
    op: str,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
    number_format: str | None = None,
) -> list[CollectiveSchedule]:
    """Return what NCCL chooses from; nothing if no link has a collective library.

    Raises
    ------
    RidgelineError
        If two ranks have no route between them.
    """
    found = _options(op, topology, ranks, size_bytes, number_format)
    return [one.schedule for one in found]


class _Option(NamedTuple):
    """One way, and the time by which NCCL chooses."""

    schedule: CollectiveSchedule
    expected_s: float


def has_library(topology: Topology) -> bool:
    """Tell whether a collective library drives some links of a topology."""
    return any(name in topology.link_classes for name in topology.library)


def _options(
    op: str,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
    number_format: str | None = None,
) -> list[_Option]:
    if len(ranks) < 2 or not has_library(topology):
        return []
    if op in _PAIRWISE:
        return _exchange(op, topology, ranks, size_bytes)
    if op not in _PASSES:
        return []
    machine = _Machine.of(topology, tuple(ranks))
    found = [
        machine.ring(op, protocol, size_bytes, number_format) for protocol in range(len(_PROTOCOLS))
    ]
    if op == "all-reduce":
        found += [machine.tree(protocol, size_bytes) for protocol in range(len(_PROTOCOLS))]
        adds = machine.library.name == "nccl" and machine.library.generation in _NVLS_CHANNELS
        adds = adds and number_format not in NOT_IN_SWITCH
        if adds and machine.link in topology.in_switch and len(ranks) > 2 * machine.nodes:
            found.append(machine.in_switch(size_bytes))
    return found


_PAIRWISE = frozenset({"all-to-all", "send-recv", "send"})
"""Operations that are sends and receives."""


def _exchange(
    op: str, topology: Topology, ranks: Sequence[int], size_bytes: float
) -> list[_Option]:
    """Send and receive all at once; all-to-alls reach less of the links than rings do."""
    fast = [name for name in topology.library if name in topology.link_classes]
    pairs = _pairs_of(topology, ranks)
    is_all = op == "all-to-all"
    shares = {name: topology.exchanged[name] for name in fast if name in topology.exchanged}
    if pairs is None and not (is_all and shares):
        return []
    direct = ALGORITHMS[op, "direct"](topology, ranks, size_bytes)
    over = np.ones(topology.n_links)
    if is_all:
        for name, share in shares.items():
            over[topology.of_class(name)] = 1 / share
    phases = []
    for phase in direct.phases:
        sent = loads_of(phase)
        loads = LinkLoads(sent.links, sent.bytes * over[sent.links])
        phases.append(phase._replace(bytes_on_link=loads))
    if pairs is not None:
        phases = [_paired(pairs, phases, op, topology, ranks, size_bytes)]
    schedule = CollectiveSchedule(
        direct.op, _PAIRS, direct.n_ranks, direct.size_bytes, tuple(phases)
    )
    return [_Option(schedule, closed_form_time_s(schedule, topology))]


def _way_inside_s(topology: Topology, ranks: Sequence[int]) -> float:
    """Latency between two devices of a node, or what it would be over the links of the library."""
    ends = topology.devices[list(ranks[:2])].astype(np.int64)
    if topology.node_of[ends[0]] == topology.node_of[ends[1]]:
        return float(topology.latency_s[routes(topology, ends[:1], ends[1:]).links].sum())
    link = next(name for name in topology.library if name in topology.link_classes)
    return 2 * float(topology.latency_s[topology.of_class(link)].max(initial=0.0))


def _paired(
    pairs: PairFigures,
    direct: Sequence[SchedulePhase],
    op: str,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
) -> SchedulePhase:
    """Return one call of sends and receives: its kernels' start, and ways longer than in a node."""
    n = len(ranks)
    is_all = op == "all-to-all"
    latency_s = pairs.latency_s(
        size_bytes / n if is_all else size_bytes, max(n - 1, 2) if is_all else 1
    )
    inside_s = topology.collective_latency_s + _way_inside_s(topology, ranks)
    latency_s += max(0.0, sum(one.repeat * one.latency_s for one in direct) - inside_s)
    loads = [loads_of(one) for one in direct if len(one.bytes_on_link)]
    if not loads:
        return SchedulePhase(latency_s, 1, {})
    (sent,) = loads  # all messages are under way at once
    busy_s = float((sent.bytes / topology.bandwidth_bytes_per_s[sent.links]).max(initial=0.0))
    moved = size_bytes if is_all else 0.0
    return SchedulePhase(latency_s + max(0.0, moved / pairs.kernel_bytes_per_s - busy_s), 1, sent)


def _driven_link(topology: Topology, channels: Channels, known: Iterable[str]) -> str:
    """Return the link class that a library drives: the narrowest of those that the rings pass.

    Parameters
    ----------
    known
        Classes that have a library.
    """
    driven = [name for name in known if name in topology.link_classes]
    passed = [link for link in channels.load.links.tolist() if topology.link_class[link] in driven]
    if not passed:  # a rank a node, or rings over links that the library only passes
        return driven[0]
    bandwidth = topology.bandwidth_bytes_per_s.tolist()
    narrowest: int = min(passed, key=lambda link: (bandwidth[link], link))
    return topology.link_class[narrowest]


def _library_of(topology: Topology, ranks: tuple[int, ...], channels: Channels) -> LinkLibrary:
    """Return the library's constants; of nodes of several kinds, the slower of each kind's own."""
    kinds = [topology.node_constants[kind] for kind in kinds_of_ranks(topology, ranks)]
    each = [kind.library for kind in kinds if kind.library] or [topology.library]
    own = [library[_driven_link(topology, channels, library)] for library in each]
    return reduce(slower_library, own)


def _pairs_of(topology: Topology, ranks: Sequence[int]) -> PairFigures | None:
    """Return the figures of sends and receives; of nodes of several kinds, the slower."""
    kinds = [topology.node_constants[kind] for kind in kinds_of_ranks(topology, ranks)]
    found = []
    for library in [kind.library for kind in kinds] or [topology.library]:
        own = (of.pairs for name, of in library.items() if name in topology.link_classes)
        found += [pairs for pairs in own if pairs is not None][:1]
    return reduce(slower_pairs, found) if found else None


@dataclass(frozen=True)
class _Machine:
    """A group of ranks on a machine, as NCCL's formulas see it."""

    topology: Topology
    ranks: tuple[int, ...]
    link: str
    library: LinkLibrary
    channels: Channels
    nodes: int
    intra_s: float
    """Latency of the slowest hop inside a node."""
    inter_s: float

    @classmethod
    @lru_cache(maxsize=256)  # the sizes of a plan, and the plans of a search, ask for the same
    def of(cls, topology: Topology, ranks: tuple[int, ...]) -> _Machine:
        channels = ring_channels(topology, ranks)
        link = _driven_link(topology, channels, topology.library)
        intra_s = inter_s = 0.0
        for channel in channels.channels:
            node = topology.node_of[topology.devices[list(channel.ranks)]]
            leaves = node != np.roll(node, -1)
            each = hops_s(topology, channel.ways)
            intra_s = max(intra_s, float(each[~leaves].max(initial=0.0)))
            inter_s = max(inter_s, float(each[leaves].max(initial=0.0)))
        nodes = len(np.unique(topology.node_of[topology.devices[list(ranks)]]))
        if not intra_s:  # a rank a node: no hop inside one, and none that counts
            intra_s = 2 * float(topology.latency_s[topology.of_class(link)].max(initial=0.0))
        library = _library_of(topology, ranks, channels)
        return cls(topology, ranks, link, library, channels, nodes, intra_s, inter_s)

    @property
    def n_channels(self) -> int:
        """Rings of one node."""
        return self.library.channels or CHANNELS[self.library.generation]

    def _hops_s(self, way: str, protocol: int, hops: float, crossings: float) -> float:
        """Return the latency of some hops of a protocol in nodes, and of some between them."""
        counted = _BUS if self.library.transport == "bus" else _INTRA
        intra_s = self.intra_s * counted[way][protocol] / counted["ring"][-1]
        inter_s = self.inter_s * _INTER[way][protocol] / _INTER["ring"][-1]
        return hops * intra_s + crossings * inter_s

    def _spread_over(self, size_bytes: float) -> float:
        """Return how many channels a payload is spread over."""
        return min(max(size_bytes / len(self.ranks) / _CHANNEL_BYTES, 1.0), self.n_channels)

    def ring(
        self, op: str, protocol: int, size_bytes: float, number_format: str | None = None
    ) -> _Option:
        """Ring of a protocol; a broadcast or a reduction goes round once, all but one hop."""
        name, n, passes = _PROTOCOLS[protocol], len(self.ranks), _PASSES[op]
        rounds, crossings = passes * (n - 1), passes * (self.nodes - 1)
        hops = rounds - crossings
        start_s = self._start_s("ring", protocol)
        latency_s = start_s + self._hops_s("ring", protocol, hops, crossings)
        large = op == "all-reduce" and size_bytes / n >= 65536
        slower = _MANY_NODES if name == "simple" and large and self.nodes > 1 else 1.0
        share = {"ll": self._ll_most(), "ll128": self._ll128_most(op), "simple": 1.0}[name]
        sent = size_bytes if op in _WHOLE else passes * (n - 1) / n * size_bytes
        bandwidth = self.channels.bandwidth_bytes_per_s
        expected_s = slower * latency_s + sent / (min(share, _RING_SHARE[protocol]) * bandwidth)
        of = self.library.protocols[protocol]
        if of.start_s is not None:
            latency_s += of.start_s - start_s
        if of.hop is not None:
            latency_s += hops * (of.hop * self.intra_s - self._hops_s("ring", protocol, 1, 0))
        latency_s = slower * latency_s + of.spread_s * math.log2(self._spread_over(size_bytes))
        if op not in _WHOLE:
            own = size_bytes / n
            copy_s = max(2 * own / self.topology.memory_bytes_per_s, own / of.copy_bytes_per_s)
            latency_s += copy_s
            if name == "simple":
                slices = min(size_bytes / n / 2, self.n_channels * of.slice_bytes)
                latency_s += slices / bandwidth
        reached = _RING_SHARE[protocol] if name != "ll" else min(share, _RING_SHARE[protocol])
        if of.share is not None and self.nodes == 1:
            reached = of.share
        if number_format in NOT_IN_SWITCH and op in _ADDING:
            reached *= of.byte_sum
        load = self.channels.load if op not in _WHOLE else self._open_ring(op)
        loads = LinkLoads(load.links, load.bytes * sent / reached)
        return self._option(op, f"ring-{name}", size_bytes, latency_s, loads, expected_s)

    def tree(self, protocol: int, size_bytes: float) -> _Option:
        """All-reduce on NCCL's double tree: a chain in the nodes and a binary tree of the nodes."""
        name, n = _PROTOCOLS[protocol], len(self.ranks)
        crossings = 2 * math.log2(self.nodes)
        hops_s = self._hops_s("tree", protocol, 2 * (n / self.nodes - 1), crossings)
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
        expected_s = latency_s + sent / self.channels.bandwidth_bytes_per_s
        loads = self.channels.load.times(sent)
        return self._option("all-reduce", f"tree-{name}", size_bytes, latency_s, loads, expected_s)

    def in_switch(self, size_bytes: float) -> _Option:
        """All-reduce added up by the NVSwitches (NVLS): every device sends all and gets all.

        Of n devices (n - 1)/n are at work on a device's own share (NCCL: channels less one).
        Several nodes are joined by a double binary tree (NVLSTree).
        """
        topology, n = self.topology, len(self.ranks)
        own, links, outside = self._links_in_switch
        heads = min(n // self.nodes, _NVLS_HEADS)
        share = topology.in_switch[self.link] * (heads - 1) / heads
        load = np.zeros(len(links))
        load[own] = size_bytes / share
        latency_s = self.intra_s * _NVLS_US / _INTRA["ring"][-1]
        if self.nodes > 1:
            self._join_nodes(load, links, outside, size_bytes)
            hop_s = self.inter_s * _NVLS_TREE_US / _INTER["ring"][-1]
            latency_s += 2 * math.log2(self.nodes) * hop_s
        loaded = np.flatnonzero(load)
        used, load = links[loaded], load[loaded]
        busy_s = float((load / topology.bandwidth_bytes_per_s[used]).max(initial=0.0))
        expected_s = latency_s + busy_s
        if size_bytes:
            latency_s += (
                _NVLS_STAGES * busy_s * min(1.0, self._nvls_chunks(size_bytes) / size_bytes)
            )
        loads = LinkLoads(used.astype(np.int32), load)
        name = "nvls" if self.nodes == 1 else "nvls-tree"
        return self._option("all-reduce", name, size_bytes, latency_s, loads, expected_s)

    @cached_property
    def _links_in_switch(self) -> tuple[Bools, Ints, Bools]:
        """Links of the members to their switches, among all that are used, and which are outside.

        Returns
        -------
        [L'] of some links which are members' own, the links, and which are of another class.
        """
        topology = self.topology
        member = np.zeros(topology.n_vertices, np.bool_)
        member[topology.devices[list(self.ranks)]] = True
        fast = topology.of_class(self.link)
        own = fast & (member[topology.source] | member[topology.target])
        links = np.union1d(np.flatnonzero(own), self.channels.load.links).astype(np.int64)
        return own[links], links, ~fast[links]

    def _join_nodes(self, load: Floats, links: Ints, outside: Bools, size_bytes: float) -> None:
        """Add what the tree of the nodes sends through NICs, spread over all of them.

        Neither direction of a node carries more than a tree sends, nor do its channels, one a NIC,
        reach more than ``_NVLS_TREE_MOST``.
        """
        n = len(self.ranks)
        through = double_tree_sent(self.nodes) * size_bytes
        at = np.searchsorted(links, self.channels.load.links)
        crossed = outside[at]
        load[at[crossed]] = through * self.channels.load.bytes[crossed]
        nics = len(self.channels.channels) / 2  # a ring each way
        most = _NVLS_TREE_MOST[self.library.generation][self.nodes > 2] * 1e9 * nics
        bound_s = 2 * (n - 1) / n * size_bytes / most
        fast = np.flatnonzero(load * ~outside)
        bandwidth = self.topology.bandwidth_bytes_per_s[links[fast]]
        load[fast] = np.maximum(load[fast], bound_s * bandwidth)

    def _nvls_chunks(self, size_bytes: float) -> float:
        """Bytes that all channels and heads have on their way together."""
        lanes = _NVLS_CHANNELS[self.library.generation] * len(self.ranks) / self.nodes
        return next(
            lanes * chunk for least, chunk in _NVLS_CHUNKS if size_bytes >= least * lanes * chunk
        )

    def _open_ring(self, op: str) -> LinkLoads:
        """Share of the payload by link, when rings are open at the root."""
        passed, shares = [], []
        for channel in self.channels.channels:
            root = channel.ranks.index(self.ranks[0])
            closing = root if op == "reduce" else root - 1  # hop i leads from i to i + 1
            links = np.split(channel.ways.links, channel.ways.ptr[1:-1])
            del links[closing]
            passed += links
            shares += [channel.share] * sum(map(len, links))
        return loads_of_links(np.concatenate(passed), shares, self.topology.n_links)

    def _start_s(self, algorithm: str, protocol: int) -> float:
        more_s = (_BASE[algorithm][protocol] - _BASE["ring"][-1]) * 1e-6
        return max(0.0, self.topology.collective_latency_s + more_s)

    def _ll_most(self) -> float:
        """Share of the channels' bandwidth that NCCL expects of LL at most."""
        most = _LL_MOST.get(self.library.generation)
        if most is None:
            return 1.0
        return most[min(self.nodes, 3) - 1] * 1e9 / self.channels.bandwidth_bytes_per_s

    def _ll128_most(self, op: str) -> float:
        """Share of the channels' bandwidth that NCCL expects of LL128 at most."""
        channels = _LL128_CHANNELS.get(self.library.generation, math.inf)
        return channels * _LL128_MOST[op] * 1e9 / self.channels.bandwidth_bytes_per_s

    def _option(
        self,
        op: str,
        name: str,
        size_bytes: float,
        latency_s: float,
        loads: LinkLoads,
        expected_s: float,
    ) -> _Option:
        """Send along all hops together, after all latencies.

        Bytes include what a protocol loses (the flags of LL, and what LL128 does not reach).
        """
        phases = (SchedulePhase(latency_s, 1, loads if size_bytes else {}),)
        schedule = CollectiveSchedule(op, name, len(self.ranks), float(size_bytes), phases)
        return _Option(schedule, expected_s)
