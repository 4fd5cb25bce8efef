"""ASTRA-sim's input files: network (YAML) to topology, system (JSON) to `AstraSimSystem`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ridgeline.bounded_files import read_json
from ridgeline.config import Document, Strict, read_yaml, validate
from ridgeline.errors import ConfigError, nearest
from ridgeline.network.astrasim import GIB, AstraSimSystem
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


_OLDER = frozenset({"topologies-per-dim", "units-count"})
"""Fields by which a network file of the first release (JSON) is known."""
_OF_OLDER = {
    "npus_count": "units-count",
    "bandwidth": "link-bandwidth",
    "latency": "link-latency",
}


def is_network(data: object) -> bool:
    """Tell whether a document is a network file, of the first release or a later one."""
    return isinstance(data, dict) and ("npus_count" in data or data.keys() >= _OLDER)


def _newer(document: Document) -> dict[str, Any]:
    """Return a network of the first release in the fields of later ones.

    It gives the links of an NPU in each dimension; those of a ring are one each way, of a complete
    graph one to each other, and more are parallel ones.
    """
    data = document.data
    names = {"AllToAll": "FullyConnected"}
    topology = [names.get(str(name), name) for name in data["topologies-per-dim"]]
    found = {new: list(data.get(old, ())) for new, old in _OF_OLDER.items()}
    links = data.get("links-count", [])
    rates = found["bandwidth"]
    for d, (name, n, count, rate) in enumerate(
        zip(topology, found["npus_count"], links, rates, strict=False)
    ):
        numbers = all(isinstance(value, int | float) for value in (n, count, rate))
        if numbers and n > 1 and name in {"Ring", "FullyConnected"}:
            single = n - 1 if name == "FullyConnected" else min(2, n - 1)
            rates[d] = rate * max(1.0, count / single)
    return {"topology": topology, **found}


def read_network(path: str | Path) -> Topology:
    """Read an ASTRA-sim network file: a product of rings, switches and complete graphs.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = read_yaml(path)
    if isinstance(document.data, dict) and document.data.keys() >= _OLDER:
        document = replace(document, data=_newer(document))
    network = validate(document, _Network)
    blocks = [
        (block, n, LinkKind(f"dim{d}", bandwidth * GIB, latency * 1e-9, energy_j_per_byte=0.0))
        for d, (block, n, bandwidth, latency) in enumerate(
            zip(network.topology, network.npus_count, network.bandwidth, network.latency,
                strict=True)
        )
    ]  # fmt: skip
    return product_of(Path(path).stem, blocks)


MOST = 1e9
"""Largest number of a system file."""
_NAMES = {
    "ring": "ring",
    "oneRing": "ring",
    "direct": "direct",
    "oneDirect": "direct",
    "halvingDoubling": "halving-doubling",
    "oneHalvingDoubling": "halving-doubling",
    "doubleBinaryTree": "double-binary-tree",
}


def read_system(path: str | Path) -> AstraSimSystem:
    """Read an ASTRA-sim system file; fields that say nothing about collectives are left alone.

    Raises
    ------
    ConfigError
        If it is not JSON, a field is missing or impossible, or an algorithm is unknown.
    """
    file = str(path)
    data = read_json(path)
    if not isinstance(data, dict):
        raise ConfigError(
            f"a system file is one object in braces; found {type(data).__name__}", file=file
        )
    found = {
        op: _algorithms(file, f"{op}-implementation", data[f"{op}-implementation"])
        for op in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
        if f"{op}-implementation" in data
    }
    if "local-mem-bw" not in data:
        raise ConfigError("the field 'local-mem-bw' is missing (GB/s)", file=file)
    return AstraSimSystem(
        found,
        _whole(file, data, "endpoint-delay", 10, least=0),
        _whole(file, data, "preferred-dataset-splits", 1),
        _whole(file, data, "active-chunks-per-dimension", 1),
        _number(file, data, "local-mem-bw", 0.0),
    )


def _algorithms(file: str, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{name} is a list of algorithms, one a dimension; found {value!r}", file=file
        )
    for one in value:
        if not isinstance(one, str) or one not in _NAMES:
            raise ConfigError(
                f"{name}: no algorithm is called {one!r}{nearest(str(one), _NAMES)} "
                f"(known: {', '.join(_NAMES)})",
                file=file,
            )
    return tuple(_NAMES[one] for one in value)


def _number(file: str, data: dict[str, Any], name: str, default: float) -> float:
    value = data.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < MOST:
        raise ConfigError(f"{name} is a number from 0 to {MOST:g}; found {value!r}", file=file)
    if name == "local-mem-bw" and value == 0:
        raise ConfigError(f"{name} must be more than 0", file=file)
    return float(value)


def _whole(file: str, data: dict[str, Any], name: str, default: int, least: int = 1) -> int:
    value = _number(file, data, name, default)
    if value != int(value) or value < least:
        raise ConfigError(
            f"{name} is a whole number of at least {least}; found {data[name]!r}", file=file
        )
    return int(value)
