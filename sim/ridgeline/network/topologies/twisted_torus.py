"""Tori behind optical switches: links at the ends of a dimension can lead to any other end.

``TwistedTorus(8x4, ...)``: where a dimension closes, its links arrive shifted along the longest one
by half of its extent for every shorter dimension (Cámara, Moretó, Vallejo, Beivide et al., IEEE
Trans. Parallel Distrib. Syst. 21(12), 2010: rectangular twisted tori of 2a x a), which brings
distant devices nearer to each other. `reconfigured` chooses what optical switches make of the same
devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.inline import INLINE, from_text, read_shape
from ridgeline.network.topology import DEVICE, Topology, TopologyBuilder


@INLINE.register("TwistedTorus")
def twisted_torus(arguments: Sequence[str]) -> Topology:
    """Make a torus whose shorter dimensions close with a twist along the longest."""
    shape, link = read_shape("TwistedTorus", arguments)
    if len(shape) < 2 or min(shape) < 2 or max(shape) % 2:
        raise ConfigError(
            "TwistedTorus: two dimensions or more, of 2 devices or more each, and an even longest "
            f"one; found {arguments[0]!r}"
        )
    longest = shape.index(max(shape))
    drawing = TopologyBuilder()
    n = math.prod(shape)
    strides = [math.prod(shape[:d]) for d in range(len(shape))]
    devices = [drawing.vertex(f"device{i}", DEVICE, node=0) for i in range(n)]
    for i in range(n):
        place = [i // stride % extent for stride, extent in zip(strides, shape, strict=True)]
        for d, extent in enumerate(shape):
            after = list(place)
            after[d] = (place[d] + 1) % extent
            if after[d] == 0 and d != longest:
                after[longest] = (place[longest] + shape[longest] // 2) % shape[longest]
            other = sum(x * stride for x, stride in zip(after, strides, strict=True))
            if extent == 2 and d == longest and place[d] == 1:
                continue  # a ring of two is one link
            if other != i:
                drawing.join(devices[i], devices[other], link)
    return drawing.finish(
        f"TwistedTorus({', '.join(arguments)})",
        devices,
        routing="ecmp",  # any shortest path: spreading by destination loads a twist unevenly
        single_channel=True,
        devices_forward=True,
    )


def reconfigured(
    n_devices: int,
    dimensions: int,
    bandwidth: str,
    latency: str,
    op: str,
    size_bytes: float,
    *,
    block: int = 1,
) -> tuple[Topology, float]:
    """Return the torus, plain or twisted, on which a collective is fastest, and its time.

    Optical switches join cubes of `block` devices in every dimension to any torus whose extents are
    multiples of it.

    Raises
    ------
    RidgelineError
        If no extents give that many devices.
    """
    from ridgeline.network.collectives import collective

    found: list[tuple[float, int, Topology]] = []
    for shape in _shapes(n_devices, dimensions, block):
        text = "x".join(map(str, shape))
        for kind in ("Torus", "TwistedTorus"):
            if kind == "TwistedTorus" and (min(shape) < 2 or max(shape) % 2 or len(shape) < 2):
                continue
            topology = from_text(f"{kind}({text}, {bandwidth}, {latency})")
            found.append((collective(op, size_bytes, topology).time_s, len(found), topology))
    if not found:
        raise RidgelineError(
            f"no torus of {dimensions} dimensions, multiples of {block}, has {n_devices} devices"
        )
    time_s, _, best = min(found)
    return best, time_s


def _shapes(n: int, dimensions: int, block: int) -> Iterator[tuple[int, ...]]:
    extents = [e for e in range(block, n + 1, block) if n % e == 0]
    for shape in combinations_with_replacement(extents, dimensions):
        if math.prod(shape) == n:
            yield shape[::-1]
