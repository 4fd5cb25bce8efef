"""Names in measured tables to names in the catalogue (``names.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

from ridgeline import catalog
from ridgeline.config import parse_yaml

Kind = Literal["devices", "models", "precisions"]


def find_name(kind: Kind, *names: str) -> str | None:
    """Return the catalogue's name of the first of `names` that is known, else None."""
    known = _names()[kind]
    return next((known[_plain(name)] for name in names if _plain(name) in known), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _names() -> Mapping[str, Mapping[str, str]]:
    text = resources.files("ridgeline.study.validate").joinpath("names.yaml").read_text("utf-8")
    data = parse_yaml(text, "names.yaml").data
    known = {
        kind: {_plain(alias): name for name, aliases in data[kind].items() for alias in aliases}
        for kind in data
    }
    for kind in ("devices", "models"):
        known[kind] |= {_plain(name): name for name in catalog.names(kind)}
    return known
