"""Machines whose devices are wired unlike: one rank for all, or every rank, gives the same step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.hardware import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.inline import from_text
from ridgeline.parallel.comm.collective_flows import StageCollective
from ridgeline.parallel.comm.symmetry import Symmetry, symmetry_of
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from stacked import stacked


def n_classes(machine: str, **degrees: Any) -> int:
    plan = stacked(**{"global_batch": degrees.get("data", 1), **degrees})
    topology = from_cluster(load_cluster(machine), plan.devices)
    mesh = Mesh.of(plan)
    return len(symmetry_of(topology, mesh, plan.devices, wraps=False, offloads=False).members)


def test_cube_meshes_roots_and_dragonflies_are_told_from_switches() -> None:
    assert n_classes("dgx1-v100", data=2, tensor=2) > 1  # pairs of one link, and of two
    assert n_classes("dgx1-v100", data=8) == 1
    assert n_classes("dgx-a100", data=2, tensor=4) == 1
    assert n_classes("v100-4gpu", data=2, tensor=2) == 1
    assert n_classes("selene-a100", data=2, tensor=8) == 1


def test_a_chain_of_two_ends_has_classes_by_the_distance_from_them() -> None:
    """Six devices in a line send to the next; one way alone, every device is another."""
    topology = from_text("Line(6, 10 GB/s, 1 us)")
    mesh = Mesh.of(Plan(data=6, global_batch=6))
    on = np.stack((np.arange(5), np.arange(1, 6)), axis=1)
    both, one = (
        StageCollective("send", pairs, 1.0) for pairs in (np.concatenate((on, on[:, ::-1])), on)
    )
    found = Symmetry(topology, mesh, [both], 6).members
    assert [places.tolist() for places in found] == [[0, 5], [1, 4], [2, 3]]
    assert len(Symmetry(topology, mesh, [one], 6).members) == 6
    coarse = Symmetry(topology, mesh, [both], 2)
    assert len(coarse.members) <= 2
    assert not coarse.exact


def test_a_flow_loads_what_its_mates_load() -> None:
    """Eight devices send through one adapter, four of them across the root: each for four."""
    topology = from_cluster(load_cluster("pcie3-8gpu-root-fdr"), 16)
    mesh = Mesh.of(Plan(data=8, pipeline=2, global_batch=8))
    call = StageCollective("send", np.stack((mesh.replica(0), mesh.replica(1)), axis=1), 1e6)
    symmetry = Symmetry(topology, mesh, [call], 8)
    assert [places.tolist() for places in symmetry.members] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for which in (0, 4):
        (share,) = symmetry.priced(call, which).shares
        assert max(share.links.values()) == share.weight == 4


def test_more_classes_than_can_be_afforded_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.parallel.lower._MOST_WRITTEN", 0)
    plan = stacked(global_batch=4, data=2, tensor=2, precision="fp32")
    network, cluster = load_model("mlp"), load_cluster("dgx1-v100")
    coarse, whole = (simulate(network, cluster, plan, fold=fold) for fold in (True, False))
    assert coarse.manifest["ranks"]["slowest_stands_for_all"]
    assert coarse.step_time_s >= whole.step_time_s


@pytest.mark.parametrize(
    ("machine", "model", "fields"),
    [
        ("dgx1-v100", "resnet18", {"data": 2, "tensor": 2, "pipeline": 2, "zero_stage": 3}),
        ("dgx1-v100", "mlp", {"data": 4, "tensor": 2}),
        ("dgx1-p100", "gpt2", {"data": 4, "pipeline": 2, "zero_stage": 3, "precision": "fp32"}),
        (
            "pcie3-8gpu-root",
            "mlp",
            {"data": 2, "tensor": 2, "pipeline": 2, "overlap__gradients": False},
        ),
        ("aws-p3dn-efa", "gpt2", {"data": 2, "context": 2, "pipeline": 2, "zero_stage": 3}),
        ("cori-haswell-aries", "mlp", {"tensor": 4, "pipeline": 4, "sequence": 4}),
        ("v100-4gpu", "resnet18", {"data": 4, "zero_stage": 1, "layers": "*1*:tensor=2"}),
        ("dgx1-v100-edr", "mlp", {"data": 8, "tensor": 2, "order": "data-tensor-context-pipeline"}),
        ("pcie3-8gpu-10gbe", "resnet18", {"data": 4, "tensor": 2, "pipeline": 2}),
        # messages of four meet sums of one on a device's own link
        ("pcie3-8gpu-root", "gpt2", {"data": 2, "tensor": 2, "pipeline": 2, "sequence": 2}),
        # two stages send over one root at once
        ("pcie3-8gpu-root-fdr", "gpt2", {"context": 2, "pipeline": 4, "schedule": "gpipe"}),
        # sums and messages meet on links of a torus that no simulated rank has
        ("tpu-v4-pod", "mlp", {"data": 4, "pipeline": 4}),
        ("tpu-v4-pod", "mlp", {"data": 8, "tensor": 2}),
        # rings in all dimensions; groups of a plane, and of every second chip of a line
        ("tpu-v4-pod", "mlp", {"data": 64}),
        ("tpu-v4-pod", "mlp", {"data": 16, "tensor": 4}),
        ("tpu-v3-pod", "mlp", {"data": 16, "tensor": 4, "zero_stage": 3}),
        # stages in one node copy to their hosts at different times
        ("pcie3-8gpu-fdr", "resnet18", {"pipeline": 4, "offload": "all"}),
        # groups that share adapters and leaf switches; groups of every second chip of a torus
        (
            "superpod-h100",
            "gpt2",
            {"data": 8, "tensor": 2, "pipeline": 4, "order": "data-tensor-context-pipeline"},
        ),
        ("tpu-v4-pod", "gpt2", {"data": 8, "tensor": 2, "pipeline": 2}),
        # halos of one side, on cables that messages between stages need
        ("knl-opa-cluster", "resnet18", {"pipeline": 4, "spatial": "2x2", "schedule": "pipedream"}),
    ],
)
def test_folded_equals_unfolded(machine: str, model: str, fields: dict[str, Any]) -> None:
    plan = stacked(**{
        "precision": "fp32", "micro_batch": 1, "global_batch": 2 * fields.get("data", 1), **fields
    })  # fmt: skip
    few = {"layers": 4} if model == "gpt2" else None
    network, cluster = load_model(model, few), load_cluster(machine)
    folded, whole = (simulate(network, cluster, plan, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    for part, joules in whole.energy_j.items():
        assert folded.energy_j[part] == pytest.approx(joules, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)
    assert folded.memory_bytes == whole.memory_bytes
