"""Runs the notebooks without Jupyter, and saves their figures for the gallery.

    python notebooks/run.py --figures docs/images        # all notebooks, one after the other
    python notebooks/run.py notebooks/01_tour.ipynb

Code cells run in one namespace, in order. A cell whose last line is an expression must be able to
show itself, as in Jupyter. Every figure that a notebook keeps in a variable ``fig_NAME`` becomes
``notebook-NUMBER-NAME.png``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def notebooks() -> list[Path]:
    """Return all notebooks, in the order in which they are read."""
    return sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of every code cell, without the lines that only IPython knows."""
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"] if not line.startswith("%")]  # IPython's own
            yield number, "".join(lines)


def run(path: Path) -> dict[str, Any]:
    """Run a notebook's code cells in the working folder and return its variables."""
    os.environ["MPLBACKEND"] = "Agg"
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in code_cells(path):
        tree = ast.parse(source, f"{path.name}, cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
        if last is not None:
            assert isinstance(last, ast.Expr)
            code = compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval")
            _show(eval(code, names), is_silent=source.rstrip().endswith(";"))
    return names


def figures(names: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that a notebook keeps, by name."""
    return {name[4:]: thing for name, thing in names.items() if name.startswith("fig_")}


def _show(value: object, *, is_silent: bool) -> None:
    if value is None or is_silent:
        return
    view = getattr(value, "_repr_html_", None)
    if view is not None:
        view()
    else:
        repr(value)


def main() -> None:
    """Run the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("notebook", nargs="*", type=Path, default=notebooks())
    parser.add_argument("--figures", type=Path, help="folder to save the figures in")
    given = parser.parse_args()
    for path in given.notebook:
        begin = time.perf_counter()
        names = run(path)
        print(f"{path.name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
        if given.figures is not None:
            from ridgeline.report.figures.result import save

            for name, figure in figures(names).items():
                stem = f"notebook-{path.stem.split('_')[0]}-{name.replace('_', '-')}"
                save(figure, given.figures / f"{stem}.png")


if __name__ == "__main__":
    main()
