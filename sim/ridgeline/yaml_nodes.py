"""Node trees of YAML as plain values.

Nothing is constructed by tag, duplicate keys are errors, aliases cannot explode, and every value
keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from ridgeline.bounded_files import MAX_DIGITS
from ridgeline.errors import ConfigError, short

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

MAX_NODES = 400_000
MAX_DEPTH = 40
_QUOTED = frozenset("'\"|>")
"""Styles of scalars that are text, whatever they look like."""

Location = tuple[str | int, ...]


def compose(text: str) -> Node | None:
    """Return the node tree of YAML text; None where there is none. Raises what ruamel raises."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    yaml.Resolver = _resolver()
    found: Node | None = yaml.compose(text)
    return found


@cache
def _resolver() -> Any:
    """Return the resolver of YAML 1.2, which looks at every plain scalar once.

    Files of a catalogue say the same words over and over, and the usual resolver goes through all
    of its patterns at each of them: half of the time that files take to read.
    """
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.resolver import VersionedResolver

    usual = VersionedResolver(version=(1, 2), loader=None)

    @lru_cache(maxsize=2**14)
    def tag_of(text: str) -> Any:
        return usual.resolve(ScalarNode, text, (True, False))

    class CachedResolver(VersionedResolver):  # type: ignore[misc, unused-ignore]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if kind is ScalarNode and implicit[0]:
                return tag_of(value)
            return super().resolve(kind, value, implicit)

    return CachedResolver


class NodeReader:
    """Turns a node tree into plain values and remembers where they stand."""

    def __init__(self, file: str) -> None:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        self.file = file
        self.places: dict[Location, tuple[int, int]] = {}
        self._kinds = ScalarNode, SequenceNode, MappingNode

    def _fail(self, node: Node, message: str, location: Location = ()) -> ConfigError:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        field = ".".join(map(str, location)) or None
        return ConfigError(message, file=self.file, line=line, column=column, field=field)

    def weigh(self, node: Node, weights: dict[int, int], depth: int = 0) -> int:
        """Count the values of a node, aliases where they stand, without making any of them."""
        if depth > MAX_DEPTH:
            raise self._fail(node, f"nested deeper than {MAX_DEPTH} levels")
        if (known := weights.get(id(node))) is not None:
            return known
        weights[id(node)] = 0  # an alias of what it stands in is found by its depth
        total = 1
        for item in node.value if isinstance(node.value, list) else ():
            for part in item if isinstance(item, tuple) else (item,):
                total += self.weigh(part, weights, depth + 1)
            if total > MAX_NODES:
                raise self._fail(
                    node, f"more than {MAX_NODES} values (aliases counted where they stand)"
                )
        weights[id(node)] = total
        return total

    def value(self, node: Node, location: Location) -> Any:
        """Return a node as plain values."""
        scalar, sequence, mapping = self._kinds
        if len(location) > MAX_DEPTH:
            raise self._fail(node, f"nested deeper than {MAX_DEPTH} levels")
        self.places[location] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, scalar):
            return self._scalar(node, location)
        if isinstance(node, sequence):
            self._plain_tag(node, "tag:yaml.org,2002:seq")
            return [self.value(item, (*location, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, mapping)
        self._plain_tag(node, "tag:yaml.org,2002:map")
        return dict(self._items(node, location))

    def _plain_tag(self, node: Node, tag: str) -> None:
        if str(node.tag) != tag:
            raise self._fail(node, f"the tag {node.tag} is not allowed; use plain values")

    def _items(self, node: Node, location: Location) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node.value, str) else None
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise self._fail(key_node, "a key must be a plain word")
            key = str(key)
            if key in seen:
                raise self._fail(key_node, f"the key {key!r} stands twice")
            seen.add(key)
            yield key, self.value(value_node, (*location, key))
            self.places[(*location, key)] = (
                key_node.start_mark.line + 1,
                key_node.start_mark.column + 1,
            )

    def _scalar(self, node: Node, location: Location = ()) -> Any:
        text: str = node.value
        tag = str(node.tag)
        if getattr(node, "style", None) in _QUOTED:
            tag = "tag:yaml.org,2002:str" if tag.startswith("tag:yaml.org,2002:") else tag
        kind = tag.removeprefix("tag:yaml.org,2002:")
        try:
            match kind:
                case "str" | "timestamp":
                    return text if text.isascii() else self._whole_text(node, text, location)
                case "int" | "float" if len(text) > MAX_DIGITS:
                    raise self._fail(node, f"a number of more than {MAX_DIGITS} digits", location)
                case "int":
                    return int(text.replace("_", ""), 0)
                case "float":
                    return float(
                        text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
                    )
                case "bool":
                    return text.lower() == "true"
                case "null":
                    return None
        except ValueError as error:
            words = {"int": "a whole number", "float": "a number"}.get(kind, kind)
            raise self._fail(node, f"cannot read {short(text)} as {words}", location) from error
        raise self._fail(node, f"the tag {tag} is not allowed; use plain values", location)

    def _whole_text(self, node: Node, text: str, location: Location) -> str:
        """Return text, or refuse what no file can hold: half of a surrogate pair."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._fail(node, "text with half of a surrogate pair", location) from error
        return text


def refuse_depth(text: str, file: str) -> None:
    """Raise ConfigError at the first value nested deeper than `MAX_DEPTH`.

    The compiled composer calls itself for every level and, far enough down, ends the process; its
    parser hands out one event after the other and does not.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in YAML(typ="safe").parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH + 1:
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            message = f"nested deeper than {MAX_DEPTH} levels"
            raise ConfigError(message, file=file, line=line, column=column)
