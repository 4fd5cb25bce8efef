"""A small cluster for plans: nodes of four devices behind a switch, a NIC for every two."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from machines import DEVICE, ENERGY
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model

NODE = """
kind: node
name: pod-node
device: device.yaml
count: 4
energy_table: energy.yaml
collective_latency: 5 us
link_types:
  wire: {bandwidth: 40 GB/s, latency: 1 us, energy: link}
  slot: {bandwidth: 20 GB/s, latency: 1 us, energy: link}
components:
  - {name: switch, kind: switch}
  - {name: plx0, kind: switch}
  - {name: plx1, kind: switch}
  - {name: nic0, kind: nic}
  - {name: nic1, kind: nic}
links:
  - {between: [device0, switch], type: wire}
  - {between: [device1, switch], type: wire}
  - {between: [device2, switch], type: wire}
  - {between: [device3, switch], type: wire}
  - {between: [device0, plx0], type: slot}
  - {between: [device1, plx0], type: slot}
  - {between: [nic0, plx0], type: slot}
  - {between: [device2, plx1], type: slot}
  - {between: [device3, plx1], type: slot}
  - {between: [nic1, plx1], type: slot}
"""

CLUSTER = """
kind: cluster
name: pod
node: node.yaml
max_nodes: 64
energy_table: energy.yaml
link_types:
  cable: {bandwidth: 10 GB/s, latency: 2 us, energy: link}
fabric:
  kind: switch
  link: cable
"""


def write_pod(folder: Path) -> Path:
    """Write the files of the cluster and return the cluster's."""
    for name, text in (
        ("energy", ENERGY),
        ("device", DEVICE),
        ("node", NODE),
        ("cluster", CLUSTER),
    ):
        (folder / f"{name}.yaml").write_text(text)
    return folder / "cluster.yaml"


@cache
def on_pod(text: str) -> tuple[Model, Cluster]:
    """Return a network as its file describes it, and the cluster."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(text)
        return load_model(str(path)), load_cluster(str(write_pod(Path(folder))))
