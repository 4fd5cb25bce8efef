"""ASTRA-sim's input files: network (YAML) to topology, system (JSON) to `AstraSimSystem`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ridgeline.bounded_files import parse_json, read_text
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


_OLDER = (
    frozenset({"topologies-per-dim", "units-count"}),
    frozenset({"topology-name", "link-bandwidth", "link-latency"}),
)
"""Fields by which a network file of the first releases (JSON) is known."""
_OF_OLDER = {
    "npus_count": "units-count",
    "bandwidth": "link-bandwidth",
    "latency": "link-latency",
}
_BLOCKS = {"ring": "Ring", "switch": "Switch", "fullyconnected": "FullyConnected",
           "alltoall": "FullyConnected"}  # fmt: skip
_TORUS = re.compile(r"torus([1-9])d")
_OTHERS = {
    "logical-dims": "it groups the devices of an ns-3 network; give the file of its links (.txt)",
    "topology_configuration": "it is of a version before the first release; write a network file"
    " with topology, npus_count, bandwidth and latency",
    "memory-type": "it describes remote memory; there a device file does, by its memory levels",
    "scheduling-policy": "it is a system file, which goes with --system; give a network file",
}
"""What other files of ASTRA-sim are, by a field."""


def is_network(data: object) -> bool:
    """Tell whether a document is a network file, of the first releases or a later one.

    Other files of ASTRA-sim are taken for one, too: `read_network` says what they are.
    """
    return isinstance(data, dict) and (
        "npus_count" in data or _is_older(data) or bool(data.keys() & _OTHERS.keys())
    )


def _is_older(data: dict[str, Any]) -> bool:
    return any(data.keys() >= fields for fields in _OLDER)


def _newer(document: Document) -> dict[str, Any]:
    """Return a network of the first releases in the fields of later ones.

    It gives the links of an NPU in each dimension; those of a ring are one each way, of a complete
    graph one to each other, and more are parallel ones. The first of them has the dimensions in its
    name: ``Ring_AllToAll_Switch``, ``Torus2D``.
    """
    data = document.data
    if "units-count" not in data:
        raise document.error(
            "the shape is not in the file: units-count, the NPUs of each dimension, is missing",
        )
    if "topologies-per-dim" in data:
        names, field = data["topologies-per-dim"], "topologies-per-dim"
    else:
        name, field = str(data["topology-name"]), "topology-name"
        torus = _TORUS.fullmatch(name.lower())
        names = ["Ring"] * int(torus[1]) if torus else name.split("_")
    found = {new: _listed(document, old) for new, old in _OF_OLDER.items()}
    topology = []
    for name in names if isinstance(names, list) else [names]:
        block = _BLOCKS.get(str(name).lower())
        if block is None:
            raise document.error(
                f"no dimension is called {name!r}{nearest(str(name), _BLOCKS)} (known: Ring,"
                " Switch, FullyConnected, AllToAll; in a name with _ between them, or Torus2D)",
                (field,),
            )
        topology.append(block)
    links = _listed(document, "links-count") if "links-count" in data else []
    rates = found["bandwidth"]
    for d, (name, n, count, rate) in enumerate(
        zip(topology, found["npus_count"], links, rates, strict=False)
    ):
        numbers = all(isinstance(value, int | float) for value in (n, count, rate))
        if numbers and n > 1 and name in {"Ring", "FullyConnected"}:
            single = n - 1 if name == "FullyConnected" else min(2, n - 1)
            rates[d] = rate * max(1.0, count / single)
    return {"topology": topology, **found}


def _listed(document: Document, name: str) -> list[Any]:
    values = document.data.get(name, [])
    if not isinstance(values, list):
        raise document.error(f"expected a list, one number a dimension; found {values!r:.40}",
                             (name,))  # fmt: skip
    return list(values)


def read_network(path: str | Path) -> Topology:
    """Read an ASTRA-sim network file: a product of rings, switches and complete graphs.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = read_yaml(path)
    if isinstance(document.data, dict):
        other = next((name for name in _OTHERS if name in document.data), None)
        if other is not None and "npus_count" not in document.data:
            raise document.error(
                f"this file of ASTRA-sim is no network: {_OTHERS[other]}", (other,)
            )
        if _is_older(document.data):
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
_OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_CUSTOM = re.compile(r"(?P<op>.+)-implementation-.+")
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
    text = read_text(path)
    if text.lstrip().startswith("scheduling-policy:"):
        raise ConfigError(
            "a system file of the first release, as text: its reductions are timed by the network"
            " file; allowed: the JSON of later releases, with local-mem-bw",
            file=file,
            line=1,
        )
    data = parse_json(text, file)
    if not isinstance(data, dict):
        raise ConfigError(
            f"a system file is one object in braces; found {type(data).__name__}", file=file
        )
    for name in data:
        match = _CUSTOM.fullmatch(name)
        if match is not None and match["op"] in _OPS:
            raise ConfigError(
                "a collective of its own, as Chakra traces, is not read here: without --compat,"
                " --algorithm PREFIX.0.et plays one",
                file=file,
                field=name,
            )
    found = {
        op: _algorithms(file, f"{op}-implementation", data[f"{op}-implementation"])
        for op in _OPS
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
