"""The fields of a description as data: unit, default and meaning, read from the schema itself.

The text under a field of a class is its documentation, and stands nowhere else: pages, templates
and the JSON Schema are made from it.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.node import Node
from ridgeline.hardware.sourced import Sourced
from ridgeline.open_names import OpenNames
from ridgeline.units import Dimensioned

Model = type[BaseModel]
SCHEMAS: dict[str, Model] = {
    "device-schema": Device,
    "node-schema": Node,
    "cluster-schema": Cluster,
    "energy-table-schema": EnergyTable,
}
"""What ``ridgeline show`` knows by these names."""
_WORDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", Any: "any value"}
_BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_UNIT_WORDS = {
    "s": "ns, us, ms, s",
    "B": "KiB, MiB, GiB",
    "B/s": "MB/s, GB/s, TB/s",
    "FLOP": "GFLOP",
    "FLOP/s": "GFLOP/s, TFLOP/s",
    "W": "W",
    "m": "nm",
    "m2": "mm2",
    "Hz": "MHz, GHz",
    "USD": "USD",
    "J/B": "pJ/bit, pJ/B",
    "J/FLOP": "pJ/FLOP",
}


@dataclass(frozen=True)
class SchemaField:
    """One field of a description."""

    name: str
    """Key in the file."""
    type: str
    """Type in words, with the names of other descriptions in it."""
    unit: str
    """Units to write a quantity in; empty if it has none."""
    default: str
    """What counts where the field is left out; "required" if it may not be."""
    text: str
    """Meaning: the text under the field."""
    sourced: bool
    """Whether the value may have a source and a basis."""
    models: tuple[Model, ...]
    """Descriptions that stand in the field."""
    mapped: bool
    """Whether the field maps names of the user's to values."""

    @property
    def is_required(self) -> bool:
        """Whether a file must have the field."""
        return self.default == "required"


@cache
def _classes(module: str) -> dict[str, dict[str, str]]:
    """Texts under the fields of all classes of a module."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.ClassDef):
            texts = found.setdefault(node.name, {})
            for field, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str)
                ):
                    texts[field.target.id] = inspect.cleandoc(after.value.value)
    return found


def field_texts(model: Model) -> dict[str, str]:
    """Return the texts under the fields of a class and those that it inherits, by attribute."""
    texts: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            origin = each.__pydantic_generic_metadata__["origin"] or each
            texts |= _classes(origin.__module__).get(origin.__name__, {})
    return texts


def schema_fields(model: Model) -> tuple[SchemaField, ...]:
    """Return the fields that a file may have, in the order of the class."""
    texts = field_texts(model)
    found = []
    for name, info in model.model_fields.items():
        if info.exclude:  # put there by a loader
            continue
        leaf = _leaf(info.annotation)
        dimension = next(_dimensions(info), None)
        found.append(
            SchemaField(
                info.alias or name,
                _type(info.annotation, info.metadata),
                "" if dimension is None else _UNIT_WORDS.get(dimension.unit, dimension.unit),
                _default(info),
                texts.get(name, ""),
                _is_sourced(leaf),
                tuple(_models(info.annotation)),
                get_origin(_present(info.annotation)) is dict,
            )
        )
    return tuple(found)


def reachable_models(root: Model) -> tuple[Model, ...]:
    """Return a description and all that stand in it, each once, those of a field together."""
    found: dict[Model, None] = {}

    def visit(model: Model) -> None:
        if model not in found:
            found[model] = None
            for field in schema_fields(model):
                for each in field.models:
                    visit(each)

    visit(root)
    return tuple(found)


def _present(annotation: Any) -> Any:
    """Drop None from an annotation of ``X | None``."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [each for each in get_args(annotation) if each is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _is_sourced(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Sourced)


def _leaf(annotation: Any) -> Any:
    """Return what stands in a mapping or as a field."""
    annotation = _present(annotation)
    return _leaf(get_args(annotation)[1]) if get_origin(annotation) is dict else annotation


def _models(annotation: Any) -> Iterator[Model]:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model and not _is_sourced(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def _dimensions(info: FieldInfo) -> Iterator[Dimensioned]:
    yield from (each for each in info.metadata if isinstance(each, Dimensioned))
    yield from _dimensions_in(info.annotation)


def _dimensions_in(annotation: Any) -> Iterator[Dimensioned]:
    if _is_sourced(annotation):
        yield from _dimensions(annotation.model_fields["value"])
    for each in (*get_args(annotation), *getattr(annotation, "__metadata__", ())):
        if isinstance(each, Dimensioned):
            yield each
        else:
            yield from _dimensions_in(each)


def _type(annotation: Any, metadata: Any = ()) -> str:  # noqa: PLR0911
    """Say a type in words."""
    annotation = _present(annotation)
    metadata = [*metadata, *getattr(annotation, "__metadata__", ())]
    if any(isinstance(each, Dimensioned) for each in metadata):
        return "quantity"
    for names in (each for each in metadata if isinstance(each, OpenNames)):
        return "one of " + ", ".join(f"`{each}`" for each in names)
    if _is_sourced(annotation):
        value = annotation.model_fields["value"]
        return _type(value.annotation, value.metadata)
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__, metadata)
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Literal:
            return "one of " + ", ".join(f"`{each}`" for each in arguments)
        case origin if origin is dict:
            keys, values = map(_type, arguments)
            return f"mapping from {'names' if keys == 'text' else keys} to {values}"
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            return f"list of {_type(arguments[0])}"
        case origin if origin is tuple:
            return f"list of {len(arguments)} ({_type(arguments[0])})"
        case origin if origin in (Union, types.UnionType):
            return " or ".join(_type(each) for each in arguments if each is not type(None))
    if annotation is bool:
        return "`true` or `false`"
    name = _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))
    bounds = [
        text.format(getattr(each, sign))
        for part in metadata
        for each in (part, *getattr(part, "metadata", ()))
        for sign, text in _BOUNDS.items()
        if getattr(each, sign, None) is not None
    ]
    return f"{name}, {' and '.join(bounds)}" if bounds else name


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default
    if value is PydanticUndefined or value in (None, "", ()):
        return ""
    if isinstance(value, Sourced):
        value = value.value
    if isinstance(value, BaseModel):
        parts = ", ".join(
            f"{name}: {_plain(part)}" for name, part in value if part not in (None, "", ())
        )
        return f"`{{{parts}}}`" if parts else ""
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    """Write a default as YAML has it."""
    if isinstance(value, Sourced):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)


def _named(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the definitions of sourced values short names, in place of their whole types."""
    names: dict[str, str] = {}
    for name, made in schema.get("$defs", {}).items():
        if "Sourced" in name:
            bare = made["anyOf"][0]
            unit = bare.get("x-unit")
            plain = unit.replace("/", "_per_") if unit else bare.get("type", "value")
            names[name] = f"Sourced_{plain}"
            while list(names.values()).count(names[name]) > 1:
                names[name] += "_"
    text = json.dumps(schema)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(json.dumps(name), json.dumps(names[name]))
        text = text.replace(f'#/$defs/{name}"', f'#/$defs/{names[name]}"')
    named: dict[str, Any] = json.loads(text)
    return named


class _Generator(GenerateJsonSchema):
    """JSON Schema with the texts under the fields, and bare values where a source may stand."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        model: Model = schema["cls"]
        made = super().model_schema(schema)
        texts = field_texts(model)
        properties = made.get("properties", {})
        for name, info in model.model_fields.items():
            key = info.alias or name
            if info.exclude:
                properties.pop(key, None)
                if key in made.get("required", []):
                    made["required"].remove(key)
            elif texts.get(name) and key in properties:
                properties[key] = {**properties[key], "description": " ".join(texts[name].split())}
        if issubclass(model, Sourced):
            made.pop("title", None)
            made.pop("description", None)
            return {"anyOf": [properties["value"], made]}
        made["title"] = model.__name__
        return made


def json_schema(model: Model) -> dict[str, Any]:
    """Return the JSON Schema of a description, by which editors complete and check a YAML file.

    A file that starts from a ``base`` needs no other field than ``kind`` and ``name``: what is
    missing comes from there.
    """
    made = _named(model.model_json_schema(schema_generator=_Generator))
    definitions = made.pop("$defs", {})
    complete = {key: value for key, value in made.items() if key != "title"}
    head = [key for key in ("kind", "name") if key in complete["properties"]]  # of every file
    complete["required"] = list(dict.fromkeys((*head, *complete.get("required", ()))))
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ridgeline {model.__name__}",
    }
    if "base" in model.model_fields:
        keys: dict[str, Any] = {key: {} for key in complete["properties"]}
        whole |= {
            "if": {"type": "object", "required": ["base"]},
            "then": {
                "type": "object",
                "properties": keys,
                "required": head,
                "additionalProperties": False,
            },
            "else": complete,
        }
    else:
        whole |= complete
    return {**whole, "$defs": definitions}
