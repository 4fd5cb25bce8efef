"""Workloads from elsewhere: files of other tools, and what they record.

A file is read by the importer of its ending. `IMPORTERS` is the whole register: a new kind of file
is one line here and a module with one function of a path and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError

IMPORTERS: dict[str, str] = {
    ".onnx": "onnx_file:load_onnx",
}
"""Ending of a file name: module here and function (path, options) -> Model."""

_PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"})


def importable(path: Path) -> bool:
    """Tell whether a file is a trace rather than a description in YAML."""
    return path.suffix.lower() in IMPORTERS.keys() | _PICKLES


def load_trace(path: Path, options: Mapping[str, Any]) -> Any:
    """Read a file of another tool.

    Raises
    ------
    ConfigError
        If the file cannot be read, or is of a kind that is never read.
    """
    ending = path.suffix.lower()
    if ending in _PICKLES:
        raise ConfigError(
            "a pickle is a program that runs when it is loaded, so it is never read; trace the"
            " module in Python with rl.trace(module, *inputs), or export it to ONNX",
            file=str(path),
        )
    if not path.is_file():
        raise ConfigError("there is no such file", file=str(path))
    module, _, function = IMPORTERS[ending].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)(path, options)
