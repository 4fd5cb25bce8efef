"""ASTRA-sim 2: its numbers for one-dimensional rings to the nanosecond, and its input files.

What differs from this package's own model, and why it is kept apart:

- "GB/s" means GiB/s, and of an all-gather the size is the shard of one rank.
- The payload is cut into equal splits; with one active chunk they follow each other, so that more
  splits take longer.
- Every round of a reduction also waits for three passes over local memory; rounds are whole
  nanoseconds, rounded down.

The closed form is exact for topology Ring, algorithm ring and one active chunk, with either of the
two analytical network backends (astra-sim 518bd51, analytical backend 599a047).
"""

from __future__ import annotations

import json
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
    """Return the cycles (nanoseconds) that ASTRA-sim reports for a ring collective.

    ``T = splits * (n_rs * (st + 3 floor(m / mem)) + n_ag * st + ep)`` with
    ``st = floor(latency + m / bandwidth) + ep``, where a message m is a p-th of a split.

    Parameters
    ----------
    op
        ``all-reduce``, ``reduce-scatter`` or ``all-gather``.
    size_bytes
        The whole buffer; of an all-gather the shard of one rank, as ASTRA-sim counts it.
    npus
        Number of ranks p.
    splits
        ``preferred-dataset-splits`` of the system file, with ``active-chunks-per-dimension`` 1.

    Raises
    ------
    RidgelineError
        If there is no such collective, or a number is impossible.
    """
    if op not in _ROUNDS:
        raise RidgelineError(
            f"the compatibility mode has no {op!r}{nearest(op, _ROUNDS)} "
            f"(it has: {', '.join(_ROUNDS)})"
        )
    if npus < 2 or splits < 1 or size_bytes < 0 or bandwidth_gib_per_s <= 0 or latency_ns < 0:
        raise RidgelineError("there must be 2 NPUs and 1 split at least, and a bandwidth above 0")
    message = size_bytes // splits // (1 if op == "all-gather" else npus)
    wire_ns = Fraction(message) * 10**9 / (Fraction(bandwidth_gib_per_s) * GIB)
    step_ns = int(Fraction(latency_ns) + wire_ns) + endpoint_delay_ns
    local_ns = int(Fraction(message) / Fraction(local_memory_gb_per_s))
    adding, passing = _ROUNDS[op]
    rounds_ns = adding * (step_ns + 3 * local_ns) + passing * step_ns
    return splits * ((npus - 1) * rounds_ns + endpoint_delay_ns)


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
