"""A device, a node and a cluster as HTML for notebooks: a block diagram and a table."""

from __future__ import annotations

from html import escape

import numpy as np

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.node import Node
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.topology import Topology
from ridgeline.report.figures.layouts import layout
from ridgeline.report.figures.style import COLOURS
from ridgeline.report.html.blocks import FINE, FRAME, box, heading, table
from ridgeline.report.html.svg import block, drawing, line, text
from ridgeline.units import show

_WIDTH = 620.0
_MOST_SHOWN = 4  # nodes of a cluster that are drawn, and engines side by side
_MOST_VERTICES = 200
_KIND_COLOUR = {
    "device": COLOURS["compute"],
    "host": COLOURS["static"],
    "switch": COLOURS["network"],
    "nic": COLOURS["sram"],
}


def device_html(device: Device) -> str:
    """Return a device as an HTML fragment: engines above memory levels, and its limits."""
    facts = [("year", str(device.year)), ("idle power", show(device.idle_power.value, "W"))]
    if device.tdp is not None:
        facts.append(("thermal design power", show(device.tdp.value, "W")))
    if device.process_node is not None:
        facts.append(("process", f"{device.process_node.value * 1e9:.3g} nm"))
    if device.area is not None:
        facts.append(("area", f"{device.area.value * 1e6:.4g} mm²"))
    facts.append(("energy table", device.prices.name))
    return box(
        FRAME,
        heading(f"device {device.name}", 15),
        escape(device.description),
        _device_diagram(device),
        heading("peak rates"),
        table(_rates(device), ("engine", "format", "peak", "ridge")),
        table(facts),
        box(FINE, escape("; ".join(device.unpriced))),
    )


def _rates(device: Device) -> list[tuple[str, str, str, str]]:
    """Return every engine's peaks, and where they meet the bandwidth of the farthest memory."""
    far = device.memory[device.far_memory].bandwidth
    assert far is not None  # the schema demands it of the farthest memory
    return [
        (
            name,
            format_,
            show(rate.value, "FLOP/s"),
            f"{rate.value / far.value:.4g} FLOP per byte of {device.far_memory}",
        )
        for name, engine in device.engines.items()
        for format_, rate in engine.rates.items()
    ]


def _device_diagram(device: Device) -> str:
    engines = list(device.engines.items())[:_MOST_SHOWN]
    gap, tall = 10.0, 44.0
    wide = (_WIDTH - gap * (len(engines) - 1)) / len(engines)
    parts = [
        block(
            i * (wide + gap), 4, wide, tall, COLOURS["compute"],
            f"{name} ({engine.kind})",
            show(max(rate.value for rate in engine.rates.values()), "FLOP/s"),
        )
        for i, (name, engine) in enumerate(engines)
    ]  # fmt: skip
    y = 4 + tall
    for name, level in device.memory.items():
        flow = "" if level.bandwidth is None else show(level.bandwidth.value, "B/s")
        parts += [
            line(_WIDTH / 2, y, _WIDTH / 2, y + 22),
            text(_WIDTH / 2 + 8, y + 15, flow, "start"),
        ]
        count = level.instances.value
        size = show(level.capacity.value, "B") + (f" in {count} parts" if count > 1 else "")
        parts.append(block(0, y + 22, _WIDTH, 26, COLOURS[level.kind], f"{name}: {size}"))
        y += 48
    return drawing(_WIDTH, y + 4, f"block diagram of {device.name}", *parts)


def node_html(node: Node) -> str:
    """Return a node as an HTML fragment: its graph of devices, host and links."""
    return box(
        FRAME,
        heading(f"node {node.name}", 15),
        escape(f"{node.count} x {node.devices.name}. {node.description}"),
        _graph(from_cluster(_alone(node), node.count)),
        table(
            [
                (
                    name,
                    show(link.bandwidth.value, "B/s"),
                    f"{link.achievable.value:.0%}",
                    show(link.latency.value, "s"),
                )
                for name, link in node.link_types.items()
            ],
            ("link", "one direction", "achievable", "latency"),
        ),
        box(FINE, escape(node.host.description)),
    )


def _alone(node: Node) -> Cluster:
    """Return the cluster of this one node."""
    return Cluster(
        kind="cluster", name=node.name, description=node.description, node=node.name, nodes=node
    )


def _graph(topology: Topology) -> str:
    """Draw a topology's vertices where its picture has them, and every pair of linked ones."""
    if topology.n_vertices > _MOST_VERTICES:
        return box(FINE, f"{topology.n_vertices} vertices: too many for a drawing")
    xy = layout(topology).xy
    low, extent = xy.min(axis=0), np.maximum(np.ptp(xy, axis=0), 1e-9)
    high = float(np.clip(_WIDTH * extent[1] / extent[0], 120, 380)) if extent[1] > 1e-6 else 60.0
    across, up = _WIDTH - 70, high - 40
    at = [
        (
            35 + float((x - low[0]) / extent[0]) * across,
            high - 20 - float((y - low[1]) / extent[1]) * up,
        )
        for x, y in xy
    ]
    parts = []
    for i in np.flatnonzero(topology.source < topology.target).tolist():
        a, b = int(topology.source[i]), int(topology.target[i])
        said = (
            f"{topology.link_class[i]}: {topology.vertex_names[a]} - {topology.vertex_names[b]}, "
            f"{show(float(topology.bandwidth_bytes_per_s[i]), 'B/s')} each way"
        )
        parts.append(line(*at[a], *at[b], said, 0.8 + 0.6 * min(int(topology.count[i]), 4)))
    for v, (x, y) in enumerate(at):
        kind = topology.vertex_kinds[v]
        short = topology.vertex_names[v].rsplit(".", 1)[-1].replace("device", "")
        wide = max(22.0, 10 + 6.4 * len(short))
        parts.append(block(x - wide / 2, y - 10, wide, 20, _KIND_COLOUR[kind], short))
    return drawing(_WIDTH, high, f"links of {topology.name}", *parts)


def cluster_html(cluster: Cluster) -> str:
    """Return a cluster as an HTML fragment: its nodes below the fabric, or its only part."""
    if cluster.max_devices == 1:
        return device_html(cluster.device)
    if cluster.max_nodes == 1:
        return node_html(cluster.nodes)
    facts = [
        ("nodes", f"up to {cluster.max_nodes:,} x {cluster.nodes.name}"),
        ("devices", f"up to {cluster.max_devices:,} x {cluster.device.name}"),
    ]
    if cluster.storage is not None:
        facts.append(("storage", show(cluster.storage.bandwidth.value, "B/s")))
    if cluster.overrides:
        changed = ", ".join(f"{name} = {value}" for name, value in cluster.overrides.items())
        facts.append(("changed", changed))
    return box(
        FRAME,
        heading(f"cluster {cluster.name}", 15),
        escape(cluster.description),
        _cluster_diagram(cluster),
        table(facts),
    )


def _cluster_diagram(cluster: Cluster) -> str:
    fabric = cluster.fabric
    assert fabric is not None  # the schema demands it of more than one node
    link = cluster.link_types[fabric.link]
    shown = min(_MOST_SHOWN, cluster.max_nodes)
    gap, node, nics = 12.0, cluster.nodes, len(cluster.nodes.nics)
    wide = (_WIDTH - gap * (shown - 1)) / shown
    title = f"fabric: {fabric.kind}"
    parts = [block(0, 4, _WIDTH, 28, COLOURS["network"], title)]
    for i in range(shown):
        x = i * (wide + gap)
        parts.append(line(x + wide / 2, 32, x + wide / 2, 60))
        is_last = i == shown - 1 and shown < cluster.max_nodes
        name = f"… node {cluster.max_nodes - 1}" if is_last else f"node {i}"
        lines = (name, node.name, f"{node.count} x {node.devices.name}")
        parts.append(block(x, 60, wide, 62, COLOURS["compute"], *lines))
    cable = f"{nics} x {show(link.bandwidth.value, 'B/s')} {fabric.link}"
    parts.append(text(wide / 2 + 8, 50, cable, "start"))
    return drawing(_WIDTH, 128, f"block diagram of {cluster.name}", *parts)
