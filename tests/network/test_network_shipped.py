"""The machines with NVSwitch: published figures, and the arithmetic of their energy tables."""

from __future__ import annotations

import math

import pytest

from ridgeline.catalog import names
from ridgeline.hardware import load_cluster, load_device, load_energy_table, load_node
from ridgeline.network import collective, from_cluster
from ridgeline.network.rings import ring_channels

ALPHA = math.log((3.7 + 0.9) / (1.31 + 0.38)) / math.log(45 / 7)  # as test_energy_tables.py
OPERANDS_PJ = (3 * 8 + 11) / 4 + 4 * 1.9


def between(node: float, one: float, at_one: float, other: float, at_other: float) -> float:
    exponent = math.log(at_one / at_other) / math.log(one / other)
    return at_other * math.pow(node / other, exponent)


@pytest.mark.parametrize(
    ("name", "node", "tensor_flop", "warps"),
    [("gpu-7nm", 7, 16 * 8 * 16 * 2, 1), ("gpu-5nm", 5, 64 * 256 * 16 * 2, 4)],
)
def test_arithmetic_of_the_energy_tables(
    name: str, node: float, tensor_flop: int, warps: int
) -> None:
    table = load_energy_table(name)
    operands = OPERANDS_PJ * (node / 40) ** ALPHA
    issue = 30 * (node / 45) ** ALPHA - operands
    bf16 = (1.1 * 0.21 / 0.34 + 0.4 * 0.11 / 0.16) / 2
    tensor = 32 * warps * issue / tensor_flop
    expected = {
        "flop.fp64": between(node, 40, 25, 10, 4.35) + issue / 2,
        "flop.fp32": between(node, 45, 2.3, 7, 0.845) + issue / 2,
        "flop.fp16": between(node, 45, 0.75, 7, 0.25) + issue / 4,
        "flop.bf16": between(node, 45, bf16, 7, 0.16) + issue / 4,
        "flop.int8": between(node, 45, 0.115, 7, 0.0385) + issue / 8,
        "flop.fp16.tensor": between(node, 45, 1.0, 7, 0.36) + tensor,
        "flop.bf16.tensor": between(node, 45, (1.1 * 0.21 / 0.34 + 0.9) / 2, 7, 0.295) + tensor,
    }
    for entry, pj in expected.items():
        assert table.price_j(entry, "J/FLOP") * 1e12 == pytest.approx(pj, rel=0.006), entry
    scale = (node / 7) ** ALPHA
    measured = 1.5 if name == "gpu-5nm" else 1.0  # by the power of kernels, decision 0149
    memory = {
        "registers": measured * operands / 128,
        "sram.l1": measured * 1.59 * scale,
        "sram.l2": measured * 4.71 * scale,
        "dram.hbm2": 3.97 + (13.11 - 3.97) * scale,
    }
    for entry, pj in memory.items():
        assert table.price_j(entry, "J/B") * 1e12 / 8 == pytest.approx(pj, rel=0.006), entry


@pytest.mark.parametrize(
    ("name", "engine", "format_", "units", "macs", "clock_hz"),
    [
        ("a100-sxm4-80gb", "tensor-cores", "bf16", 432, 256, 1410e6),
        ("a100-sxm4-40gb", "tensor-cores", "fp16", 432, 256, 1410e6),
        ("a100-sxm4-80gb", "cuda-cores", "fp32", 6912, 1, 1410e6),
        ("a100-sxm4-80gb", "cuda-cores", "fp64", 3456, 1, 1410e6),
        ("h100-sxm5-80gb", "tensor-cores", "bf16", 528, 512, 1830e6),
        ("h100-sxm5-80gb", "cuda-cores", "fp32", 16896, 1, 1980e6),
    ],
)
def test_peak_rates_are_units_times_clock(
    name: str, engine: str, format_: str, units: int, macs: int, clock_hz: float
) -> None:
    rate = load_device(name).engines[engine].rates[format_].value
    assert rate == pytest.approx(2 * units * macs * clock_hz, rel=0.005)


def test_the_two_a100s_differ_in_memory_alone() -> None:
    small, large = load_device("a100-sxm4-40gb"), load_device("a100-sxm4-80gb")
    assert small.engines == large.engines
    assert large.capacity_bytes == 2 * small.capacity_bytes
    assert {k: v for k, v in small.memory.items() if k != "hbm"} == {
        k: v for k, v in large.memory.items() if k != "hbm"
    }


@pytest.mark.parametrize(
    ("name", "devices", "links", "per_device_bytes_per_s", "nics"),
    [("dgx-a100", 8, 12, 300e9, 8), ("dgx-h100", 8, 18, 450e9, 8), ("dgx-2", 16, 6, 150e9, 8)],
)
def test_nvswitch_nodes(
    name: str, devices: int, links: int, per_device_bytes_per_s: float, nics: int
) -> None:
    node = load_node(name)
    assert (node.count, len(node.nics)) == (devices, nics)
    nvlinks = [link for link in node.links if link.type.startswith("nvlink")]
    assert [link.count for link in nvlinks] == [links] * devices
    peak = node.link_types[nvlinks[0].type].bandwidth.value
    assert links * peak == per_device_bytes_per_s


@pytest.mark.parametrize("name", ["selene-a100", "superpod-h100"])
def test_a_route_between_nodes_has_the_latency_of_nccl(name: str) -> None:
    cluster = load_cluster(name)
    link = next(iter(cluster.link_types.values()))
    pcie = next(t for k, t in cluster.nodes.link_types.items() if k.startswith("pcie"))
    assert 4 * pcie.latency.value + 2 * link.latency.value == pytest.approx(14e-6)


def test_all_adapters_of_two_nodes_are_used() -> None:
    topology = from_cluster(load_cluster("selene-a100"), 16)
    channels = ring_channels(topology, tuple(range(16)))
    assert len(channels.channels) == 2 * 8
    assert channels.bandwidth_bytes_per_s == pytest.approx(8 * 24e9)
    result = collective("all-reduce", 4e9, "selene-a100", ranks=16)
    assert result.busbw_bytes_per_s == pytest.approx(8 * 24e9, rel=0.05)  # measured: about 192 GB/s


def test_hierarchical_all_reduce_uses_every_rail() -> None:
    # an 8th of the payload along each rail, besides what happens inside the nodes
    time_s = collective("all-reduce", 8e9, "selene-a100", ranks=64, algorithm="hierarchical").time_s
    inside, across = 2 * 7 / 8 * 8e9 / 240e9, 2 * 7 / 8 * 1e9 / 24e9
    assert inside + across < time_s < 1.02 * (inside + across)


@pytest.mark.parametrize("name", names("clusters"))
def test_every_device_of_a_node_reaches_every_other(name: str) -> None:
    machine = load_cluster(name)
    ranks = min(8, machine.max_devices)
    assert ranks == 1 or collective("all-to-all", 1e6, machine, ranks=ranks).time_s > 0
