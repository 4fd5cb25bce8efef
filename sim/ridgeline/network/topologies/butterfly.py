"""``Butterfly(k, n, ...)`` and ``FlattenedButterfly(k, n, ...)``: k^n devices on k-port stages.

A k-ary n-fly (Dally and Towles, "Principles and Practices of Interconnection Networks", 2004,
chapter 4) has n stages of k^(n-1) switches with k links in and k out, one way: device, stages 0 to
n - 1, device. There is one path between any two devices, of n + 1 links. Stage i permits digit i
of the number of a switch to change.

Flattened (Kim, Dally and Abts, ISCA 2007), the switches of a row are one: k devices at each of
k^(n-1) routers, and routers that differ in one of n - 1 digits are linked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topology import DEVICE, MAX_DEVICES, LinkKind, Topology, TopologyBuilder


@INLINE.register("Butterfly")
def butterfly(arguments: Sequence[str]) -> Topology:
    """Make the k-ary n-fly; links are one way, from the devices through all stages back to them."""
    k, n, link = _read("Butterfly", arguments)
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"device{i}", DEVICE) for i in range(k**n)]
    rows = k ** (n - 1)
    stages = [
        [drawing.vertex(f"stage{s}.switch{i}", "switch") for i in range(rows)] for s in range(n)
    ]
    for i, device in enumerate(devices):
        drawing.join_one_way(device, stages[0][i // k], link)
        drawing.join_one_way(stages[-1][i // k], device, link)
    for s in range(n - 1):
        stride = k ** (n - 2 - s)
        for i in range(rows):
            for digit in range(k):
                other = i + (digit - i // stride % k) * stride
                drawing.join_one_way(stages[s][i], stages[s + 1][other], link)
    across = k**n // 2 * link.bandwidth_bytes_per_s
    return drawing.finish(
        f"Butterfly({', '.join(arguments)})",
        devices,
        single_channel=True,
        bisection_bytes_per_s=across,
    )


@INLINE.register("FlattenedButterfly")
def flattened_butterfly(arguments: Sequence[str]) -> Topology:
    """Make k^(n-1) routers with k devices each, fully linked along each of n - 1 dimensions."""
    k, n, link = _read("FlattenedButterfly", arguments)
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"device{i}", DEVICE) for i in range(k**n)]
    routers = [drawing.vertex(f"router{i}", "switch") for i in range(k ** (n - 1))]
    for i, device in enumerate(devices):
        drawing.join(device, routers[i // k], link)
    for stride in (k**d for d in range(n - 1)):
        for first in (i for i in range(len(routers)) if i // stride % k == 0):
            row = [routers[first + stride * digit] for digit in range(k)]
            for one, other in combinations(row, 2):
                drawing.join(one, other, link)
    across = len(routers) * k / 4 * link.bandwidth_bytes_per_s  # k²/4 links of each row of k
    return drawing.finish(
        f"FlattenedButterfly({', '.join(arguments)})",
        devices,
        single_channel=True,
        shape=(k,) * n,
        bisection_bytes_per_s=across if k % 2 == 0 and n > 1 else None,
    )


def _read(name: str, arguments: Sequence[str]) -> tuple[int, int, LinkKind]:
    if len(arguments) != 4 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:2]):
        raise ConfigError(
            f"{name} takes links of a switch (k), stages (n), bandwidth and latency, as in "
            f"'{name}(4, 3, 25 GB/s, 1 us)'; found {', '.join(arguments)!r}"
        )
    k, n = map(int, arguments[:2])
    if k < 2 or n > 16 or k**n > MAX_DEVICES:
        raise ConfigError(
            f"{name}: 2 or more links, and at most {MAX_DEVICES} devices; found {k}^{n}"
        )
    return k, n, read_link(name, arguments[2:])
