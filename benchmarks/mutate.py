"""Mutation testing: does a test fail when one operator or number of the package is another?

    python benchmarks/mutate.py                    # the hand-made mutants of data/mutants.yaml
    python benchmarks/mutate.py --sample 40 --seed 1 --rooms kernels hardware network

Random mutants are those of cosmic-ray's operators (https://cosmic-ray.readthedocs.io), which has to
be installed: ``make mutate``. Every mutant is run in a copy of the checkout, with the test files
that import its module, or else what imports that, the nearest first. All of them are first run
once without a mutant: they have to pass, and compiled code is kept from then on for all modules
that do not import the mutant's. A mutant that no test notices survives. Only a reader can tell a
mutant that computes the same; data/equivalent_mutants.yaml lists those, with the reason, and they
do not count.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

from ridgeline._jit import source_hash

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sim" / "ridgeline"
HAND_MADE = Path(__file__).parent / "data" / "mutants.yaml"
EQUIVALENT = Path(__file__).parent / "data" / "equivalent_mutants.yaml"
ROOMS = ("kernels", "hardware", "parallel/memory", "network")
SHOWN = ("tests/docs", "tests/notebooks", "tests/cli", "tests/study/test_reproduce")
"""Tests of what pages and examples show: they pass through everything, and take minutes."""
MOST_FILES = 12
LIMIT_CPU_S = 600
"""Tests that take longer do not end; a busy machine does not change what they take."""
_PAIRS = {
    "Binary": ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Pow_Mul"),
    "Comparison": ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq"),
}
_OPERATORS = (
    *(f"core/Replace{kind}Operator_{pair}" for kind, pairs in _PAIRS.items() for pair in pairs),
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceUnaryOperator_Delete_Not",
)


@dataclass(frozen=True)
class Mutant:
    """A change of one file, and the test files that should notice it."""

    path: str
    line: int
    change: str
    source: str
    """The whole file, changed."""
    tests: tuple[str, ...]

    def lines(self) -> tuple[str, str]:
        """Return the lines that differ, as they are and as they become, without margins."""
        before = (ROOT / self.path).read_text("utf-8").splitlines()
        differing = list(difflib.ndiff(before, self.source.splitlines()))
        old, new = (
            " ".join(line[2:].strip() for line in differing if line.startswith(mark))
            for mark in ("- ", "+ ")
        )
        return old, new


def hand_made(path: Path = HAND_MADE) -> Iterator[Mutant]:
    """Read mutants that are written down: a text of a file, what takes its place, its tests."""
    for one in YAML(typ="safe").load(path):
        source = (ROOT / one["file"]).read_text("utf-8")
        if source.count(one["text"]) != 1:
            raise SystemExit(f"{path}: {one['file']} has {one['text']!r} not once")
        line = source[: source.index(one["text"])].count("\n") + 1
        changed = source.replace(one["text"], one["becomes"])
        yield Mutant(one["file"], line, one["why"], changed, tuple(one["tests"]))


def sampled(rooms: Sequence[str], count: int, seed: int) -> Iterator[Mutant]:
    """Draw mutants of the modules of rooms, all places of all operators alike."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    operators = {name: get_operator(name)() for name in _OPERATORS}
    places: list[tuple[Path, str, int, int]] = []
    for path in sorted(p for room in rooms for p in (PACKAGE / room).rglob("*.py")):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for name, operator in operators.items():
            starts = [at for node in nodes for at, _ in operator.mutation_positions(node)]
            places += [(path, name, k, line) for k, (line, _) in enumerate(starts)]
    reached = tests_by_distance()
    for path, name, k, line in random.Random(seed).sample(places, count):
        changed = mutate_code(path.read_text("utf-8"), operators[name], k)
        where = str(path.relative_to(ROOT))
        yield Mutant(where, line, name, changed, tuple(reached(path)[:MOST_FILES]))


def equivalent(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Read why mutants compute the same, by file, the line as it is and as it becomes."""
    listed = YAML(typ="safe").load(path)
    return {(one["file"], one["line"], one["becomes"]): one["why"] for one in listed}


@cache
def importers() -> dict[Path, set[Path]]:
    """Return the files of the package and its tests that import each of them."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    named = {_module(path): path for path in paths}
    imported_by: dict[Path, set[Path]] = {path: set() for path in paths}
    for path in paths:
        for name in _imported(path):
            if name in named:
                imported_by[named[name]].add(path)
    for path, users in imported_by.items():
        folder = path.with_name("__init__.py")
        if not users and folder in imported_by:  # a plugin, found by import of its folder
            users.add(folder)
    return imported_by


def tests_by_distance() -> Callable[[Path], list[str]]:
    """Return what lists the test files that reach a module.

    Those that import it come first, then those of its room, and of its folder, the nearest first.
    """
    imported_by = importers()

    def reached(module: Path) -> list[str]:
        known, border, distance = {module}, {module}, 0
        room, near = module.relative_to(PACKAGE).parts[0], module.parent.name
        found: list[tuple[bool, bool, bool, int, int, str]] = []
        while border:
            border, distance = (
                {user for one in border for user in imported_by[one]} - known,
                distance + 1,
            )
            known |= border
            for path in border:
                name = str(path.relative_to(ROOT))
                if path.name.startswith("test_") and not name.startswith(SHOWN):
                    order = distance > 1, room not in path.parts, near not in path.parts
                    found.append((*order, distance, path.stat().st_size, name))
        return [name for *_, name in sorted(found)]

    return reached


def _module(path: Path) -> str:
    root = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class Checkout:
    """A copy of the checkout in which tests run, with the code that they have compiled."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._importers = importers()
        self._package = root / PACKAGE.relative_to(ROOT)
        self._as_it_is = source_hash(self._package)

    def passes(self, tests: Sequence[str], limit_cpu_s: int | None = None) -> bool:
        """Run test files until one fails; say whether none does, and they end in time."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root / "sim"),
            "RIDGELINE_CACHE_DIR": str(self.root / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-m", "not slow and not thorough", *tests],
            cwd=self.root,
            env=environment,
            capture_output=True,
            preexec_fn=None if limit_cpu_s is None else lambda: _limit(limit_cpu_s),
            check=False,
        )
        return done.returncode == 0

    def run(self, mutant: Mutant) -> str:
        """Run the tests of a mutant; return killed, survived or no test."""
        if not mutant.tests:
            return "no test"
        path = self.root / mutant.path
        before, times = path.read_text("utf-8"), path.stat()
        path.write_text(mutant.source, "utf-8")
        kept = self._keep_compiled(mutant)
        try:
            return "survived" if self.passes(mutant.tests, LIMIT_CPU_S) else "killed"
        finally:
            path.write_text(before, "utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # numba compares it
            for folder in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _keep_compiled(self, mutant: Mutant) -> list[Path]:
        """Copy compiled code to where the mutant looks for it, but for what imports its module."""
        changed, name = source_hash(self._package), f"numba-*-{self._as_it_is}"
        if changed == self._as_it_is:  # the module lies in no folder with kernels
            return []
        known, border = {ROOT / mutant.path}, {ROOT / mutant.path}
        while border:
            border = {user for one in border for user in self._importers[one]} - known
            known |= border
        folders = []
        for compiled in self.root.glob(f"cache/tests/*/{name}"):
            folder = compiled.with_name(compiled.name.replace(str(self._as_it_is), str(changed)))
            shutil.copytree(compiled, folder)
            for path in known:  # numba: FOLDER_hash/MODULE.function-line.version.nbi
                for index in folder.glob(f"{path.parent.name}_*/{path.stem}.*.nbi"):
                    index.unlink()
            folders.append(folder)
        return folders


def _limit(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def copied(folder: Path) -> Path:
    """Copy the checkout, without what is hidden or made."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist")
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=ignored))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants, and say which survive."""
    parser = argparse.ArgumentParser(description="Run the tests against mutants of the package.")
    parser.add_argument("--sample", type=int, help="random mutants (default: the hand-made ones)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of the package")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the first")
    options = parser.parse_args(arguments)
    mutants = list(
        sampled(options.rooms, options.sample, options.seed) if options.sample else hand_made()
    )[options.skip :]
    lines = [mutant.lines() for mutant in mutants]
    same, results = equivalent(), []
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(copied(Path(folder)))
        if not checkout.passes(sorted({test for mutant in mutants for test in mutant.tests})):
            raise SystemExit("tests fail without a mutant")
        for mutant, (old, new) in zip(mutants, lines, strict=True):
            began = time.perf_counter()
            found = "the same" if (mutant.path, old, new) in same else checkout.run(mutant)
            results.append(found)
            seconds = time.perf_counter() - began
            print(f"{found:8} {seconds:4.0f} s  {mutant.path}:{mutant.line}  {mutant.change}")
            print(f"    - {old}\n    + {new}", flush=True)
    counted = [found for found in results if found != "the same"]
    killed = counted.count("killed")
    print(f"{killed} of {len(counted)} killed ({killed / len(counted):.0%})")
    return int(killed < len(counted) and not options.sample)


if __name__ == "__main__":
    sys.exit(main())
