"""``SlimFly(q, p, bandwidth, latency)``: routers of diameter 2, p devices at each.

Besta and Hoefler, SC14, on the graphs of McKay, Miller and Siran (J. Combin. Theory B 74, 1998): a
prime q = 4w + d with d in {-1, 1} gives 2q² routers of degree (3q - d) / 2. A primitive element of
the field of q makes two generator sets X and X'; router (0, x, y) is linked to (0, x, y') where
y - y' is in X, (1, m, c) to (1, m, c') where c - c' is in X', and (0, x, y) to (1, m, c) where
y = m x + c.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ridgeline.errors import ConfigError
from ridgeline.network.inline import INLINE, read_link
from ridgeline.network.topology import DEVICE, MAX_DEVICES, Topology, TopologyBuilder


@INLINE.register("SlimFly")
def slim_fly(arguments: Sequence[str]) -> Topology:
    """Make the Slim Fly of a prime q with p devices at each of the 2q² routers."""
    if len(arguments) != 4 or not all(a.isdecimal() and int(a) > 0 for a in arguments[:2]):
        raise ConfigError(
            "SlimFly takes q (a prime), devices per router, bandwidth and latency, as in "
            f"'SlimFly(5, 4, 25 GB/s, 1 us)'; found {', '.join(arguments)!r}"
        )
    q, p = map(int, arguments[:2])
    if q < 3 or any(q % i == 0 for i in range(2, int(q**0.5) + 1)):
        raise ConfigError(f"SlimFly: q must be a prime of at least 3, found {q}")
    if 2 * q * q * p > MAX_DEVICES:
        raise ConfigError(f"SlimFly: {2 * q * q * p} devices; at most {MAX_DEVICES}")
    link = read_link("SlimFly", arguments[2:])
    drawing = TopologyBuilder()
    devices = [drawing.vertex(f"device{i}", DEVICE) for i in range(2 * q * q * p)]
    routers = [drawing.vertex(f"router{i}", "switch") for i in range(2 * q * q)]
    for i, device in enumerate(devices):
        drawing.join(device, routers[i // p], link)
    for half, generators in enumerate(generator_sets(q)):
        for row, one, other in product(range(q), range(q), range(q)):
            if one < other and (one - other) % q in generators:
                first = (half * q + row) * q
                drawing.join(routers[first + one], routers[first + other], link)
    for x, m, c in product(range(q), range(q), range(q)):
        drawing.join(routers[x * q + (m * x + c) % q], routers[(q + m) * q + c], link)
    return drawing.finish(f"SlimFly({', '.join(arguments)})", devices, single_channel=True)


def generator_sets(q: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the sets X and X' of a prime q; both hold the negative of each element."""
    root = next(g for g in range(2, q + 2) if len({pow(g, i, q) for i in range(q - 1)}) == q - 1)
    powers = [pow(root, i, q) for i in range(q - 1)]
    if q % 4 == 1:
        return frozenset(powers[::2]), frozenset(powers[1::2])
    w = (q + 1) // 4
    even = {power for i in range(w) for power in (powers[2 * i], q - powers[2 * i])}
    odd = {power for i in range(w) for power in (powers[2 * i + 1], q - powers[2 * i + 1])}
    return frozenset(even), frozenset(odd)
