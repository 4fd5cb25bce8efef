"""Year, process node, power, price and format of the machines that a file compares."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.hardware.load import load_device
from ridgeline.report.honesty.evidence import Evidence, Row, number


@dataclass(frozen=True)
class HardwareFacts:
    """What a file says of one machine, and the catalogue where the file is silent."""

    label: str
    year: float | None = None
    node_nm: float | None = None
    tdp_w: float | None = None
    price: float | None = None
    precision: str = ""


def hardware_facts(evidence: Evidence) -> list[HardwareFacts]:
    """Return the different machines of a comparison, each once."""
    found: dict[str, HardwareFacts] = {}
    for i, row in enumerate(evidence.rows):
        side = _of_row(row, i)
        if side is not None:
            found.setdefault(repr(replace(side, label="")) + _hardware(row), side)
    return list(found.values())


def _hardware(row: Row) -> str:
    return next((str(s.value) for s in row if s.meaning.concept == "hardware" and s.is_stated), "")


def _of_row(row: Row, i: int) -> HardwareFacts | None:
    stated = {one.meaning.concept: one for one in reversed(row) if one.is_stated}
    name = next(
        (
            str(one.value)
            for one in row
            if one.meaning.concept == "hardware" and isinstance(one.value, str) and one.is_stated
        ),
        "",
    )  # fmt: skip
    if not name and "system" in stated and isinstance(stated["system"].value, str):
        name = stated["system"].value
    label = name or f"row {i + 1}"

    def of(concept: str) -> float | None:
        return number(stated[concept].value) if concept in stated else None

    year = of("year")
    if year is not None and not 1950 < year < 2100:
        year = None
    side = HardwareFacts(
        label, year, of("process_node"), of("tdp"), of("price"), _format(stated.get("precision"))
    )
    known = of_catalogue(name) if name else None
    if known is not None:
        side = replace(
            side,
            year=side.year or known.year,
            node_nm=side.node_nm or known.node_nm,
        )
    nameless = HardwareFacts(label, precision="" if not name else side.precision)
    return side if replace(side, precision=nameless.precision) != HardwareFacts(label) else None


def _format(one: object) -> str:
    """Return the width of a number format: fp16-mixed and bf16 are 16 bits."""
    text = str(getattr(one, "value", "")).lower()
    found = re.search(r"(?:fp|bf|int|float|tf)?\s?-?(64|32|16|8|6|4|2|1)\b", text)
    if "tf32" in text:
        return "19 bits"
    words = {"half": "16", "single": "32", "double": "64", "mixed": "16", "binary": "1"}
    width = found[1] if found else next((b for w, b in words.items() if w in text), "")
    return f"{width} bits" if width else ""


@lru_cache(maxsize=256)
def of_catalogue(name: str) -> HardwareFacts | None:
    """Return what the catalogue knows of a device that people name like "Tesla K20" or "TPU v3"."""
    words = set(
        re.findall(r"[a-z]+\d+[a-z]*|\d+|[a-z]{2,}", name.lower().replace("tpu v", "tpu-v"))
    )
    best, most = "", 0
    for known in catalog.names("devices"):
        parts = known.split("-")
        lead = parts[0] if parts[0] not in {"tpu", "gtx", "rtx", "titan", "xeon", "ipu"} else ""
        if lead:
            score = 10 * (lead in words) + len(words.intersection(parts[1:]))
            score = score if lead in words else 0
        else:
            score = 5 * len(parts) if all(p in words or p in name.lower() for p in parts) else 0
        if score > most:
            best, most = known, score
    if not best:
        return None
    try:
        device = load_device(best)
    except RidgelineError:  # a catalogue that a plug-in broke says so where it is loaded
        return None
    node = device.process_node
    return HardwareFacts(
        best, None if device.year is None else float(device.year),
        None if node is None else node.value * 1e9,
    )  # fmt: skip
