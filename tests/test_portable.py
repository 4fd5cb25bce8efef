"""Nothing that only one kind of operating system has is needed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline
from ridgeline.cli import _write_every_letter, main

ONLY_UNIX = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_EXTRAS = {"torch", "onnx", "transformers", "google", "pynvml"}

WALK = f"""
import importlib, json, pkgutil, sys
for name in {ONLY_UNIX!r}:
    sys.modules[name] = None  # to import it is a ModuleNotFoundError
import ridgeline
failed, imported = {{}}, 0
for module in pkgutil.walk_packages(ridgeline.__path__, "ridgeline."):
    if module.name.endswith(".__main__"):
        continue
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


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("ascii", b"Doll?r"), ("cp1252", b"Doll\xe1r"), ("utf-8", b"Doll\xc3\xa1r")],
)
def test_what_a_terminal_cannot_say_is_a_question_mark(
    encoding: str, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retinanet` is cited with P. Dollar, whose name has an accent."""
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding=encoding))
    with pytest.raises(SystemExit) as end:
        main(["show", "retinanet"])
    assert not end.value.code
    assert name in said.getvalue()


def test_a_file_name_that_is_no_text_goes_out_as_it_came_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding="ascii"))
    _write_every_letter()
    sys.stdout.write(os.fsdecode(b"wrote gr\xff") + " \N{MICRO SIGN}s")
    sys.stdout.flush()
    assert said.getvalue() == b"wrote gr\xff ?s"


@pytest.mark.skipif(sys.platform != "linux", reason="the locale C is UTF-8, or there is none")
def test_a_path_that_the_encoding_has_not_is_one_message(tmp_path: Path) -> None:
    study = (
        "kind: study\nname: x\nmodel: mlp\ncluster: größe.yaml\nvary: {plan.global_batch: [8]}\n"
    )
    (tmp_path / "study.yaml").write_text(study, "utf-8")
    package = Path(ridgeline.__file__).parents[1]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "sweep", "study.yaml"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, **ascii_only, "PYTHONPATH": str(package)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"'gr\\xf6\\xdfe.yaml' cannot be written in ascii" in done.stderr
    assert b"PYTHONUTF8=1" in done.stderr
