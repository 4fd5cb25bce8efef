"""A stack as rows: every setting with its value, who says it, and from where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from ridgeline import units
from ridgeline.config import Strict
from ridgeline.software.stack import Stack, setting_paths, si_bytes, si_seconds

DEFAULT = "(default)"
"""Stands where the name of a stack does, of values that are those of the schema."""


class SettingRow(NamedTuple):
    """One setting of a stack.

    Attributes
    ----------
    path
        host.launch_time, kernels.attention, ...
    value
        In SI units.
    stack
        Name of the stack whose file says it, "you" of one that was replaced, or `DEFAULT`.
    source, basis, note
        As the file has them; "" of defaults.
    """

    path: str
    value: Any
    stack: str
    source: str = ""
    basis: str = ""
    note: str = ""

    @property
    def is_default(self) -> bool:
        """Whether no file says it."""
        return self.stack == DEFAULT

    @property
    def text(self) -> str:
        """The value for people, with its unit."""
        return value_text(self.path, self.value)


def setting_rows(stack: Stack) -> Iterator[SettingRow]:
    """Yield every setting of a stack, in the order of the schema."""
    for path in setting_paths():
        value = value_of(stack, path)
        said = stack.provenance.get(path)
        if path in stack.overrides:
            yield SettingRow(path, value, "you")
        elif said is not None:
            yield SettingRow(path, value, said.of or stack.name, said.source, said.basis, said.note)
        else:
            yield SettingRow(path, value, DEFAULT if _is_default(path, value) else stack.name)


def value_of(stack: Stack, path: str) -> Any:
    """Return the value of a setting."""
    group, _, name = path.partition(".")
    return getattr(getattr(stack, group), name)


def value_text(path: str, value: Any) -> str:
    """Write the value of a setting for people."""
    if value is None:
        return "left open"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float) and (unit := _unit(_field(path))):
        return units.show(value, unit)
    return str(value) if value != "" else "none"


def _field(path: str) -> FieldInfo:
    group, _, name = path.partition(".")
    schema: type[Strict] = type(getattr(_NEUTRAL, group))
    return schema.model_fields[name]


def _is_default(path: str, value: Any) -> bool:
    return bool(value == _field(path).default)


def _unit(field: FieldInfo) -> Any:
    """Return the unit of a size or a time; "" of plain numbers."""
    of_parts = (m for part in get_args(field.annotation) for m in getattr(part, "__metadata__", ()))
    readers = {getattr(item, "func", None) for item in (*field.metadata, *of_parts)}
    return "B" if si_bytes in readers else "s" if si_seconds in readers else ""


_NEUTRAL = Stack(name="any")
