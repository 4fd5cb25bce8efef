"""Names in measured tables to names in the catalogue (``names.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from ridgeline import catalog, units
from ridgeline.config import parse_yaml

Kind = Literal["devices", "models", "precisions"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of these devices, and the cluster of such nodes if there is one."""

    node: str
    in_node: int
    cluster: str | None
    devices: tuple[str, ...]
    systems: tuple[str, ...] = ("",)
    """Beginnings of what a row calls its system."""


@dataclass(frozen=True, slots=True)
class Framework:
    """How the programs of a framework run, where a row does not say it.

    Attributes
    ----------
    begins
        Beginnings of the names that it has in tables, in lower case.
    issue_s
        Time of the host to issue an op (`Plan.issue`).
    overlap
        Whether gradients are reduced during the backward pass (`Plan.overlap`).
    attention
        Kernel of attention; None: that of the network's description.
    """

    begins: tuple[str, ...]
    issue_s: float = 0.0
    overlap: bool = True
    attention: str | None = None


def framework_of(name: str) -> Framework:
    """Return the framework of a row; one that is unknown issues its ops in no time."""
    text = name.lower()
    return next((one for one in _frameworks() if text.startswith(one.begins)), Framework(()))


def convolves_itself(name: str) -> bool:
    """Whether a framework has convolution kernels of its own, which no device file describes."""
    return name.lower().startswith(tuple(_data()["own_convolutions"]))


@cache
def _frameworks() -> tuple[Framework, ...]:
    return tuple(
        Framework(
            tuple(row["begins"]),
            units.parse(row.get("issue", "0 s"), "s"),
            bool(row.get("overlap", True)),
            row.get("attention"),
        )
        for row in _data()["frameworks"]
    )


def find_name(kind: Kind, *names: str) -> str | None:
    """Return the catalogue's name of the first of `names` that is known, else None."""
    known = _names()[kind]
    return next((known[_plain(name)] for name in names if _plain(name) in known), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def machines() -> tuple[Machine, ...]:
    """Return the machines that published measurements were made on."""
    return tuple(
        Machine(
            row["node"],
            row["in_node"],
            row.get("cluster"),
            tuple(row["devices"]),
            tuple(row.get("systems", [""])),
        )
        for row in _data()["machines"]
    )


@cache
def _names() -> Mapping[str, Mapping[str, str]]:
    data = _data()
    known = {
        kind: {_plain(alias): name for name, aliases in data[kind].items() for alias in aliases}
        for kind in ("devices", "models", "precisions")
    }
    for kind in ("devices", "models"):
        known[kind] |= {_plain(name): name for name in catalog.names(kind)}
    return known


@cache
def _data() -> Mapping[str, Any]:
    text = resources.files("ridgeline.study.validate").joinpath("names.yaml").read_text("utf-8")
    data: Mapping[str, Any] = parse_yaml(text, "names.yaml").data
    return data
