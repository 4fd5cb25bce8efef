"""Libraries of matrix products by generation of the hardware: `product_libraries.yaml`.

What a library's kernels lose besides whole tiles and waves (`wave_quantization.KernelLaw`) is the
same for all devices of one kind of engine, and was fitted across devices; which tiles there are,
how its kernels slice sums, and the share of the peak that full tiles reach at full clock, is of a
generation. An engine names its library (`Engine.library`). So a device that was never measured has
a prediction from its data sheet; where it was measured, rows of its own in `achievable` replace
the share of the peak that large products sustain. Short products do not draw the design power:
they run at full clock, and `sustained` bounds the rate of useful work alone. Latencies are in
cycles: they follow the clock, which is what the memory of all processors gives over 128 B a cycle
and processor.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from ridgeline.config import Strict, parse_yaml, validate
from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device, Tiles
from ridgeline.hardware.sourced import Count, Positive
from ridgeline.kernels.traffic import is_private, near_levels

FILE = "product_libraries.yaml"
_BYTES_PER_CYCLE = 128
FULL_TILE = 128 * 128
"""Sums of the tile that constants count in."""


class KernelConstants(Strict):
    """What kernels lose on every device that has this kind of engine; fitted across devices."""

    panel_loss: Positive
    """Of a processor's rate, times the square root (`panel_exponent`) of FLOP per byte of the
    memory that its threads share, bytes of a number, and 1 / rows + 1 / columns of the tile."""
    panel_exponent: Positive
    """At most 1, so that no device is slower with a higher rate."""
    full_tiles: Positive
    """Tiles of 128 x 128 sums that keep a processor busy."""
    fill_exponent: Positive
    """Of the share of these that are in flight in the last round."""
    round_cycles: Positive
    """Ends of a round of tiles: first operands, last results."""
    start_cycles: Positive
    """A kernel, from its launch behind another one to its first tile."""
    split_cycles: Positive
    """The second kernel of a split sum."""
    overlap: Positive
    """Norm in which arithmetic and memory hide each other."""
    kept_share: Positive
    """Of the bandwidth of the last cache, for operands that it has kept from other ops."""
    least_sum: Count
    """Length of the parts of a split sum, at least."""
    reread_room: Positive
    """Share of the last cache that panels are kept in, for the next row of tiles."""
    tiles_at_a_time: Count
    """Tiles of 128 x 128 sums that a processor has room for."""


class ProductLibrary(Strict):
    """A library of one generation."""

    constants: str
    """Name of the constants."""
    tiles: Tiles
    """Rows and columns of output tiles."""
    batched_tiles: Tiles | None = None
    """Of products of a batch; by default the same."""
    k_slice: Count
    """Bytes along k that kernels multiply at a time: sums are padded to them."""
    batched_k_slice: Count | None = None
    """Of products of a batch; by default the same."""
    reread_share: Positive | None = None
    """Of the farthest memory's bandwidth, for panels of wide outputs that no cache keeps; None:
    they are not looked at."""
    multicast: Positive = 1.0
    """Processors of a cluster that a panel from the last cache goes to at a time."""
    share: Positive
    """Of the peak, that processors full of the largest tiles reach at full clock."""
    sustained: dict[str, Positive]
    """Share of the peak that large products sustain under the design power, by number format; rows
    of the device in `achievable` go before it, and `clock` may leave less. Formats that are not
    named have no kernels of this library."""
    note: str = ""
    """What was measured, and what is assumed."""


class _Libraries(Strict):
    sources: dict[str, str]
    constants: dict[str, KernelConstants]
    libraries: dict[str, ProductLibrary]


@cache
def _libraries() -> _Libraries:
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    return validate(parse_yaml(text, FILE), _Libraries)


@cache
def product_library(name: str) -> tuple[ProductLibrary, KernelConstants]:
    """Return a library and the constants of its kernels.

    Raises
    ------
    RidgelineError
        If none has this name.
    """
    known = _libraries()
    if name not in known.libraries:
        raise RidgelineError(
            f"no library of matrix products is called {name!r}{nearest(name, known.libraries)} "
            f"(there are: {', '.join(known.libraries)})"
        )
    library = known.libraries[name]
    return library, known.constants[library.constants]


def resident(tiles: Tiles, constants: KernelConstants) -> tuple[int, ...]:
    """Count the tiles of each size that a processor has room for at a time."""
    room = constants.tiles_at_a_time * FULL_TILE
    return tuple(max(1, room // (rows * columns)) for rows, columns in tiles)


def inner_bandwidth(device: Device) -> float:
    """B/s of the memory that each processor has for itself, of all together; inf without one."""
    return next(
        (
            level.bandwidth.value
            for level in near_levels(device).values()
            if level.bandwidth is not None and is_private(level, device)
        ),
        float("inf"),
    )


def cycle_s(device: Device) -> float:
    """Seconds of a cycle, by the memory that each processor has for itself; 0 without one."""
    processors = next(iter(device.memory.values())).instances.value
    return processors * _BYTES_PER_CYCLE / inner_bandwidth(device)
