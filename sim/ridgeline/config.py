"""YAML files as data: bounded, safe, and with the line of every mistake.

Files are composed to a node tree and turned into plain values (`yaml_nodes`), checked against a
schema, and every mistake names the place of its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, nearest, said, short
from ridgeline.unit_proposals import energy_proposal, proposal
from ridgeline.units import QuantityError
from ridgeline.yaml_nodes import Location, NodeReader, compose, refuse_depth

# With fewer characters that can open a level, only indentation nests: below 3,000 levels in
# four megabytes, which the composer survives.
_OPENERS = 1000
_FILE_CHARACTERS = 2**15
"""Longer texts than any of the catalogue: a few of them are kept, not hundreds."""

_MOST_NAMED = 5  # further mistakes of a file, beside the first
_OVERRIDE = {"source": "override by the user", "basis": "assumed"}
Schema = TypeVar("Schema", bound=BaseModel)


class Strict(BaseModel):
    """Base of every schema: frozen, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Aliases = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
"""Other names of the thing that a file describes, which `catalog.resolve` finds it by."""


class FieldError(ValueError):
    """What a schema's own check found, and where, counted from the model that was checked."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(message)
        self.location: Location = location


@dataclass(frozen=True)
class Document:
    """The values of one YAML file and where each stands."""

    file: str
    data: Any
    places: Mapping[Location, tuple[int, int]]
    overridden: tuple[str, ...] = ()
    """Dotted paths of fields that do not stand in the file as they are."""

    def where(self, location: Location) -> tuple[int, int]:
        """Line and column of a value, or of the nearest thing that encloses it."""
        while location and location not in self.places:
            location = location[:-1]
        return self.places.get(location, (1, 1))

    def error(self, message: str, location: Location = ()) -> ConfigError:
        """Return an error that points at a location of this file, or at an override of it."""
        line, column = self.where(location)
        field = ".".join(str(part) for part in location) or None
        if field and any(f"{field}.".startswith(f"{path}.") for path in self.overridden):
            return ConfigError(message, file=f"override of {self.file}", field=field)
        return ConfigError(message, file=self.file, line=line, column=column, field=field)


Source = str | Path | Document
"""A file, or what one would say."""


def read_yaml(path: Source) -> Document:
    """Read one YAML file safely; a document is one that was read.

    Raises
    ------
    ConfigError
        If the file cannot be opened, is too large, is not text, is not YAML, holds duplicate keys,
        tags, or aliases that expand beyond `MAX_NODES` values.
    """
    return path if isinstance(path, Document) else parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, file: str) -> Document:
    """Read YAML text; `file` names it in messages. Nobody changes a document's data in place."""
    return (_parsed_file if len(text) <= _FILE_CHARACTERS else _parsed)(text, file)


@lru_cache(maxsize=4)
def _parsed(text: str, file: str) -> Document:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        if sum(map(text.count, "[{-?")) > _OPENERS:
            refuse_depth(text, file)
        node = compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        problem = problem.replace(": but ", ", but ")
        raise ConfigError(f"not YAML: {problem}", file=file, line=line, column=column) from error
    except (YAMLError, ValueError, RecursionError) as error:
        # A character that may not stand in YAML is named by its place in the encoded text.
        before = text.encode()[: getattr(error, "position", 0)]
        raise ConfigError(
            f"not YAML: {str(error).splitlines()[0]}", file=file,
            line=before.count(b"\n") + 1, column=len(before) - before.rfind(b"\n"),
        ) from error  # fmt: skip
    if node is None:
        raise ConfigError("the file is empty", file=file, line=1)
    reader = NodeReader(file)
    reader.weigh(node, {})
    data = reader.value(node, ())
    return Document(file, data, reader.places)


# A sweep loads the same few files over and over, with other overrides; a list or search of the
# catalogue loads its 600 files, many of them for several others.
_parsed_file = lru_cache(maxsize=1024)(_parsed.__wrapped__)


def check_kind(document: Document, *allowed: str) -> str:
    """Return what ``kind:`` of a file says, which is one of `allowed`.

    Raises
    ------
    ConfigError
        If the file is no mapping, has no ``kind`` or ``name``, or another kind; says which line to
        add.
    """
    if not isinstance(document.data, dict):
        raise document.error(f"expected a mapping of fields, found {short(document.data)}")
    found = document.data.get("kind")
    lines = [f"'kind: {kind}'" for kind in allowed]
    expected = ", ".join([*lines[:-2], " or ".join(lines[-2:])])
    if found is None:
        raise document.error(f"the field 'kind' is missing: add the line {expected}")
    if found not in allowed:
        close = nearest(str(found), allowed, cutoff=0.7)
        raise document.error(f"expected {expected}, found {short(found)}{close}", ("kind",))
    if "name" not in document.data:
        own = f"name: {Path(document.file).stem}"
        raise document.error(f"the field 'name' is missing: add a line such as {own!r}")
    return str(found)


def validate(document: Document, schema: type[Schema]) -> Schema:
    """Check a document against a schema; the error names line, field and what is allowed."""
    if not isinstance(document.data, dict):
        raise document.error(f"expected a mapping of fields, found {short(document.data)}")
    try:
        return schema.model_validate(document.data, context={"file": document.file})
    except ValidationError as error:
        raise _explain(document, schema, error) from error


def load(path: str | Path, schema: type[Schema]) -> Schema:
    """Read a YAML file and check it against a schema.

    Raises
    ------
    ConfigError
        With file, line, column and field of the first mistake.
    """
    return validate(read_yaml(path), schema)


def overridden(document: Document, overrides: Mapping[str, Any]) -> Document:
    """Return a document with the fields at dotted paths replaced.

    A field of the form ``{value: ..., source: ...}`` may be replaced by a bare value.

    Raises
    ------
    ConfigError
        If a path leads nowhere.
    """
    data = document.data
    for path, value in overrides.items():
        data = _replaced(document, data, path.split("."), value, path)
    return Document(document.file, data, document.places, tuple(overrides))


def _replaced(document: Document, data: Any, path: list[str], value: Any, whole: str) -> Any:
    """Return a copy of `data` with the field at `path` replaced."""
    head, rest = path[0], path[1:]
    if isinstance(data, list) and head.isdecimal() and int(head) < len(data):
        position = int(head)
        new = _replaced(document, data[position], rest, value, whole) if rest else value
        return [*data[:position], new, *data[position + 1 :]]
    if not isinstance(data, dict):
        raise ConfigError(f"{document.file} has nothing at {head!r} to override", field=whole)
    for length in range(len(path), 1, -1):  # a key may have dots itself: entries.dram.hbm2
        if ".".join(path[:length]) in data:
            head, rest = ".".join(path[:length]), path[length:]
            break
    if rest:
        if head not in data:
            raise ConfigError(
                f"{document.file} has no field {head!r}{nearest(head, data)} "
                f"(it has: {', '.join(data)})",
                field=whole,
            )
        return {**data, head: _replaced(document, data[head], rest, value, whole)}
    old = data.get(head)
    if isinstance(old, dict) and "value" in old and not isinstance(value, dict):
        value = {"value": value, **_OVERRIDE}
    if head == "value" and "basis" in data:  # what was said of the old value is not true of this
        return {**data, head: value, **_OVERRIDE}
    return {**data, head: value}


def _explain(document: Document, schema: type[BaseModel], error: ValidationError) -> ConfigError:
    """Say the first mistake; an unknown key comes first, since it often causes a missing one."""
    first = ("extra_forbidden", "finite_number")  # the latter of all that a union says of nan
    problems = sorted(error.errors(), key=lambda e: e["type"] not in first)
    problem = problems[0]
    location = _in_document(document.data, problem["loc"])
    name = str(location[-1]) if location else ""
    match problem["type"]:
        case "extra_forbidden":
            fields = _fields_beside(schema, problem["loc"])
            message = f"unknown field {name!r}{nearest(name, fields)}"
            if fields:
                message += f" (allowed: {', '.join(fields)})"
        case "missing":
            message = f"the field {problem['loc'][-1]!r} is missing"
        case "value_error":
            reason = problem["ctx"]["error"]
            message = _unit_message(document.data, reason, location) or str(reason)
            location += getattr(reason, "location", ())
        case "union_tag_invalid":
            message, tag = said(problem), problem["ctx"]["discriminator"].strip("'")
            location += (tag,)
        case "string_type" if "energy" in location[-2:] or _is_price(location):
            message = energy_proposal(problem["input"], location) or said(problem)
        case _:
            message = said(problem)
    others = _other_problems(document.data, problems[1:], location)
    more = f" (and {len(others)} more)" if others else ""
    if 0 < len(others) <= _MOST_NAMED:
        more = f"{more[:-1]}: {', '.join(others)})"
    if problem["type"] == "missing":
        location = location[:-1] if location and location[-1] == problem["loc"][-1] else location
    return document.error(message + more, location)


def _other_problems(data: Any, problems: list[Any], first: Location) -> list[str]:
    """Name further mistakes, each place once: unknown and missing fields, and values."""
    words = {"extra_forbidden": "unknown", "missing": "missing"}
    found: dict[Location, str] = {}
    for problem in problems:
        place = _in_document(data, problem["loc"])
        if problem["type"] == "missing" and place[-1:] != problem["loc"][-1:]:
            place += problem["loc"][-1:]
        if place != first:
            name = ".".join(map(str, place))
            found.setdefault(place, f"{words.get(problem['type'], 'wrong')} {name!r}")
    return list(found.values())


def _is_price(location: Location) -> bool:
    """Tell whether a value is that of an entry of an energy table."""
    return "entries" in location and location[-1] == "value"


def _unit_message(data: Any, reason: ValueError, location: Location) -> str | None:
    """Say which unit suits the field, of a mistake in a quantity."""
    if not isinstance(reason, QuantityError):
        return None
    place = location[:-1] if location and location[-1] == "value" else location
    for part in place[:-1]:
        data = data[part]
    return proposal(reason.raw, reason.unit, location, data if isinstance(data, dict) else {})


def _in_document(data: Any, loc: Location) -> Location:
    """Drop from a pydantic location the parts that are union tags and not keys of the document."""
    kept: list[str | int] = []
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            if part != loc[-1] or not isinstance(data, dict | list):
                continue
        kept.append(part)
    return tuple(kept)


def _fields_beside(schema: type[BaseModel], loc: Location) -> list[str]:
    """Field names of the model that holds the last part of `loc`, as far as it can be followed."""
    models: list[type[BaseModel]] = [schema]
    for part in loc[:-1]:
        following: list[type[BaseModel]] = []
        for model in models:
            if isinstance(part, str) and part in model.model_fields:
                following += _models_in(model.model_fields[part].annotation)
        models = following or models
    return sorted(
        {
            field.alias or name
            for model in models
            for name, field in model.model_fields.items()
            if not field.exclude  # put there by a loader, not by the user
        }
    )


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found += _models_in(argument)
    return found
