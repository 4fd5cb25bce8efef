"""ASTRA-sim 2: its numbers for one-dimensional networks to the nanosecond, and its input files.

What differs from this package's own model, and why it is kept apart:

- "GB/s" means GiB/s, and of an all-gather the size is the shard of one rank.
- The payload is cut into equal splits; with one active chunk they follow each other, so that more
  splits take longer.
- Every round of a reduction also waits for three passes over local memory; rounds are whole
  nanoseconds, rounded down.

- A rank's messages of one round do not wait for each other, so that a direct exchange is faster
  than its port allows.

The closed form is exact for one dimension and the congestion-unaware backend (astra-sim 518bd51,
analytical backend 599a047), and for the ring with either backend.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ridgeline.config import Strict, read_text, read_yaml, validate
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.network.inline import product_of
from ridgeline.network.topology import LinkKind, Topology

GIB = 2**30
_ROUNDS = {"all-reduce": (1, 1), "reduce-scatter": (1, 0), "all-gather": (0, 1)}
"""Times p-1: rounds that add up, and rounds that only pass on."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network, as ASTRA-sim has it: Ring, FullyConnected or Switch."""

    block: str
    npus: int
    bandwidth_gib_per_s: float
    latency_ns: float


def collective_time_ns(
    op: str,
    algorithm: str,
    size_bytes: int,
    dimension: Dimension,
    *,
    splits: int = 4,
    active_chunks: int = 1,
    endpoint_delay_ns: int = 10,
    local_memory_gb_per_s: float = 50.0,
) -> int:
    """Return the cycles (nanoseconds) that ASTRA-sim's congestion-unaware backend reports.

    ``T = splits / active * (Σ over rounds (st(m) + 3 floor(m / mem) where a round adds up) + ep)``
    with ``st(m) = floor(hops latency + m / bandwidth) + ep`` and, of a split s among p ranks,

    - ``ring``: p-1 rounds of m = s/p that add up and p-1 that only pass on, to the neighbour;
    - ``direct``: one round of each kind, m = s/p: p-1 messages leave as if they were one. An
      all-to-all is one round, which on a ring waits for the farthest of its messages;
    - ``halving-doubling``: rounds of m = s/2, s/4, ... s/p and back; the first one adds up nothing.

    Hops are 2 behind a switch. With several chunks active, that many splits run at once.

    Parameters
    ----------
    op
        ``all-reduce``, ``reduce-scatter``, ``all-gather`` or ``all-to-all``.
    algorithm
        ``ring``, ``direct`` or ``halving-doubling``.
    size_bytes
        The whole buffer; of an all-gather the shard of one rank, as ASTRA-sim counts it.
    splits
        ``preferred-dataset-splits`` of the system file.

    Raises
    ------
    RidgelineError
        If there is no such collective or algorithm, or a number is impossible.
    """
    if op not in _ROUNDS and (op, algorithm) != ("all-to-all", "direct"):
        raise RidgelineError(
            f"the compatibility mode has no {op!r}{nearest(op, _ROUNDS)} with {algorithm!r} "
            f"(it has: {', '.join(_ROUNDS)}; all-to-all with 'direct')"
        )
    if algorithm not in _MESSAGES:
        raise RidgelineError(
            f"the compatibility mode has no algorithm {algorithm!r}{nearest(algorithm, _MESSAGES)} "
            f"(it has: {', '.join(_MESSAGES)})"
        )
    p = dimension.npus
    numbers = (dimension.bandwidth_gib_per_s, local_memory_gb_per_s, splits, active_chunks)
    if p < 2 or size_bytes < 1 or dimension.latency_ns < 0 or min(numbers) <= 0:
        raise RidgelineError(
            "the compatibility mode needs 2 ranks, 1 byte, a split, and bandwidths above 0; found "
            f"{p} ranks, {size_bytes} B, {splits} splits and {dimension.bandwidth_gib_per_s} GiB/s"
        )
    split = size_bytes // splits
    sizes = [split] if op == "all-gather" else _MESSAGES[algorithm](split, p)
    if op == "all-gather" and algorithm == "ring":
        sizes *= p - 1
    hops = 2 if dimension.block == "Switch" else 1
    if op == "all-to-all" and dimension.block == "Ring":
        hops = p // 2
    bandwidth = Fraction(dimension.bandwidth_gib_per_s) * GIB / 10**9  # bytes a nanosecond
    latency, memory = hops * Fraction(dimension.latency_ns), Fraction(local_memory_gb_per_s)
    adding, passing = _ROUNDS.get(op, (0, 1))
    total = endpoint_delay_ns
    for number, size in enumerate(sizes):
        step = math.floor(latency + size / bandwidth) + endpoint_delay_ns
        total += (adding + passing) * step
        if algorithm != "halving-doubling" or number > 0:
            total += adding * 3 * math.floor(size / memory)
    return math.ceil(splits / active_chunks) * total


def ring_time_ns(
    op: str,
    size_bytes: int,
    npus: int,
    *,
    bandwidth_gib_per_s: float,
    latency_ns: float,
    splits: int = 4,
    endpoint_delay_ns: int = 10,
    local_memory_gb_per_s: float = 50.0,
) -> int:
    """Return what ASTRA-sim reports for a ring collective; see `collective_time_ns`.

    Exact for both of its analytical network backends.
    """
    return collective_time_ns(
        op,
        "ring",
        size_bytes,
        Dimension("Ring", npus, bandwidth_gib_per_s, latency_ns),
        splits=splits,
        endpoint_delay_ns=endpoint_delay_ns,
        local_memory_gb_per_s=local_memory_gb_per_s,
    )


def _halves(split: int, p: int) -> list[int]:
    return [split >> k for k in range(1, p.bit_length())]


_MESSAGES: dict[str, Callable[[int, int], list[int]]] = {
    "ring": lambda split, p: [split // p] * (p - 1),
    "direct": lambda split, p: [split // p],
    "halving-doubling": _halves,
}
"""Sizes of the messages of a rank, round by round of one kind."""


class _Network(Strict):
    """Network file of the analytical backends (YAML)."""

    topology: tuple[Literal["Ring", "Switch", "FullyConnected"], ...] = Field(strict=False)
    npus_count: tuple[int, ...] = Field(strict=False)
    bandwidth: tuple[float, ...] = Field(strict=False)
    """GiB/s."""
    latency: tuple[float, ...] = Field(strict=False)
    """ns."""

    @model_validator(mode="after")
    def _consistent(self) -> _Network:
        lengths = {len(values) for values in (self.topology, self.npus_count, self.bandwidth,
                                              self.latency)}  # fmt: skip
        if lengths != {len(self.topology)} or not self.topology:
            raise ValueError("topology, npus_count, bandwidth and latency must be equally long")
        if min(self.npus_count) < 1 or min(self.bandwidth) <= 0 or min(self.latency) < 0:
            raise ValueError("npus_count and bandwidth must be more than 0, latency at least 0")
        return self


def read_network(path: str | Path) -> Topology:
    """Read an ASTRA-sim network file: a product of rings, switches and complete graphs.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    network = validate(read_yaml(path), _Network)
    blocks = [
        (block, n, LinkKind(f"dim{d}", bandwidth * GIB, latency * 1e-9, energy_j_per_byte=0.0))
        for d, (block, n, bandwidth, latency) in enumerate(
            zip(network.topology, network.npus_count, network.bandwidth, network.latency,
                strict=True)
        )
    ]  # fmt: skip
    return product_of(Path(path).stem, blocks)


@dataclass(frozen=True, slots=True)
class System:
    """What a system file (JSON) says about collectives.

    Attributes
    ----------
    algorithms
        By operation, the algorithm of each dimension, in this package's names.
    endpoint_delay_ns, splits, active_chunks, local_memory_gb_per_s
        As in the file.
    """

    algorithms: dict[str, tuple[str, ...]]
    endpoint_delay_ns: int
    splits: int
    active_chunks: int
    local_memory_gb_per_s: float


_NAMES = {
    "ring": "ring",
    "oneRing": "ring",
    "direct": "direct",
    "oneDirect": "direct",
    "halvingDoubling": "halving-doubling",
    "oneHalvingDoubling": "halving-doubling",
    "doubleBinaryTree": "double-binary-tree",
}


def read_system(path: str | Path) -> System:
    """Read an ASTRA-sim system file.

    Raises
    ------
    ConfigError
        If it is not JSON, a field is missing, or an algorithm is unknown.
    """
    file = str(path)
    try:
        data: dict[str, Any] = json.loads(read_text(path))
        found = {
            op: tuple(_NAMES[name] for name in data[f"{op}-implementation"])
            for op in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
            if f"{op}-implementation" in data
        }
        return System(
            found,
            int(data.get("endpoint-delay", 10)),
            int(data.get("preferred-dataset-splits", 1)),
            int(data.get("active-chunks-per-dimension", 1)),
            float(data["local-mem-bw"]),
        )
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", file=file, line=error.lineno) from error
    except KeyError as error:
        name = str(error.args[0])
        raise ConfigError(
            f"no field or algorithm {name!r}{nearest(name, _NAMES)}", file=file
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"not a system file: {error}", file=file) from error
