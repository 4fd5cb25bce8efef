"""Small machines with round numbers, described through the schema as a file would be."""

from __future__ import annotations

from functools import cache

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.node import Node

# Links of a DGX-1 with V100s as `nvidia-smi topo -m` prints them (NV1, NV2); with P100s every pair
# has one link (NVIDIA, "NVIDIA DGX-1 System Architecture", WP-08437-001, 2016, Fig. 4).
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


@cache
def prices() -> EnergyTable:
    entries = {
        "event": {"value": "1 pJ/FLOP", "scope": "arithmetic"},
        "byte": {"value": "1 pJ/B", "scope": "device"},
        "link": {"value": "10 pJ/B", "scope": "link"},
        "cable": {"value": "100 pJ/B", "scope": "link"},
    }
    return EnergyTable.model_validate(
        {"kind": "energy-table", "name": "toy", "process_node": "16 nm", "entries": entries}
    )


@cache
def device() -> Device:
    return Device.model_validate(
        {
            "kind": "device",
            "name": "toy",
            "year": 2016,
            "idle_power": "10 W",
            "energy_table": "toy",
            "engines": {
                "cores": {
                    "kind": "vector",
                    "runs": ["matrix", "vector"],
                    "rates": {"fp32": "10 TFLOP/s"},
                    "energy": {"fp32": "event"},
                }
            },
            "memory": {
                "hbm": {
                    "kind": "dram",
                    "capacity": "16 GB",
                    "bandwidth": "700 GB/s",
                    "energy": "byte",
                }
            },
            "launch_latency": "1 us",
            "prices": prices(),
        }
    )


def node(
    name: str,
    count: int,
    links: list[dict[str, object]],
    components: list[dict[str, str]] | None = None,
    *,
    nvlink: str = "20 GB/s",
    latency: str = "0 s",
    collective_latency: str = "0 s",
    achievable: float = 1.0,
) -> Node:
    return Node.model_validate(
        {
            "kind": "node",
            "name": name,
            "device": "toy",
            "count": count,
            "energy_table": "toy",
            "collective_latency": collective_latency,
            "link_types": {
                "nvlink": {
                    "bandwidth": nvlink,
                    "latency": latency,
                    "energy": "link",
                    "achievable": achievable,
                },
                "pcie": {"bandwidth": "16 GB/s", "latency": latency, "energy": "link"},
            },
            "components": components or [],
            "links": links,
            "devices": device(),
            "prices": prices(),
        }
    )


def dgx1(model: str, *, latency: str = "0 s", collective_latency: str = "0 s") -> Node:
    """DGX-1 with P100s ("p100", NVLink 1: 20 GB/s) or V100s ("v100", NVLink 2: 25 GB/s)."""
    links: list[dict[str, object]] = [
        {
            "between": [f"device{a}", f"device{b}"],
            "type": "nvlink",
            "count": count if model == "v100" else 1,
        }
        for (a, b), count in CUBE_MESH.items()
    ]
    components = [{"name": f"cpu{i}", "kind": "host"} for i in range(2)]
    for i in range(4):
        components += [{"name": f"plx{i}", "kind": "switch"}, {"name": f"nic{i}", "kind": "nic"}]
        below = (f"device{2 * i}", f"device{2 * i + 1}", f"nic{i}", f"cpu{i // 2}")
        links += [{"between": [end, f"plx{i}"], "type": "pcie"} for end in below]
    links.append({"between": ["cpu0", "cpu1"], "type": "pcie"})
    nvlink = {"p100": "20 GB/s", "v100": "25 GB/s"}[model]
    return node(
        f"dgx1-{model}", 8, links, components,
        nvlink=nvlink, latency=latency, collective_latency=collective_latency,
    )  # fmt: skip


def switched(n_devices: int = 8, n_nics: int = 4) -> Node:
    """Return a node whose devices and NICs meet on one switch of 300 GB/s a port."""
    links: list[dict[str, object]] = [
        {"between": [f"device{i}", "nvswitch"], "type": "nvlink", "count": 15}
        for i in range(n_devices)
    ]
    components = [{"name": "nvswitch", "kind": "switch"}]
    for i in range(n_nics):
        components.append({"name": f"nic{i}", "kind": "nic"})
        links.append({"between": [f"nic{i}", "nvswitch"], "type": "pcie"})
    return node("switched", n_devices, links, components)


def single(of: Node) -> Cluster:
    return Cluster(kind="cluster", name=of.name, node=of.name, nodes=of)


def cluster(of: Node, max_nodes: int, *, radix: int = 36, latency: str = "0 s") -> Cluster:
    """Return nodes on a fat tree of 12.5 GB/s cables."""
    return Cluster.model_validate(
        {
            "kind": "cluster",
            "name": f"{of.name}-edr",
            "node": of.name,
            "max_nodes": max_nodes,
            "energy_table": "toy",
            "link_types": {
                "edr": {"bandwidth": "12.5 GB/s", "latency": latency, "energy": "cable"}
            },
            "fabric": {"kind": "fat-tree", "link": "edr", "radix": radix},
            "nodes": of,
            "prices": prices(),
        }
    )
