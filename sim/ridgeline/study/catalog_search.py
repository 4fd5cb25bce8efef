"""Search of the catalogue: words, and comparisons of parameters, memory, years, devices, power."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ridgeline import catalog, units
from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import description, load_device
from ridgeline.spelling import squeezed

_COMPARISON = re.compile(
    r"(?:(?P<field>[A-Za-z]+)\s*)?(?P<op>>=|<=|>|<|=)\s*(?P<value>[\d.,_]+)"
    r"(?:\s*(?P<unit>[A-Za-z]*[BbWw]|[KkMmTt])\b|(?P<other>[A-Za-z]+))?"
)
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": math.isclose,
}  # fmt: skip
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_ALIKE = 0.75  # share of a slip of the pen: memry is memory, moe is not
FIELDS = ("parameters", "memory", "year", "devices", "power")
_YEAR = re.compile(r"\b(?:19[5-9]\d|20\d\d)\b")
_IDENTIFIERS = re.compile(r"(?:arXiv:|doi:|github:|https?:)\S+", re.IGNORECASE)


@dataclass(frozen=True)
class CatalogEntry:
    """One thing that ships, with what it is searched by.

    Attributes
    ----------
    parameters
        Trained parameters of a network: as published, else as counted.
    memory_bytes
        Memory outside the chip, of all devices of a machine together.
    year
        Of a machine or a stack as its file says it; of a network the first in its citation.
    devices
        Of a machine, at most.
    power_w
        Design power of a device.
    """

    kind: str
    name: str
    title: str
    words: str
    parameters: int | None = None
    memory_bytes: float | None = None
    year: int | None = None
    devices: int | None = None
    power_w: float | None = None

    def number(self, field: str) -> float | None:
        """Return a number by the name of its field in `FIELDS`; None: it is not known."""
        own = {"memory": "memory_bytes", "power": "power_w"}.get(field, field)
        value = getattr(self, own)
        return None if value is None else float(value)


def search_catalog(text: str = "", *kinds: str) -> list[CatalogEntry]:
    """Return what ships, or what of it fits all words and comparisons of a text.

    Parameters
    ----------
    text
        Words of names, titles, families ("moe llama"), and comparisons: "parameters > 100B",
        "memory >= 80 GB", "year > 2020", "devices <= 8", "power < 400 W". The field may be left out
        where the unit says it. What is not known fits no comparison.
    kinds
        Catalogues, in `catalog.FOLDERS`; none: all.

    Raises
    ------
    ConfigError
        If a comparison has no field, an unknown one, or another unit.
    """
    comparisons, words = _parsed(text)
    machines, found = _MachineFacts(), []
    for kind in kinds or tuple(catalog.FOLDERS):
        if comparisons and not all(field in _FIELDS_OF[kind] for field, *_ in comparisons):
            continue
        for name in catalog.names(kind):
            data = read_yaml(catalog.find(kind, name)).data
            said = _words(kind, name, data)
            if all(_has_word(name, said, word) for word in words):  # before facts, which take long
                entry = CatalogEntry(
                    kind, name, _title(data), said, **_facts(kind, name, data, machines)
                )
                if _fits(entry, comparisons):
                    found.append(entry)
    return found


def _parsed(text: str) -> tuple[list[tuple[str, str, float]], list[str]]:
    comparisons = []
    rest = text
    for match in _COMPARISON.finditer(text):
        word, unit = match["field"] or "", _unit(match["unit"] or match["other"] or "")
        field = word.lower()
        if field not in FIELDS:
            if near := get_close_matches(field, FIELDS, 1, _ALIKE):
                raise ConfigError(f"{word!r}: did you mean {near[0]!r}?", field="--search")
            field = _field_of(unit, match[0].strip())
        else:
            word = ""
        comparisons.append((field, match["op"], _value(match["value"], unit, field)))
        rest = rest.replace(match[0], f" {word} ", 1)
    if left := re.search(r"[<>=]", rest):
        found = rest[left.start() :].strip()
        raise ConfigError(
            f"expected a comparison such as 'memory >= 80 GB', found {found!r}", field="--search"
        )
    return comparisons, rest.split()


def _unit(text: str) -> str:
    """Write a unit of bytes as units are: 80gb is 80 GB."""
    prefixed = re.fullmatch(r"([kmgtp])(i?)b", text, re.IGNORECASE)
    if prefixed is None:
        return text
    letter = prefixed[1].upper()
    return f"{'k' if letter == 'K' and not prefixed[2] else letter}{prefixed[2].lower()}B"


def _field_of(unit: str, comparison: str) -> str:
    """Return the field that a unit says: of 100B parameters, of 80 GB memory, of 400 W power."""
    if unit.upper() in _COUNTS:
        return "parameters"
    if units.unprefixed(unit) == "B":
        return "memory"
    if units.unprefixed(unit) == "W":
        return "power"
    unknown = f"unknown unit {unit!r}; " if unit else ""
    fields = ", ".join(FIELDS)
    raise ConfigError(f"{comparison!r}: {unknown}say of what: {fields}", field="--search")


def _value(number: str, unit: str, field: str) -> float:
    try:
        value = float(number.replace(",", "").replace("_", ""))
    except ValueError:
        raise ConfigError(f"expected a number, found {number!r}", field="--search") from None
    if field in {"memory", "power"}:
        return units.parse(f"{value:g} {unit}", {"memory": "B", "power": "W"}[field])
    if unit == "" or (field in {"parameters", "devices"} and unit.upper() in _COUNTS):
        return value * _COUNTS.get(unit.upper(), 1.0)
    allowed = "none" if field == "year" else ", ".join(_COUNTS)
    raise ConfigError(f"{field} in {unit!r}; allowed: {allowed}", field="--search")


def _has_word(name: str, words: str, word: str) -> bool:
    plain = word.lower()
    return bool(
        re.search(rf"\b{re.escape(plain)}", words)
        or ((key := squeezed(word)) and key in squeezed(name))
    )


def _fits(entry: CatalogEntry, comparisons: Sequence[tuple[str, str, float]]) -> bool:
    numbers = ((entry.number(field), op, value) for field, op, value in comparisons)
    return all(n is not None and _OPERATORS[op](n, value) for n, op, value in numbers)


_FIELDS_OF: Mapping[str, tuple[str, ...]] = {
    "models": ("parameters", "year"),
    "datasets": (),
    "devices": ("memory", "year", "power", "devices"),
    "nodes": ("memory", "year", "devices"),
    "clusters": ("memory", "year", "devices"),
    "energy": (),
    "components": (),
    "software": ("year",),
}


def _title(data: Mapping[str, Any]) -> str:
    return str(data.get("title") or data.get("description") or "")


def _words(kind: str, name: str, data: Mapping[str, Any]) -> str:
    own = [name, _title(data), *catalog.aliases(kind).get(name, ())]
    own += [str(data[key]) for key in ("family", "vendor", "node", "device") if key in data]
    if "mixture" in data:
        own.append("moe mixture of experts")
    return " ".join(own).lower()


def _facts(
    kind: str, name: str, data: Mapping[str, Any], machines: _MachineFacts
) -> Mapping[str, Any]:
    if kind == "models":
        return {"parameters": _parameters(name, data), "year": _cited_year(data)}
    if kind in {"devices", "nodes", "clusters"}:
        return machines[kind, name]
    return {"year": data.get("year")}


def _parameters(name: str, data: Mapping[str, Any]) -> int:
    """Return the trained parameters of a network: as published, else as counted."""
    published = data.get("published", {}).get("parameters")
    if published is not None:
        return int(published["value"])
    from ridgeline.workload.files import load_network

    model = load_network(name)
    return model.forward(model.network.smallest_batch).parameters


def _cited_year(data: Mapping[str, Any]) -> int | None:
    """Return the first year that a citation names, besides in identifiers of papers."""
    cited = _YEAR.search(_IDENTIFIERS.sub("", str(data.get("citation", ""))))
    return int(cited[0]) if cited else None


class _MachineFacts(dict[tuple[str, str], Mapping[str, Any]]):
    """Year, devices and memory of machines, each made once; the memory is of all its devices."""

    def __missing__(self, machine: tuple[str, str]) -> Mapping[str, Any]:
        kind, name = machine
        found = self[machine] = _device_facts(name) if kind == "devices" else self._sum(kind, name)
        return found

    def _sum(self, kind: str, name: str) -> Mapping[str, Any]:
        data = description(kind, name).data
        if "groups" in data:
            parts = [(self["nodes", g["node"]], g["count"]) for g in data["groups"]]
        elif kind == "clusters":
            parts = [(self["nodes", data["node"]], data.get("max_nodes", 1))]
        else:
            parts = [(self["devices", data["device"]], data.get("count", 1))]
        memory = [part["memory_bytes"] for part, _ in parts]
        years = [part["year"] for part, _ in parts if part["year"]]
        known = all(size is not None for size in memory)
        return {
            "year": data.get("year") or max(years, default=None),
            "devices": sum(part["devices"] * count for part, count in parts),
            "memory_bytes": math.fsum(p["memory_bytes"] * n for p, n in parts) if known else None,
        }


def _device_facts(name: str) -> Mapping[str, Any]:
    device = load_device(name)
    dram = [float(m.capacity.value) for m in device.memory.values() if m.kind == "dram"]
    power_w = None if device.tdp is None else device.tdp.value
    return {
        "year": device.year, "devices": 1, "power_w": power_w,
        "memory_bytes": math.fsum(dram) if dram else None,
    }  # fmt: skip
