"""Values that say where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, model_validator

from ridgeline.config import Aliases, Strict

T = TypeVar("T")
NOT_STATED: Final = "not stated"
DEFAULT: Final = "default of the schema"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]

Basis = Literal["data-sheet", "measured", "derived", "extrapolated", "assumed", "not stated"]


class Sourced(Strict, Generic[T]):
    """A value with its source. A bare value is accepted; its source is then "not stated"."""

    value: T
    """The value, with its unit."""
    source: str = NOT_STATED
    """A key of the file's ``sources``, or a citation in words."""
    basis: Basis = NOT_STATED
    """How the value was obtained."""
    note: str = ""
    """What a reader must know: scope, conversion, conditions."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (dict(self),)  # pickle cannot find Sourced[float] by its name

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, raw: Any) -> Any:
        return raw if isinstance(raw, dict | Sourced) else {"value": raw}


def _again(fields: dict[str, Any]) -> Sourced[Any]:
    """Make a sourced value of what was pickled; it was checked when it was first made."""
    return Sourced[Any].model_construct(**fields)


class Described(Strict):
    """What every file in ``hwconfigs/`` has."""

    name: str = Field(min_length=1)
    """Name in the catalogue: lower case with hyphens."""
    description: str = ""
    """One line for people."""
    aliases: Aliases = ()
    """What people call it besides, where case, hyphens and vendors are not all that differs."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Citations by short name; values refer to them."""


_PLAIN = frozenset({str, int, float, bool, type(None)})


def sourced_values(model: BaseModel, path: str = "") -> Iterator[tuple[str, Sourced[Any]]]:
    """Walk through a description: the dotted path of every sourced value, and the value."""
    found: list[tuple[str, Sourced[Any]]] = []
    _walk(model, path, found)
    return iter(found)


def _walk(value: object, path: str, found: list[tuple[str, Sourced[Any]]]) -> None:
    items: Iterable[tuple[object, object]]
    if isinstance(value, Sourced):
        found.append((path, value))
        return
    if isinstance(value, BaseModel):
        items = [(name, getattr(value, name)) for name in type(value).__pydantic_fields__]
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return
    for name, item in items:
        if type(item) not in _PLAIN:
            _walk(item, f"{path}.{name}" if path else str(name), found)
