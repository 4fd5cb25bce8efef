"""Names on the command line that a shell completes: networks, machines, devices, stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline import catalog

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def completed(*kinds: str) -> Callable[[CompletionContext], list[str]]:
    """Return what lists the names of some catalogues to a shell."""

    def names(context: CompletionContext) -> list[str]:
        return sorted({name for kind in kinds for name in catalog.names(kind)})

    return names


_MACHINES = ("clusters", "nodes", "devices")
Network = Annotated[str, Parameter(completer=completed("models"))]
NetworkIfAny = Annotated[str | None, Parameter(completer=completed("models"))]
Machine = Annotated[str, Parameter(completer=completed(*_MACHINES))]
MachineIfAny = Annotated[str | None, Parameter(completer=completed(*_MACHINES))]
DeviceOnly = Annotated[str, Parameter(completer=completed("devices"))]
DeviceIfAny = Annotated[str | None, Parameter(completer=completed("devices"))]
AnyName = Annotated[str, Parameter(completer=completed(*catalog.FOLDERS))]
AnyNameIfAny = Annotated[str | None, Parameter(completer=completed(*catalog.FOLDERS))]
