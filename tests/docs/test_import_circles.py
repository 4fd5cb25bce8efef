"""No two modules import each other, for types alone and inside functions included.

A circle is a strongly connected part of the graph of imports (R. Tarjan, Depth-first search and
linear graph algorithms, 1972).
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
REGISTRIES = {
    # registry: the plug-ins that it imports by name, and that import what they are registered with
    "ridgeline.workload.trace.numpy_tracer": {"ridgeline.workload.trace.numpy_functions"},
}


def imports(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports anywhere."""
    paths = {_name(path, package): path for path in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & paths.keys()
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                every = {f"{node.module}.{alias.name}" for alias in node.names}
                known = every & paths.keys()
                found[name] |= known if known == every else known | ({node.module} & paths.keys())
    return found


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if path.name == "__init__.py" else parts)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of a circle; none: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_import_without_circles() -> None:
    graph = imports(PACKAGE)
    assert sum(map(len, graph.values())) > 3000
    for registry, plugins in REGISTRIES.items():
        assert plugins <= graph[registry]
        graph[registry] -= plugins
    assert circle(graph) == []


@pytest.mark.parametrize("where", ["", "    "])
def test_a_circle_is_found(tmp_path: Path, where: str) -> None:
    package = tmp_path / "one"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(f"def f():\n    pass\n{where}from one.b import x\n")
    (package / "b.py").write_text("from one import c\n")
    (package / "c.py").write_text("import one.a\n")
    assert {"one.a", "one.b", "one.c"} == set(circle(imports(package)))
