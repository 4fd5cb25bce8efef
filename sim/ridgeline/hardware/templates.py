"""Descriptions to start from: short files that run, in which every field is explained.

The values stand in ``hwconfigs/templates``; the meaning of each field is the text under it in the
schema, so that a template says what the schema says.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache

from ridgeline import catalog
from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.schema import Model, SchemaField, schema_fields

DEVICE_KINDS = ("systolic", "spatial", "gpu", "bsp", "grid", "cpu", "wafer", "chiplet")
_WIDTH = 98
_LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+):(?P<value> .*?)??(?P<comment>  # .*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def device_template(kind: str, name: str | None = None) -> str:
    """Return the description of a device of a kind, as YAML with a comment on every field.

    It is read and simulated as it stands. All its numbers are assumed: they are of the size that
    such devices have, and stand for no device.

    Parameters
    ----------
    kind
        One of `DEVICE_KINDS`.
    name
        Name of the device; by default my-KIND.

    Raises
    ------
    ConfigError
        If there is no such kind, or the name cannot be one.
    """
    if kind not in DEVICE_KINDS:
        raise ConfigError(
            f"no kind of device is called {kind!r}{nearest(kind, DEVICE_KINDS)} "
            f"(known: {', '.join(DEVICE_KINDS)})",
            field="--kind",
        )
    return template(f"device-{kind}", Device, name)


def template(file: str, schema: Model, name: str | None = None) -> str:
    """Return a file of ``hwconfigs/templates`` with a comment on every field of its schema.

    Parameters
    ----------
    file
        Its name, without the ending.
    name
        Name of what it describes, in place of that of the file.

    Raises
    ------
    ConfigError
        If it cannot have this name.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(
            f"found {name!r}; a name has letters, digits, '.', '_' and '-' only, and at most 64",
            field="--name",
        )
    raw = read_text(catalog.root() / "hwconfigs" / "templates" / f"{file}.yaml")
    return "\n".join(_explained(raw, schema, name)) + "\n"


def _explained(raw: str, schema: Model, name: str | None) -> Iterator[str]:
    """Yield the lines of a template, each field under its meaning and with its source."""
    above: list[tuple[int, dict[str, SchemaField] | None]] = [(-1, _by_name(schema))]
    told: set[tuple[int, str]] = set()
    for line in raw.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            yield line
            continue
        indent, key = match["indent"], match["key"]
        value, comment = (match["value"] or "").strip(), match["comment"] or ""
        if key == "name" and not indent and name is not None:
            value = name
        while len(indent) <= above[-1][0]:
            above.pop()
        fields = above[-1][1]
        field = None if fields is None else fields.get(key)
        if field is None:  # a name of the user's own: of an engine, a level, a format
            below = fields.get("*") if fields is not None else None
            sourced = below is not None and below.sourced
            yield from _line(f"{indent}{key}:{_with_source(value, sourced)}", comment)
            above.append((len(indent), _inside(below)))
            continue
        if (id(fields), key) not in told:
            yield from _comment(indent, field)
        told.add((id(fields), key))
        yield from _line(f"{indent}{key}:{_with_source(value, field.sourced)}", comment)
        above.append((len(indent), {"*": field} if field.mapped else _inside(field)))


@cache
def _by_name(model: Model) -> dict[str, SchemaField]:
    return {field.name: field for field in schema_fields(model)}


def _inside(field: SchemaField | None) -> dict[str, SchemaField] | None:
    """Return the fields of the description that stands in a field."""
    return None if field is None or not field.models else _by_name(field.models[0])


def _line(text: str, comment: str) -> Iterator[str]:
    """Write a comment behind a value, or above it where there is no room."""
    if len(text) + len(comment) > _WIDTH:
        yield f"{' ' * (len(text) - len(text.lstrip()))}{comment.strip()}"
        comment = ""
    yield f"{text}{comment}"


def _with_source(value: str, sourced: bool) -> str:
    if not value:
        return ""
    return f" {{value: {value}, source: yours, basis: assumed}}" if sourced else f" {value}"


def _comment(indent: str, field: SchemaField) -> Iterator[str]:
    text = " ".join(field.text.replace("``", "").replace("`", "").split())
    if field.unit:
        text += f" Unit: {field.unit}."
    elif field.type.startswith("one of") and "," in field.type:
        text += f" {field.type.replace('`', '').capitalize()}."
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
