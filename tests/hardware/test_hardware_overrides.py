"""Overrides by dotted path: through cluster, node and device to the energy table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.hardware import Cluster, load_cluster, load_device, load_node

CLUSTER = "dgx1-v100-edr"
Read = Callable[[Cluster], object]


@pytest.mark.parametrize(
    ("path", "value", "read", "expected"),
    [
        ("max_nodes", 8, lambda c: c.max_nodes, 8),
        ("fabric.radix", 64, lambda c: c.fabric.radix, 64),
        (
            "link_types.edr.bandwidth",
            "25 GB/s",
            lambda c: c.link_types["edr"].bandwidth.value,
            25e9,
        ),
        ("node.count", 8, lambda c: c.nodes.count, 8),
        ("node.collective_latency", "1 us", lambda c: c.nodes.collective_latency.value, 1e-6),
        ("node.links.0.count", 3, lambda c: c.nodes.links[0].count, 3),
        ("node.device.idle_power", "1 W", lambda c: c.device.idle_power.value, 1.0),
        ("device.idle_power", "1 W", lambda c: c.device.idle_power.value, 1.0),
        (
            "device.memory.hbm.bandwidth",
            "2 TB/s",
            lambda c: c.device.memory["hbm"].bandwidth.value,
            2e12,
        ),
        (
            "device.engines.tensor-cores.rates.fp16",
            "250 TFLOP/s",
            lambda c: c.device.engines["tensor-cores"].rates["fp16"].value,
            250e12,
        ),
        ("device.achievable", [], lambda c: c.device.achievable, ()),
        (
            "device.energy_table.entries.dram.hbm2.value",
            "1 pJ/bit",
            lambda c: c.device.prices.price_j("dram.hbm2", "J/B"),
            8e-12,
        ),
        (
            "device.energy_table.entries.flop.fp16.tensor.value",
            "2 pJ/FLOP",
            lambda c: c.device.prices.price_j("flop.fp16.tensor", "J/FLOP"),
            2e-12,
        ),
        ("device.energy_table", "jouppi-7nm", lambda c: c.device.prices.name, "jouppi-7nm"),
        ("device", "v100-sxm2-32gb", lambda c: c.device.name, "v100-sxm2-32gb"),
        ("node.device", "p100-sxm2", lambda c: c.device.name, "p100-sxm2"),
        ("node", "dgx1-p100", lambda c: c.nodes.name, "dgx1-p100"),
    ],
)
def test_an_override_reaches_its_field(path: str, value: Any, read: Read, expected: object) -> None:
    assert read(load_cluster(CLUSTER)) != expected or path == "node.count"
    assert read(load_cluster(CLUSTER, {path: value})) == expected


@pytest.mark.parametrize("name", [CLUSTER, "dgx1-v100", "v100-sxm2-16gb"])
def test_device_and_energy_overrides_work_on_every_kind_of_machine(name: str) -> None:
    cluster = load_cluster(
        name,
        {
            "device.launch_latency": "9 us",
            "device.memory.l2.capacity": "40 MiB",
            "device.energy_table.entries.sram.l2.value": "3 pJ/B",
        },
    )
    assert cluster.device.launch_latency.value == 9e-6
    assert cluster.device.memory["l2"].capacity.value == 40 * 2**20
    assert cluster.device.prices.price_j("sram.l2", "J/B") == 3e-12


def test_several_overrides_go_together() -> None:
    cluster = load_cluster(
        CLUSTER,
        {"node": "dgx1-p100", "device": "v100-sxm2-32gb", "device.idle_power": "7 W"},
    )
    assert (cluster.nodes.name, cluster.device.name) == ("dgx1-p100", "v100-sxm2-32gb")
    assert cluster.device.idle_power.value == 7.0


def test_an_overridden_value_says_so() -> None:
    power = load_device("v100-sxm2-16gb", {"idle_power": "1 W"}).idle_power
    assert (power.source, power.basis) == ("override by the user", "assumed")
    kept = load_device("v100-sxm2-16gb", {"idle_power.value": "1 W"}).idle_power
    assert (kept.source, kept.basis) == ("override by the user", "assumed")


def test_the_shipped_description_is_not_changed() -> None:
    before = load_cluster(CLUSTER).model_dump_json()
    load_cluster(CLUSTER, {"max_nodes": 8, "fabric.radix": 64})
    assert load_cluster(CLUSTER).model_dump_json() == before


def test_energy_of_links_belongs_to_the_node() -> None:
    node = load_node("dgx1-v100", {"energy_table": "gpu-16nm"})
    assert node.prices is not None
    assert (node.prices.name, node.devices.prices.name) == ("gpu-16nm", "gpu-12nm")


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        (CLUSTER, "device.memory.hmb.bandwidth", "1 GB/s", "did you mean 'hbm'"),
        (CLUSTER, "device.memory.hbm.bandwith", "1 GB/s", "did you mean 'bandwidth'"),
        (CLUSTER, "device.memory.hbm.bandwidth", "1 GB", "write '1 GB/s'"),
        (CLUSTER, "device.memory.hbm.bandwidth", 900, "write '900 GB/s'"),
        (CLUSTER, "device.memory.hbm.bandwidth", "0 GB/s", "more than 0"),
        (CLUSTER, "device.memory.hbm.achievable", 1.2, "at most 1"),
        (CLUSTER, "device.memory.hbm.instances", 0, "at least 1"),
        (CLUSTER, "device.memory.hbm.energy", "dram.hbm3", "did you mean 'dram.hbm2'"),
        (CLUSTER, "device.energy_table", "gpu-12mn", "did you mean 'gpu-12nm'"),
        (CLUSTER, "node.device", "v100-sxm2-16g", "did you mean 'v100-sxm2-16gb"),
        (CLUSTER, "max_nodes", "8", "valid integer"),
        (CLUSTER, "max_nodse", 8, "did you mean 'max_nodes'"),
        (CLUSTER, "fabric.radix", 35, "multiple of 2"),
        (CLUSTER, "fabric.link", "erd", "did you mean 'edr'"),
        (CLUSTER, "node.links.0.between.1", "device9", "does not exist"),
        (CLUSTER, "node.links.0.type", "nvlink3", "did you mean 'nvlink2'"),
        (CLUSTER, "node.links.99.count", 1, "unknown field|no field|nothing"),
        (CLUSTER, "device.energy_table.entries.dram.hbm9.value", "1 pJ/B", "no field"),
        (CLUSTER, "device.energy_table.entries.dram.hbm2.value", "1 pJ/FLOP", "another dimension"),
        (CLUSTER, "device.energy_table.entries.dram.hbm2.value", "-1 pJ/B", "at least 0"),
        ("dgx1-v100", "max_nodes", 2, "single node has no such field"),
        ("dgx1-v100", "nod.count", 2, "did you mean 'node'"),
        ("v100-sxm2-16gb", "node.count", 2, "single device has no such field"),
        ("v100-sxm2-16gb", "device", "p100-sxm2", "single device has no such field"),
        ("v100-sxm2-16gb", "idle_power", "1 W", "single device has no such field"),
    ],
)
def test_a_wrong_override_is_refused(name: str, path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_cluster(name, {path: value})
    assert caught.value.field is not None


@settings(max_examples=30, deadline=None)
@given(
    bandwidth=st.floats(1e6, 1e15),
    share=st.floats(0.01, 1.0),
    latency=st.just(0.0) | st.floats(1e-40, 1.0),
)
def test_any_positive_value_is_taken_as_it_is(
    bandwidth: float, share: float, latency: float
) -> None:
    device = load_device(
        "p100-sxm2",
        {
            "memory.hbm.bandwidth": f"{bandwidth!r} B/s",
            "memory.hbm.achievable": share,
            "launch_latency": f"{latency!r} s",
        },
    )
    hbm = device.memory["hbm"]
    assert hbm.bandwidth is not None
    assert (hbm.bandwidth.value, hbm.achievable.value) == (bandwidth, share)
    assert device.launch_latency.value == latency
