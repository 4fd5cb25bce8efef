"""Workloads from files that other programs wrote, found by suffix and by what the file begins with.

A format is one module here with a function ``load(path) -> Model | Execution``, imported when a
file of that format is read, and one line in `FORMATS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ridgeline.bounded_files import parse_json, read_head, record_file
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.model import Model

HEAD_BYTES = 1 << 20


class TraceFormat(NamedTuple):
    """One kind of file.

    Attributes
    ----------
    name
        For people.
    suffixes
        Lower case, with the dot.
    begins
        What the first part of the file must contain (a regular expression), or None for any.
    module
        In this package, with its function after a colon if that is not ``load``.
    overridable
        Whether the function takes fields to replace, or options, as a second argument.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: str | None
    module: str
    overridable: bool = False


FORMATS = (
    TraceFormat(
        "ridgeline graph", (".json", ".json.gz"), r'"format"\s*:\s*"ridgeline-graph"', "native"
    ),
    TraceFormat(
        "PyTorch profiler (Kineto)",
        (".json", ".json.gz"),
        r'"(traceEvents|distributedInfo|deviceProperties)"\s*:',
        "kineto",
    ),
    TraceFormat(
        "Hugging Face configuration",
        (".json",),
        r'"(model_type|_class_name)"\s*:',
        "huggingface",
        True,
    ),
    TraceFormat("Chakra execution trace", (".et",), None, "chakra", True),
    TraceFormat(
        "Chakra execution trace in JSON",
        (".json", ".json.gz"),
        r'"(dataDeps|data_deps|ctrlDeps|ctrl_deps|durationMicros|version)"\s*:',
        "chakra_json",
        True,
    ),
    TraceFormat("layer table (SCALE-Sim, DeepBench)", (".csv",), None, "tables"),
    TraceFormat("ONNX model", (".onnx",), None, "onnx_file:load_onnx", True),
)

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def is_trace(path: str | Path) -> bool:
    """Tell whether a name is that of a file that this package may read."""
    name = str(path).lower()
    known = (suffix for format_ in FORMATS for suffix in format_.suffixes)
    return name.endswith((*known, *_PICKLES))


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model | Execution:
    """Read a file of any known format, and replace fields of what it describes.

    Raises
    ------
    ConfigError
        If it cannot be read, is of no known format, or is damaged; with the place.
    """
    path = Path(path)
    name = str(path).lower()
    if name.endswith(_PICKLES):
        raise ConfigError(
            "a pickle is a program that runs when it is loaded, so it is never read; trace the"
            " module in Python with rl.trace(module, *inputs), or export it to ONNX",
            file=str(path),
        )
    fitting = [f for f in FORMATS if any(name.endswith(suffix) for suffix in f.suffixes)]
    if not fitting:
        known = ", ".join(sorted({suffix for f in FORMATS for suffix in f.suffixes}))
        raise ConfigError(f"no known kind of trace (known: {known})", file=str(path))
    text = head(path) if any(format_.begins for format_ in fitting) else ""
    for format_ in fitting:
        if format_.begins is None or re.search(format_.begins, text):
            if overrides and not format_.overridable:
                raise ConfigError(
                    f"fields of a {format_.name} cannot be replaced; change the file",
                    file=str(path),
                )
            more = (overrides or {},) if format_.overridable else ()
            module, _, function = format_.module.partition(":")
            read = getattr(import_module(f"{__name__}.{module}"), function or "load")
            record_file(path)
            loaded: Model | Execution = read(path, *more)
            return loaded
    if len(text) < HEAD_BYTES:
        parse_json(text, str(path))  # says where it is no JSON, if that is what is wrong
    raise ConfigError(f"this is none of: {', '.join(f.name for f in fitting)}", file=str(path))


def head(path: Path) -> str:
    """Return the first part of a file as text, whatever it is."""
    return read_head(path, HEAD_BYTES).decode("utf-8", "replace")
