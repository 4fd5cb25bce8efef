"""Install ridgeline in every way that its metadata allows, and see that it works.

    python benchmarks/install_matrix.py                      # about three minutes an installation
    python benchmarks/install_matrix.py --python 3.12 --versions lowest --artifact wheel

For each Python of the classifiers (and the next one) that this machine has, for the lowest and
the newest versions of every dependency, and for the wheel and the sdist: a virtual environment of
its own, read-only, in a folder whose name has spaces and letters that are not ASCII, without a
home folder, in the locale C; in it, `install_smoke.py`. The numbers of all installations must be
the same. An installation from the sdist must have the very files of the one from the wheel;
checks that these files cannot fail otherwise are not repeated. Needs uv. For a Python that this
machine has not, it is only seen whether the dependencies have wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMOKE = Path(__file__).with_name("install_smoke.py")
STUDY = ROOT / "benchmarks" / "data" / "install_study.yaml"
EXTRAS = ("study", "search", "cluster", "notebook")
"""`trace` is PyTorch; `make test-trace` has it."""
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
ARTIFACTS = {"wheel": "*.whl", "sdist": "*.tar.gz"}
SAME = 1e-9
"""Of a number: libraries may round the last digits otherwise."""
SHOWN = ("numpy", "numba", "matplotlib", "cyclopts", "pydantic", "polars")


class Failed(Exception):
    """A program of others that did not do its work, with the end of what it said."""


@dataclass
class Installation:
    """One way to install, and what came of it."""

    python: str
    versions: str
    artifact: str
    packages: dict[str, str] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    note: str = ""
    """Why it could not be tried."""
    failed: bool = False

    @property
    def name(self) -> str:
        """Its three choices."""
        return f"{self.python} {self.versions} {self.artifact}"

    def fail(self, note: str) -> None:
        """Say what went wrong, beside what went wrong before."""
        self.failed, self.note = True, f"{self.note}; {note}" if self.note else note


def call(*words: str | Path, **options: Any) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise Failed(f"{Path(words[0]).name} {words[1]}: {said[-800:]}")
    return done.stdout


def pythons() -> list[str]:
    """Return the versions of Python that the classifiers name, and the one after them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = (re.fullmatch(r".*:: (3\.\d+)", each) for each in project["classifiers"])
    named = [match[1] for match in found if match]
    return [*named, f"3.{int(named[-1].removeprefix('3.')) + 1}"]


def interpreter(uv: str, version: str) -> str | None:
    """Return this machine's interpreter of a version, which is not fetched.

    Those of pyenv are looked for where they are: its shims answer only for the versions in use.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    usual = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders = [folder for folder in usual if Path(folder) != pyenv / "shims"]
    folders += map(str, sorted(pyenv.glob("versions/*/bin")))
    environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    find = (uv, "python", "find", "--no-python-downloads", "--no-project", version)
    try:
        found = call(*find, env=environment)
    except Failed:
        return None
    return found.strip()


def pinned(uv: str, python: str, versions: str, file: Path) -> Path:
    """Write the versions of all dependencies and of those of the extras: lowest or newest."""
    call(
        uv, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--only-binary", ":all:",
        "--resolution", RESOLUTIONS[versions], "--python-version", python,
        *(word for extra in EXTRAS for word in ("--extra", extra)),
        ROOT / "pyproject.toml", "--output-file", file,
    )  # fmt: skip
    return file


def install(uv: str, interpreter_: str, home: Path, pins: Path, artifact: Path) -> None:
    """Make a virtual environment with an artifact and the pinned versions, and take its write bits.

    Files are copied: a hard link would share its mode with uv's cache.
    """
    call(uv, "venv", "--quiet", "--python", interpreter_, home)
    from_source = ("--no-binary", "ridgeline") if artifact.suffix == ".gz" else ()
    call(
        uv, "pip", "install", "--quiet", "--python", home / "bin" / "python", "--link-mode", "copy",
        "--compile-bytecode", "--only-binary", ":all:", *from_source, "--requirements", pins,
        artifact,
    )  # fmt: skip
    call(uv, "pip", "check", "--quiet", "--python", home / "bin" / "python")
    set_writable(home, False)


def set_writable(folder: Path, writable: bool) -> None:
    """Give or take the write bits of a folder and all that is in it."""
    for place, folders, files in os.walk(folder):
        for path in [Path(place), *(Path(place, name) for name in (*folders, *files))]:
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o200 if writable else mode & ~0o222)


def unprivileged() -> list[str]:
    """Return what stands before a command so that write bits count for the superuser, too."""
    if os.name == "nt" or os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    return [program, "--inh-caps=-all", "--bounding-set=-all"] if program else []


def installed_files(home: Path) -> dict[str, bytes]:
    """Return the package's files and their digests."""
    (package,) = (home / "lib").glob("python*/site-packages/ridgeline")
    return {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).digest()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def smoke(tried: Installation, home: Path, work: Path, *, short: bool) -> None:
    """Run the checks in an empty folder, with an environment that says almost nothing."""
    work.mkdir()
    environment = {
        "PATH": os.defpath,
        "HOME": str(home / "no home"),
        "LANG": "C",
        "PYTHONUTF8": "0",
        "RIDGELINE_CACHE_DIR": str(work / "cache"),
        "JUPYTER_RUNTIME_DIR": str(work / "jupyter"),
        "IPYTHONDIR": str(work / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    # The checks themselves name files in UTF-8; the commands that they run do not know of it.
    command = [*unprivileged(), home / "bin" / "python", "-X", "utf8", SMOKE, STUDY]
    command += ["--short"] if short else []
    found = json.loads(call(*command, cwd=work, env=environment).splitlines()[-1])
    tried.checks, tried.values = found["checks"], found["values"]
    for name, check in tried.checks.items():
        if check["error"]:
            tried.fail(f"{name}: {check['error']}")


def compare(all_tried: Sequence[Installation]) -> None:
    """Hold the numbers of every installation against those of the first."""
    done = [tried for tried in all_tried if tried.values]
    for tried in done[1:]:
        for name, value in done[0].values.items():
            other = tried.values.get(name)
            if other is None or abs(other / value - 1) > SAME:
                tried.fail(f"{name} is {other}, but {value} in {done[0].name}")


def table(all_tried: Sequence[Installation]) -> str:
    """Write one line for each installation."""
    rows = [["Python", "versions", "from", *SHOWN, "checks", "seconds", ""]]
    for tried in all_tried:
        passed = sum(not check["error"] for check in tried.checks.values())
        seconds = sum(check["seconds"] for check in tried.checks.values())
        rows.append(
            [
                tried.python, tried.versions, tried.artifact,
                *(tried.packages.get(name, "") for name in SHOWN),
                f"{passed} of {len(tried.checks)}" if tried.checks else "", f"{seconds:.0f}",
                "FAILS" if tried.failed else "not run" if not tried.checks else "ok",
            ]
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    notes = [f"{tried.name}: {tried.note}" for tried in all_tried if tried.note]
    return "\n".join([*(line.rstrip() for line in lines), *notes])


def packages(pins: Path) -> dict[str, str]:
    """Return the pinned version of every package."""
    lines = (line.partition(" ;")[0] for line in pins.read_text("utf-8").splitlines())
    return dict(line.strip().split("==") for line in lines if "==" in line)


def try_all(options: argparse.Namespace, scratch: Path) -> list[Installation]:
    """Build once, then install and check each."""
    uv = options.uv
    for kind in ("--wheel", "--sdist"):  # apart: else the wheel would be made of the sdist
        call(uv, "build", "--quiet", kind, "--out-dir", scratch / "dist", ROOT)
    all_tried = []
    files: dict[str, bytes] = {}
    for python, versions in product(options.python, options.versions):
        pins = scratch / f"{python} {versions}.txt"
        found = interpreter(uv, python)
        for artifact in options.artifact:
            tried = Installation(python, versions, artifact)
            all_tried.append(tried)
            home = scratch / f"{tried.name} für alle"
            try:
                tried.packages = packages(pinned(uv, python, versions, pins))
                if found is None:
                    tried.note = "no such Python here; all dependencies have wheels for it"
                    continue
                (built,) = (scratch / "dist").glob(ARTIFACTS[artifact])
                install(uv, found, home, pins, built)
                here = installed_files(home)
                same = bool(files) and here == files
                if files and not same:
                    tried.fail("its files are not those of the first installation")
                files = files or here
                smoke(
                    tried,
                    home,
                    scratch / f"{tried.name} Arbeit größer",
                    short=artifact == "sdist" and same,
                )
            except Failed as problem:
                tried.fail(str(problem))
            finally:
                said = "FAILS" if tried.failed else "ok" if tried.checks else "not run"
                print(f"{tried.name}: {said} {tried.note}", file=sys.stderr, flush=True)
                if home.exists():
                    set_writable(home, True)
                    shutil.rmtree(home)
    compare(all_tried)
    return all_tried


def main() -> int:
    """Try what is asked for, print the table, and return 1 if something fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="*", default=pythons(), help="3.11, 3.12, ...")
    parser.add_argument("--versions", nargs="*", choices=RESOLUTIONS, default=[*RESOLUTIONS])
    parser.add_argument("--artifact", nargs="*", choices=ARTIFACTS, default=[*ARTIFACTS])
    parser.add_argument("--uv", default=shutil.which("uv") or str(Path(sys.executable, "../uv")))
    options = parser.parse_args()
    options.uv = os.path.normpath(options.uv)
    with tempfile.TemporaryDirectory(prefix="ridgeline matrix ") as scratch:
        all_tried = try_all(options, Path(scratch))
    print(table(all_tried))
    return int(any(tried.failed for tried in all_tried))


if __name__ == "__main__":
    sys.exit(main())
