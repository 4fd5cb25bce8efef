"""A collective as a point of a design study: an operation of some size on a machine's links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ridgeline import units
from ridgeline.config import Document, Strict, validate
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.collective_files import is_collective_file
from ridgeline.network.collectives import ALGORITHMS, CollectiveResult, collective
from ridgeline.network.loggp_bsp_costs import cost_of
from ridgeline.network.nccl import NAMES as NCCL_NAMES
from ridgeline.network.operations import operation_named
from ridgeline.network.resolve import network_of
from ridgeline.network.sparse import compression_of
from ridgeline.network.topology import Topology
from ridgeline.report.manifest import digest, topology_fingerprint
from ridgeline.simulation import shared_topology
from ridgeline.study.point import Point, Replaceable, state_of
from ridgeline.version import __version__

_OVERRIDE = "override of collective"  # where `config` says that a replaced field stands


class Settings(Strict):
    """What is done, as ``ridgeline collective`` takes it."""

    operation: str
    """all-reduce, all-gather, ..."""
    size: units.Bytes
    """As nccl-tests counts it."""
    ranks: int | None = Field(default=None, ge=1)
    """How many devices take part; without it, all."""
    algorithm: str = "auto"
    cost: str | None = None
    """Of messages: LogGP or BSP."""
    compression: str | None = None
    compat: Literal["astrasim", "astrasim-aware"] | None = None
    library: str = "nccl"
    """nccl, or a serving framework whose own all-reduce is taken."""
    launch: Literal["queued", "stream", "eager"] = "queued"
    """Whether the host is ahead of the device, or launches call by call."""
    number_format: str | None = None
    """Of the values, where that matters (int8)."""
    ranks_per_node: int | None = Field(default=None, ge=1)
    """How many of the ranks are on each node; without it, all of its devices."""


@dataclass(frozen=True)
class CollectivePoint(Replaceable):
    """Everything that `collective` needs, by name.

    Attributes
    ----------
    cluster
        A name in the catalogue, a path, or an inline topology.
    collective
        Fields of `Settings`.
    overrides
        Dotted path -> new value. Paths begin with ``cluster.`` or ``collective.``.
    """

    NAMES = ("cluster",)
    HEADS = ("cluster", "collective")
    REQUIRED = ("collective.operation", "collective.size")

    cluster: str
    collective: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self, root: str) -> Any:
        """Load the network or the settings, with their fields replaced."""
        replaced = self.replaced(root)
        if root == "cluster":
            return shared_network(
                self.cluster, json.dumps(replaced, sort_keys=True), _state(self.cluster)
            )
        fields = {**self.collective, **replaced}
        settings = validate(Document(root, fields, {}, tuple(fields)), Settings)
        settings = _with_own_names(settings)
        for name, read in (("cost", cost_of), ("compression", compression_of)):
            if (text := getattr(settings, name)) is not None:
                try:
                    read(text)
                except RidgelineError as error:
                    raise ConfigError(str(error), file=_OVERRIDE, field=name) from error
        return settings

    def simulate(self) -> tuple[CollectiveResult, Topology]:
        """Load everything and price the collective."""
        network, asked = self.load("cluster"), self.load("collective")
        if isinstance(network, Cluster):
            drawn = asked.ranks or network.max_devices
            if asked.ranks_per_node and asked.ranks:
                drawn = -(-asked.ranks // asked.ranks_per_node) * network.nodes.count
            network = shared_topology(network, min(drawn, network.max_devices))
        answer = collective(
            asked.operation,
            asked.size,
            network,
            ranks=asked.ranks,
            algorithm=asked.algorithm,
            cost=None if asked.cost is None else cost_of(asked.cost),
            compression=None if asked.compression is None else compression_of(asked.compression),
            compat=asked.compat,
            library=asked.library,
            launch=asked.launch,
            number_format=asked.number_format,
            ranks_per_node=asked.ranks_per_node,
        )
        return answer, network

    def row(self) -> dict[str, Any]:
        """Price the collective, and return its numbers and those of the network."""
        answer, topology = self.simulate()
        used = answer.link_utilisation
        busiest = max(used, key=lambda link: (used[link], link), default=None)
        priced = answer.energy_j > 0 or not used
        return {
            "time_s": answer.time_s,
            "algbw_bytes_per_s": answer.algbw_bytes_per_s,
            "busbw_bytes_per_s": answer.busbw_bytes_per_s,
            "energy_j": answer.energy_j if priced else None,
            "algorithm": answer.algorithm,
            "n_ranks": answer.n_ranks,
            "size_bytes": answer.size_bytes,
            "busiest_link": busiest,
            "busiest_link_utilisation": None if busiest is None else used[busiest],
            "network_price_usd": topology.cost_dollars,
            "network_power_w": topology.power_w,
            "manifest_hash": self._hash(topology),
        }

    def content(self) -> list[Any]:
        """Return all that tells this point from others, as plain values."""
        return ["collective", self.cluster, dict(self.collective), dict(self.overrides)]

    def _hash(self, topology: Topology) -> str:
        """Hash the settings and the network itself, so that it does not matter where it stood."""
        settings = self.load("collective").model_dump()
        return digest([__version__, topology.name, topology_fingerprint(topology), settings])


AnyPoint = Point | CollectivePoint


@lru_cache(maxsize=16)
def shared_network(name: str, replaced: str, state: tuple[int, int]) -> Topology | Cluster:
    """Load a network; points on the same one share it, and so its routes."""
    return network_of(name, json.loads(replaced))


def _state(name: str) -> tuple[int, int]:
    """Return what changes when the file of a network is written anew."""
    try:
        return state_of(Path(name))
    except OSError:
        return 0, 0  # inline, of the catalogue, or loading says what is wrong


def _with_own_names(settings: Settings) -> Settings:
    """Return settings with the operation by its own name, or raise ConfigError at a wrong one."""
    algorithms = sorted({"auto", *(name for _, name in ALGORITHMS), *NCCL_NAMES})
    found = settings.algorithm
    if found not in algorithms and not is_collective_file(found):
        raise ConfigError(
            f"no algorithm is called {found!r}{nearest(found, algorithms)} (known: "
            f"{', '.join(algorithms)})",
            file=_OVERRIDE,
            field="algorithm",
        )
    try:
        operation = operation_named(settings.operation, {op for op, _ in ALGORITHMS})
    except RidgelineError as error:
        raise ConfigError(str(error), file=_OVERRIDE, field="operation") from error
    return settings.model_copy(update={"operation": operation})
