"""Plans from text: a command line's ``field=value,...``, or a file with one field a line."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BeforeValidator

from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError, nearest
from ridgeline.parallel.plan.moved_fields import MOVED
from ridgeline.parallel.plan.plan import SWITCH, Plan

_SUGGESTED_BATCH = 32
_UNIONS = {types.UnionType, Union}  # the second where a Literal is one of several
_COMMAS = re.compile(r",(?![^\[]*\])")  # but for those in brackets


def plan_fields(text: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read ``"data=8,recompute=full"`` into field values; `more` has fields from elsewhere or None.

    A value with commas stands in brackets: ``layers=[fc*: data=1,tensor=8]``. A text that ends in
    ``.yaml`` is the path of a file with one field a line.

    Raises
    ------
    ConfigError
        If something is not ``field=value`` or a field stands twice.
    """
    values: dict[str, Any] = {k: v for k, v in (more or {}).items() if v is not None}
    in_file = text.strip().endswith((".yaml", ".yml"))
    for given, value in _file_fields(text.strip()) if in_file else _text_fields(text):
        name = "global_batch" if given == "batch" else given
        if name in values:
            raise ConfigError(f"the field {name!r} is given twice", field="plan")
        values[name] = value
    return values


def _text_fields(text: str) -> Iterator[tuple[str, Any]]:
    for part in filter(None, (part.strip() for part in _COMMAS.split(text))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"expected field=value, found {part!r}", field="plan")
        yield name, value


def _file_fields(path: str) -> Iterator[tuple[str, Any]]:
    document = read_yaml(path)
    if not isinstance(document.data, Mapping):
        raise document.error("expected fields of a plan, such as data: 8")
    fields = ("batch", *Plan.model_fields)
    for name, value in document.data.items():
        if name not in fields and name not in MOVED:
            near = nearest(str(name), fields)
            raise document.error(f"unknown field{near} (allowed: {', '.join(fields)})", (name,))
        yield name, value


def make_plan(values: Mapping[str, Any]) -> Plan:
    """Make a Plan from field values; text is read as the type of its field.

    Raises
    ------
    ConfigError
        If a field is unknown or missing, or has a value that is not allowed.
    """
    fields = Plan.model_fields
    for name in values:
        if name not in fields and name not in MOVED:
            raise ConfigError(
                f"unknown field {name!r}{nearest(name, fields)} (allowed: {', '.join(fields)})",
                field="plan",
            )
    typed = {n: v if n in MOVED else _typed(n, v) for n, v in values.items()}
    if "global_batch" not in values:
        raise ConfigError(
            "the batch size is missing: give --batch, the samples of one step over all devices "
            f"(for example {_SUGGESTED_BATCH} a device)",
            field="plan.global_batch",
        )
    return Plan(**typed)


def _typed(name: str, value: Any) -> Any:
    """Turn the text of a command line into the type of a Plan field."""
    if not isinstance(value, str):
        return value
    annotation, metadata = Plan.model_fields[name].annotation, Plan.model_fields[name].metadata
    kinds = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
    if type(None) in kinds and value.lower() == "none":
        return None
    if bool in kinds and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    plain = annotation is float and not any(isinstance(m, BeforeValidator) for m in metadata)
    of_grid = name == "tensor" and not value.isdecimal()  # or a mistake, which the plan names
    if of_grid or not (plain or int in kinds):
        return value
    if name == "sequence" and value.lower() in SWITCH:
        return SWITCH[value.lower()]
    try:
        return float(value) if plain else int(value)
    except ValueError as error:
        number = "number" if plain else "whole number"
        raise ConfigError(f"expected a {number}, found {value!r}", field=f"plan.{name}") from error
