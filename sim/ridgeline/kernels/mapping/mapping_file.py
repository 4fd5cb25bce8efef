"""Mapping files: mappings and constraints as data (``--mapping FILE``).

A file names places: memory levels of a device, from the farthest to the nearest, and the rows and
columns of its array. A place that is named is settled: its loops have the factors that stand there,
``k=16``, and others have none; ``k=*`` leaves a factor to the search. A place that is not named is
left to the search altogether. The order of the loops of a level is from the outermost inwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from ridgeline.config import Document, Strict, overridden, read_yaml, validate
from ridgeline.errors import nearest

_FACTOR = re.compile(r"\s*([a-z]+)\s*(?:=\s*(\*|\d+))?\s*")
_LARGEST = 2**40
Factor = tuple[str, int | None]
"""A loop, and its factor or None: to be searched."""


def _factors(loops: Any) -> Any:
    """Read ``[k=16, c=*, p]``, or a mapping of the same, as pairs."""
    if isinstance(loops, dict):
        loops = [f"{name}={factor}" for name, factor in loops.items()]
    if not isinstance(loops, list):
        raise ValueError("expected a list of loops with factors, [k=16, c=*]")
    read: list[Factor] = []
    for item in loops:
        is_pair = isinstance(item, list) and len(item) == 2
        entry = f"{item[0]}={'*' if item[1] is None else item[1]}" if is_pair else item
        found = _FACTOR.fullmatch(entry) if isinstance(entry, str) else None
        if found is None:
            raise ValueError(f"cannot read {entry!r} as a loop with its factor, k=16 or k=*")
        name, number = found.groups()
        factor = None if number in {None, "*"} else int(number)
        if factor is not None and not 1 <= factor <= _LARGEST:
            raise ValueError(f"the factor of {name} must be from 1 to 2**40, found {factor}")
        if name in {other for other, _ in read}:
            raise ValueError(f"the loop {name} stands twice")
        read.append((name, factor))
    return tuple(read)


class LevelSchema(Strict):
    """The loops of one memory level."""

    level: str
    """Name of a memory level of the device."""
    loops: tuple[Factor, ...] = Field(default=(), strict=False)
    """From the outermost to the innermost: ``k=16``, or ``k=*`` to search for the factor."""
    keeps: tuple[Literal["a", "b", "c"], ...] | None = Field(default=None, strict=False)
    """Operands that the level keeps a tile of; others pass it by. None: all that it can hold."""

    @field_validator("loops", mode="before")
    @classmethod
    def _read(cls, loops: Any) -> Any:
        return _factors(loops)


class MappingSchema(Strict):
    """A mapping file."""

    kind: Literal["mapping"]
    name: str = ""
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    dataflow: str | None = None
    """Name of a dataflow that the search keeps to."""
    levels: tuple[LevelSchema, ...] = Field(default=(), strict=False)
    """Memory levels, from the farthest to the nearest."""
    rows: tuple[Factor, ...] | None = Field(default=None, strict=False)
    columns: tuple[Factor, ...] | None = Field(default=None, strict=False)

    @field_validator("rows", "columns", mode="before")
    @classmethod
    def _read(cls, loops: Any) -> Any:
        return None if loops is None else _factors(loops)


@dataclass(frozen=True)
class MappingFile:
    """A mapping file, and where everything stands in it.

    Attributes
    ----------
    levels
        Settled memory levels by name, in the order of the file.
    rows, columns
        Settled loops in space; None where they are left to the search.
    keeps
        Operands that levels keep, by the name of the level, where the file says it.
    """

    dataflow: str | None
    levels: dict[str, tuple[Factor, ...]]
    rows: tuple[Factor, ...] | None
    columns: tuple[Factor, ...] | None
    document: Document
    keeps: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it settles nothing."""
        return (
            not (self.dataflow or self.levels or self.keeps) and self.rows is self.columns is None
        )

    @property
    def file(self) -> str:
        """Where it was read."""
        return self.document.file

    def check(
        self, loops: Iterable[str], levels: list[str], dataflows: Iterable[str] | None
    ) -> None:
        """Refuse names that the nest or the device does not have.

        Parameters
        ----------
        loops
            Of the nest.
        levels
            Memory levels that may have loops, from the farthest to the nearest.
        dataflows
            That may be named; None where none may.

        Raises
        ------
        ConfigError
            With file, line and field.
        """
        loops, last = list(loops), -1
        for i, (level, factors) in enumerate(self.levels.items()):
            if level not in levels:
                raise self.document.error(
                    f"there is no memory level {level!r}{nearest(level, levels)} "
                    f"(from far to near: {', '.join(levels)})",
                    ("levels", i, "level"),
                )
            if levels.index(level) <= last:
                raise self.document.error(
                    f"levels go from far to near: {', '.join(levels)}", ("levels", i, "level")
                )
            last = levels.index(level)
            self._check_loops(factors, loops, "levels", i, "loops")
        for axis in ("rows", "columns"):
            self._check_loops(getattr(self, axis) or (), loops, axis)
        if self.dataflow is not None and self.dataflow not in (known := list(dataflows or ())):
            raise self.document.error(
                f"there is no dataflow {self.dataflow!r}{nearest(self.dataflow, known)} "
                f"(there are: {', '.join(known)})"
                if known
                else "this engine has no named dataflows",
                ("dataflow",),
            )

    def _check_loops(
        self, factors: tuple[Factor, ...], loops: list[str], *place: str | int
    ) -> None:
        for position, (name, _) in enumerate(factors):
            if name not in loops:
                raise self.document.error(
                    f"there is no loop {name!r}{nearest(name, loops)} "
                    f"(there are: {', '.join(loops)})",
                    (*place, position),
                )


def load_mapping(path: str | Path) -> MappingFile:
    """Read a mapping file.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = overridden(read_yaml(path), {})
    schema = validate(document, MappingSchema)
    names = [level.level for level in schema.levels]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise document.error(f"the level {name!r} stands twice", ("levels", i, "level"))
    return MappingFile(
        dataflow=schema.dataflow,
        levels={level.level: level.loops for level in schema.levels},
        rows=schema.rows,
        columns=schema.columns,
        document=document,
        keeps={level.level: level.keeps for level in schema.levels if level.keeps is not None},
    )
