"""A check of values by JSON Schema, of the keywords that the generator writes."""

from __future__ import annotations

import re
from typing import Any


def mistakes(schema: Any, value: Any, root: Any) -> list[str]:  # noqa: PLR0911 - a case a keyword
    """Check a value by the keywords of JSON Schema that the generator writes."""
    if "$ref" in schema:
        return mistakes(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)
    if "if" in schema:
        chosen = "else" if mistakes(schema["if"], value, root) else "then"
        return mistakes(schema.get(chosen, {}), value, root)
    if "allOf" in schema:
        rest = {key: of for key, of in schema.items() if key != "allOf"}
        return [m for each in (*schema["allOf"], rest) for m in mistakes(each, value, root)]
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        found = [mistakes(each, value, root) for each in alternatives]
        return [] if [] in found else found[0]
    known = {
        "string": str, "integer": int, "number": (int, float), "object": dict, "array": list,
        "boolean": bool, "null": type(None),
    }  # fmt: skip
    kind = schema.get("type")
    if kind and (
        not isinstance(value, known[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return [f"{value!r} is no {kind}"]
    if "const" in schema and value != schema["const"]:
        return [f"{value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{value!r} is not one of {schema['enum']}"]
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return [f"{value!r} is no {schema['pattern']}"]
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return [m for s, each in zip(items, value, strict=True) for m in mistakes(s, each, root)]
    if not isinstance(value, dict):
        return []
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    found = [f"{key!r} is missing" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        if key in properties:
            found += mistakes(properties[key], item, root)
        elif more is False:
            found.append(f"{key!r} is unknown")
        elif isinstance(more, dict):
            found += mistakes(more, item, root)
    return found
