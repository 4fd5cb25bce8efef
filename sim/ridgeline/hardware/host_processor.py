"""The processor that does what a device's own engines cannot: its host, behind a link."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.hardware.sourced import Sourced

HOST = "host"
HOST_MEMORY = "host-memory"
HOST_LINK = "host-link"
HOST_PLACES = (HOST, HOST_MEMORY, HOST_LINK)
"""Names of the host and its parts among the places of a device; nothing else has these names."""


class HostLink(Strict):
    """What connects a device with its host."""

    bandwidth: Sourced[units.BytesPerSecond]
    """One direction, payload alone. An op reads and then writes: one direction at a time."""
    latency: Sourced[units.Seconds]
    """Of one transfer. An op on the host waits for one to it and one back."""
    energy: str
    """Entry of the device's energy table, or a quantity such as ``10 pJ/bit``."""


class HostProcessor(Strict):
    """A processor with a memory of its own, to which a device's tensors go for some ops.

    It does ops outside contractions that no engine of the device does. Tensors live in the device's
    farthest memory, so that each op reads its operands over the link and sends its results back.
    The host's idle power is not the device's: what it takes besides its arithmetic is not counted,
    and the result says so.
    """

    name: str
    """Which processor it is."""
    rates: dict[str, Sourced[units.FlopPerSecond]] = Field(min_length=1)
    """Of elementwise work, by number format."""
    bandwidth: Sourced[units.BytesPerSecond]
    """Of its memory."""
    link: HostLink
    """Between the device and the host; what goes there and comes back passes it."""
    energy: dict[str, str]
    """Entry of the device's energy table, or a quantity, by number format (``2.3 pJ/FLOP``)."""
    memory_energy: str
    """Likewise, of a byte of its memory."""
    inputs: Literal["ahead", "waited"] = "ahead"
    """When a mini-batch comes over the link. ahead: during the step before, into the farthest
    memory. waited: within the step, into the levels that keep tensors; ops that read it wait."""
