"""Machine files that are wrong: each mistake is named with file, line, field and nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

import machines
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster, load_device, load_energy_table, load_node
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate

CLUSTER = """
kind: cluster
name: toy-cluster
node: node.yaml
max_nodes: 4
energy_table: energy.yaml
link_types:
  cable: {bandwidth: 10 GB/s, latency: 1 us, energy: link}
fabric: {kind: fat-tree, link: cable, radix: 8}
"""
NODE_WITH_NIC = machines.NODE + (
    "  - {between: [device0, nic0], type: wire}\ncomponents: [{name: nic0, kind: nic}]\n"
)
FILES = {
    "energy.yaml": machines.ENERGY,
    "device.yaml": machines.DEVICE,
    "node.yaml": NODE_WITH_NIC,
    "cluster.yaml": CLUSTER,
}


def write(folder: Path, **changed: str) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(changed.get(name.removesuffix(".yaml"), text))


def test_files_beside_each_other_make_a_cluster(tmp_path: Path) -> None:
    write(tmp_path)
    cluster = load_cluster(str(tmp_path / "cluster.yaml"))
    assert (cluster.max_devices, cluster.device.name) == (16, "toy")
    assert load_node(str(tmp_path / "node.yaml")).nics == ("nic0",)
    assert load_cluster(str(tmp_path / "device.yaml")).max_devices == 1


# file, text in it, what stands there instead, line of the mistake (0: any), field, message
MISTAKES = [
    ("device", "idle_power", "idel_power", 5, "idel_power", "did you mean 'idle_power'"),
    ("device", "launch_latency: 2 us", "", 0, None, "'launch_latency' is missing"),
    ("device", "10 W", "10 J", 5, "idle_power", "write '10 W'"),
    ("device", "10 W", "10", 5, "idle_power", "write '10 W'"),
    ("device", "10 W", "-10 W", 5, "idle_power", "at least 0"),
    ("device", "capacity: 8 MiB", "capacity: 8 MHz", 22, "memory.l2.capacity", "capacity is due"),
    ("device", "1 TB/s", "1 TB", 23, "memory.hbm.bandwidth", "write '1 TB/s'"),
    ("device", "kind: vector", "kind: vektor", 16, "engines.vector.kind", "'vector'"),
    ("device", "runs: [vector]", "runs: []", 17, "engines.vector.runs", "at least 1"),
    ("device", "{fp32: 1 TFLOP/s}", "{}", 18, "engines.vector.rates", "at least 1"),
    (
        "device",
        "energy: dram}",
        "energy: drma}",
        23,
        "memory.hbm.energy",
        "no entry 'drma'; did you mean 'dram'",
    ),
    ("device", "energy: dram}", "energy: flop.fp32}", 23, "memory.hbm.energy", "dimension"),
    (
        "device",
        "fp16: flop.fp16}",
        "fp16: flop.fp61}",
        13,
        "engines.matrix.energy.fp16",
        "did you mean 'flop.fp16'",
    ),
    ("device", ", fp16: flop.fp16}", "}", 13, "engines.matrix.energy", "no energy entry for fp16"),
    ("device", "bandwidth: 1 TB/s, ", "", 23, "memory.hbm", "needs a bandwidth"),
    ("device", "instances: 64", "instances: 0", 21, "memory.registers.instances", "at least 1"),
    ("device", "energy.yaml", "enregy.yaml", 6, "energy_table", "does not exist"),
    ("device", "energy.yaml", "gpu-12mn", 6, "energy_table", "did you mean 'gpu-12nm'"),
    ("device", "year: 2020", "year: 2020\nyear: 2021", 5, None, "'year' stands twice"),
    ("device", "name: toy", "name: !!python/name:os.system", 3, None, "tag"),
    ("device", "year: 2020", "year: 2020\nprices: 5", 5, "prices", "unknown field 'prices'"),
    (
        "device",
        "launch_latency: 2 us",
        "launch_latency: 2 us\nachievable:\n"
        "  - {engine: matrx, format: fp16, op: gemm, fraction: 0.5}",
        9,
        "achievable.0.engine",
        "did you mean 'matrix'",
    ),
    (
        "device",
        "launch_latency: 2 us",
        "launch_latency: 2 us\nachievable:\n"
        "  - {engine: matrix, format: fp61, op: gemm, fraction: 0.5}",
        9,
        "achievable.0.format",
        "did you mean 'fp16'",
    ),
    (
        "device",
        "launch_latency: 2 us",
        "launch_latency: 2 us\nachievable:\n"
        "  - {engine: matrix, format: fp16, op: gemm, fraction: 0.0}",
        9,
        "achievable.0.fraction",
        "more than 0",
    ),
    (
        "device",
        "launch_latency: 2 us",
        "launch_latency: 2 us\nachievable:\n"
        '  - {engine: matrix, format: fp16, op: gemm, filter: "1x1", fraction: 0.5}',
        9,
        "achievable.0.filter",
        "only a convolution has a filter",
    ),
    ("node", "device3, device0", "device3, device4", 14, "links.3.between", "does not exist"),
    ("node", "device3, device0", "device3, device3", 14, "links.3.between", "to itself"),
    ("node", "device1], type: wire", "device1], type: wier", 11, "links.0.type", "'wire'"),
    ("node", "energy: link", "energy: lnik", 9, "link_types.wire.energy", "did you mean 'link'"),
    ("node", "energy: link", "energy: 10 W", 9, "link_types.wire.energy", "another dimension"),
    ("node", "energy: link", "energy: -1 pJ/B", 9, "link_types.wire.energy", "at least 0"),
    ("node", "energy: link", "energy: 1 pJ", 9, "link_types.wire.energy", "not in J/B"),
    ("node", "energy: link", "energy: '7'", 9, "link_types.wire.energy", "'7 pJ/bit'"),
    ("node", "energy: link", "energy: 7", 9, "link_types.wire.energy", "'7 pJ/bit'"),
    ("node", "20 GB/s", "20 Gbit", 9, "link_types.wire.bandwidth", "'20 Gbit/s'"),
    ("node", "20 GB/s", "20 GB/s, achievable: 0.0", 9, "link_types.wire.achievable", "more than 0"),
    ("node", "count: 4", "count: 0", 5, "count", "greater than or equal to 1"),
    ("node", "count: 4", "count: four", 5, "count", "integer"),
    ("node", "energy_table: energy.yaml\n", "", 0, None, "the file names no energy_table"),
    ("node", "name: nic0", "name: device0", 0, None, "same name"),
    ("node", "device: device.yaml", "device: [device.yaml]", 4, "device", "must name a device"),
    ("node", "kind: node", "kind: nod", 2, "kind", "did you mean 'node'"),
    ("cluster", "link: cable", "link: cabel", 9, "fabric.link", "did you mean 'cable'"),
    ("cluster", "radix: 8", "radix: 7", 9, "fabric.radix", "multiple of 2"),
    ("cluster", "kind: fat-tree", "kind: thin-tree", 9, "fabric.kind", "fat-tree"),
    ("cluster", "fabric:", "fabrik:", 9, "fabrik", "did you mean 'fabric'"),
    ("energy", "value: 2 pJ/FLOP", "value: 2 pJ", 6, "entries.flop.fp32.value", "not an energy"),
    ("energy", "value: 2 pJ/FLOP", "value: 2", 6, "entries.flop.fp32.value", "'2 pJ/FLOP'"),
    ("energy", "scope: device", "scope: chip", 10, "entries.dram.scope", "allowed: "),
    ("energy", "process_node: 12 nm", "process_node: 12 nJ", 4, "process_node", "length is due"),
]


def test_energy_is_an_entry_or_a_quantity(tmp_path: Path) -> None:
    quantities = {
        "node": FILES["node.yaml"]
        .replace("energy_table: energy.yaml\n", "")
        .replace("energy: link", "energy: 10 pJ/bit"),
        "device": FILES["device.yaml"].replace("energy: dram", "energy: 4 pJ/bit"),
    }
    by_name, by_quantity = tmp_path / "names", tmp_path / "quantities"
    by_name.mkdir()
    by_quantity.mkdir()
    write(by_name)
    write(by_quantity, **quantities)
    one, other = (
        simulate("mlp", str(folder / "node.yaml"), Plan(data=4, global_batch=8, precision="fp32"))
        for folder in (by_name, by_quantity)
    )
    assert one.energy_j["network"] > 0
    assert other.energy_j == one.energy_j


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "field", "message"),
    MISTAKES,
    ids=[str(m[2:6]) for m in MISTAKES],
)
def test_a_mistake_is_named(
    file: str, old: str, new: str, line: int, field: str | None, message: str, tmp_path: Path
) -> None:
    text = FILES[f"{file}.yaml"]
    assert old in text
    write(tmp_path, **{file: text.replace(old, new, 1)})
    with pytest.raises(ConfigError) as caught:
        load_cluster(str(tmp_path / "cluster.yaml"))
    error = caught.value
    assert message in str(error)
    assert error.file is not None
    assert error.line == line if line else True
    assert field is None or error.field == field
    if message != "No such file":
        assert Path(error.file).name == f"{file}.yaml"


def test_a_cluster_of_many_needs_a_fabric_and_adapters(tmp_path: Path) -> None:
    write(tmp_path, cluster=CLUSTER.replace("fabric: {kind: fat-tree, link: cable, radix: 8}", ""))
    with pytest.raises(ConfigError, match="needs a fabric"):
        load_cluster(str(tmp_path / "cluster.yaml"))
    write(tmp_path, node=machines.NODE)
    with pytest.raises(
        ConfigError,
        match=r"no NIC to join a fabric: add to its file 'components: \[\{name: nic0, kind: nic",
    ):
        load_cluster(str(tmp_path / "cluster.yaml"))


@pytest.mark.parametrize("file", list(FILES))
def test_a_truncated_file_is_refused_or_is_a_smaller_machine(file: str, tmp_path: Path) -> None:
    text = FILES[file]
    for end in range(0, len(text), 7):
        write(tmp_path)
        (tmp_path / file).write_text(text[:end])
        try:
            cluster = load_cluster(str(tmp_path / "cluster.yaml"))
        except ConfigError as refusal:
            sound = refusal.file is not None
        else:
            sound = cluster.max_devices >= 1
        assert sound


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        load_cluster(str(tmp_path))


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    file = tmp_path / "bomb.yaml"
    file.write_text("kind: device\n" + "\n".join(lines))
    with pytest.raises(ConfigError, match="more than"):
        load_device(str(file))


def test_one_kind_is_not_taken_for_another(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match="expected 'kind: device', found 'node'"):
        load_device(str(tmp_path / "node.yaml"))
    with pytest.raises(ConfigError, match="expected 'kind: energy-table'"):
        load_energy_table(str(tmp_path / "node.yaml"))
    with pytest.raises(ConfigError, match="'kind: cluster', 'kind: node' or 'kind: device', found"):
        load_cluster(str(tmp_path / "energy.yaml"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("dgx1-v10", "dgx1-v100"),
        ("dgx-v100", "dgx1-v100"),
        ("tpu-2", "tpu-v2"),
        ("p100-smx2", "p100-sxm2"),
        ("dgx1-v100-erd", "dgx1-v100-edr"),
    ],
)
def test_an_unknown_machine_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        load_cluster(name)


def test_an_unknown_device_lists_those_that_are_known() -> None:
    close = r"no device is called 'gtx'; did you mean 'gtx-1080'\? Close are gtx-1080, "
    with pytest.raises(ConfigError, match=close):
        load_device("gtx")
    with pytest.raises(ConfigError, match="no energy table is called"):
        load_energy_table("gtx")
