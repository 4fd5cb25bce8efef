"""Speed of the network: ``python benchmarks/bench_network.py``.

Prints CPU seconds, rates and, where another tool's figure is known, the ratio to it. The others'
figures were recorded on a machine like the one that these were first run on: SimGrid 3.32, 1,740
flows a CPU second (all-to-all of random sizes among 64 hosts, CM02); ASTRA-sim 2, 10.93 s and
356 MB for a ring all-reduce of 1,024 ranks with every message (8.38 million).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from ridgeline.network import Flows, PacketNetwork, Topology, collective, from_text
from ridgeline.network.loggp_bsp_costs import LogGP
from ridgeline.network.packets import play_packets
from ridgeline.network.topology import LinkKind, TopologyBuilder
from ridgeline.network.traffic import flow_loads, flow_times, make_flows

SIMGRID_FLOWS_PER_S, ASTRASIM_S, ASTRASIM_MB = 1740.0, 10.93, 356.0


def two_levels(hosts: int, per_leaf: int) -> Topology:
    """A fat tree of two levels without oversubscription, 12.5 GB/s, no latency."""
    drawing, link = TopologyBuilder(), LinkKind("link", 12.5e9, 0.0, 0.0)
    ends = [drawing.vertex(f"host{i}", "device") for i in range(hosts)]
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(hosts // per_leaf)]
    spines = [drawing.vertex(f"spine{i}", "switch") for i in range(per_leaf)]
    for i, end in enumerate(ends):
        drawing.join(end, leaves[i // per_leaf], link)
    for leaf in leaves:
        for spine in spines:
            drawing.join(leaf, spine, link)
    return drawing.finish("two levels", ends, single_channel=True)


def cpu_s(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the least CPU seconds of some runs after a first one."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def show(what: str, seconds: float, rest: str = "") -> None:
    print(f"{what:58s} {seconds * 1e3:10.1f} ms   {rest}", flush=True)


def random_sizes(topology: Topology) -> Flows:
    flows = make_flows("all-to-all", topology.n_devices, 1.0)
    sizes = np.random.default_rng(0).uniform(1e5, 2e6, flows.n)
    return Flows(flows.source, flows.target, sizes)


def main() -> None:
    topology = two_levels(64, 8)
    flows = random_sizes(topology)
    took = cpu_s(lambda: flow_times(topology, flows), 2)
    rate = flows.n / took
    ratio = f"{rate:,.0f} flows/s, SimGrid x {rate / SIMGRID_FLOWS_PER_S:.1f}"
    show("4,032 flows of random sizes, 64 hosts", took, ratio)
    hosts = from_text("FatTree(8, 12.5 GB/s, 500 ns)")
    equal = make_flows("all-to-all", 128, 2e5)
    took = cpu_s(lambda: flow_times(hosts, equal))
    show("16,256 equal flows, 128 hosts", took, f"{equal.n / took:,.0f} flows/s")
    packets = PacketNetwork(4000, 64)
    took = cpu_s(lambda: play_packets(hosts, equal, packets), 1)
    hops = 50 * float(flow_loads(hosts, equal).share.sum())
    show("the same packet by packet", took, f"{hops / took:,.0f} packet hops/s")

    ring = from_text("Ring(1024, 50 GiB/s, 500 ns)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sends = lambda: [  # noqa: E731
        collective("all-reduce", 2**26 / 4, ring, algorithm="ring", cost=LogGP()) for _ in range(4)
    ]
    took = cpu_s(sends, 1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    messages = 4 * 2046 * 1024
    show(
        "ring all-reduce, 1,024 ranks, every message",
        took,
        f"{messages / took / 1e6:.1f} M messages/s, +{grown:.0f} MB; ASTRA-sim x "
        f"{ASTRASIM_S / took:.1f} ({ASTRASIM_MB:.0f} MB)",
    )
    folded = lambda: collective("all-reduce", 2**26 / 4, ring, algorithm="ring")  # noqa: E731
    took = cpu_s(folded)
    same = 4 * folded().time_s / sum(one.time_s for one in sends())
    show("the same folded", took, f"answers equal to {abs(same - 1):.0e}")
    tree = from_text("FatTree(16, 12.5 GB/s, 500 ns)")
    begin = time.process_time()
    collective("all-to-all", 1e8, tree, algorithm="direct")
    show("all-to-all, 1,024 ranks, fat tree", time.process_time() - begin)
    large = "Ring(8, 300 GB/s, 1 us)_Switch(2048, 25 GB/s, 5 us)"
    begin = time.process_time()
    collective("all-reduce", 1e9, large, algorithm="hierarchical")
    show("hierarchical all-reduce, 16,384 ranks", time.process_time() - begin)


if __name__ == "__main__":
    main()
