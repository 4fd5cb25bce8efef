"""The notebooks run from top to bottom, and are files that Jupyter opens.

With nbclient and a kernel they run as in Jupyter; without, their code runs in one namespace. Either
way every cell runs.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "notebooks"))
import run as runner  # noqa: E402

NOTEBOOKS = runner.notebooks()
MAX_BYTES = 2_000_000
HAS_KERNEL = all(importlib.util.find_spec(name) for name in ("nbclient", "nbformat", "ipykernel"))


def test_each_has_a_number_of_its_own() -> None:
    numbers = [path.stem.partition("_")[0] for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers) >= 9
    assert all(re.fullmatch(r"\d\d", number) for number in numbers)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_uses_the_public_face_alone(path: Path) -> None:
    tree = ast.parse(_code(path))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert "ridgeline" in names
    inside = [m for m in (*modules, *names) if m.startswith("ridgeline") and m != "ridgeline"]
    assert inside == []
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "rl"
    }
    assert used <= set(rl.__all__)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it needs nothing from the folder that it lies in
    if HAS_KERNEL:
        pictures = _run_in_jupyter(path, monkeypatch)
        assert pictures == len(set(re.findall(r"^fig_\w+", _code(path), flags=re.MULTILINE)))
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        figures = runner.figures(runner.run(path))
    assert figures
    for figure in figures.values():
        axes = figure.axes[0]
        assert axes.has_data() or axes.collections
        if axes.axison:
            assert axes.get_xlabel() or axes.get_ylabel()
    import matplotlib.pyplot as plt

    plt.close("all")


def _run_in_jupyter(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a notebook in a kernel and return how many pictures it shows."""
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "sim"))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        done = nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    outputs = [o for cell in done.cells if cell.cell_type == "code" for o in cell.outputs]
    return sum("image/png" in o.get("data", {}) for o in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_a_clean_file(path: Path) -> None:
    """Of format 4.5, with the outputs of one run, a heading first, and prose between the cells."""
    book: dict[str, Any] = json.loads(path.read_text("utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    cells = book["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert cells[0]["source"][0].startswith("# ")
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    for cell in cells:
        code = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code
        assert all(output["output_type"] != "error" for output in cell.get("outputs", ()))
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    if set(counts) == {None}:  # not run yet: it has no output either
        assert not any(cell.get("outputs") for cell in cells)
        return
    assert counts == list(range(1, len(counts) + 1))  # run from top to bottom, in one go
    assert any("image/png" in output.get("data", {}) for cell in cells
               for output in cell.get("outputs", ()))  # fmt: skip
    assert path.stat().st_size < MAX_BYTES
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds.count("markdown") >= 0.5 * kinds.count("code")


def test_links_between_notebooks_lead_somewhere() -> None:
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\((\w+\.ipynb)\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_runner_finds_a_mistake(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "source": ["1 / 0"]}
    path = tmp_path / "bad.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}}))
    with pytest.raises(ZeroDivisionError):
        runner.run(path)


def _code(path: Path) -> str:
    return "\n".join(source for _, source in runner.code_cells(path))
