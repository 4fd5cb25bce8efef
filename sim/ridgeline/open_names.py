"""Open names: what a field of a file may say, which plug-ins extend by registering.

A ``Literal`` is closed: a kind of engine that a user's file registers would be refused by the
schema of devices, which knows nothing of the kernels. An `OpenNames` stands in the schema in its
place. It begins with the kinds that ship, and the registry of what they do adds those of plug-ins
(`registry.Registry`), so that an unknown name is refused as by a ``Literal``, with all that there
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from ridgeline import plugins


class OpenNames:
    """Names that ship, and those that plug-ins have registered; ``Annotated[str, names]``."""

    def __init__(self, *shipped: str) -> None:
        self.shipped = shipped
        self._registered: list[str] = []

    def add(self, name: str) -> None:
        """Allow a name."""
        if name not in self:
            self._registered.append(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shipped or name in self._registered

    def __iter__(self) -> Iterator[str]:
        yield from (*self.shipped, *self._registered)

    def checked(self, name: str) -> str:
        """Return a name.

        Raises
        ------
        PydanticKnownError
            If there is none of that name, in the form of a ``Literal``.
        """
        if name not in self:
            plugins.load_named()
        if name not in self:
            *others, last = (repr(known) for known in self)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self)}
