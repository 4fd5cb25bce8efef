"""Compiled code is kept on disk, never stale, and never where it must not be written."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline._jit as jit

A = """
from small._jit import kernel, kernel_part
FACTOR = {factor}
@kernel
def scale(x: float) -> float:
    return FACTOR * x
@kernel_part
def shift(x: float) -> float:
    return x + {shift}
"""
B = """
from small._jit import kernel
from small.a import scale, shift
@kernel
def twice(x: float) -> float:
    return 2 * shift(scale(x))
"""
MAIN = """
from small.b import twice
print(twice(10.0), sum(twice.stats.cache_hits.values()))
"""

SLOWLY = """
import sys
import time
import numpy as np
from numba.core.caching import IndexDataCacheFile
from small.b import twice
write = IndexDataCacheFile._save_index
def slowly(self, overloads):
    time.sleep(0.5)
    write(self, overloads)
IndexDataCacheFile._save_index = slowly
print(twice(np.dtype(sys.argv[1]).type(10)), sum(twice.stats.cache_hits.values()))
"""


class SmallPackage:
    """A package of two files with kernels, one calling the other, around a copy of `_jit`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "small"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        source = Path(jit.__file__).read_text(encoding="utf-8")
        (self.folder / "_jit.py").write_text(source)
        (self.folder / "b.py").write_text(B)
        self.write_a(factor=3)

    def write_a(self, factor: int, shift: int = 0) -> None:
        (self.folder / "a.py").write_text(A.format(factor=factor, shift=shift))

    def run(self, **environment: str) -> tuple[float, int]:
        """Call the kernel in a process of its own; return its result and the cache hits."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in {"HOME", "XDG_CACHE_HOME", "RIDGELINE_CACHE_DIR"}
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", MAIN],
            env={**inherited, "PYTHONPATH": str(self.root), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        result, hits = done.stdout.split()
        return float(result), int(hits)


@pytest.fixture
def package(tmp_path: Path) -> SmallPackage:
    return SmallPackage(tmp_path)


def test_an_edit_in_one_file_reaches_compiled_callers_in_another(
    package: SmallPackage, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert package.run(RIDGELINE_CACHE_DIR=cache) == (60.0, 0)
    assert package.run(RIDGELINE_CACHE_DIR=cache) == (60.0, 1)
    package.write_a(factor=5)
    assert package.run(RIDGELINE_CACHE_DIR=cache) == (100.0, 0)
    package.write_a(factor=5, shift=1)
    assert package.run(RIDGELINE_CACHE_DIR=cache) == (102.0, 0)
    package.write_a(factor=3)
    assert package.run(RIDGELINE_CACHE_DIR=cache) == (60.0, 1)
    assert not list(package.folder.rglob("*.nb[ic]"))  # numba's cache files


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are text")
def test_code_under_a_path_that_is_no_text_is_not_kept(tmp_path: Path) -> None:
    """numba hashes the path as UTF-8, which a name in another encoding is not."""
    root = tmp_path / os.fsdecode(b"gr\xf6\xdfer")
    root.mkdir()
    package = SmallPackage(root)
    assert package.run(RIDGELINE_CACHE_DIR=str(tmp_path / "cache")) == (60.0, 0)
    assert not (tmp_path / "cache").exists()


def test_processes_that_compile_at_once_keep_each_others_code(
    package: SmallPackage, tmp_path: Path
) -> None:
    """Each has a type of its own; none may lose its entry, or find the code of another."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.root),
        "RIDGELINE_CACHE_DIR": str(tmp_path),
    }

    def run_all() -> list[str]:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", SLOWLY, name],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("float64", "float32", "int64")
        ]
        return [one.communicate()[0].strip() for one in running]

    package.write_a(factor=3)
    assert run_all() == ["60.0 0", "60.0 0", "60 0"]
    assert run_all() == ["60.0 1", "60.0 1", "60 1"]


def test_nothing_is_cached_where_nothing_can_be_written(
    package: SmallPackage, tmp_path: Path
) -> None:
    """Folders below a plain file cannot be made, whoever asks."""
    obstacle = tmp_path / "file"
    obstacle.touch()
    for variable in ("HOME", "XDG_CACHE_HOME", "RIDGELINE_CACHE_DIR"):
        assert package.run(**{"HOME": str(tmp_path), variable: f"{obstacle}/x"}) == (60.0, 0)
    assert not list(tmp_path.rglob("*.nb[ic]"))


def test_whoever_watches_a_terminal_is_told_once_that_code_is_compiled(
    package: SmallPackage, tmp_path: Path
) -> None:
    def said() -> str:
        reads, terminal = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(package.root)}
        environment["RIDGELINE_CACHE_DIR"] = str(tmp_path / "cache")
        with open(reads, "rb", buffering=0) as screen, open(terminal, "wb", buffering=0) as stderr:
            subprocess.run(
                [sys.executable, "-c", MAIN], env=environment, stderr=stderr, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            stderr.write(b"|")
            text = b""
            while not text.endswith(b"|"):
                text += screen.read(1000)
            return text.decode()

    first = said()
    assert first.startswith("\r\x1b[Kcompiling kernels, once: 0 done, 0 s")
    assert first.endswith("\r\x1b[K|")  # and the line is cleared when there is nothing to wait for
    assert said() == "|"


def test_how_long_compiling_takes_yet_is_estimated_from_what_is_done() -> None:
    now, stream = 0.0, io.StringIO()
    notice = jit.CompilingNotice(stream, lambda: now)
    notice.on_start(None)
    for _ in range(24):  # inside the first
        notice.on_start(None)
        notice.on_end(None)
    now = 5.0
    notice.on_end(None)
    now = 100.0  # nothing is compiled meanwhile
    notice.on_start(None)
    assert stream.getvalue().endswith(": 25 of about 100 done, 5 s; at most about 15 s more")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/h"}, "/h/.cache/ridgeline"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/ridgeline"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/ridgeline"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "RIDGELINE_CACHE_DIR": "/r"}, "/r"),
    ],
)
def test_the_cache_lies_in_the_users_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "RIDGELINE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert jit._user_folder() == Path(folder)


def test_the_hash_covers_the_folders_with_kernels(package: SmallPackage) -> None:
    seen = [jit.source_hash(package.folder)]

    def is_new() -> bool:
        seen.append(jit.source_hash(package.folder))
        return seen[-1] not in seen[:-1]

    (package.folder / "constants.py").write_text("x = 1")
    assert is_new()
    (package.folder / "a.py").rename(package.folder / "c.py")
    assert is_new()
    (package.folder / "_jit.py").write_text(Path(jit.__file__).read_text(encoding="utf-8") + "\n")
    assert is_new()
    (package.folder / "plain").mkdir()
    (package.folder / "plain" / "a.py").write_text("x = 1")
    assert not is_new()
    (package.folder / "plain" / "b.py").write_text(B)
    assert is_new()


def test_sources_that_cannot_be_read_have_no_hash(tmp_path: Path) -> None:
    assert jit.source_hash(tmp_path / "package.zip") is None
