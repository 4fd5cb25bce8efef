"""A configuration whose every value is asked for by name and type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.errors import ConfigError, nearest
from ridgeline.workload.families.base import MAX_LAYERS

GATES = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_new": "geglu",
         "gelu_pytorch_tanh": "geglu", "gelu_fast": "geglu"}  # fmt: skip
"""Functions of gated networks."""
FUNCTIONS = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
             "gelu_python": "gelu", "gelu-approximate": "gelu", "relu": "relu", "silu": "silu",
             "swish": "silu", "tanh": "tanh", "relu2": "relu-squared",
             "quick_gelu": "silu"}  # fmt: skip
"""Functions of others; "quick_gelu", x sigmoid(1.702 x), has the arithmetic of silu."""


@cache
def _library() -> Mapping[str, Any]:
    """Defaults of the library's configuration classes; see ``source`` in the file."""
    text = files(__package__).joinpath("defaults.json").read_text(encoding="utf-8")
    types: Mapping[str, Any] = json.loads(text)["types"]
    return types


class Config:
    """Values of a configuration file, and the library's defaults where it is silent.

    Parameters
    ----------
    data
        The values.
    file
        For messages.
    kind
        The model type, whose defaults they are.
    prefix
        Of the names of its fields in messages, where it is a part of another.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        file: str,
        kind: str,
        prefix: str = "",
        notes: list[str] | None = None,
    ) -> None:
        self.file, self.kind, self.prefix = file, kind, prefix
        self.notes: list[str] = [] if notes is None else notes
        row = _library().get(kind, {})
        given = dict(data)
        for alias, name in row.get("names", {}).items():
            if alias in given:
                given.setdefault(name, given[alias])
        self.given: Mapping[str, Any] = given
        self.data: Mapping[str, Any] = {**row.get("defaults", {}), **given}
        self._parts: Mapping[str, Any] = row.get("parts", {})

    def part(self, name: str, kind: str = "") -> Config:
        """Return a configuration within this one; what it leaves out, as its type has it."""
        usual = self._parts.get(name, {})
        inner = self.data.get(name)
        if inner is not None and not isinstance(inner, Mapping):
            raise self.fail(name, f"expected an object of fields, found {inner!r:.60}")
        data = dict(usual) if not inner else dict(inner)
        of_part = str(data.get("model_type") or kind or usual.get("model_type") or "")
        if of_part not in _library() and (kind or usual.get("model_type")):
            of_part = str(kind or usual["model_type"])
        return Config(data, self.file, of_part, f"{self.prefix}{name}.", self.notes)

    def note(self, text: str) -> None:
        """Say on screen what the network leaves out or takes for granted."""
        self.notes.append(text)

    def fail(self, name: str, message: str) -> ConfigError:
        """Return an error that names the file and the field."""
        return ConfigError(message, file=self.file, field=self.prefix + name)

    def found(self, name: str) -> Any:
        """Return a value, or the library's default, or None."""
        return self.data.get(name)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number above 0; it is an error if it is missing and has no default."""
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(name, f"the field {name!r} is missing{nearest(name, self.data)}")
        if type(value) is not int or value < 1:
            raise self.fail(name, f"expected a whole number above 0, found {value!r:.60}")
        return value

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number that may be 0 or missing."""
        return self.whole(name) if self.data.get(name) not in (None, 0) else default

    def first(self, *names: str) -> int:
        """Return the first of some fields that is there: one thing under several names."""
        for name in names:
            if self.given.get(name) is not None:
                return self.whole(name)
        return self.whole(next((n for n in names if self.data.get(n) is not None), names[0]))

    def layers(self, *names: str) -> int:
        """Return the number of layers, which a list has an entry for each of."""
        names = names or ("num_hidden_layers",)
        found = self.first(*names)
        if found > MAX_LAYERS:
            raise self.fail(names[0], f"{found} layers are more than {MAX_LAYERS}")
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number above 0."""
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fail(name, f"expected a number above 0, found {value!r:.60}")
        return float(value)

    def share(self, name: str, default: float = 0.0) -> float:
        """Return a probability."""
        value = self.data.get(name, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.fail(name, f"expected a number from 0 to below 1, found {value!r:.60}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.data.get(name, default)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, found {value!r:.60}")
        return value

    def one_of(self, name: str, allowed: Mapping[str, str], default: str) -> str:
        """Return what a text means, of those that are allowed."""
        value = self.data.get(name) or default
        if not isinstance(value, str) or value not in allowed:
            near = nearest(value, allowed) if isinstance(value, str) else ""
            known = ", ".join(allowed)
            raise self.fail(name, f"found {value!r:.60}{near} (known: {known})")
        return allowed[value]

    def entries(self, name: str, count: int, of: Any = str | int | float) -> list[Any] | None:
        """Return a list with an entry for each of the layers, or None if it is not there.

        Entries are texts and numbers, or of the type `of`.
        """
        value = self.data.get(name)
        if not value:
            return None
        if not isinstance(value, list | tuple) or len(value) < count:
            raise self.fail(name, f"expected {count} entries, found {value!r:.60}")
        if odd := [one for one in value if not isinstance(one, of)]:
            raise self.fail(name, f"an entry cannot be {odd[0]!r:.60}")
        return list(value)[:count]

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers, which may be empty or missing."""
        value = self.data.get(name) or []
        if not isinstance(value, list | tuple) or any(type(one) is not int for one in value):
            raise self.fail(name, f"expected a list of whole numbers, found {value!r:.60}")
        return list(value)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose other values make another network."""
        value = self.data.get(name, allowed[0])
        if value not in allowed:
            listed = " or ".join(repr(one) for one in allowed)
            raise self.fail(name, f"{value!r:.60} is not modelled; modelled: {listed}")
