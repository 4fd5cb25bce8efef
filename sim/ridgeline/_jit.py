"""The one decorator for compiled code: numba's ``njit`` with an on-disk cache that cannot be stale.

numba keys a cached function on its own file alone, so that after an edit in one file the cached
callers in another would keep the old code. Here the cache lies in a user folder that is named by
a hash of all files of the folders with kernels, so any edit starts afresh. A kernel must therefore
take its global constants from such folders.

Importing this module imports numba; only modules with kernels do so.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar, cast

import numba
from numba import types
from numba.core import event

P = ParamSpec("P")
R = TypeVar("R")

MARK = b"\n@kernel"  # also of parts
PART: dict[str, Any] = {  # numba's options
    "_nrt": False,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


_IN_A_STEP = 100
"""Functions that the first step on a fresh installation compiles, within ten."""


class CompilingNotice(event.Listener):
    """Says to whoever watches a terminal why a first run takes tens of seconds, and how long yet.

    The line stands while a kernel is compiled, with all that it calls, and is cleared after it.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.inside = 0
        self.done = 0
        self.spent_s = 0.0
        self.began_s = 0.0

    def on_start(self, event: event.Event) -> None:
        """Be told that a function is compiled, not found on disk."""
        if self.inside == 0:
            self.began_s = self.clock()
        self.inside += 1
        self._say(self.text(self.clock()))

    def on_end(self, event: event.Event) -> None:
        """Be told that it is."""
        self.inside -= 1
        self.done += 1
        if self.inside == 0:
            self.spent_s += self.clock() - self.began_s
            self._say("")

    def text(self, now_s: float) -> str:
        """Say what is done and, of a first step, about how long the rest takes."""
        kept = (
            "in every process anew: no folder can be written" if cache_folder() is None else "once"
        )
        spent_s = self.spent_s + now_s - self.began_s
        if not 0 < self.done < _IN_A_STEP:
            return f"compiling kernels, {kept}: {self.done} done, {spent_s:.0f} s"
        left_s = spent_s * (_IN_A_STEP - self.done) / self.done
        return (
            f"compiling kernels, {kept}: {self.done} of about {_IN_A_STEP} done, {spent_s:.0f} s;"
            f" at most about {max(left_s, 1.0):.0f} s more"
        )

    def _say(self, text: str) -> None:
        level = sys.modules.get("ridgeline.verbosity")  # not imported: this file stands alone
        if level is None or not level.is_quiet():
            print(f"\r\x1b[K{text}", end="", file=self.stream, flush=True)


if sys.stderr is not None and sys.stderr.isatty():
    _untyped: Any = event
    _untyped.register("numba:compile", CompilingNotice(sys.stderr))


def kernel_inside(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` as `kernel` does, but as a piece of the one kernel that calls it.

    A kernel that calls another one is compiled together with it although that is compiled already.
    What is only called by one kernel, and sometimes by Python, is compiled once in this way.
    """
    return _cached(function, inline="always")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call, in numba's nopython mode, and keep the result on disk.

    The cache lies in ``$RIDGELINE_CACHE_DIR``, or ``ridgeline/`` in ``$XDG_CACHE_HOME`` or
    ``~/.cache``. Where that cannot be written the function is compiled anew in each process.
    """
    return _cached(function)


def _cached(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    folder = cache_folder()
    if folder is None:
        return cast("Callable[P, R]", _of_types(numba.njit(**options)(function)))
    # A function's cache location is settled while it is decorated, from this global.
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    finally:
        config.CACHE_DIR = before
    _save_one_by_one(dispatcher, folder)
    return cast("Callable[P, R]", _of_types(dispatcher))


def _save_one_by_one(dispatcher: Any, folder: Path) -> None:
    """Let no two processes save to the cache at once.

    numba's index of a function is read, extended and written (`IndexDataCacheFile.save`): of two
    processes that do so at once, one would lose its entry, or get the other's code.
    """
    file = dispatcher._cache._cache_file
    save = file.save

    def save_locked(key: Any, data: Any) -> None:
        from filelock import FileLock

        with FileLock(folder / "lock"):
            save(key, data)

    file.save = save_locked


def kernel_part(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into the kernels that call it; only they can call it.

    Arrays that are passed to a part are not reference-counted, which costs more than a typical
    event of the simulation; a part can therefore not create arrays.
    """
    return cast("Callable[P, R]", _of_types(numba.njit(**PART)(function)))


def kernel_call(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` once for the kernels that call it; like a part, but not copied into them.

    For what is long or called from many places, where copies would take minutes to compile.
    """
    options = {name: value for name, value in PART.items() if name != "forceinline"}
    return cast("Callable[P, R]", _of_types(numba.njit(**options)(function)))


def _of_types(dispatcher: Any) -> Any:
    """Compile a function once for each types of its arguments, not for each literal among them.

    numba would compile ``f(x, 0)`` and ``f(x, 1)`` apart, and whatever these call, too.
    """
    plain = dispatcher.get_call_template
    unliteral: Callable[[Any], Any] = types.unliteral

    def get_call_template(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        return plain(
            [unliteral(arg) for arg in args], {name: unliteral(arg) for name, arg in kws.items()}
        )

    dispatcher.get_call_template = get_call_template
    return dispatcher


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder for compiled code of exactly these sources, or None if none is writable.

    Nor may code be cached whose own path is no text, as of letters in the locale C without UTF-8:
    numba hashes the path.
    """
    package = Path(__file__).parent
    sources = source_hash(package)
    if sources is None:
        return None
    name = f"numba-{numba.__version__}-py{platform.python_version()}-{sources}"
    try:
        str(package).encode()
        folder = _user_folder() / name
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, UnicodeError, RuntimeError):  # RuntimeError: there is no home folder at all
        return None
    return folder


def source_hash(package: Path) -> str | None:
    """Hash this file and all files of the folders under `package` in which there are kernels.

    Returns None if nothing can be read (a zip archive): then nothing may be cached.
    """
    if not package.is_dir():
        return None
    digest = hashlib.blake2b((package / "_jit.py").read_bytes(), digest_size=12)
    for folder, subfolders, names in os.walk(package):
        subfolders.sort()
        texts = {
            name: Path(folder, name).read_bytes() for name in sorted(names) if name.endswith(".py")
        }
        if any(MARK in text for text in texts.values()):
            for name, text in texts.items():
                digest.update(f"{folder[len(str(package)) :]}/{name} {len(text)}\n".encode())
                digest.update(text)
    return digest.hexdigest()


def _user_folder() -> Path:
    if own := os.environ.get("RIDGELINE_CACHE_DIR"):
        return Path(own)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored unless absolute
    return (base if base.is_absolute() else Path.home() / ".cache") / "ridgeline"
