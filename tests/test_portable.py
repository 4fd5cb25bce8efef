"""Nothing that only one kind of operating system has is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli import execute

ONLY_UNIX = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_EXTRAS = {"torch", "onnx", "transformers", "google", "pynvml"}

WALK = f"""
import importlib, json, pkgutil, sys
for name in {ONLY_UNIX!r}:
    sys.modules[name] = None  # to import it is a ModuleNotFoundError
import ridgeline
failed, imported = {{}}, 0
for module in pkgutil.walk_packages(ridgeline.__path__, "ridgeline."):
    try:
        importlib.import_module(module.name)
        imported += 1
    except ImportError as error:
        failed[module.name] = error.name
    except Exception as error:  # a module that asks for an extra as it is imported
        failed[module.name] = str(error)
print(json.dumps([imported, failed]))
"""


def test_no_module_imports_what_windows_has_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WALK], capture_output=True, text=True, check=True, cwd="/"
    )
    imported, failed = json.loads(done.stdout)
    assert imported > 400
    missing = {
        name: what for name, what in failed.items() if str(what).split(".")[0] not in OF_EXTRAS
    }
    assert not missing


def narrow(tmp_path: Path, *words: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose standard output cannot say every letter."""
    return subprocess.run(
        [sys.executable, "-m", "ridgeline", *words],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "PYTHONPATH": _path()},
        check=False,
    )


def _path() -> str:
    import ridgeline

    return str(Path(ridgeline.__file__).parents[1])


@pytest.mark.parametrize(("encoding", "name"), [("ascii", b"Doll?r"), ("cp1252", b"Doll\xe1r")])
def test_what_a_terminal_cannot_say_is_a_question_mark(
    encoding: str, name: bytes, tmp_path: Path
) -> None:
    """`retinanet` is cited with P. Dollar, whose name has an accent."""
    done = narrow(tmp_path, "show", "retinanet", encoding=encoding)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout


def test_a_path_that_the_encoding_has_not_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the locale C without UTF-8, where `open` cannot encode what a file of ours says."""

    def exists(path: Path, **options: bool) -> bool:
        str(path).encode("ascii")
        return True

    monkeypatch.setattr(Path, "exists", exists)
    assert execute(["show", "größe.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'gr\\xf6\\xdfe.yaml' cannot be written in ascii" in said
    assert "PYTHONUTF8=1" in said
