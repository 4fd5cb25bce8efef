"""Design files of other tools as data: YAML whose tags are words, and numbers that are arithmetic.

Nothing in such a file is run. A tag (``!Component``) is kept as text, a merge (``<<``) is done as
YAML says, the last of two equal keys counts and is noted, templates are refused. A number may be
written as arithmetic on numbers and on the file's own variables (``1024 * 8``), which the parser of
`study.columns` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.bounded_files import read_text
from ridgeline.config import Document
from ridgeline.errors import ConfigError, short
from ridgeline.study.columns import parse_formula
from ridgeline.yaml_nodes import Location, NodeReader, refuse_depth

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

MAX_BYTES = 2**20
_PLAIN = "tag:yaml.org,2002:"
_TEMPLATES = ("{{", "{%")
LARGEST = 2**40

Kind = Literal["assumed", "changed", "left out"]


@dataclass(frozen=True)
class Remark:
    """What an import could not take over as it stands.

    Attributes
    ----------
    kind
        "assumed": the file does not state it and the device needs it; "changed": it is expressed in
        another way; "left out": it cannot be expressed.
    file, line, field
        Where it stands.
    message
        What was found there and what became of it, and why.
    """

    kind: Kind
    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" + (f": {self.field}" if self.field else "")
        return f"{self.kind}: {place}: {self.message}"


@dataclass(frozen=True)
class DesignDocument:
    """One document of a tool: its values, their places, their tags, and what is remarked of them.

    Attributes
    ----------
    document
        Values and places.
    tags
        Tags by location, without the exclamation mark.
    variables
        Numbers that arithmetic in the file may name.
    """

    document: Document
    tags: Mapping[Location, str]
    variables: dict[str, float] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    @property
    def file(self) -> str:
        """Where it was read."""
        return self.document.file

    @property
    def stem(self) -> str:
        """Name of the file without its endings."""
        return Path(self.file).name.partition(".")[0] or "design"

    def error(self, message: str, at: Location = ()) -> ConfigError:
        """Return an error that points at a value."""
        return self.document.error(message, at)

    def remark(self, kind: Kind, message: str, at: Location = ()) -> None:
        """Keep what an import could not take over; the same is said once."""
        line, _ = self.document.where(at)
        made = Remark(kind, self.file, line, ".".join(map(str, at)), message)
        if made not in self.remarks:
            self.remarks.append(made)

    def tag(self, at: Location) -> str:
        """Return the tag of a value, or an empty string."""
        return self.tags.get(at, "")

    def mapping(self, value: Any, at: Location) -> dict[str, Any]:
        """Return a value that has to be a mapping; nothing is an empty one."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(f"expected a mapping of fields, found {short(value)}", at)
        return value

    def items(self, value: Any, at: Location) -> list[Any]:
        """Return a value that has to be a list; nothing is an empty one."""
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"expected a list, found {short(value)}", at)
        return value

    def word(self, value: Any, at: Location) -> str:
        """Return a value that has to be a word."""
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise self.error(f"expected a word, found {short(value)}", at)
        return str(value)

    def number(self, value: Any, at: Location, more: Mapping[str, float] | None = None) -> float:
        """Return a number of at least 0, or infinity; arithmetic is computed.

        Raises
        ------
        ConfigError
            If it is no number, or arithmetic on names that the file does not give a number.
        """
        if isinstance(value, str):
            if value.strip().lower() in {"inf", ".inf"}:
                return math.inf
            try:
                formula = parse_formula(value)
                value = formula.value({**self.variables, **(more or {})})
            except ConfigError as error:
                raise self.error(f"cannot be computed: {error.message}", at) from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self.error(f"expected a number of at least 0, found {short(value)}", at)
        try:
            return float(value)
        except OverflowError as error:
            raise self.error(f"{short(value)} is too large", at) from error

    def whole(self, value: Any, at: Location) -> int:
        """Return a whole number from 1 to 2**40."""
        found = self.number(value, at)
        if not (1 <= found <= LARGEST and found == int(found)):
            raise self.error(f"expected a whole number from 1 to 2**40, found {short(value)}", at)
        return int(found)

    def stated(
        self, fields: Mapping[str, Any], names: tuple[str, ...], at: Location, *,
        endless: bool = False,
    ) -> tuple[float, Location] | None:  # fmt: skip
        """Return the first of some fields that is a number; one that is not is left out.

        Infinity is a number where `endless`.
        """
        for name in names:
            if name not in fields or fields[name] is None:
                continue
            place = (*at, name)
            try:
                found = self.number(fields[name], place)
                if math.isfinite(found) or endless:
                    return found, place
                self.remark("left out", f"{name} is endless", place)
            except ConfigError as error:
                self.remark("left out", error.message, place)
        return None


class _Reader(NodeReader):
    """Plain values of a node tree; tags are kept by the side."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.tags: dict[Location, str] = {}
        self.twice: list[tuple[Location, str]] = []
        self._merging: list[int] = []

    def value(self, node: Node, location: Location) -> Any:
        tag = str(node.tag)
        if not tag.startswith(_PLAIN):
            self.tags[location] = tag.lstrip("!")[:60]
        return super().value(node, location)

    def _plain_tag(self, node: Node, tag: str) -> None:
        found = str(node.tag)
        if found.startswith(_PLAIN) and found != tag:
            super()._plain_tag(node, tag)

    def _items(self, node: Node, location: Location) -> Iterator[tuple[str, Any]]:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        if id(node) in self._merging:
            raise self._fail(node, "a mapping is merged into itself")
        self._merging.append(id(node))
        seen: set[str] = set()
        merged: list[tuple[str, Any]] = []
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node.value, str) else None
            if not isinstance(key, str | int | float) or isinstance(key, bool):
                raise self._fail(key_node, "a key must be a plain word")
            key = str(key)
            if key_node.value == "<<":
                parts = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                for part in reversed(parts):
                    if not isinstance(part, MappingNode):
                        raise self._fail(value_node, "only mappings can be merged")
                    merged += list(self._items(part, location))
                continue
            if key in seen:
                self.twice.append(((*location, key), key))
            seen.add(key)
        self._merging.pop()
        yield from merged
        for key_node, value_node in node.value:
            if key_node.value == "<<":
                continue
            key = str(self._scalar(key_node))
            place = (*location, key)
            yield key, self.value(value_node, place)
            self.places[place] = key_node.start_mark.line + 1, key_node.start_mark.column + 1

    def _scalar(self, node: Node, location: Location = ()) -> Any:
        if str(node.tag).startswith(_PLAIN):
            if str(node.tag) == f"{_PLAIN}merge":
                return "<<"
            return super()._scalar(node, location)
        return node.value


def read_sources(path: str | Path) -> list[DesignDocument]:
    """Read the YAML documents of one file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is larger than `MAX_BYTES`, is no YAML, or is a template.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    file = str(path)
    text = read_text(path, MAX_BYTES)
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.partition("#")[0]
        if found := next((mark for mark in _TEMPLATES if mark in code), None):
            raise ConfigError(
                f"{found!r} opens a Jinja template, which is not rendered here; give the rendered "
                "file (timeloop and accelforge write their parsed input)",
                file=file, line=number, column=line.find(found) + 1,
            )  # fmt: skip
    try:
        refuse_depth(text, file)
        nodes = [node for node in YAML(typ="safe").compose_all(text) if node is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(
            f"not YAML: {problem}", file=file, line=place[0], column=place[1]
        ) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"not YAML: {str(error).splitlines()[0]}", file=file) from error
    if not nodes:
        raise ConfigError("the file is empty", file=file, line=1)
    return [_source(file, node) for node in nodes]


def _source(file: str, node: Node) -> DesignDocument:
    reader = _Reader(file)
    reader.weigh(node, {})
    data = reader.value(node, ())
    source = DesignDocument(Document(file, data, reader.places), reader.tags)
    for place, key in reader.twice:
        source.remark("changed", f"the key {key!r} stands twice; the last one counts", place)
    return source
