"""Fluid flows beside packets: the patterns of an htsim run on a fat tree of 128 hosts.

The prediction is the flow level of `ridgeline.network.traffic`, with two things of the packets and
nothing else: their headers, and that every switch stores a packet before it sends it on. Packets
are sprayed over all shortest paths, as NDP does. How a transport starts, paces itself and repairs
losses is not modelled; where that decides (a permutation under EQDS), the row says so.
"""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np

from ridgeline.network.inline import from_text
from ridgeline.network.traffic import Flows, flow_loads, flow_times, make_flows
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction

_NETWORK = "FatTree(8, 100 Gb/s, 500 ns)"  # 128 hosts in three tiers
_PAYLOAD, _HEADER = 4000.0, 64.0  # -mtu 4000; ACKSIZE of htsim's ndppacket.h
_WAYS = 16  # shortest paths between two pods
_PATTERNS = {
    "shift1": ("stride:1", 0.05),
    "shifthalf": ("stride:64", 0.08),
    "perm(seed3)": ("permutation:3", 0.08),
    "incast": ("incast:0", 0.05),
    "all_to_all": ("all-to-all", 0.05),
}


def reproduce() -> Reproduction:
    """Compute the last arrival of every pattern at flow level."""
    text = resources.files(__package__).joinpath("packet_vs_fluid.csv").read_text("utf-8")
    rows = []
    for published in csv.DictReader(text.splitlines()):
        name = published["pattern"]
        pattern, tolerance = _PATTERNS[name]
        size = float(published["bytes_per_flow"])
        last_us = last_arrival_s(pattern, int(published["hosts"]), size) * 1e6
        ideal_us = last_arrival_s(pattern, int(published["hosts"]), size, ideal=True) * 1e6
        for transport in ("ndp", "eqds"):
            told = float(published[f"{transport}_last_us"])
            effect = transport == "eqds" and pattern.startswith("permutation")
            rows.append(
                ReproducedFigure(
                    group=f"{name}, {published['flows']} flows of {size / 1e6:g} MB",
                    quantity=f"last arrival, {transport.upper()}",
                    unit="us",
                    published=(told, told),
                    predicted=last_us,
                    unfitted=last_us,
                    tolerance=tolerance if transport == "ndp" else None,
                    note="transport effect, not modelled"
                    if effect
                    else f"ideal fluid {ideal_us:.4g}",
                )
            )
    return Reproduction(
        name="packet-vs-fluid",
        title="Fluid flows beside packets on a fat tree of 128 hosts",
        source="htsim (NDP and EQDS, 100 Gb/s, three tiers, 0.5 us a hop, MTU 4000, queues of 100)",
        rows=tuple(rows),
        fits=(),
        notes=(
            "ideal fluid is without headers, latency and storing; what remains of the residuals is "
            "the start of the transport and its pacing",
        ),
    )


def last_arrival_s(pattern: str, hosts: int, size_bytes: float, *, ideal: bool = False) -> float:
    """Return when the last message of a pattern has arrived."""
    topology = from_text(_NETWORK)
    flows = make_flows(pattern, hosts, size_bytes)
    if ideal:
        flat = from_text(_NETWORK.replace("500 ns", "0 s"))
        return float(flow_times(flat, flows, _WAYS).max())
    packets = np.ceil(flows.size_bytes / _PAYLOAD)
    framed = Flows(flows.source, flows.target, flows.size_bytes + packets * _HEADER)
    arrived = flow_times(topology, framed, _WAYS)
    hops = np.add.reduceat(flow_loads(topology, flows).share, flow_loads(topology, flows).ptr[:-1])
    stored = (hops - 1) * (_PAYLOAD + _HEADER) / topology.bandwidth_bytes_per_s[0]
    return float((arrived + stored).max())
