"""Random sets of flows, and when SimGrid lets them end.

``/usr/bin/python3 tests/oracles/simgrid_flows.py 1000 > tests/data/simgrid_flows.csv`` needs
Debian's python3-simgrid; nothing else is imported, so that Debian's Python can run it. All sets are
independent parts of one platform and one run. Latencies are zero: SimGrid's CM02 weights its shares
by round-trip times otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

SETS = 1000


class FlowSet(NamedTuple):
    """Links by capacity in bytes/s, and flows by size in bytes and links."""

    capacity: list[float]
    flows: list[tuple[int, list[int]]]


def flow_sets(n: int = SETS) -> Iterator[FlowSet]:
    for number in range(n):
        rng = Random(number)
        links = rng.randint(1, 8)
        capacity = [float(rng.randint(1, 1000) * 10**6) for _ in range(links)]
        flows = [
            (rng.randint(10**5, 10**8), rng.sample(range(links), rng.randint(1, min(5, links))))
            for _ in range(rng.randint(1, 12))
        ]
        yield FlowSet(capacity, flows)


def play(n: int) -> tuple[str, list[list[float]]]:
    """Return SimGrid's version, and the end of every flow of every set."""
    import simgrid
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone

    engine = Engine(
        [
            "flows",
            "--cfg=network/model:CM02",
            "--cfg=network/crosstraffic:0",
            "--cfg=maxmin/precision:1e-9",
            "--cfg=surf/precision:1e-9",
            "--log=root.thres:error",
        ]
    )
    root = NetZone.create_full_zone("root")
    pairs = []
    for number, one in enumerate(flow_sets(n)):
        zone = NetZone.create_full_zone(f"set{number}")
        zone.set_parent(root)
        links = [
            zone.create_link(f"{number}.{i}", capacity).seal()
            for i, capacity in enumerate(one.capacity)
        ]
        for i, (size, passed) in enumerate(one.flows):
            ends = [zone.create_host(f"{number}.{i}.{side}", 1e9).seal() for side in "ab"]
            route = [LinkInRoute(links[j]) for j in passed]
            zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, route, False)
            pairs.append((number, i, ends, size))
        zone.seal()
    root.seal()
    found: list[list[float]] = [[0.0] * len(one.flows) for one in flow_sets(n)]

    def send(number: int, i: int, ends: list[object], size: int) -> None:
        Comm.sendto(ends[0], ends[1], size)
        found[number][i] = Engine.clock if isinstance(Engine.clock, float) else Engine.get_clock()

    for pair in pairs:
        Actor.create("sender", pair[2][0], send, *pair)
    engine.run()
    return ".".join(map(str, simgrid.simgrid_version[:2])) if not isinstance(
        simgrid.simgrid_version, str
    ) else simgrid.simgrid_version, found


if __name__ == "__main__":
    version, ends = play(int(sys.argv[1]))
    print(f"# SimGrid {version}, CM02, crosstraffic 0, zero latency, precision 1e-9")
    print("set,flow,end_s")
    for number, row in enumerate(ends):
        for i, end in enumerate(row):
            print(f"{number},{i},{end!r}")
