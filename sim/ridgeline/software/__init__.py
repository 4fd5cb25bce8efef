"""The software stack: the program that runs a training step, as a file in ``hwconfigs/software/``.

The room is the catalogue of stacks, too: ``rl.software.megatron_core``, ``rl.software["ideal"]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ridgeline.catalog_attrs import Shelf
from ridgeline.software.load import load_software
from ridgeline.software.stack import ConvLibrary, Stack

__all__ = ["ConvLibrary", "Stack", "load_software"]

_shelf: Shelf[Stack] = Shelf(("software",), "ridgeline.software:load_software")


class _Catalogue(ModuleType):
    """Module with the stacks that ship as attributes and items (`catalog_attrs.Shelf`)."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_shelf, name)

    def __getitem__(self, name: str) -> Any:
        return _shelf[name]

    def __dir__(self) -> list[str]:
        return [*__all__, *dir(_shelf)]

    def __iter__(self) -> Iterator[str]:
        return iter(_shelf)

    def __len__(self) -> int:
        return len(_shelf)

    def __contains__(self, name: object) -> bool:
        return name in _shelf

    def __repr__(self) -> str:
        return repr(_shelf)


sys.modules[__name__].__class__ = _Catalogue
