"""Checkpoint storage: what a checkpoint holds, and how long its save and its reading take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict
from ridgeline.errors import ConfigError
from ridgeline.hardware.sourced import Count
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.checkpointing.offload import host_link
from ridgeline.report.result import Result
from ridgeline.training.node_adapters import adapter_rate
from ridgeline.workload.graph import Role

Mode = Literal["synchronous", "asynchronous", "in-memory"]


class CheckpointPolicy(Strict):
    """When a run saves, where to, and what of that stops the training."""

    every: Literal["young", "daly"] | units.Seconds | Count = Field(
        default="daly", union_mode="left_to_right"
    )
    """"young" or "daly": the interval that is best by that formula; a time of training; or a
    number of steps."""
    mode: Mode = "synchronous"
    """"synchronous": training waits for the write; "asynchronous": it waits for the copy to host
    memory, and the write runs beside the steps; "in-memory": the copy goes to the host memory of
    another node, which a restart reads (Wang et al., GEMINI, SOSP 2023)."""
    size: units.Bytes | None = None
    """Of one checkpoint; by default weights and optimizer state of the whole model."""
    write: units.BytesPerSecond | None = None
    """Rate of the storage for the whole job; by default the path of the machine: the cluster's
    storage over the network adapters of the nodes that write, or those nodes' own disks."""
    read: units.BytesPerSecond | None = None
    """Of reading; by default as fast as writing."""
    save_time: units.Seconds | None = None
    """Instead of rates: how long a save takes, as measured."""
    restore_time: units.Seconds | None = None
    """Instead of rates: how long a restart reads, as measured."""
    sharded: bool | None = None
    """Whether every device writes a part of its own; else those of one replica write for all. By
    default as the plan shares optimizer states (zero_stage)."""
    broadcast: bool = False
    """Whether one replica reads and sends to the others; else each reads for itself."""

    @model_validator(mode="after")
    def _one_way(self) -> CheckpointPolicy:
        if self.save_time is not None and self.write is not None:
            raise FieldError("give save_time or write, not both", "save_time")
        stated = self.save_time is not None or self.write is not None or self.mode == "in-memory"
        if self.sharded is not None and stated:
            raise FieldError("the way to the storage is stated otherwise", "sharded")
        if self.broadcast and (stated or self.restore_time is not None or self.read is not None):
            raise FieldError("the way from the storage is stated otherwise", "broadcast")
        return self


@dataclass(frozen=True)
class CheckpointTimes:
    """Times of one checkpoint.

    Attributes
    ----------
    size_bytes
        Of the whole model.
    stall_s
        How long a save stops the training.
    write_s
        From the start of a save until the checkpoint can be read.
    restore_s
        Reading it.
    """

    size_bytes: float
    stall_s: float
    write_s: float
    restore_s: float


_SAVED = (Role.WEIGHT, Role.STATE, Role.BUFFER)


def state_bytes(result: Result) -> float:
    """Return weights, running statistics and optimizer state of the whole model, each once.

    Of mixed precision these are fp32 masters and states: the 16-bit copies are made of the masters
    when training resumes.
    """
    tensors = result.details.graph.tensors.values()
    return float(sum(tensor.bytes for tensor in tensors if tensor.role in _SAVED))


def checkpoint_times(policy: CheckpointPolicy, result: Result) -> CheckpointTimes:
    """Return what one checkpoint of a step's model takes.

    A copy to host memory passes the link between each device and its host, all devices beside each
    other; a copy to another node's memory passes the nodes' network adapters.

    Raises
    ------
    ConfigError
        If the policy states neither times nor rates, or the machine lacks the path that it names.
    """
    if policy.mode == "in-memory" and (policy.save_time, policy.write, policy.read) != (None,) * 3:
        raise ConfigError(
            "in-memory checkpoints pass the host links and the network: leave out save_time, "
            "write and read",
            field="checkpoint.mode",
        )
    cluster = result.details.cluster
    size = state_bytes(result) if policy.size is None else policy.size
    devices = result.details.plan.devices
    nodes = -(-devices // cluster.nodes.count)
    path: CheckpointPath | None = None
    if policy.save_time is not None:
        write_s = policy.save_time
    elif policy.write is not None:
        write_s = size / policy.write
    elif policy.mode == "in-memory":
        write_s = 0.0
    else:
        path = CheckpointPath(result, policy.sharded)
        write_s = path.write_s(size)
    stall_s = write_s
    if policy.mode != "synchronous":
        stall_s = size / devices / _host_rate(result)
    if policy.mode == "in-memory":
        copied_s = stall_s + size / nodes / _adapter_rate(result)
    if policy.restore_time is not None:
        restore_s = policy.restore_time
    elif policy.mode == "in-memory":
        restore_s = copied_s
    elif policy.read is not None:
        restore_s = size / policy.read
    elif path is not None:
        restore_s = path.read_s(size, broadcast=policy.broadcast)
    else:
        restore_s = write_s
    return CheckpointTimes(
        size_bytes=size,
        stall_s=min(stall_s, write_s) if policy.mode == "asynchronous" else stall_s,
        write_s=copied_s if policy.mode == "in-memory" else write_s,
        restore_s=restore_s,
    )


class CheckpointPath:
    """Way of checkpoints between nodes and their storage: who writes and reads, and how fast.

    Replicas hold the same, so those of one write for all; or every device writes a part, where
    states are shared among replicas or the program divides the work. Each replica reads what it
    needs: of states that are shared, all of it is read once. Devices of a node read the same bytes
    once.

    Parameters
    ----------
    result
        A step of the job.
    sharded
        Whether every device writes a part; None: as its plan shares optimizer states.
    """

    def __init__(self, result: Result, sharded: bool | None = None) -> None:
        self._cluster = cluster = result.details.cluster
        plan = result.details.plan
        held = min(plan.devices, cluster.nodes.count)  # devices of a node
        of_replica = plan.devices // plan.data
        self.nodes = -(-plan.devices // cluster.nodes.count)
        self._divided = plan.zero_stage > 0
        writes_all = self._divided if sharded is None else sharded
        self.writers = self.nodes if writes_all else -(-of_replica // held)
        self._node_share = min(1.0, held / of_replica)  # of the model's states that a node needs
        if self._divided:
            self._node_share = 1.0 / self.nodes
        if cluster.storage is None and cluster.nodes.host.storage is None:
            raise ConfigError(
                f"{cluster.name} states no storage: give checkpoint.write (a rate such as 40 "
                "GB/s), or checkpoint.save_time",
                field="checkpoint.write",
            )

    def write_s(self, size_bytes: float) -> float:
        """Return the time of writing a checkpoint."""
        return self._passed_s(size_bytes, self.writers)

    def read_s(self, size_bytes: float, *, broadcast: bool = False) -> float:
        """Return the time until all nodes have what they need.

        Parameters
        ----------
        broadcast
            One replica reads and sends to the others over the network, in a pipeline.
        """
        if not broadcast or self._divided:
            return self._passed_s(self.nodes * self._node_share * size_bytes, self.nodes)
        readers = max(1, round(1.0 / self._node_share))
        read_s = self._passed_s(size_bytes, readers)
        if self.nodes == readers:
            return read_s
        return max(read_s, self._node_share * size_bytes / adapter_rate(self._cluster))

    def _passed_s(self, size_bytes: float, nodes: int) -> float:
        """Return the time in which nodes together pass so many bytes."""
        cluster = self._cluster
        if cluster.storage is None:
            assert cluster.nodes.host.storage is not None  # asked at the beginning
            return size_bytes / (nodes * cluster.nodes.host.storage.value)
        rate = cluster.storage.bandwidth.value
        if cluster.fabric is not None:
            rate = min(rate, nodes * adapter_rate(cluster))
        return size_bytes / rate


def _host_rate(result: Result) -> float:
    """Rate from a device to the memory of its host."""
    return host_link(from_cluster(result.details.cluster, 1)).bytes_per_s


def _adapter_rate(result: Result) -> float:
    """Rate at which one node sends by all its network adapters."""
    cluster = result.details.cluster
    if cluster.fabric is None:
        raise ConfigError(
            f"{cluster.name} has one node: no other memory to copy checkpoints to",
            field="checkpoint.mode",
        )
    return adapter_rate(cluster)
