"""JSON Schemas of all input files, by which editors complete and check a YAML file.

They are made from the classes that check the files, so that they cannot differ from them in names,
types and bounds; what concerns several fields at once is checked by the loader alone.
"""

from __future__ import annotations

from typing import Any

from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.schema import json_schema
from ridgeline.input_files import INPUT_KINDS, named
from ridgeline.software.stack import GROUPS
from ridgeline.workload.families import FAMILIES, Network

_TEXT = {"type": "string"}


def schema_of_kind(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of input file.

    Raises
    ------
    ConfigError
        If no file is of this kind.
    """
    if kind not in INPUT_KINDS:
        raise ConfigError(
            f"no kind of file is {kind!r}{nearest(kind, INPUT_KINDS)} "
            f"(known: {', '.join(INPUT_KINDS)})"
        )
    if kind == "model":
        return _of_models()
    made = json_schema(named(INPUT_KINDS[kind].schema))
    if kind == "device":  # what follows from the components of a device may be left out
        made["else"]["required"].remove("idle_power")
        use = made["$defs"]["ComponentUse"]
        made["$defs"]["ComponentUse"] = {"anyOf": [_TEXT, use]}
    return _with_sources(made) if kind == "software" else made


def family_of(name: str) -> type[Network]:
    """Return the class of a family of networks.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    if name not in FAMILIES:
        raise ConfigError(
            f"no family of networks is called {name!r}{nearest(name, FAMILIES)} (known:"
            f" {', '.join(sorted(FAMILIES))})"
        )
    return FAMILIES[name]


def schema_of_family(name: str) -> dict[str, Any]:
    """Return the JSON Schema of the models of a family (`family_of`)."""
    made = json_schema(family_of(name))
    made["properties"] |= {
        "kind": {"const": "model"}, "name": _TEXT, "family": {"const": name},
    }  # fmt: skip
    return made


def _of_models() -> dict[str, Any]:
    """Return one schema, in which the family decides the fields."""
    definitions: dict[str, Any] = {}
    cases = []
    for name in sorted(FAMILIES):
        made = schema_of_family(name)
        definitions |= made.pop("$defs")
        title = made.pop("title").removeprefix("ridgeline ")
        del made["$schema"]
        definitions[title] = made
        is_family = {"type": "object", "properties": {"family": {"const": name}}}
        cases.append({"if": is_family, "then": {"$ref": f"#/$defs/{title}"}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ridgeline model",
        "type": "object",
        "properties": {"family": {"enum": sorted(FAMILIES)}},
        "required": ["kind", "name", "family"],
        "allOf": cases,
        "$defs": definitions,
    }


def _with_sources(made: dict[str, Any]) -> dict[str, Any]:
    """Let every setting of a software stack say where it comes from."""
    stack = named(INPUT_KINDS["software"].schema)
    groups = {stack.model_fields[group].annotation.__name__ for group in GROUPS}
    for title, definition in made["$defs"].items():
        if title in groups:
            for key, value in definition["properties"].items():
                sourced = {"value": value, "source": _TEXT, "basis": _TEXT, "note": _TEXT}
                definition["properties"][key] = {
                    "anyOf": [
                        value,
                        {
                            "type": "object",
                            "properties": sourced,
                            "required": ["value"],
                            "additionalProperties": False,
                        },
                    ]
                }
    return made
