"""What a network amounts to: devices, links, diameter, bisection, and the load of its links."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.hardware.cluster import Cluster
from ridgeline.network.inline import with_links
from ridgeline.network.load import LinkLoad, link_load
from ridgeline.network.resolve import topology_of
from ridgeline.network.topology import Topology
from ridgeline.network.topology_metrics import Measures, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class MeasuredTopology:
    """A network with its measures, and what its links carry where that was asked for."""

    topology: Topology
    measures: Measures
    load: LinkLoad | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        answer = {
            "name": self.topology.name, **asdict(self.measures), "routing": self.topology.routing,
        }  # fmt: skip
        if self.topology.assumed:
            answer["assumed"] = list(self.topology.assumed)
        if self.load is not None:
            answer["load"] = self.load.to_dict(self.topology)
        return answer

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw devices, switches and links, these by load; into `ax` or a figure of its own."""
        from ridgeline.report.figures.network import network

        return network(self.topology, self.load, ax=ax)

    def write(self, path: str | Path) -> None:
        """Write the network as an InfraGraph document: .json or .yaml."""
        from ridgeline.network.infragraph import write_infragraph

        write_infragraph(self.topology, str(path))


def topology(
    where: str | Cluster | Topology,
    *,
    devices: int | None = None,
    load: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    device: str | None = None,
) -> MeasuredTopology:
    """Count and measure a network, and find what its links carry.

    Parameters
    ----------
    where
        A cluster or node by name or file, a topology file, or inline: "Torus(4x8, 50 GB/s, 1 us)".
    devices
        Number of devices of a cluster in use; by default all that it can have.
    load
        A collective and a size, "all-reduce 100MB" (a third word names the algorithm), or messages
        all at once, "stride:4 1MB", "permutation:SEED 1MB", "incast 1MB".
    bandwidth, latency
        Of links for an inline topology that states none, innermost dimension first.
    device
        Device whose shipped node gives the bandwidth of links that state none.

    Raises
    ------
    RidgelineError
        If nothing is called that, or something cannot be understood.
    """
    if isinstance(where, str):
        where = with_links(where, bandwidth, latency)
        where = where if device is None else f"{where} @ {device}"
    found = topology_of(where, devices)
    return MeasuredTopology(found, measure(found), None if load is None else link_load(found, load))
