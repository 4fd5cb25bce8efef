"""Mutation testing: does a test fail when one operator or number of the package is another?

    python benchmarks/mutate.py                    # the hand-made mutants of data/mutants.yaml
    python benchmarks/mutate.py --sample 40 --seed 1 --rooms kernels hardware network

Random mutants are those of cosmic-ray's operators (https://cosmic-ray.readthedocs.io), which has to
be installed: ``make mutate``. Every mutant is run in a copy of the checkout, with the test files
that import its module, or else what imports that, the nearest first. A mutant that no test notices
survives; so do those that compute the same, which only a reader can tell. Kernels are compiled anew
for each mutant: about a minute each.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sim" / "ridgeline"
HAND_MADE = Path(__file__).parent / "data" / "mutants.yaml"
ROOMS = ("kernels", "hardware", "parallel/memory", "network")
MOST_FILES = 12
LIMIT_S = 600.0
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


def tests_by_distance() -> Callable[[Path], list[str]]:
    """Return what lists the test files that reach a module, those with the shortest way first."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")]
    named = {_module(path): path for path in paths}
    imported_by: dict[Path, set[Path]] = {path: set() for path in paths}
    for path in paths:
        for name in _imported(path):
            if name in named:
                imported_by[named[name]].add(path)

    def reached(module: Path) -> list[str]:
        known, border, found = {module}, {module}, list[str]()
        while border:
            border = {user for one in border for user in imported_by[one]} - known
            known |= border
            files = [path for path in border if path.name.startswith("test_")]
            near = module.parent.name
            files.sort(key=lambda path: (near not in path.parts, path.stat().st_size, path))
            found += [str(path.relative_to(ROOT)) for path in files]
        return found

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


def run(mutant: Mutant, copy: Path) -> tuple[str, float]:
    """Run the tests of a mutant in a copy; return killed, survived or no test, and seconds."""
    if not mutant.tests:
        return "no test", 0.0
    path = copy / mutant.path
    before, began = path.read_text("utf-8"), time.perf_counter()
    path.write_text(mutant.source, "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "sim"),
        "RIDGELINE_CACHE_DIR": str(copy / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False
        )
        found = "survived" if done.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:
        found = "killed"  # it does not end
    finally:
        path.write_text(before, "utf-8")
        shutil.rmtree(copy / "cache", ignore_errors=True)
    return found, time.perf_counter() - began


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
    options = parser.parse_args(arguments)
    mutants = (
        sampled(options.rooms, options.sample, options.seed) if options.sample else hand_made()
    )
    results = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for mutant in mutants:
            found, seconds = run(mutant, copy)
            results.append(found)
            where = f"{mutant.path}:{mutant.line}"
            print(f"{found:8} {seconds:5.0f} s  {where}  {mutant.change}", flush=True)
    killed = results.count("killed")
    print(f"{killed} of {len(results)} killed ({killed / len(results):.0%})")
    return int(killed < len(results) and not options.sample)


if __name__ == "__main__":
    sys.exit(main())
