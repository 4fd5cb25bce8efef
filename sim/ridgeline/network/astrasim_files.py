"""ASTRA-sim's input files: a network (YAML) becomes a topology, a system (JSON) a `System`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ridgeline.config import Strict, read_text, read_yaml, validate
from ridgeline.errors import ConfigError, nearest
from ridgeline.network.astrasim import GIB, System
from ridgeline.network.inline import product_of
from ridgeline.network.topology import LinkKind, Topology


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
