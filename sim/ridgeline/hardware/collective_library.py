"""Collective library of a link: which library drives it, and what its protocols take there.

NCCL and RCCL have the same protocols (LL, LL128, Simple) and differ in which of them a link can
carry. Which column of the library's tables applies, and how fast its kernels are, is a property of
the link and of the devices at its ends, never of the link's name. Figures that a file leaves out
are those that the library itself counts on (`ridgeline.network.nccl`).
"""

from __future__ import annotations

from typing import Literal

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.sourced import Count, Positive, Share, Sourced

Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna"]
Transport = Literal["direct", "bus"]


class ProtocolTimes(Strict):
    """Latency and rate of one protocol of a ring's kernels; all of it is optional."""

    start: Sourced[units.Seconds] | None = None
    """From the start of a queued kernel to its first message. By default the node's
    ``collective_latency``, and what the library counts on more or less for this protocol."""
    hop: Sourced[Positive] | None = None
    """Latency of one message to the next device, in multiples of that of the way's links; by
    default as the library counts on."""
    spread: Sourced[units.Seconds] | None = None
    """More for every doubling of the channels that a payload is spread over; by default nothing."""
    reached: Sourced[Share] | None = None
    """Share of the links' peak that payload reaches."""
    byte_sum: Sourced[Share] | None = None
    """Share of `reached` at which numbers of 8 bits are added up; by default all of it."""
    slice: Sourced[units.Bytes] | None = None
    """Of a channel: the bytes that fill the pipeline of Simple; by default 1 MiB, two of eight
    steps of a buffer."""
    copy_rate: Sourced[units.BytesPerSecond] | None = None
    """Rate at which the ring's kernels copy a device's own part to its place; by default that of
    the memory, read and written."""


class PairTimes(Strict):
    """Sends and receives between pairs of devices, which all-to-alls consist of."""

    small_start: Sourced[units.Seconds]
    """Start of a call whose messages are of 16 KiB at most, which go by LL."""
    start: Sourced[units.Seconds]
    """Start of a call with larger messages."""
    one_start: Sourced[units.Seconds] | None = None
    """Start of such a call to one peer alone (sends and receives of a pipeline); by default
    `start`."""
    each: Sourced[units.Seconds]
    """More for every peer after the first."""
    kernel_rate: Sourced[units.BytesPerSecond] | None = None
    """Bytes a second that the kernels of one device move, its own part included."""


class OneShotTimes(Strict):
    """All-reduce kernels that read their peers' buffers directly (frameworks' own all-reduce)."""

    start: Sourced[units.Seconds]
    """Of a queued kernel and its first barrier between devices."""
    barrier: Sourced[units.Seconds]
    """Of a second barrier, between the halves of a two-shot all-reduce."""
    eager: Sourced[units.Seconds]
    """What the host takes to launch one such kernel from PyTorch, call by call."""


class CollectiveLibrary(Strict):
    """Library of collectives that drives a link with loads and stores."""

    name: Literal["nccl", "rccl"] = "nccl"
    """Which library. RCCL has no in-switch reduction."""
    generation: Sourced[Generation]
    """Architecture whose column of the library's tables applies."""
    transport: Transport = "direct"
    """direct: a link made for devices (NVLink, xGMI), which keeps the order of 128 B that LL128
    needs; bus: PCIe."""
    channels: Sourced[Count] | None = None
    """Rings that run side by side on one node."""
    ll: ProtocolTimes = ProtocolTimes()
    """Protocol of small payloads: every 8 B carry a flag of 4 B."""
    ll128: ProtocolTimes = ProtocolTimes()
    """Protocol of medium payloads: every 128 B carry a flag of 8 B."""
    simple: ProtocolTimes = ProtocolTimes()
    """Protocol of large payloads: a flag for every slice."""
    pairs: PairTimes | None = None
    """Sends and receives; by default as a direct exchange over the links."""
    one_shot: OneShotTimes | None = None
    """Frameworks' own all-reduce; by default there is none."""


_FIRST_YEAR: tuple[tuple[int, Generation], ...] = (
    (2024, "blackwell"), (2022, "hopper"), (2020, "ampere"), (2017, "volta"),
)  # fmt: skip
_FIRST_RCCL_YEAR = 2020


def assumed_library(vendor: str, year: int) -> CollectiveLibrary | None:
    """Return the library of devices whose file names none, by vendor and year; None: unknown.

    NCCL's tables have a column for each architecture of NVIDIA since Volta (2017), whose years of
    first delivery these are; AMD's accelerators have RCCL, which is NCCL with their own links.
    """
    if vendor == "NVIDIA":
        found = next((name for first, name in _FIRST_YEAR if year >= first), None)
        name: Literal["nccl", "rccl"] = "nccl"
    elif vendor == "AMD" and year >= _FIRST_RCCL_YEAR:
        found, name = "cdna", "rccl"
    else:
        return None
    if found is None:
        return None
    source = "vendor and year of the device"
    return CollectiveLibrary(
        name=name,
        generation=Sourced[Generation](value=found, source=source, basis="assumed"),
    )
