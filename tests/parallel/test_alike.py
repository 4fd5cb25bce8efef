"""Machines whose devices are wired unlike: one rank for all, or every rank, gives the same step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.hardware import load_cluster
from ridgeline.network.topology import from_cluster
from ridgeline.parallel.plans.mesh import Mesh
from ridgeline.parallel.sending.alike import are_alike
from ridgeline.parallel.sending.wires import Wires
from ridgeline.simulation import simulate
from ridgeline.workload.model import load_model
from stacked import stacked


def wires_of(machine: str, devices: int) -> Wires:
    return Wires(ProgramBuilder(), from_cluster(load_cluster(machine), devices), 0, merge=True)


def alike(machine: str, **degrees: Any) -> bool:
    plan = stacked(**{"global_batch": degrees.get("data", 1), **degrees})
    return are_alike(wires_of(machine, plan.devices), Mesh.of(plan))


def test_cube_meshes_roots_and_dragonflies_are_told_from_switches() -> None:
    assert not alike("dgx1-v100", data=2, tensor=2)  # pairs of one link, and of two
    assert not alike("cori-haswell-aries", tensor=4, pipeline=4)  # messages meet between groups
    assert alike("dgx1-v100", data=8)
    assert alike("dgx-a100", data=2, tensor=4)
    assert alike("v100-4gpu", data=2, tensor=2)
    assert alike("selene-a100", data=2, tensor=8)


def test_groups_of_other_sizes_are_priced_apart() -> None:
    """Four ranks in pairs, and together, have the same numbers in the same order."""
    wires = wires_of("v100-4gpu", 4)
    pairs, four = np.arange(4).reshape(2, 2), np.arange(4).reshape(1, 4)
    alone = {
        size: wires_of("v100-4gpu", 4).together_s("all-reduce", groups, 4e6)
        for size, groups in ((2, pairs), (4, four))
    }
    for size, groups in ((4, four), (2, pairs), (4, four)):
        wires.collective("all-reduce", groups, 0, 4e6, "tensor")
        assert wires.together_s("all-reduce", groups, 4e6) == alone[size]
    rows = {wires.collective("all-reduce", groups, 0, 4e6, "data")[0] for groups in (pairs, four)}
    assert len(rows) == 2


def test_a_size_that_only_a_later_stage_has_meets_what_is_beside_it() -> None:
    """Two groups a node share its PCIe: on nodes 5 to 9, and after others on nodes 0 to 4."""
    first, later = (start + np.arange(40).reshape(20, 2).T for start in (0, 40))
    wires, alone = wires_of("selene-a100", 80), wires_of("selene-a100", 80)
    wires.collective("all-gather", first, 0, 4e8, "data")
    for size in (4e8, 1e8):
        together_s = alone.together_s("all-gather", later, size)
        assert wires.together_s("all-gather", later, size) == together_s
        assert sum(together_s) > 1.5 * alone.time_s("all-gather", later[0], size)


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
        # halos of one side, on cables that messages between stages need
        ("knl-opa-cluster", "resnet18", {"pipeline": 4, "spatial": "2x2", "schedule": "pipedream"}),
    ],
)
def test_folded_equals_unfolded(machine: str, model: str, fields: dict[str, Any]) -> None:
    plan = stacked(**{
        "precision": "fp32", "micro_batch": 1, "global_batch": 2 * fields.get("data", 1), **fields
    })  # fmt: skip
    network, cluster = load_model(model), load_cluster(machine)
    folded, whole = (simulate(network, cluster, plan, fold=fold) for fold in (True, False))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    for part, joules in whole.energy_j.items():
        assert folded.energy_j[part] == pytest.approx(joules, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-9)
    assert folded.memory_bytes == whole.memory_bytes
