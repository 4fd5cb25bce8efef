"""Catalogue as attributes, for tab completion: ``rl.models.resnet50``, ``rl.clusters.<Tab>``.

Listing the names reads folders; a thing is loaded when it is asked for, each time anew, as by the
function of the same job (`load_model`, `load_cluster`, ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ridgeline import catalog
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.hardware import Cluster, Device, EnergyTable, Node
    from ridgeline.hardware.components.schema import Component
    from ridgeline.workload.model import Model

T = TypeVar("T")


class Shelf(Generic[T]):
    """All shipped things of one kind, by name.

    An attribute is a catalogue name with ``_`` for every other sign (``rl.models.gpt3_1_3b``);
    an item is the name itself (``rl.models["gpt3-1.3b"]``). Both may be spelled as people say them
    (``rl.devices["H100"]``).
    """

    def __init__(self, kinds: tuple[str, ...], loader: str) -> None:
        self._kinds, self._loader = kinds, loader

    @cached_property
    def _names(self) -> dict[str, str]:
        """Catalogue name by attribute."""
        listed = dict.fromkeys(name for kind in self._kinds for name in catalog.names(kind))
        return {attribute(name): name for name in sorted(listed)}

    def __getitem__(self, name: str) -> T:
        module, _, function = self._loader.partition(":")
        found = catalog.resolve(name, *self._kinds)
        return cast("T", getattr(import_module(module), function)(found))

    def __getattr__(self, name: str) -> T:
        if name.startswith("_"):  # IPython and copy ask for many such names
            raise AttributeError(name)
        try:
            return self[self._names.get(name, name)]
        except ConfigError as error:
            if name in self._names:
                raise
            raise AttributeError(str(error)) from error

    def search(self, text: str) -> list[str]:
        """Return the names that fit words and comparisons: ``rl.models.search("moe > 100B")``.

        Raises
        ------
        ConfigError
            If a comparison cannot be read; see `study.catalog_search.search_catalog`.
        """
        find = import_module("ridgeline.study.catalog_search").search_catalog
        return list(dict.fromkeys(entry.name for entry in find(text, *self._kinds)))

    def __dir__(self) -> list[str]:
        return list(self._names)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names.values()

    def __repr__(self) -> str:
        return f"<{len(self)} {self._kinds[0]}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        listed = ", ".join(f"<code>{escape(name)}</code>" for name in self)
        return f"<div><b>{len(self)} {escape(self._kinds[0])}</b> {listed}</div>"


def attribute(name: str) -> str:
    """Return the attribute of a catalogue name: a valid identifier."""
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"


models: Shelf[Model] = Shelf(("models",), "ridgeline.workload.files:load_network")
devices: Shelf[Device] = Shelf(("devices",), "ridgeline.hardware:load_device")
nodes: Shelf[Node] = Shelf(("nodes",), "ridgeline.hardware:load_node")
clusters: Shelf[Cluster] = Shelf(
    ("clusters", "nodes", "devices"), "ridgeline.network.resolve:load_cluster"
)
energy_tables: Shelf[EnergyTable] = Shelf(("energy",), "ridgeline.hardware:load_energy_table")
components: Shelf[Component] = Shelf(
    ("components",), "ridgeline.hardware.components.estimate:load_component"
)
