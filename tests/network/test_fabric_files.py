"""Networks of all formats: what they draw, what is filled in, and that steps run on them."""

from __future__ import annotations

import json
import shlex
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network import from_text
from ridgeline.network.astrasim_files import read_system
from ridgeline.network.files import from_file
from ridgeline.network.infragraph import read_infragraph, write_infragraph
from ridgeline.network.nccl_topology import read_nccl_topology
from ridgeline.network.resolve import load_cluster, topology_of
from ridgeline.network.topologies.slim_fly import generator_sets
from ridgeline.network.topology_metrics import measure

FABRICS = Path(__file__).parents[2] / "docs" / "examples" / "fabrics"
INFRAGRAPH, NCCL = FABRICS / "two-servers.infragraph.yaml", FABRICS / "four-gpus.xml"
LINK = "25 GB/s, 1 us"


def step_s(cluster: str, devices: int, **fields: object) -> float:
    plan = rl.Plan(data=devices, global_batch=64 * devices)
    return rl.simulate("mlp", load_cluster(cluster, fields), plan).step_time_s


@pytest.mark.parametrize(
    ("where", "devices"),
    [
        ("Ring(8, 50 GB/s, 500 ns) @ a40", 8),
        ("FatTree(4, 25 GB/s, 1 us, oversubscription=3) @ a40", 24),
        ("Switch(4, 450 GB/s, 1 us)_FatTree(2, 25 GB/s, 1 us) @ a40", 8),
        (f"{FABRICS / 'two-pairs.yaml'}", 4),
        (f"{FABRICS / 'own-rails.yaml'}", 32),
        (f"{INFRAGRAPH} @ h100-sxm5-80gb", 8),
        (f"{NCCL} @ a100-sxm4-40gb", 4),
    ],
)
def test_a_step_runs_on_any_network(where: str, devices: int) -> None:
    cluster = load_cluster(where)
    assert cluster.max_devices == devices
    assert step_s(where, devices) > step_s(where.rpartition("@")[2].strip() or "a40", 1) * 0.3
    assert step_s(where, devices // 2) > 0  # the first half of the devices


def test_a_network_needs_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split("run mlp 'Ring(4, 50 GB/s, 1 us)' --plan data=4 --batch 64")
    assert execute(words) == 2
    assert "which has no devices to compute on: name one (--device" in capsys.readouterr().err
    assert execute([*words, "--device", "a40", "--quantity", "step_time_s"]) == 0
    with pytest.raises(ConfigError, match="has no fields to replace"):
        load_cluster("Ring(4, 50 GB/s, 1 us)", {"device": "a40", "device_": 3})
    with pytest.raises(ConfigError, match="unknown field 'hots'; did you mean 'host'"):
        load_cluster("Ring(4, 50 GB/s, 1 us)", {"device": "a40", "node.hots": 3})


def test_a_device_in_place_of_the_clusters_own() -> None:
    assert load_cluster("dgx1-v100 @ v100-sxm2-32gb").device.name == "v100-sxm2-32gb"
    cluster = load_cluster(
        "Ring(4, 50 GB/s, 1 us) @ a40", {"device.memory.gddr.bandwidth": "1 TB/s"}
    )
    far = cluster.device.memory["gddr"].bandwidth
    assert far is not None
    assert far.value == 1e12


def test_nodes_of_the_catalogue_in_a_graph() -> None:
    topology = from_file(FABRICS / "own-rails.yaml")
    found = measure(topology)
    assert (found.n_devices, found.n_nics) == (32, 32)
    assert topology.shape == (8, 4)
    assert set(topology.device_names) == {"h100-sxm5-80gb"}
    assert topology.in_switch  # NVLS, as of the node


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("leaf0], type: ndr}", "leef0], type: ndr}", "'leef0', which does not exist; did you mean"),
        ("node: dgx-h100", "node: dgx-h1000", "nodes.0.node: no node is called 'dgx-h1000'; did"),
        (
            "nodes: [",
            "devices: [a]\nnodes: [",
            "has devices of its own, or nodes with their devices",
        ),
        (
            "switches: [leaf0",
            'switches: ["l*", leaf0',
            "' is a pattern, which only links have",
        ),
    ],
)
def test_mistakes_in_a_graph(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text((FABRICS / "own-rails.yaml").read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        from_file(file)


def test_ranges_of_numbers_name_many(tmp_path: Path) -> None:
    """As names written out one by one."""
    text = """
kind: topology
name: pods
devices: {devices}
switches: [left, right]
link_types: {{wire: {{bandwidth: 25 GB/s, latency: 1 us}}}}
links:
  - {{between: [{some}, left], type: wire}}
  - {{between: ["gpu[89]", right], type: wire}}
  - {{between: ["gpu1[01]", right], type: wire}}
  - {{between: [left, right], type: wire, count: 4}}
"""
    files = [tmp_path / "ranges.yaml", tmp_path / "names.yaml"]
    files[0].write_text(text.format(devices='["gpu[0..11]"]', some='"gpu[0..7]"'))
    names = str([f"gpu{n}" for n in range(12)])
    files[1].write_text(text.format(devices=names, some='"gpu[0-7]"'))
    ranges, written = map(from_file, files)
    assert ranges.n_devices == 12
    assert ranges.vertex_names == written.vertex_names
    assert (ranges.source == written.source).all()
    assert (ranges.target == written.target).all()


def test_infragraph_is_read_with_the_rates_of_a_shipped_node() -> None:
    topology = read_infragraph(INFRAGRAPH).drawn("h100-sxm5-80gb")
    found = measure(topology)
    assert (found.n_devices, found.n_nics, found.n_switches) == (8, 4, 5)  # ports are the leaf
    rate = {link.name: link.bandwidth_bytes_per_s for link in found.links}
    assert rate["eth"] == 50e9
    assert rate["nvlink"] == pytest.approx(18 * 25e9 * 0.824)  # dgx-h100: 18 links, as NCCL counts
    assert any("nvlink" in note and "dgx-h100" in note for note in topology.assumed)
    assert topology.node_of[topology.devices].tolist() == [0] * 4 + [1] * 4
    with pytest.raises(ConfigError, match="the link 'nvlink' has no bandwidth; write it into"):
        read_infragraph(INFRAGRAPH).drawn()


@pytest.mark.parametrize("where", ["dgx1-v100", "superpod-h100", "Torus(4x4, 25 GB/s, 1 us)"])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_infragraph_written_is_read_as_the_same(tmp_path: Path, where: str, suffix: str) -> None:
    topology = topology_of(where, 16 if where == "superpod-h100" else None)
    write_infragraph(topology, tmp_path / f"t{suffix}")
    again = topology_of(str(tmp_path / f"t{suffix}"))
    one, two = measure(topology), measure(again)
    assert (one.n_devices, one.n_switches, one.n_nics, one.n_links, one.diameter) == (
        two.n_devices, two.n_switches, two.n_nics, two.n_links, two.diameter,
    )  # fmt: skip
    assert two.bisection_bytes_per_s == pytest.approx(one.bisection_bytes_per_s)
    assert again.node_of[again.devices].tolist() == topology.node_of[topology.devices].tolist()


def test_infragraph_package_reads_what_is_written(tmp_path: Path) -> None:
    infragraph = pytest.importorskip("infragraph")
    write_infragraph(topology_of("dgx1-v100"), tmp_path / "t.json")
    document = infragraph.Infrastructure()
    document.deserialize((tmp_path / "t.json").read_text())
    service = pytest.importorskip("infragraph.infragraph_service").InfraGraphService()
    service.set_graph(document)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("choice: xpu", "choice: cpu", "no devices"),
        ("device: leaf", "device: leave", "instances.1.device: the device 'leave' is not"),
        ("port[2:4]", "port[2:40]", "there are 8, found"),
        ("component: nvlsw", "component: nvlsv", "has no 'nvlsv'; did you mean 'nvlsw'"),
        ("scheme: one2one", "scheme: one2two", "unknown scheme 'one2two'; did you mean"),
        ("gigabits_per_second: 400", "gigabits_per_second: no", "must be a number above 0"),
        ("choice: gigabits_per_second", "choice: gigabit", "a bandwidth has a choice and its"),
        ("link: eth", "link: ethernet", "unknown link 'ethernet'; did you mean 'eth'"),
    ],
)
def test_mistakes_in_infragraph(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    text = INFRAGRAPH.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_infragraph(file).drawn("h100-sxm5-80gb")


def test_a_device_alone_and_the_first_release(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    data = {
        "infrastructure": {
            "devices": [
                {
                    "name": "server",
                    "components": [
                        {"name": "xpu", "type": "xpu"}, {"name": "sw", "type": "custom"},
                    ],
                    "links": [
                        {
                            "name": "xgmi",
                            "bandwidth": {
                                "choice": "gigabytes_per_second", "gigabytes_per_second": 64,
                            },
                        }
                    ],
                    "connections": ["xpu.0.xgmi.sw.0", "xpu.1.xgmi.sw.0", "xpu.2.xgmi.sw.0"],
                }
            ],
            "instances": [{"name": "server", "device": "server"}],
            "connections": [],
        }
    }  # fmt: skip
    file.write_text(json.dumps(data))
    topology = topology_of(str(file))
    assert measure(topology).n_devices == 3
    assert topology.bandwidth_bytes_per_s.tolist() == [64e9] * 6


def test_a_dump_of_nccl() -> None:
    topology = read_nccl_topology(NCCL).drawn("a100-sxm4-40gb")
    rate = {
        link.name: (link.n_links, link.bandwidth_bytes_per_s) for link in measure(topology).links
    }
    assert rate["nvlink"] == (24, 20e9)  # six pairs of four, each named from both ends
    assert rate["pcie-16gts-x16"] == (6, 24e9)
    assert rate["socket"] == (1, 16e9)
    assert topology.n_devices == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<graphs/>", "this is a graph file of NCCL"),
        ("<system", "not XML"),
        ("<system><cpu><pci class='0x0302'/></cpu></system>", "a <pci> needs its busid"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", "document types and entities are not read"),
        ("<system/>", "no devices"),
        (
            "<system><cpu><pci busid='1' link_width='x' class='0x03'/></cpu></system>",
            ":1: pci: link_",
        ),
    ],
)
def test_mistakes_in_dumps(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.xml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_nccl_topology(file).drawn("a40")


def test_astrasim_of_the_first_release(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    fields = {
        "topologies-per-dim": ["Ring", "AllToAll"], "units-count": [4, 8], "links-count": [2, 7],
        "link-latency": [500, 500], "link-bandwidth": [250, 25], "hbm-bandwidth": [370, 370],
    }  # fmt: skip
    file.write_text(json.dumps(fields))
    topology = topology_of(str(file))
    assert topology.shape == (4, 8)
    assert sorted(set(topology.bandwidth_bytes_per_s)) == [25 * 2**30, 250 * 2**30]
    fields["link-bandwidth"] = ["tbd", 25]
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"bandwidth\.0"):
        topology_of(str(file))


@pytest.mark.parametrize(
    ("name", "units", "like"),
    [
        ("Torus2D", [4, 6], "Ring(4, 25 GiB/s, 500 ns)_Ring(6, 25 GiB/s, 500 ns)"),
        ("Switch", [8], "Switch(8, 25 GiB/s, 500 ns)"),
        (
            "Ring_AllToAll_Switch",
            [2, 4, 2],
            "Ring(2, 25 GiB/s, 500 ns)_FullyConnected(4, 25 GiB/s, 500 ns)_Switch(2, 25 GiB/s,"
            " 500 ns)",
        ),
    ],
)
def test_astrasim_with_the_dimensions_in_the_name(
    tmp_path: Path, name: str, units: list[int], like: str
) -> None:
    file = tmp_path / "t.json"
    n = len(units)
    fields = {
        "topology-name": name,
        "units-count": units,
        "link-latency": [500] * n,
        "link-bandwidth": [25] * n,
    }
    file.write_text(json.dumps(fields))
    times = [rl.collective("all-reduce", 1e6, where).time_s for where in (str(file), like)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topology-name": "torus", "dims-count": 1, "nodes-per-dim": 9, "link-bandwidth": 25,
          "link-latency": 500}, "t.json:1:1: .* units-count, the NPUs"),
        ({"topology-name": "Rng_Switch", "units-count": [2, 2], "link-bandwidth": [25, 25],
          "link-latency": [5, 5]}, "topology-name: no dimension is called 'Rng'; did you mean"),
        ({"topology-name": "Ring", "units-count": 4, "link-bandwidth": [25],
          "link-latency": [5]}, "units-count: expected a list, .* found 4"),
        ({"topology-name": "Torus3D", "units-count": [4, 4], "link-bandwidth": [25, 25],
          "link-latency": [5, 5]}, "equally long"),
        ({"logical-dims": ["8", "8"]}, "t.json:1:2: logical-dims: this file of ASTRA-sim is no"),
        ({"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-bw": 512}, "remote memory"),
        ({"scheduling-policy": "LIFO", "local-mem-bw": 50}, "goes with --system"),
        ({"topology_configuration": {"name": "switch"}}, "before the first release"),
    ],
)  # fmt: skip
def test_other_files_of_astrasim_are_named(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message):
        topology_of(str(file))


def test_system_files_that_are_played_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    file.write_text(json.dumps({"all-reduce-implementation-custom": ["x"], "local-mem-bw": 50}))
    with pytest.raises(
        ConfigError, match=r"system.json: all-reduce-implementation-custom: .*--algo"
    ):
        read_system(file)
    file.write_text("scheduling-policy: LIFO\nall-reduce-implementation: ring_ring\n")
    with pytest.raises(ConfigError, match=r"system.json:1: a system file of the first release"):
        read_system(file)


def test_links_to_memory_need_no_rate(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    text = """name: server
components:
- {name: cpu, choice: cpu, count: 1}
- {name: xpu, choice: xpu, count: 2}
- {name: dimm, choice: memory, count: 4}
links:
- {name: ddr5}
- {name: wire, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 32}}}
edges:
- {ep1: {component: "cpu[0]"}, ep2: {component: "dimm[0:4]"}, link: ddr5, scheme: many2many}
- {ep1: {component: "cpu[0]"}, ep2: {component: "xpu[0:2]"}, link: LINK, scheme: many2many}
"""
    file.write_text(text.replace("LINK", "wire"))
    topology = topology_of(str(file))
    assert set(topology.bandwidth_bytes_per_s) == {32e9}
    assert "links 'ddr5' to what no message passes are left out" in topology.assumed
    file.write_text(text.replace("LINK", "ddr5"))  # what devices are reached by needs a rate
    with pytest.raises(ConfigError, match=r"server\.yaml: ddr5: the link 'ddr5' has no bandwidth"):
        topology_of(str(file))


NS3 = "5 2 5\n3 4\n0 3 400Gbps 0.0005ms 0\n1 3 400Gbps 0.0005ms 0\n2 4 100Gbps 1us 0\n" \
      "3 4 1Tbps 2000ns 0\n3 4 1Tbps 2000ns 0.001\n"  # fmt: skip


def test_topologies_of_ns3(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text(NS3)
    topology = topology_of(str(file))
    assert (topology.n_devices, topology.n_vertices) == (3, 5)
    joined = sum(topology.bandwidth_bytes_per_s)  # parallel links may be drawn as one
    assert joined == pytest.approx(2 * (50e9 + 50e9 + 12.5e9 + 125e9 + 125e9))
    assert topology.assumed == ("1 links lose packets in the file; here none is lost",)
    one = "9 1 8\n8\n" + "".join(f"8 {i} 400Gbps 0.0005ms 0\n" for i in range(8))
    file.write_text(one)
    times = [
        rl.collective("all-reduce", 1e8, where, algorithm="ring").time_s
        for where in (str(file), "Switch(8, 50 GB/s, 500 ns)")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("5 2 5", "5 2 6", ":1: links: 5 lines of links follow; the first line says 6"),
        ("5 2 5", "5 3 5", ":2: switches: 2 different switches; the first line says 3"),
        ("3 4\n0", "3 9\n0", ":2: switches: must be a whole number of 0 to 4, found '9'"),
        ("0 3 400Gbps 0.0005ms 0", "0 3 400Gbps 0.0005ms", ":3: a link is source, .*found 4"),
        ("0 3 400Gbps", "0 3 400", ":3: rate: must be a rate such as 400Gbps, found '400'"),
        ("0 3 400Gbps", "0 3 0Gbps", ":3: rate: must be a rate"),
        ("0 3 400Gbps", "0 3 1.2.3Gbps", ":3: rate: must be a rate"),
        ("1us", "1", ":5: delay: must be a time such as"),
        ("0.001", "2", ":7: error_rate: must be a share from 0 to below 1"),
        ("0 3", "3 3", ":3: target: node 3 is joined to itself"),
        ("0 3", "-1 3", ":3: source: must be a whole number"),
        ("5 2 5", "99999999999 2 5", ":1: nodes: must be a whole number of 0 to"),
    ],
)
def test_mistakes_in_topologies_of_ns3(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "t.txt"
    file.write_text(NS3.replace(old, new, 1))
    with pytest.raises(ConfigError, match=f"t.txt{message}"):
        topology_of(str(file))


def test_oversubscribed_fat_trees() -> None:
    # k = 8, 3x2: 6 ports down and 2 up at an edge, 4 down and 2 up above: 8 pods, 4 cores
    topology = from_text(f"FatTree(8, {LINK}, oversubscription=3x2)")
    found = measure(topology)
    assert (found.n_devices, found.n_switches) == (8 * 4 * 6, 8 * (4 + 2) + 4)
    assert found.bisection_bytes_per_s == 4 * 2 * 2 * 25e9
    plain, named = (
        measure(from_text(f"FatTree(4, {LINK}{more})")) for more in ("", ", oversubscription=1")
    )
    assert plain == named
    small = from_text(f"FatTree(4, {LINK}, oversubscription=3)")  # 3 down, 1 up
    n = small.n_devices
    assert n == 24
    with pytest.raises(ConfigError, match="FatTree has no 'over'; did you mean"):
        from_text(f"FatTree(4, {LINK}, over=3)")


def test_tiers_of_a_described_fat_tree() -> None:
    fields = {"fabric.levels": 3, "fabric.radix": 8, "max_nodes": 16}
    flat, thin = (
        measure(topology_of(rl.load_cluster("superpod-h100", {**fields, **more}), 128))
        for more in ({}, {"fabric.oversubscription": [1, 3]})
    )
    assert thin.bisection_bytes_per_s < flat.bisection_bytes_per_s
    with pytest.raises(ConfigError, match="one for each level of switches below the highest"):
        rl.load_cluster("superpod-h100", {"fabric.oversubscription": [2, 2, 2]})


@pytest.mark.parametrize("q", [3, 5, 7, 11, 13])
def test_slim_fly(q: int) -> None:
    # Besta and Hoefler, SC14, section II-B: 2q² routers, degree (3q - d) / 2, diameter 2
    delta = {1: 1, 3: -1}[q % 4]
    for generators in generator_sets(q):
        assert len(generators) == (q - delta) // 2
        assert {-g % q for g in generators} == generators
    if q > 7:
        return
    topology = from_text(f"SlimFly({q}, 1, {LINK})")
    routers = np.array(topology.vertex_kinds)[topology.source] == "switch"
    degree = np.bincount(topology.source[routers], minlength=topology.n_vertices)[2 * q * q :]
    assert set(degree.tolist()) == {(3 * q - delta) // 2 + 1}  # and one device
    assert measure(topology).diameter == 2 + 2


@pytest.mark.parametrize(("n", "levels"), [(2, 3), (4, 2), (3, 2)])
def test_bcube(n: int, levels: int) -> None:
    # Guo et al., SIGCOMM 2009: (k + 1) n^k switches, diameter k + 1 switches, bisection n^(k+1)/2
    topology = from_text(f"BCube({n}, {levels}, {LINK})")
    found = measure(topology)
    assert (found.n_switches, found.n_links) == (levels * n ** (levels - 1), levels * n**levels)
    assert found.diameter == 2 * levels
    if n % 2 == 0:
        assert found.bisection_bytes_per_s == pytest.approx(n**levels / 2 * 25e9)


@pytest.mark.parametrize(("k", "n"), [(2, 3), (4, 2), (3, 2)])
def test_butterflies(k: int, n: int) -> None:
    # Dally and Towles, 2004, chapter 4: n k^(n-1) switches, one path of n + 1 links
    topology = from_text(f"Butterfly({k}, {n}, {LINK})")
    found = measure(topology)
    assert (found.n_switches, found.diameter) == (n * k ** (n - 1), n + 1)
    out = np.bincount(topology.source, minlength=topology.n_vertices)[k**n :]
    assert set(out.tolist()) == {k}
    assert found.bisection_bytes_per_s == k**n // 2 * 25e9
    flat = from_text(f"FlattenedButterfly({k}, {n}, {LINK})")
    degree = np.bincount(flat.source, minlength=flat.n_vertices)[k**n :]
    # Kim, Dally and Abts, ISCA 2007: radix n (k - 1) + 1, and diameter n - 1 routers
    assert set(degree.tolist()) == {n * (k - 1) + 1}
    assert measure(flat).diameter == n - 1 + 2


def test_the_bisection_of_a_small_flattened_butterfly() -> None:
    flat = from_text(f"FlattenedButterfly(2, 3, {LINK})")
    ends = list(zip(flat.source.tolist(), flat.target.tolist(), strict=True))
    routers = range(8, 12)
    least = min(
        sum((a in half) and (b not in half) for a, b in ends if a >= 8 and b >= 8)
        for half in map(set, combinations(routers, 2))
    )
    assert flat.bisection_bytes_per_s == least * 25e9


def test_a_repeated_result_on_a_network(tmp_path: Path) -> None:
    from ridgeline.study.repeat import repeat

    plan = rl.Plan(data=4, global_batch=64)
    result = rl.simulate("mlp", load_cluster("Ring(4, 50 GB/s, 1 us) @ a40"), plan)
    again = repeat(json.loads(json.dumps(result.to_dict())))
    assert again.step_time_s == result.step_time_s


def test_too_many_devices() -> None:
    with pytest.raises(RidgelineError, match="has 4"):
        step_s("Ring(4, 50 GB/s, 1 us) @ a40", 8)


@pytest.mark.parametrize(
    "words",
    [
        f"plan mlp {FABRICS / 'own-rails.yaml'} --devices 16 --batch 128 --limit 1",
        "memory mlp --fit 'FatTree(4, 25 GB/s, 1 us)' --device a40 --batch 64",
        f"collective all-reduce 1MB {INFRAGRAPH} --device h100-sxm5-80gb",
        f"collective all-reduce 1MB {NCCL} --device a100-sxm4-40gb",
    ],
)
def test_other_verbs_take_networks(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Fewer devices than there are; devices without a host; links without rates."""
    assert execute(shlex.split(words)) == 0, capsys.readouterr().err


def test_a_study_names_the_device_of_a_network(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "kind: study\nname: s\nmodel: mlp\ncluster: 'Ring(4, 50 GB/s, 1 us)'\n"
        "set: {cluster.device: a40}\nplan: {data: 4}\nvary: {plan.global_batch: [64, 128]}\n"
    )
    assert execute(["sweep", str(study), "--output", str(tmp_path / "rows.csv")]) == 0
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(rows) == 3
    assert rows[1].endswith(",")  # no error


def test_the_largest_network_has_two_to_the_18th_devices() -> None:
    """One device more is refused before anything is built."""
    with pytest.raises(ConfigError, match="at most 262144 hosts"):
        from_text(f"Tree({2**18 + 1}, 5, 1, {LINK})")
