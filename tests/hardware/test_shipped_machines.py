"""Every shipped description loads, says where its figures come from, and is what was published."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.hardware import (
    Device,
    Node,
    load_cluster,
    load_device,
    load_energy_table,
    load_node,
)
from ridgeline.hardware.sourced import DEFAULT, NOT_STATED, Described, sourced_values

DEVICES = catalog.names("devices")
NODES = catalog.names("nodes")
# Cores of published studies, with the one number format that the study is about.
MATRIX_MACHINES = {
    *("caterpillar-a", "caterpillar-b", "cell-be-sp", "core-i7-960-dp", "core-i7-960-sp"),
    *("csx700-dp", "gtx480-dp", "gtx480-sp", "lap-dp", "lap-sp", "stratix-iv-dp"),
    *("eyeriss", "gemmini-rocket", "tpu-v1"),
}
# Boards of their time that do fp16 at a crawl, and a processor before AVX-512 had bf16.
FP32_MACHINES = {"gtx-1080ti", "titan-xp", "xeon-platinum-8160", "xeon-platinum-8124m-2s"}
CLUSTERS = catalog.names("clusters")
TABLES = catalog.names("energy")

# nvidia-smi topo -m of a DGX-1 with V100s, as printed in microsoft/msccl, tests/test_topologies.py
TOPO_V100 = """
GPU0  X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  PIX  SYS  PHB  SYS
GPU1  NV1  X    NV2  NV1  SYS  NV2  SYS  SYS  PIX  SYS  PHB  SYS
GPU2  NV1  NV2  X    NV2  SYS  SYS  NV1  SYS  PHB  SYS  PIX  SYS
GPU3  NV2  NV1  NV2  X    SYS  SYS  SYS  NV1  PHB  SYS  PIX  SYS
GPU4  NV2  SYS  SYS  SYS  X    NV1  NV1  NV2  SYS  PIX  SYS  PHB
GPU5  SYS  NV2  SYS  SYS  NV1  X    NV2  NV1  SYS  PIX  SYS  PHB
GPU6  SYS  SYS  NV1  SYS  NV1  NV2  X    NV2  SYS  PHB  SYS  PIX
GPU7  SYS  SYS  SYS  NV1  NV2  NV1  NV2  X    SYS  PHB  SYS  PIX
"""
NICS_OF_TOPO = ["nic0", "nic2", "nic1", "nic3"]  # its columns are mlx5_0, mlx5_2, mlx5_1, mlx5_3


def load_any(kind: str, name: str) -> Described:
    loaders: dict[str, Any] = {
        "devices": load_device,
        "nodes": load_node,
        "clusters": load_cluster,
        "energy": load_energy_table,
    }
    machine = loaders[kind](name)
    assert isinstance(machine, Described)
    return machine


SHIPPED = [
    (kind, name)
    for kind in ("devices", "nodes", "clusters", "energy")
    for name in catalog.names(kind)
]


def test_the_catalogue_holds_what_the_project_promises() -> None:
    assert {"v100-sxm2-16gb", "v100-sxm2-32gb", "p100-sxm2", "tpu-v2"} <= set(DEVICES)
    assert {"dgx1-p100", "dgx1-v100"} <= set(NODES)
    assert "dgx1-v100-edr" in CLUSTERS
    assert {"horowitz-45nm", "jouppi-7nm", "asic-16nm", "gpu-16nm", "gpu-12nm"} <= set(TABLES)


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_a_shipped_file_loads_and_is_called_what_it_says(kind: str, name: str) -> None:
    machine = load_any(kind, name)
    assert machine.name == name
    assert machine.description
    assert name in repr(machine) or kind == "energy"


@pytest.mark.parametrize("name", [*DEVICES, *NODES])
def test_a_device_or_a_node_is_also_the_cluster_of_itself(name: str) -> None:
    cluster = load_cluster(name)
    assert (cluster.name, cluster.max_nodes) == (name, 1)
    assert cluster.max_devices == cluster.nodes.count


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_figure_has_a_source_and_a_basis(kind: str, name: str) -> None:
    for path, quantity in sourced_values(load_any(kind, name)):
        assert quantity.source != NOT_STATED, path
        assert quantity.basis != NOT_STATED, path
        if quantity.basis in {"derived", "extrapolated", "assumed"} and quantity.source != DEFAULT:
            assert quantity.note or kind == "energy", f"{path}: say how"


def sources_in(data: Any) -> list[str]:
    """All values of fields called `source`, wherever they stand."""
    if isinstance(data, dict):
        own = [data["source"]] if isinstance(data.get("source"), str) else []
        return own + [
            s for key, value in data.items() if key != "source" for s in sources_in(value)
        ]
    if isinstance(data, list):
        return [s for value in data for s in sources_in(value)]
    return []


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_sources_are_listed_and_used(kind: str, name: str) -> None:
    data = read_yaml(catalog.find(kind, name)).data
    listed = set(data.get("sources", {}))
    inherited = set(load_any(kind, data["base"]).sources) if "base" in data else set()
    used: set[str] = set()
    for source in sources_in({k: v for k, v in data.items() if k != "sources"}):
        keys = set(source.split(", "))
        if keys & (listed | inherited):
            assert keys <= listed | inherited, source
            used |= keys
        else:
            assert " " in source, f"{source!r} is neither a key of sources nor a citation"
    notes = Path(catalog.find(kind, name)).read_text(encoding="utf-8")
    for key in listed - used:
        assert f"source: {key})" in notes, f"{key} is listed but not used"


@pytest.mark.parametrize("name", [name for name in TABLES if name != "not-stated"])
def test_every_energy_has_a_source_and_a_basis(name: str) -> None:
    for entry, energy in load_energy_table(name).entries.items():
        assert energy.source != NOT_STATED, entry
        assert energy.basis != NOT_STATED, entry


def fastest(device: Device, work: str, format_: str) -> str | None:
    """Name of the engine with the highest rate, or None."""
    able = {
        name: engine.rates[format_].value
        for name, engine in device.engines.items()
        if work in engine.runs and format_ in engine.rates
    }
    return max(able, key=lambda name: able[name]) if able else None


@pytest.mark.parametrize("name", sorted(set(DEVICES) - MATRIX_MACHINES))
def test_every_device_computes_in_fp32_and_has_a_fast_matrix_format(name: str) -> None:
    device = load_device(name)
    assert fastest(device, "vector", "fp32")
    assert fastest(device, "matrix", "fp32")
    if device.year >= 2017 and name not in FP32_MACHINES:
        assert fastest(device, "matrix", "fp16") or fastest(device, "matrix", "bf16")
    assert device.idle_power.value < device.tdp.value if device.tdp else False


@cache
def device(name: str) -> Device:
    return load_device(name)


def ridge(name: str, format_: str) -> float:
    machine = device(name)
    engine = fastest(machine, "matrix", format_)
    assert engine is not None
    bandwidth = machine.memory[machine.far_memory].bandwidth
    assert bandwidth is not None
    return machine.engines[engine].rates[format_].value / bandwidth.value


def test_ridge_points_are_the_published_ones() -> None:
    assert ridge("v100-sxm2-16gb", "fp16") == pytest.approx(139, rel=0.03)
    assert ridge("tpu-v2", "bf16") == pytest.approx(75, rel=0.03)
    assert ridge("tpu-v1", "int8") == pytest.approx(2700, rel=0.03)


@pytest.mark.parametrize(
    ("name", "engine", "format_", "units", "macs_per_clock", "clock_hz"),
    [
        ("v100-sxm2-16gb", "tensor-cores", "fp16", 640, 64, 1530e6),
        ("v100-sxm2-16gb", "cuda-cores", "fp32", 5120, 1, 1530e6),
        ("v100-sxm2-16gb", "cuda-cores", "fp16", 5120, 2, 1530e6),
        ("v100-sxm2-16gb", "cuda-cores", "fp64", 2560, 1, 1530e6),
        ("p100-sxm2", "cuda-cores", "fp32", 3584, 1, 1480e6),
        ("p100-sxm2", "cuda-cores", "fp16", 3584, 2, 1480e6),
        ("p100-sxm2", "cuda-cores", "fp64", 1792, 1, 1480e6),
        ("tpu-v2", "mxu", "bf16", 2, 128 * 128, 700e6),
        ("tpu-v2", "vpu", "fp32", 2 * 128 * 8 * 2, 0.5, 700e6),
    ],
)
def test_peak_rates_are_units_times_clock(
    name: str, engine: str, format_: str, units: int, macs_per_clock: float, clock_hz: float
) -> None:
    rate = device(name).engines[engine].rates[format_].value
    assert rate == pytest.approx(2 * units * macs_per_clock * clock_hz, rel=0.005)


@pytest.mark.parametrize(
    ("name", "per_instance"),
    [
        ("v100-sxm2-16gb", {"registers": 256 * 2**10, "l1": 128 * 2**10, "l2": 6 * 2**20}),
        ("p100-sxm2", {"registers": 256 * 2**10, "l1": 88 * 2**10, "l2": 4 * 2**20}),
        ("tpu-v2", {"registers": 128 * 2**10, "vmem": 16 * 2**20}),
    ],
)
def test_levels_are_made_of_equal_parts(name: str, per_instance: dict[str, int]) -> None:
    for level, size in per_instance.items():
        memory = device(name).memory[level]
        assert memory.capacity.value == size * memory.instances.value


def flat(data: Any, path: str = "") -> dict[str, Any]:
    if isinstance(data, dict):
        return {
            k: v for key, value in data.items() for k, v in flat(value, f"{path}.{key}").items()
        }
    if isinstance(data, list):
        return {k: v for i, value in enumerate(data) for k, v in flat(value, f"{path}.{i}").items()}
    return {path: data}


def test_the_two_v100s_differ_only_in_what_differs() -> None:
    small, large = (
        flat(read_yaml(catalog.find("devices", f"v100-sxm2-{size}gb")).data) for size in (16, 32)
    )
    assert small.keys() == large.keys()
    assert {path for path in small if small[path] != large[path]} == {
        ".name",
        ".description",
        ".year",
        ".memory.hbm.capacity.value",
    }
    assert device("v100-sxm2-32gb").capacity_bytes == 2 * device("v100-sxm2-16gb").capacity_bytes


def test_the_two_dgx1s_have_the_same_board() -> None:
    nodes = [load_node("dgx1-p100"), load_node("dgx1-v100")]
    pairs = [{link.between for link in node.links} for node in nodes]
    assert pairs[0] == pairs[1]
    assert nodes[0].components == nodes[1].components


def nvlinks(node: Node) -> Counter[frozenset[str]]:
    links: Counter[frozenset[str]] = Counter()
    for link in node.links:
        if link.type.startswith("nvlink"):
            links[frozenset(link.between)] += link.count
    return links


@pytest.mark.parametrize(("name", "degree"), [("dgx1-p100", 4), ("dgx1-v100", 6)])
def test_every_gpu_uses_all_its_nvlinks(name: str, degree: int) -> None:
    links = nvlinks(load_node(name))
    assert len(links) == 16
    degrees = Counter(end for pair, count in links.items() for end in pair for _ in range(count))
    assert degrees == {f"device{i}": degree for i in range(8)}


@pytest.mark.parametrize("name", ["dgx1-p100", "dgx1-v100"])
def test_nvlinks_form_the_hybrid_cube_mesh(name: str) -> None:
    # twelve edges of a cube and the diagonals of two faces: two full quads and four links across
    quads = [combinations(range(4), 2), combinations(range(4, 8), 2)]
    edges = {frozenset(pair) for quad in quads for pair in quad}
    edges |= {frozenset((i, i + 4)) for i in range(4)}
    found = {frozenset(int(end[-1]) for end in pair) for pair in nvlinks(load_node(name))}
    assert found == edges


def test_the_v100s_are_linked_as_nvidia_smi_says() -> None:
    links = nvlinks(load_node("dgx1-v100"))
    rows = [line.split()[1:] for line in TOPO_V100.split("\n") if line]
    for i, row in enumerate(rows):
        for j, entry in enumerate(row[:8]):
            count = int(entry[2:]) if entry.startswith("NV") else 0
            assert links[frozenset((f"device{i}", f"device{j}"))] == count
            assert entry == rows[j][i]


def neighbours(node: Node, vertex: str, kind: str) -> set[str]:
    return {
        end
        for link in node.links
        if vertex in link.between
        for end in link.between
        if end != vertex and end.startswith(kind)
    }


@pytest.mark.parametrize("name", ["dgx1-p100", "dgx1-v100"])
def test_two_gpus_and_an_adapter_share_a_switch_and_two_switches_a_cpu(name: str) -> None:
    node = load_node(name)
    rows = [line.split()[1:] for line in TOPO_V100.split("\n") if line]
    for i, row in enumerate(rows):
        (switch,) = neighbours(node, f"device{i}", "plx")
        near = neighbours(node, switch, "nic")
        (cpu,) = neighbours(node, switch, "cpu")
        behind = {
            nic for plx in neighbours(node, cpu, "plx") for nic in neighbours(node, plx, "nic")
        }
        for nic, entry in zip(NICS_OF_TOPO, row[8:], strict=True):
            assert entry == ("PIX" if nic in near else "PHB" if nic in behind else "SYS")
    assert neighbours(node, "cpu0", "cpu") == {"cpu1"}


def test_latencies_along_a_route_are_those_of_nccl() -> None:
    cluster = load_cluster("dgx1-v100-edr")
    pcie = cluster.nodes.link_types["pcie3-x16"].latency.value
    edr = cluster.link_types["edr"].latency.value
    assert 2 * pcie == pytest.approx(5.7e-6)
    assert 4 * pcie + 2 * edr == pytest.approx(14e-6)


def test_a_two_level_fat_tree_holds_the_adapters_of_the_largest_cluster() -> None:
    cluster = load_cluster("dgx1-v100-edr")
    assert cluster.fabric is not None
    hosts = cluster.fabric.radix**2 // 2
    assert cluster.max_nodes * len(cluster.nodes.nics) <= hosts
    assert cluster.max_devices == 992


# CDNA 2: 383 TFLOP/s and 383 TOP/s; Gaudi 3: 1835 TFLOP/s in bf16 and fp8 (data sheets)
_NO_FASTER = {("mi250x-gcd", "int8"), ("mi250", "int8"), ("gaudi3", "fp8")}
# Trainium3 and Rubin: 671 and about 4,000 TFLOP/s in bf16, 2,517 and 16,670 in 8 bits
_FASTER = {("trainium3", "fp8"): 2517 / 671, ("vr200", "fp8"): 16670 / 4000}
# CDNA: 184.6 TFLOP/s in fp16, half of it in bf16 (data sheet)
_HALF_IN_BF16 = {"mi100"}


@pytest.mark.parametrize("name", DEVICES)
def test_matrix_units_do_twice_as_much_in_half_the_bits(name: str) -> None:
    """So do all that state several formats; a device must not inherit the rates of its base."""
    for engine in load_device(name).engines.values():
        rates = {format_: rate.value for format_, rate in engine.rates.items()}
        if engine.kind not in {"tensor-core", "systolic"} or not {"fp16", "bf16"} & set(rates):
            continue
        wide = rates.get("bf16", rates.get("fp16"))
        assert wide is not None
        for format_, times in {"fp16": 1.0, "tf32": 0.5, "fp8": 2.0, "int8": 2.0}.items():
            own = _FASTER.get((name, format_), times)
            expected = wide * (1.0 if (name, format_) in _NO_FASTER else own)
            if name in _HALF_IN_BF16 and format_ == "fp16":
                expected *= 2
            assert rates.get(format_, expected) == pytest.approx(expected, rel=0.03)
