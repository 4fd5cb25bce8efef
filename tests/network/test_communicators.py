"""Buffers of NCCL's communicators."""

from __future__ import annotations

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.network.communicators import communicator_bytes
from ridgeline.simulation import shared_topology

MIB = 2**20
CONNECTION = 12 * MIB  # 10 of the receiver, 2 of the sender (github.com/NVIDIA/nccl/issues/1685)


@pytest.mark.parametrize(
    ("machine", "ranks", "channels"),
    [
        ("dgx-a100", range(8), 24),  # "Channel 23/24": github.com/NVIDIA/nccl-tests/issues/100
        ("dgx1-v100", range(8), 12),
        ("selene-a100", range(16), 16),  # a ring each way through eight NICs
        ("dgx-a100", range(1), 0),
    ],
)
def test_every_channel_has_a_ring_and_a_tree(machine: str, ranks: range, channels: int) -> None:
    topology = shared_topology(load_cluster(machine), max(ranks) + 1)
    assert communicator_bytes(topology, tuple(ranks)) == channels * 3 * CONNECTION


def test_links_of_unknown_channels_are_an_error() -> None:
    topology = shared_topology(load_cluster("pcie3-8gpu"), 2)
    with pytest.raises(RidgelineError, match="links with a collective library"):
        communicator_bytes(topology, (0, 1))
