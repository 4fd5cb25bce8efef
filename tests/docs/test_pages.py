"""Pages on energy, formats, zeros and whole runs cannot rot: their commands and Python run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import execute
from ridgeline.kernels.single_op import gemm
from ridgeline.kernels.sparsity_break_even import break_even
from ridgeline.study.point import Point
from ridgeline.workload.formats import FORMATS
from ridgeline.workload.numerics import PRECISIONS
from thoroughly import one_in

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("energy.md", "formats.md", "sparsity.md", "training.md")
TEXT = {page: (DOCS / page).read_text("utf-8") for page in PAGES}
COMMANDS = [
    line.removeprefix("$ ")
    for text in TEXT.values()
    for line in text.splitlines()
    if line.startswith("$ ridgeline ")
]


LONG = [command for command in COMMANDS if "--seeds 20" in command]  # a quarter of a minute each


@pytest.mark.parametrize("command", [*(c for c in COMMANDS if c not in LONG), *one_in(3, LONG)])
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    assert execute(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_and_gives_what_its_comments_say(page: str) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT[page], flags=re.DOTALL):
        for line in block.splitlines():
            code, _, comment = line.partition("#")
            said = re.search(r"(?:^|: )\s*([\d.]+(?:e-?\d+)?)(?:[,:]|$)", comment.strip())
            if said and "=" not in code.split("(")[0]:
                value = eval(code, names)
                assert value == pytest.approx(float(said[1]), rel=0.05), line
            else:
                exec(code, names)


def test_tables_list_every_format_and_precision() -> None:
    for name, format_ in FORMATS.items():
        assert format_.kind == "index" or name in TEXT["formats.md"]
    for name in PRECISIONS:
        assert f"`{name}`" in TEXT["formats.md"]


def test_what_the_pages_say_of_the_h100() -> None:
    dense, half = (gemm(4096, 4096, 4096, "h100-sxm5-80gb", sparsity=s) for s in (None, "2:4"))
    assert half.bound == "tensor-cores.fp16 arithmetic"
    assert 0.5 * dense.time_s < half.time_s < dense.time_s
    plans = ({"global_batch": 8, "precision": p} for p in ("bf16-mixed", "fp8-mixed"))
    bf16, fp8 = (
        Point("bert-large", "h100-sxm5-80gb", p, software="ideal").simulate().step_time_s
        for p in plans
    )
    assert 1.05 < bf16 / fp8 < 1.10


def test_the_table_of_break_even_densities() -> None:
    device = str(DOCS / "examples" / "zeros" / "skipping.yaml")
    rows = re.findall(r"\| (\d+) x (\d+) x (\d+) \| (\w+) ?(\S*) \|(.*)\|", TEXT["sparsity.md"])
    assert len(rows) == 6
    for m, n, k, kind, block, densities in rows:
        found = break_even(int(m), int(n), int(k), device, kind, block=block or None)
        assert [f"{density:.4g}" for density in found] == [d.strip() for d in densities.split("|")]
