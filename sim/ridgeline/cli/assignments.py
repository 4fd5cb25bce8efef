"""Values of ``--set path=value``, read as they would stand in a file, and of ``--adapters``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from ridgeline.errors import ConfigError

AdaptersText = Annotated[
    str | None,
    Parameter(
        name="--adapters",
        help="Freeze the model and train adapters of low rank (LoRA) beside its linear layers:"
        " rank=16,layers=q_proj+v_proj, or layers=all-linear; base_format=nf4 keeps the frozen"
        " matrices in few bits (QLoRA). The same as --set model.adapters (docs/formats.md).",
        show_default=False,
    ),
]


def with_adapters(texts: Sequence[str], adapters: str | None) -> tuple[str, ...]:
    """Return the words of all ``--set`` with what ``--adapters`` says among them.

    Raises
    ------
    ConfigError
        If it says no rank, or what is no field.
    """
    if adapters is None:
        return tuple(texts)
    from ridgeline.workload.adapters import adapters_of

    return (*texts, f"model.adapters={json.dumps(adapters_of(adapters))}")


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Read the words of all ``--set``: values by dotted path.

    Raises
    ------
    ConfigError
        If one is not ``path=value``, or a path stands twice.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        name, value = _assignment(text)
        if name in fields:
            raise ConfigError(f"the field {name!r} is given twice", field="--set")
        fields[name] = value
    return fields


def _assignment(text: str) -> tuple[str, Any]:
    """Part ``path=value``; the value is read as YAML, as it would stand in a file."""
    from ridgeline.config import parse_yaml

    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise ConfigError(f"expected path=value, found {text!r}", field="--set")
    return name, parse_yaml(value, f"--set {name}").data
