"""Bounds of plans on devices that keep tensors between ops: stages keep more than the whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.templates import device_template
from ridgeline.study.planner.searcher import Searcher
from stacked import plain_searcher as searcher
from thoroughly import further

NODE = """
kind: node
name: four
device: device.yaml
count: 4
energy_table: jouppi-7nm
collective_latency: 5 us
link_types:
  wire: {bandwidth: 50 GB/s, latency: 1 us, energy: 10 pJ/bit}
links:
  - {between: [device0, device1], type: wire}
  - {between: [device1, device2], type: wire}
  - {between: [device2, device3], type: wire}
  - {between: [device3, device0], type: wire}
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("on-chip")
    (folder / "device.yaml").write_text(device_template("systolic"), "utf-8")
    (folder / "node.yaml").write_text(NODE, "utf-8")
    return folder / "node.yaml"


def shares(one: Searcher, rng: random.Random, most: int) -> list[float]:
    """Bounds over the engine's times, of some plans."""
    found = []
    for i in rng.sample(range(len(one.space.data)), len(one.space.data))[:most]:
        group = one.groups.group(one.key(i))
        if group is None:
            continue
        try:
            bound = one.tightened(group, i, wired=True)
            found.append(bound.time_s / one.replay(one.space.plan(i)).step_time_s)
        except RidgelineError:
            continue
    return found


@pytest.mark.parametrize(
    ("model", "batch", "capacity", "plans"),
    [
        ("resnet18-cifar", 16, "128 MiB", 16),
        ("gpt2", 8, "32 MiB", 24),
        *further(*(("resnet18-cifar", 16, size, 80) for size in ("4 MiB", "32 MiB", "128 MiB"))),
        *further(*(("gpt2", 8, size, 80) for size in ("4 MiB", "32 MiB", "128 MiB"))),
    ],
)
def test_no_bound_is_above_the_engine(
    node: Path, model: str, batch: int, capacity: str, plans: int
) -> None:
    cluster = load_cluster(str(node), {"device.memory.l2.capacity": capacity})
    one = searcher(model, cluster, 4, batch, precision="bf16-mixed")
    found = shares(one, random.Random(capacity), plans)
    assert len(found) >= 3
    assert max(found) <= 1 + 1e-9
    assert max(found) > 0.9


@pytest.mark.parametrize("plans", [15, *further(40)])
def test_no_bound_of_shipped_arrays_is_above_the_engine(plans: int) -> None:
    one = searcher("resnet18", load_cluster("tpu-v3-pod"), 4, 16, precision="bf16-mixed")
    found = shares(one, random.Random(3), plans)
    assert len(found) >= 3
    assert max(found) <= 1 + 1e-9
