"""What NCCL chooses, and how far its model is from measurements; ASTRA-sim's numbers."""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster, load_node
from ridgeline.network import collective, from_cluster, nccl
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.algorithms.pipelines import double_tree_sent
from ridgeline.network.astrasim import (
    AstraSimSystem,
    Dimension,
    collective_time_ns,
    network_time_ns,
    ring_time_ns,
)
from ridgeline.network.astrasim_files import read_network, read_system
from ridgeline.network.library import ProtocolFigures
from ridgeline.network.schedule import closed_form_time_s
from ridgeline.network.topology import Topology

DATA = Path(__file__).parents[1] / "data"
NODES = Path(__file__).parents[2] / "hwconfigs" / "nodes"


def rows(name: str) -> list[dict[str, str]]:
    lines = [line for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def as_counted(machine: str, n: int, fields: dict[str, str] | None = None) -> Topology:
    """Draw a machine whose links state no figures of protocols, so that NCCL's own count."""
    topology = from_cluster(load_cluster(machine, fields or {}), n)
    plain = ProtocolFigures(None, None, 0.0, None, math.inf, 1.0, 2.0**20)
    library = {
        name: of._replace(protocols=(plain,) * 3, pairs=None)
        for name, of in topology.library.items()
    }
    return replace(topology, library=library)


def errors(machine: str, name: str, ranks: set[int], least_bytes: float) -> list[float]:
    return [
        collective("all-reduce", float(r["size_bytes"]), machine, ranks=int(r["n_ranks"])).time_s
        / (float(r["time_ns"]) * 1e-9)
        - 1
        for r in rows(name)
        if int(r["n_ranks"]) in ranks and float(r["size_bytes"]) >= least_bytes
    ]


@pytest.mark.parametrize(
    ("ranks", "median"), [({8}, 0.03), ({4}, 0.02), ({4, 8}, 0.03), ({2}, 0.055)]
)
def test_a100_is_as_far_off_as_is_documented(ranks: set[int], median: float) -> None:
    # Constants are shared with two other sources of A100s; docs/network.md has the table.
    found = errors("dgx-a100", "nccl_all_reduce_a100.csv", ranks, 8e6)
    assert statistics.median(map(abs, found)) < median


def test_v100_is_within_two_percent_at_large_sizes() -> None:
    found = errors("dgx1-v100", "nccl_all_reduce_v100.csv", {8}, 16 * 2**20)
    assert statistics.median(map(abs, found)) < 0.03


def test_protocols_follow_each_other_as_sizes_grow() -> None:
    names = [
        collective("all-reduce", float(size), "dgx-a100").algorithm for size in (1e3, 1e6, 4e6, 1e9)
    ]
    assert names == ["ring-ll", "ring-ll", "ring-ll128", "ring-simple"]
    assert collective("all-reduce", 1e9, "dgx-h100").algorithm == "nvls"
    many = collective("all-reduce", 1e4, "selene-a100", ranks=512)
    assert many.algorithm.startswith("tree")


def test_simple_ring_of_one_node_is_the_formula_of_nccl() -> None:
    # start + 14 * 3.4 us + 2 * 7/8 S / (12 * 20 GB/s); 600 GB/s both ways are 12 links of 25
    topology = as_counted("dgx-a100", 8)
    result = collective("all-reduce", 1e9, topology, algorithm="ring")
    assert result.time_s == pytest.approx(31e-6 + 14 * 3.4e-6 + 1.75 * 1e9 / 240e9)
    # chosen automatically, a slice fills the pipeline and what comes last is copied in memory
    chosen = collective("all-reduce", 1e9, topology)
    assert chosen.algorithm == "ring-simple"
    memory = 0.863 * 2039e9  # measured, see the device file
    more_s = 24 * 2**20 / 240e9 + 2 * 1e9 / 8 / memory
    assert chosen.time_s == pytest.approx(result.time_s + more_s)
    small = collective("all-reduce", 32e6, topology, algorithm="ring-simple")
    plain = collective("all-reduce", 32e6, topology, algorithm="ring")
    assert small.time_s == pytest.approx(plain.time_s + 2e6 / 240e9 + 2 * 4e6 / memory)


def test_nvls_is_a_pipeline_of_chunks() -> None:
    # 25 us + (chunks + 2)/chunks S / (18 * 20.6 GB/s * 0.825 * 7/8); 16 channels and 8 heads
    rate = 370.8e9 * 0.825 * 7 / 8
    for size, chunk in ((4e6, 16384), (16e6, 32768), (3e7, 65536), (2e9, 131072)):
        result = collective("all-reduce", size, "dgx-h100", algorithm="nvls")
        assert result.time_s == pytest.approx(25e-6 + (size + 2 * 128 * chunk) / rate)
    # one chunk is read, added up and sent, one after the other
    result = collective("all-reduce", 1e6, "dgx-h100", algorithm="nvls")
    assert result.time_s == pytest.approx(25e-6 + 3e6 / rate)
    assert collective("all-reduce", 0.0, "dgx-h100", algorithm="nvls").time_s == 25e-6


def test_tree_of_nodes_is_held_back_by_its_inner_nodes() -> None:
    assert [double_tree_sent(n) for n in (2, 3, 4, 8, 64)] == [1.0, 1.5, 2.0, 2.0, 2.0]
    two, eight = (
        collective("all-reduce", 2.0**33, "superpod-h100", ranks=n, algorithm="nvls-tree")
        for n in (16, 64)
    )
    # 57.7 GB/s of bus bandwidth for each of 8 channels, and 45.5 on more than two nodes
    assert two.busbw_bytes_per_s == pytest.approx(8 * 57.7e9, rel=0.01)
    assert 0.95 * 8 * 45.5e9 < (eight.busbw_bytes_per_s or 0) < 8 * 45.5e9


def test_ll_and_tree_are_the_formulas_of_nccl() -> None:
    topology = as_counted("dgx-a100", 8, {"node.collective_latency": "8.4 us"})
    found = {s.algorithm: s for s in nccl.candidates("all-reduce", topology, range(8), 1e6)}
    times = {name: closed_form_time_s(s, topology) for name, s in found.items()}
    copy_s = 2 * 1e6 / 8 / topology.memory_bytes_per_s
    assert times["ring-ll"] == pytest.approx(6.6e-6 + 14 * 0.6e-6 + 1.75 * 1e6 / 87.7e9 + copy_s)
    assert times["ring-ll128"] == pytest.approx(
        14e-6 + 14 * 1.9e-6 + 1.75 * 1e6 / (0.92 * 240e9) + copy_s
    )
    tree = 0.92 * 240e9 * 7 / 9 * 0.6  # 1 MB: the 14th entry of the correction
    assert times["tree-ll128"] == pytest.approx(14e-6 + 14 * 1.25e-6 + 2 * 1e6 / tree)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_broadcast_goes_round_an_open_ring(op: str) -> None:
    topology = as_counted("dgx-a100", 8)
    (simple,) = (
        s for s in nccl.candidates(op, topology, range(8), 1e9) if s.algorithm == "ring-simple"
    )
    assert closed_form_time_s(simple, topology) == pytest.approx(31e-6 + 7 * 3.4e-6 + 1e9 / 240e9)
    into = dict.fromkeys(range(8), 0.0)
    for link, size in simple.bytes_on_wire().items():
        if topology.target[link] < 8:
            into[int(topology.target[link])] += size
    received = [size for size in into.values() if size]
    assert received == pytest.approx([1e9] * 7)  # all but the root of a broadcast
    assert (into[0] == 0.0) == (op == "broadcast")


def test_simple_takes_over_from_ll128_where_the_measured_version_did() -> None:
    # NCCL 2.8: 10.0 + 14 * 1.9 us + S / 202.8 GB/s against 8.4 + 14 * 3.4 us + S / 235 GB/s
    names = {
        (n, mib): collective("all-reduce", mib * 2.0**20, "dgx-a100", ranks=n).algorithm
        for n, mib in ((8, 8), (8, 16), (4, 2), (4, 8))
    }
    assert names == {
        (8, 8): "ring-ll128", (8, 16): "ring-simple", (4, 2): "ring-ll128", (4, 8): "ring-simple",
    }  # fmt: skip


def test_choice_and_time_are_two_things() -> None:
    # NCCL counts on 92 % of the links with LL128, of which NVLink 2 gives less
    topology = from_cluster(load_cluster("dgx1-v100"), 8)
    chosen = nccl.choice("all-reduce", topology, range(8), 2.0**23)
    assert chosen is not None
    assert chosen.algorithm == "ring-ll128"
    times = {
        s.algorithm: closed_form_time_s(s, topology)
        for s in nccl.candidates("all-reduce", topology, range(8), 2.0**23)
    }
    assert times["ring-simple"] < times["ring-ll128"]
    assert nccl.choice("all-to-all", topology, range(8), 1e6) is None


def test_zero_latency_and_no_nvlink_leave_the_plain_ring() -> None:
    overrides = {
        "node.link_types.nvlink3.latency": "0 s",
        "node.collective_latency": "0 s",
    }
    result = collective("all-reduce", 1e8, load_cluster("dgx-a100", overrides), algorithm="ring")
    assert result.busbw_bytes_per_s == pytest.approx(240e9)
    assert nccl.candidates("all-reduce", from_cluster(load_cluster("tpu-v2"), 1), [0], 1e6) == []


def test_two_nodes_of_h100_reach_what_nccl_tests_print() -> None:
    # nccl-tests, two nodes of eight H100 on 8 x 400 Gb/s (oracle-quickstart/oci-hpc,
    # documentation/Troubleshooting.md): bus bandwidth 449.5 GB/s at 1 GiB, 471.2 at 16 GiB
    for size, measured in ((2**30, 449.51e9), (2**34, 471.22e9)):
        result = collective("all-reduce", float(size), "superpod-h100", ranks=16)
        assert result.algorithm == "nvls-tree"
        assert result.busbw_bytes_per_s == pytest.approx(measured, rel=0.08)
    # a ring is held back by the NICs, or by the links of the devices that pass data on to them
    ring = collective("all-reduce", 2.0**34, "superpod-h100", ranks=16, algorithm="ring")
    assert 0.85 * 384e9 < (ring.busbw_bytes_per_s or 0) < 384e9


def test_sixteen_gpus_of_a_dgx2() -> None:
    result = collective("all-reduce", 1e9, "dgx-2", algorithm="ring")
    assert result.n_ranks == 16
    assert result.busbw_bytes_per_s == pytest.approx(120e9, rel=0.01)  # 6 links of 20 GB/s


def test_astrasim_rings_to_the_nanosecond() -> None:
    found = rows("astrasim_rings.csv")
    assert len(found) == 38
    for r in found:
        time_ns = ring_time_ns(
            r["collective"].replace("_", "-"), int(r["size_bytes"]), int(r["npus"]),
            bandwidth_gib_per_s=float(r["bandwidth_GiBps"]), latency_ns=float(r["latency_ns"]),
            splits=int(r["splits"]), endpoint_delay_ns=int(r["endpoint_delay_ns"]),
            local_memory_gb_per_s=float(r["local_mem_bw"]),
        )  # fmt: skip
        assert time_ns == int(r["cycles_ns"]), r


def test_compatibility_mode_of_a_collective() -> None:
    text = "Ring(8, 50 GiB/s, 500 ns)"
    result = collective("all-reduce", 2**20, text, compat="astrasim")
    assert result.time_s == pytest.approx(117_780e-9)  # ASTRA-sim's own regression test
    own = collective("all-reduce", 2**20, text, algorithm="ring")
    bound = 2 * 7 / 8 * 2**20 / (50 * 2**30)
    assert bound < own.time_s < result.time_s
    gathered = collective("all-gather", 8 * 2**20, text, compat="astrasim")
    assert gathered.time_s == pytest.approx(
        1e-9 * ring_time_ns("all-gather", 2**20, 8, bandwidth_gib_per_s=50, latency_ns=500)
    )
    torus = collective("all-reduce", 2**20, "Torus(4x4, 50 GiB/s, 500 ns)", compat="astrasim")
    dimensions = [Dimension("Ring", 4, 50, 500)] * 2
    assert torus.time_s == pytest.approx(
        1e-9 * network_time_ns("all-reduce", ["ring"] * 2, 2**20, dimensions)
    )
    assert torus.algorithm == "hierarchical"
    for where in ("Mesh(4x4, 50 GiB/s, 500 ns)", "dgx-a100", "FatTree(4, 1 GB/s, 1 us)"):
        with pytest.raises(RidgelineError, match="is for products of Ring"):
            collective("all-reduce", 2**20, where, compat="astrasim")
    with pytest.raises(RidgelineError, match="compatibility mode is 'astrasim' or"):
        collective("all-reduce", 2**20, text, compat="astra")  # type: ignore[arg-type]
    with pytest.raises(RidgelineError, match="needs its compatibility mode"):
        collective("all-reduce", 2**20, text, system=AstraSimSystem())
    halves = AstraSimSystem({"all-reduce": ("direct", "halving-doubling")}, splits=1)
    with pytest.raises(RidgelineError, match="2 algorithms for all-reduce, the network 1"):
        collective("all-reduce", 2**20, text, compat="astrasim", system=halves)
    with pytest.raises(RidgelineError, match="has no 'all-to-al'"):
        ring_time_ns("all-to-al", 1, 2, bandwidth_gib_per_s=1, latency_ns=0)


_OWN_NAMES = {"halvingDoubling": "halving-doubling"}


@pytest.mark.parametrize("row", rows("astrasim_dimensions.csv"))
def test_astrasim_in_several_dimensions_to_the_nanosecond(row: dict[str, str]) -> None:
    parts = zip(
        row["topology"].split("x"), map(int, row["npus"].split("x")),
        map(float, row["bandwidth_GiBps"].split("/")), map(float, row["latency_ns"].split("/")),
        strict=True,
    )  # fmt: skip
    system = AstraSimSystem(
        {}, int(row["endpoint_delay_ns"]), int(row["splits"]), int(row["active_chunks"]),
        float(row["local_mem_bw"]),
    )  # fmt: skip
    time_ns = network_time_ns(
        row["collective"].replace("_", "-"),
        [_OWN_NAMES.get(name, name) for name in row["algo"].split("/")],
        int(row["size_bytes"]),
        [Dimension(*part) for part in parts],
        system,
    )
    assert time_ns == int(row["cycles_ns"])


def test_astrasim_with_switches_that_store() -> None:
    found = rows("astrasim_aware.csv")
    exact = 0
    for row in found:
        op, algorithm = row["collective"].replace("_", "-"), row["algo"]
        dimension = Dimension(
            row["topology"], int(row["npus"]), float(row["bandwidth_GiBps"]),
            float(row["latency_ns"]),
        )  # fmt: skip
        system = AstraSimSystem(
            {}, int(row["endpoint_delay_ns"]), int(row["splits"]), int(row["active_chunks"]),
            float(row["local_mem_bw"]), stores=True,
        )  # fmt: skip
        names = [_OWN_NAMES.get(algorithm, algorithm)]
        if (op, algorithm) == ("all-reduce", "direct"):
            with pytest.raises(RidgelineError, match="one dimension and rounds"):
                network_time_ns(op, names, int(row["size_bytes"]), [dimension], system)
            continue
        time_ns = network_time_ns(op, names, int(row["size_bytes"]), [dimension], system)
        assert time_ns == pytest.approx(int(row["cycles_ns"]), rel=1e-3)
        exact += time_ns == int(row["cycles_ns"])
    assert exact == 15
    assert len(found) == 17
    text = "Switch(8, 50 GiB/s, 500 ns)"
    unaware = collective("all-reduce", 2**26, text, compat="astrasim")
    aware = collective("all-reduce", 2**26, text, compat="astrasim-aware")
    assert aware.time_s > unaware.time_s


def test_astrasim_files(tmp_path: Path) -> None:
    path = tmp_path / "dgx.yml"
    path.write_text(
        "topology: [ Ring, Switch ]\nnpus_count: [ 8, 4 ]\n"
        "bandwidth: [ 200.0, 50.0 ]  # GB/s\nlatency: [ 50.0, 500.0 ]  # ns\n"
    )
    topology = read_network(path)
    assert (topology.n_devices, topology.shape) == (32, (8, 4))
    assert set(topology.bandwidth_bytes_per_s) == {200 * 2.0**30, 50 * 2.0**30}
    path.write_text("topology: [ Ring ]\nnpus_count: [ 8, 4 ]\nbandwidth: [1.0]\nlatency: [1.0]\n")
    with pytest.raises(ConfigError, match="equally long"):
        read_network(path)
    system = tmp_path / "system.json"
    system.write_text(json.dumps({
        "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4,
        "all-reduce-implementation": ["ring", "halvingDoubling"],
        "all-to-all-implementation": ["direct"], "local-mem-bw": 1600,
    }))  # fmt: skip
    found = read_system(system)
    assert found.algorithms["all-reduce"] == ("ring", "halving-doubling")
    assert (found.splits, found.local_memory_gb_per_s) == (4, 1600.0)
    system.write_text('{"all-reduce-implementation": ["rings"], "local-mem-bw": 1}')
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        read_system(system)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested"),
        ("[]", "one object"),
        ("null", "one object"),
        ("{}", "'local-mem-bw' is missing"),
        ('{"local-mem-bw": NaN}', "a number from 0"),
        ('{"local-mem-bw": Infinity}', "a number from 0"),
        ('{"local-mem-bw": true}', "a number from 0"),
        ('{"local-mem-bw": 0}', "more than 0"),
        ('{"local-mem-bw": "fast"}', "a number from 0"),
        ('{"local-mem-bw": 1, "endpoint-delay": 1e400}', "endpoint-delay is a number"),
        ('{"local-mem-bw": 1, "preferred-dataset-splits": 0}', "at least 1; found 0"),
        ('{"local-mem-bw": 1, "preferred-dataset-splits": 2.5}', "whole number"),
        ('{"local-mem-bw": 1, "all-reduce-implementation": "ring"}', "a list of algorithms"),
        ('{"local-mem-bw": 1, "all-reduce-implementation": [1]}', "no algorithm is called 1"),
    ],
)
def test_odd_system_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "system.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_system(path)


def test_splits_of_less_than_a_byte_are_refused() -> None:
    ring = [Dimension("Ring", 4, 50, 500)]
    with pytest.raises(RidgelineError, match="cannot be cut into 5 splits"):
        network_time_ns("all-reduce", ["ring"], 4, ring, AstraSimSystem(splits=5))
    with pytest.raises(RidgelineError, match="an algorithm for each dimension"):
        network_time_ns("all-reduce", ["ring"], 4, ring * 2)
    with pytest.raises(RidgelineError, match="of which an all-to-all has ring and direct"):
        network_time_ns("all-to-all", ["halving-doubling"], 4096, ring)


_ASTRASIM = {"halvingDoubling": "halving-doubling", "oneRing": "ring", "oneDirect": "direct"}


def test_astrasim_in_one_dimension_to_the_nanosecond() -> None:
    found = rows("astrasim_one_dimension.csv")
    exact = 0
    for r in found:
        algorithm = _ASTRASIM.get(r["algo"], r["algo"])
        if algorithm == "doubleBinaryTree":
            continue  # unpipelined, without a closed form here
        time_ns = collective_time_ns(
            r["collective"].replace("_", "-"), algorithm, int(r["size_bytes"]),
            Dimension(r["topology"], int(r["npus"]), float(r["bandwidth_GiBps"]),
                      float(r["latency_ns"])),
            splits=int(r["splits"]), active_chunks=int(r["active_chunks"]),
            endpoint_delay_ns=int(r["endpoint_delay_ns"]),
            local_memory_gb_per_s=float(r["local_mem_bw"]),
        )  # fmt: skip
        assert time_ns == int(r["cycles_ns"]), r
        exact += 1
    assert exact >= 30


@pytest.mark.parametrize("row", rows("astrasim_one_dimension.csv"))
def test_the_default_mode_never_beats_the_ports(row: dict[str, str]) -> None:
    """Eleven of ASTRA-sim's own figures do."""
    bandwidth, latency = row["bandwidth_GiBps"], row["latency_ns"]
    where = f"{row['topology']}({row['npus']}, {bandwidth} GiB/s, {latency} ns)"
    own = collective(row["collective"].replace("_", "-"), float(row["size_bytes"]), where)
    assert own.time_s * 1e9 >= float(row["lower_bound_ns"]) * 0.999


# Z. Yan et al., arXiv:2603.07685, Table 7: 4,096 tokens of 7,168 numbers in 16 bits, 8 choices
EXCHANGED_BYTES = 4096 * 8 * 7168 * 2


@pytest.mark.parametrize(
    ("machine", "measured"),
    [
        (
            "gb200-nvl72-ndr",
            {8: (735, 741), 16: (743, 765), 32: (769, 758), 64: (930, 827)},
        ),
        (
            "superpod-h100",
            {8: (1265, 1277), 16: (5774, 5628), 32: (8059, 7815), 64: (9164, 8727)},
        ),
    ],
)
def test_all_to_alls_are_near_their_published_times(
    machine: str, measured: dict[int, tuple[float, float]]
) -> None:
    for ranks, times_us in measured.items():
        found = collective("all-to-all", EXCHANGED_BYTES, machine, ranks=ranks)
        assert found.algorithm == "send-receive"
        for time_us in times_us:
            assert found.time_s == pytest.approx(time_us * 1e-6, rel=0.15)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 24), st.floats(0, 1e9), st.floats(0.1, 1))
def test_an_exchange_takes_its_share_longer_on_nvlink_alone(
    ranks: int, size_bytes: float, share: float
) -> None:
    topology = as_counted("superpod-h100", 24)
    members = tuple(range(ranks))
    plain = ALGORITHMS["all-to-all", "direct"](topology, members, size_bytes)
    slower = replace(topology, exchanged={"nvlink4": share})
    chosen = nccl.choice("all-to-all", slower, members, size_bytes)
    assert chosen is not None
    before, after = plain.bytes_on_wire(), chosen.bytes_on_wire()
    assert before.keys() == after.keys()
    for link, sent in after.items():
        fast = topology.link_class[link] == "nvlink4"
        assert sent == pytest.approx(before[link] / (share if fast else 1))
    assert nccl.choice("all-to-all", replace(topology, exchanged={}), members, size_bytes) is None


def test_a_share_above_one_is_refused(tmp_path: Path) -> None:
    text = (NODES / "dgx-h100.yaml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("value: 0.872", "value: 1.872"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"exchanged.*at most 1"):
        load_node(str(broken))
