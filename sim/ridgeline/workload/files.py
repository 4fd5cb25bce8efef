"""Workloads by name or file: the catalogue's networks, and what other programs wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline import catalog
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload.execution import Execution

if TYPE_CHECKING:
    from ridgeline.workload.model import Model


def is_trace(name_or_path: str | Path) -> bool:
    """Tell whether a name is that of a file that another program wrote."""
    name = str(name_or_path)
    if name in catalog.names("models"):
        return False
    from ridgeline.workload import trace

    return trace.is_trace(name)


def load_model(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None
) -> Model | Execution:
    """Load a network, which needs a Plan, or an execution, which has none.

    A name of ``models/``, a YAML file, or a file in one of the formats of
    `ridgeline.workload.trace`. `overrides` maps dotted paths of fields to new values; for a trace
    they are its options, such as "loss" or "dims.sequence" (see ``docs/traces.md``).

    Raises
    ------
    ConfigError
        If there is no such network or file, or it is damaged; with the place.
    """
    if not is_trace(name_or_path):
        from ridgeline.workload.model import read_model

        return read_model(name_or_path, overrides)
    from ridgeline.workload import trace

    options = dict(overrides or {})
    adapters = {key: options.pop(key) for key in list(options) if key.split(".")[0] == _ADAPTERS}
    loaded = trace.load(name_or_path, options)
    return _with_adapters(loaded, adapters, str(name_or_path)) if adapters else loaded


_ADAPTERS = "adapters"


def _with_adapters(
    loaded: Model | Execution, options: Mapping[str, Any], file: str
) -> Model | Execution:
    """Put adapters on a network that another program wrote."""
    if isinstance(loaded, Execution):
        raise ConfigError("an execution has no adapters: its tasks are recorded", file=file)
    whole = options.get(_ADAPTERS, {})
    fields = {"rank": whole} if isinstance(whole, int) else dict(whole)
    fields |= {
        path.partition(".")[2]: value for path, value in options.items() if path != _ADAPTERS
    }
    try:
        return loaded.with_adapters(fields)
    except ConfigError:
        raise
    except RidgelineError as error:
        raise ConfigError(str(error), file=file) from error


def load_network(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """Load a network, or raise ConfigError if the file is an execution."""
    loaded = load_model(name_or_path, overrides)
    if isinstance(loaded, Execution):
        raise ConfigError(
            "this is an execution: its tasks are already distributed, and a network is needed",
            file=str(name_or_path),
        )
    return loaded
