"""Topology files of ns-3's RDMA networks (``.txt``), as ASTRA-sim's ns-3 backend takes them.

The first line counts nodes, switches and links; the second names the switches; each further one is
a link: two nodes, the rate of each direction, the delay, the share of packets that are lost. Nodes
that are no switches are the devices, in the order of their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ridgeline.bounded_files import read_head, read_text
from ridgeline.errors import ConfigError
from ridgeline.network.graph import LinkRate, NetworkGraph
from ridgeline.network.topology import DEVICE, MAX_DEVICES

MAX_VERTICES = 4 * MAX_DEVICES
_HEAD = re.compile(r"\d+[ \t]+\d+[ \t]+\d+")
_LINK = ("source", "target", "rate", "delay", "error_rate")
_RATE = re.compile(r"([\d.]+)([KMGT]?)bps", re.IGNORECASE)
_DELAY = re.compile(r"([\d.]+)(s|ms|us|ns)")
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def is_ns3_topology(path: Path) -> bool:
    """Tell whether a text file begins as one of these does."""
    try:
        lines = read_head(path, 100).decode("ascii", "replace").splitlines()
    except ConfigError:  # whose reader says what is wrong with it
        return False
    return bool(lines) and _HEAD.fullmatch(lines[0].strip()) is not None


def read_ns3_topology(path: str | Path) -> NetworkGraph:
    """Read a topology file.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    return _Reader(Path(path)).graph()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.file = str(path)
        lines = enumerate(read_text(path).splitlines(), start=1)
        self.lines = [(number, line.split()) for number, line in lines if line.strip()]
        self.name = path.stem

    def fail(self, message: str, line: int, field: str | None = None) -> ConfigError:
        return ConfigError(message, file=self.file, line=line, field=field)

    def whole(self, text: str, line: int, field: str, most: int) -> int:
        if not text.isdecimal() or int(text) > most:
            raise self.fail(f"must be a whole number of 0 to {most}, found {text!r:.30}", line,
                            field)  # fmt: skip
        return int(text)

    def graph(self) -> NetworkGraph:
        """Return the graph; lost packets are a note."""
        (first, head), *rest = self.lines
        nodes, n_switches, n_links = (
            self.whole(text, first, field, most)
            for text, field, most in zip(
                head, ("nodes", "switches", "links"), (MAX_VERTICES, MAX_VERTICES, 10**6),
                strict=True,
            )
        )  # fmt: skip
        if not rest:
            raise self.fail("the line of the switches is missing", first)
        (second, names), *links = rest if n_switches else [(first, list[str]()), *rest]
        switches = {self.whole(name, second, "switches", nodes - 1) for name in names}
        if len(switches) != n_switches:
            raise self.fail(f"{len(switches)} different switches; the first line says {n_switches}",
                            second, "switches")  # fmt: skip
        if len(links) != n_links:
            raise self.fail(f"{len(links)} lines of links follow; the first line says {n_links}",
                            first, "links")  # fmt: skip
        graph = NetworkGraph(self.name, self.file)
        vertices = [
            graph.vertex(f"node{i}", "switch" if i in switches else DEVICE) for i in range(nodes)
        ]
        lossy = 0
        for line, cells in links:
            lossy += self._link(graph, vertices, line, cells)
        if lossy:
            graph.notes.append(f"{lossy} links lose packets in the file; here none is lost")
        return graph

    def _link(
        self, graph: NetworkGraph, vertices: Sequence[int], line: int, cells: Sequence[str]
    ) -> bool:
        """Add a link and tell whether it loses packets."""
        if len(cells) != len(_LINK):
            raise self.fail(f"a link is {', '.join(_LINK)}; found {len(cells)} values", line)
        source, target = (
            self.whole(text, line, field, len(vertices) - 1)
            for text, field in zip(cells[:2], _LINK[:2], strict=True)
        )
        if source == target:
            raise self.fail(f"node {source} is joined to itself", line, "target")
        rate, delay = _RATE.fullmatch(cells[2]), _DELAY.fullmatch(cells[3])
        bandwidth = _number(rate[1]) * _SCALE[rate[2].upper()] / 8 if rate else 0.0
        latency = _number(delay[1]) * _SECONDS[delay[2]] if delay else -1.0
        if not 0 < bandwidth < 1e18:
            raise self.fail(f"must be a rate such as 400Gbps, found {cells[2]!r:.30}", line, "rate")
        if not 0 <= latency < 1e3:
            raise self.fail(f"must be a time such as 0.0005ms, found {cells[3]!r:.30}", line,
                            "delay")  # fmt: skip
        lost = _number(cells[4])
        if not 0 <= lost < 1:
            raise self.fail(f"must be a share from 0 to below 1, found {cells[4]!r:.30}", line,
                            "error_rate")  # fmt: skip
        name = f"{cells[2]} {cells[3]}"
        graph.rates[name] = LinkRate(bandwidth, latency)
        graph.join(vertices[source], vertices[target], name)
        return lost > 0


def _number(text: str) -> float:
    """Return a number; -1 where it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
