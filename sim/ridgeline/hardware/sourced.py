"""Values that say where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, model_validator

from ridgeline.config import Strict

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
    sources: dict[str, str] = Field(default_factory=dict)
    """Citations by short name; values refer to them."""


def sourced_values(model: BaseModel, path: str = "") -> Iterator[tuple[str, Sourced[Any]]]:
    """Walk through a description and yield the dotted path of every sourced value and the value."""
    if isinstance(model, Sourced):
        yield path, model
        return
    for name in type(model).__pydantic_fields__:
        yield from _walk(getattr(model, name), f"{path}.{name}" if path else name)


def _walk(value: object, path: str) -> Iterator[tuple[str, Sourced[Any]]]:
    if isinstance(value, BaseModel):
        yield from sourced_values(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _walk(item, f"{path}.{position}")
