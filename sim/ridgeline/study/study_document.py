"""A study as a user says it, in a file, a text or a mapping, as the document that it would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ridgeline.config import Document, parse_yaml, read_yaml
from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.plan import Plan

_INLINE = "study"
"""What stands for the file of a study that is in none."""


@contextmanager
def naming_no_inline_file() -> Iterator[None]:
    """Leave out of a mistake's place the file that a study has not."""
    try:
        yield
    except ConfigError as error:
        if error.file != _INLINE:
            raise
        raise ConfigError(error.message, field=error.field) from error


def study_document(
    source: str | Path | Mapping[str, Any] | None, fields: Mapping[str, Any] | None = None
) -> Document:
    """Return what a file would say.

    Parameters
    ----------
    source
        A path, the text of a file, or a mapping with its fields.
    fields
        Stand in for those of `source`.

    Raises
    ------
    ConfigError
        If it is none of these, or a file that cannot be read.
    """
    if isinstance(source, Mapping):
        document = Document(_INLINE, {"kind": "study", "name": _INLINE, **_plain(source)}, {})
    elif isinstance(source, str) and "\n" in source:
        document = parse_yaml(source, _INLINE)
    elif isinstance(source, str | Path):
        document = read_yaml(source)
    elif source is None:
        document = Document(_INLINE, {"kind": "study", "name": _INLINE}, {})
    else:
        found = type(source).__name__
        raise ConfigError(f"a study is a path, a text or a mapping, found {found}")
    if not fields or not isinstance(document.data, dict):
        return document
    return Document(document.file, {**document.data, **_plain(fields)}, document.places)


def _plain(value: Any) -> Any:
    """Return what YAML would hold of a value of Python: ranges, arrays and plans among them."""
    if isinstance(value, Plan):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # of numpy, also a number
        return _plain(value.tolist())
    if isinstance(value, list | tuple | range | set | frozenset):
        return [_plain(each) for each in value]
    return value
