"""Way of a checkpoint between nodes and storage, by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.training.node_adapters import adapter_rate
from ridgeline.training.run_file import read_run
from ridgeline.training.storage import CheckpointPath, CheckpointPolicy, checkpoint_times

SIZE = 1e12


@cache
def step(data: int, tensor: int = 1, zero: int = 0, rate: str = "40 GB/s") -> Result:
    plan = {
        "data": data, "tensor": tensor, "global_batch": 8 * data, "precision": "fp16-mixed",
        "zero_stage": zero,
    }  # fmt: skip
    storage = {"cluster.storage": {"bandwidth": rate}} if rate else {}
    return Point("lenet5" if tensor == 1 else "t5-small", "selene-a100", plan, storage).simulate()


def test_one_replica_writes_and_each_reads_for_itself() -> None:
    """Four nodes of eight devices, replicas of one device: one node writes, four read all of it."""
    path = CheckpointPath(step(32))
    adapters = adapter_rate(step(32).details.cluster)
    assert path.writers == 1
    assert path.write_s(SIZE) == pytest.approx(SIZE / min(40e9, adapters))
    assert path.read_s(SIZE) == pytest.approx(4 * SIZE / 40e9)
    sent_s = max(path.write_s(SIZE), SIZE / adapters)
    assert path.read_s(SIZE, broadcast=True) == pytest.approx(sent_s)


def test_adapters_limit_few_writers_and_storage_limits_many() -> None:
    fast = CheckpointPath(step(32, rate="10 TB/s"))
    adapters = adapter_rate(step(32).details.cluster)
    assert fast.write_s(SIZE) == pytest.approx(SIZE / adapters)
    all_write = CheckpointPath(step(32, rate="10 TB/s"), sharded=True)
    assert all_write.write_s(SIZE) == pytest.approx(SIZE / (4 * adapters))
    assert CheckpointPath(step(32), sharded=True).write_s(SIZE) == pytest.approx(SIZE / 40e9)


def test_shared_states_are_written_by_all_and_read_once() -> None:
    path = CheckpointPath(step(32, zero=1))
    assert path.writers == 4
    assert path.read_s(SIZE) == pytest.approx(SIZE / 40e9)


def test_a_replica_over_nodes_reads_its_parts() -> None:
    """Two replicas of eight devices on two nodes: each node needs all; one writes."""
    path = CheckpointPath(step(2, 8))
    assert (path.writers, path.nodes) == (1, 2)
    assert path.read_s(SIZE) == pytest.approx(2 * SIZE / 40e9)


def test_disks_of_the_nodes() -> None:
    found = step(32, rate="")
    disks = found.details.cluster.nodes.host.storage
    assert disks is not None
    path = CheckpointPath(found)
    assert path.write_s(SIZE) == pytest.approx(SIZE / disks.value)
    assert path.read_s(SIZE) == pytest.approx(SIZE / disks.value)  # each node its own copy


def test_policies_use_the_path() -> None:
    found = checkpoint_times(CheckpointPolicy(), step(32))
    path = CheckpointPath(step(32))
    assert found.write_s == found.stall_s == pytest.approx(path.write_s(found.size_bytes))
    assert found.restore_s == pytest.approx(path.read_s(found.size_bytes))
    spread = checkpoint_times(CheckpointPolicy(sharded=True, broadcast=True), step(32))
    assert spread.write_s <= found.write_s
    assert spread.restore_s < found.restore_s


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{sharded: true, save_time: 3 s}", "checkpoint.sharded: the way to the storage"),
        ("{sharded: true, mode: in-memory}", "checkpoint.sharded: the way to the storage"),
        ("{broadcast: true, write: 3 GB/s}", "checkpoint.broadcast: the way from the storage"),
        ("{broadcast: true, restore_time: 3 s}", "checkpoint.broadcast: the way from the storage"),
        ("{broadcast: 3}", "checkpoint.broadcast"),
    ],
)
def test_bad_paths(tmp_path: Any, given: str, says: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "kind: run\nname: r\nmodel: lenet5\ncluster: dgx1-v100\nplan: {data: 8, batch: 256}\n"
        f"target: {{steps: 10}}\ncheckpoint: {given}\n"
    )
    with pytest.raises(ConfigError) as error:
        read_run(path)
    assert says in str(error.value)
