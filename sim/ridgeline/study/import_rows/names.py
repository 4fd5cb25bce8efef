"""Names in tables, as people write them, to names in the catalogue.

Beside the ``aliases`` of the catalogue, ``names.yaml`` says what tables mean by names that leave
the variant open, and by those of machines where a device is due.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal

from ridgeline import catalog
from ridgeline.errors import nearest
from ridgeline.hardware.load import load_device
from ridgeline.spelling import Spellings
from ridgeline.study.import_rows.rules import section

Kind = Literal["devices", "models", "precisions"]
_SLICE = re.compile(r"\b(tpu[ -]?v\d[ep]?)-\d+(-[a-z-]+)?\b")  # v4-128-TF: cores, and a program
_SLICED = re.compile(
    r"(?<![a-z0-9])(?:tpu[ -]?)?(v[2-9] ?(?:p|e|lite(?:pod)?)?)-(\d+)(?:-[a-z-]+)?\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"^\s*(\d+) ?[x×*] ?(?=[a-z])|(?<=[0-9 ])x(\d+)\s*$", re.IGNORECASE)
_MANY = re.compile(r"(?<![\w.])\d+ ?[x×*] ?(?=[a-z])", re.IGNORECASE)  # of each of several nodes
_GIGABYTES = re.compile(r"(\d+(?:\.\d+)?)gb?", re.IGNORECASE)
_OF_HOSTS = frozenset({"ram", "memory", "dram", "ddr4", "ddr5"})
_LIKE = 0.12  # boards call what they hold by the next round number
_TWO_CORES = ("v2", "v3", "v4", "v5p")  # a chip, by which their slices are called (Google Cloud)


def find_name(kind: Kind, *names: str) -> str | None:
    """Return the catalogue's name of the first of `names` that is known, else None.

    Case, punctuation, vendors and the order of words do not matter.
    """
    return _names()[kind].find(*(_SLICE.sub(r"\1", name.lower()) for name in names))


def device_in(text: str) -> str | None:
    """Return the device that words name: "P100 (Big Basin, NVLink)", "NVIDIA A30 (165W)"; or None.

    The longest part of the words that is a name counts, and of equally long ones the first, unless
    other words make it another device: "RTX 3090 Ti", "A100-SXM4-40GB (80GB)".
    """
    text = _SLICED.sub(r"tpu \1", _MANY.sub("", _COUNTED.sub("", text)))
    words = re.split(r"[\s(),/]+", text)
    for length in range(len(words), 0, -1):
        for first in range(len(words) - length + 1):
            name = find_name("devices", " ".join(words[first : first + length]))
            if name is not None:
                own = words[first : first + length]
                beside = [*words[:first], *words[first + length :]]
                return None if _is_another(name, own, beside) else name
    return None


def _is_another(device: str, own: list[str], beside: list[str]) -> bool:
    """Whether words beside a device's name are of another model, or of another memory than its.

    A core of a TPU holds a part of its chip's, and a node of four or eight devices as much as all
    of them; a board of two, if its name does not say what one of them holds. Of Xeons the
    memory is what the node has.
    """
    if any(word.lower() in section("other_models") for word in beside):
        return True
    if "core" in beside or device.startswith("xeon"):
        return False
    followed = zip(beside, [*beside[1:], ""], strict=False)
    sizes = [_GIGABYTES.fullmatch(word) for word, by in followed if by.lower() not in _OF_HOSTS]
    many = (1, 4, 8) if any(map(_GIGABYTES.search, own)) else (1, 2, 4, 8)
    like = [n * has / giga for n in many for has in _held(device) for giga in (10**9, 2**30)]
    return any(all(abs(float(size[1]) / at - 1) > _LIKE for at in like) for size in sizes if size)


@cache
def _held(device: str) -> tuple[float, ...]:
    """Return the bytes of each memory outside a device's chip."""
    memory = load_device(device).memory
    return tuple(level.capacity.value for level in memory.values() if level.kind == "dram")


def network_in(text: str) -> str | None:
    """Return the network that words name, such as "meta-llama/Llama-2-70b-chat-hf"; or None.

    Words beside the name must be such that leave its shape as it is (``unchanged``).
    """
    if name := find_name("models", text):
        return name
    words = re.split(r"[\s(),_-]+", text.rpartition("/")[2])
    return find_name("models", " ".join(w for w in words if w.lower() not in section("unchanged")))


def devices_in(text: str) -> int | None:
    """Return how many devices words say: "8xA100", "v5p-128" (64 chips of two cores); or None."""
    if slice_ := _SLICED.search(text):
        return int(slice_[2]) // (2 if slice_[1].lower() in _TWO_CORES else 1)
    counted = _COUNTED.search(text)
    return int(counted[1] or counted[2]) if counted else None


def unknown(kind: Kind, name: str) -> str:
    """Say that a name of a table is not known, and what comes near it."""
    what = {"devices": "device", "models": "network", "precisions": "number format"}[kind]
    return f"no description of the {what} {name or '(not given)'}{near(kind, name)}"


def near(kind: Kind, name: str) -> str:
    """Ask whether a known name was meant that is near one which is not known; "" if none is."""
    return nearest(name, _spelled(kind))


@cache
def _spelled(kind: Kind) -> tuple[str, ...]:
    if kind == "precisions":
        return (*section(kind), *(alias for of in section(kind).values() for alias in of))
    called = [*catalog.aliases(kind).values(), *section(kind).values()]
    return (*catalog.names(kind), *(alias for of in called for alias in of))


@cache
def _names() -> Mapping[str, Spellings]:
    known = {}
    for kind in ("devices", "models", "precisions"):
        pairs: list[tuple[str, str]] = []
        if kind != "precisions":
            others = catalog.aliases(kind).items()
            pairs += [(alias, name) for name, of in others for alias in of]
        pairs += [(alias, name) for name, of in section(kind).items() for alias in of]
        if kind != "precisions":
            pairs += [(name, name) for name in catalog.names(kind)]
        known[kind] = Spellings((_SLICE.sub(r"\1", called.lower()), name) for called, name in pairs)
    return known
