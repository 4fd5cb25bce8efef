"""Plug-ins: users' own Python files that register op kinds, schedules, topologies and the like.

``ridgeline VERB ... --plugin FILE.py`` and ``ridgeline.load_plugin("FILE.py")`` run a file. What
its decorators (`ridgeline.register`) register then stands beside what ships. It is a file, not an
entry point of an installed package: it needs no packaging, and the command that made a result names
it. The environment variable `VARIABLE` names the files, too, so that worker processes load them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ridgeline.bounded_files import MAX_BYTES, read_bytes
from ridgeline.errors import ConfigError, RidgelineError

VARIABLE = "RIDGELINE_PLUGINS"
"""Environment variable: paths of plug-ins, separated as those of ``PATH``."""
_modules: dict[str, ModuleType] = {}
_digests: dict[str, str] = {}
_loading = threading.RLock()  # of the threads of a worker, each of which loads them


def load_plugin(path: str | Path) -> ModuleType:
    """Execute a Python file once, so that what its decorators register can be used by name.

    Raises
    ------
    ConfigError
        If the file cannot be read, or an exception leaves it; with file and line.
    """
    whole = Path(os.path.realpath(path))
    with _loading:
        if (there := _modules.get(str(whole))) is not None:
            return there
        return _executed(whole, str(path))


def _executed(whole: Path, path: str) -> ModuleType:
    name = str(whole)
    content = read_bytes(path, MAX_BYTES)
    module = f"ridgeline_plugin_{whole.stem}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module, whole)
    if spec is None or spec.loader is None:
        raise ConfigError("a plug-in is a Python file; its name ends in .py", file=path)
    made = importlib.util.module_from_spec(spec)
    _modules[name] = sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        del _modules[name], sys.modules[module]
        if isinstance(error, RidgelineError):
            raise
        raise ConfigError(
            f"the plug-in ends with {type(error).__name__}: {error}", file=path,
            line=_line(error, name),
        ) from error  # fmt: skip
    _digests[name] = hashlib.sha256(content).hexdigest()
    return made


def load_named() -> None:
    """Load the plug-ins that the environment names."""
    for path in os.environ.get(VARIABLE, "").split(os.pathsep):
        if path:
            load_plugin(path)


def loaded_plugins() -> Mapping[str, str]:
    """Return the SHA-256 of every plug-in's content, by file name: what a manifest records."""
    return {Path(path).name: digest for path, digest in sorted(_digests.items())}


@contextmanager
def named(paths: list[str]) -> Iterator[None]:
    """Name plug-ins to this process and to those that it starts, and load them."""
    before = os.environ.get(VARIABLE)
    every = [
        *(before.split(os.pathsep) if before else []),
        *(os.path.realpath(p) for p in paths),
    ]
    if every:
        os.environ[VARIABLE] = os.pathsep.join(every)
    try:
        load_named()
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def _line(error: BaseException, file: str) -> int | None:
    """Return the last line of a file that an exception passed."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
