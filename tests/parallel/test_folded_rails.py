"""Nodes whose devices have three equally short ways to each other: rails are alike in all of them.

Two cases that random fabrics of ``benchmarks/check_folding.py`` had shown (decision 0176).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from check_folding import DEVICE, ENERGY, SAME, difference, models
from ridgeline.hardware import load_cluster
from ridgeline.network.rings import ring_channels
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import shared_topology, simulate

NODE = """
kind: node
name: node
device: device.yaml
count: 4
energy_table: energy.yaml
collective_latency: 5 us
link_types:
  wire: {bandwidth: 10 GB/s, latency: 1 us, energy: link}
  slot: {bandwidth: 20 GB/s, latency: 1 us, energy: link}
components:
  - {name: switch0, kind: switch}
  - {name: switch1, kind: switch}
  - {name: plx0, kind: switch}
  - {name: plx1, kind: switch}
  - {name: nic0, kind: nic}
  - {name: nic1, kind: nic}
links:
"""
CLUSTER = """
kind: cluster
name: cluster
node: node.yaml
max_nodes: 64
energy_table: energy.yaml
link_types:
  cable: {bandwidth: 40 GB/s, latency: 2 us, energy: link}
fabric: {kind: torus, link: cable, shape: [64]}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rails")
    links = [f"  - {{between: [nic{i}, plx{i}], type: slot}}" for i in range(2)]
    for i in range(4):
        ways = (("switch0", "wire"), ("switch1", "wire"), (f"plx{i // 2}", "slot"))
        links += [f"  - {{between: [device{i}, {name}], type: {kind}}}" for name, kind in ways]
    for name, text in (
        ("energy", ENERGY), ("device", DEVICE), ("cluster", CLUSTER),
        ("node", NODE + "\n".join(links)),
    ):  # fmt: skip
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / "cluster.yaml")


def test_rings_of_equal_nodes_are_equal(cluster: str) -> None:
    topology = shared_topology(load_cluster(cluster), 12)
    vertices = topology.n_vertices // 3
    assert topology.vertex_names[vertices].startswith("node1.")
    first, *others = (
        [
            [
                (int(topology.source[link]) - node * vertices,
                 int(topology.target[link]) - node * vertices)
                for link in channel.ways.links
            ]
            for channel in ring_channels(topology, tuple(range(4 * node, 4 * node + 4))).channels
        ]
        for node in range(3)
    )  # fmt: skip
    assert len(first) > 1
    assert np.max(first) < vertices
    assert others == [first, first]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("small4", {"data": 4, "sequence": 4, "pipeline": 4, "zero_stage": 2}),
        ("mlp", {"data": 4, "pipeline": 2, "order": "data-pipeline-tensor-context"}),
    ],
)
def test_folded_is_whole(
    cluster: str, name: str, fields: dict[str, object], tmp_path: Path
) -> None:
    (network,) = (model for model in models(tmp_path) if model.name == name)
    plan = Plan(**{"global_batch": 4, "micro_batch": 1, "tensor": 4, "precision": "fp32",
                   "schedule": "gpipe", **fields})  # fmt: skip
    folded, whole = (
        simulate(network, load_cluster(cluster), plan, software="ideal", fold=fold)
        for fold in (True, False)
    )
    assert difference(folded, whole) <= SAME
    assert folded.manifest["ranks"]["simulated"] < plan.devices
