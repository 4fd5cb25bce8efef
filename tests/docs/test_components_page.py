"""The page on components: its commands run, its tables are what the data gives."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.cli import execute

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "components.md").read_text("utf-8")
COMMANDS = [
    line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ ridgeline ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    assert execute(shlex.split(command)[1:]) == 0


def test_python_gives_what_its_comments_say() -> None:
    names: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines():
        code, _, comment = line.partition("#")
        said = re.search(r": ([\d.]+)$", comment)
        if said:
            assert eval(code, names) == pytest.approx(float(said[1]), rel=0.01), line
        else:
            exec(code, names)


def test_tables_are_what_the_data_gives() -> None:
    missing = [row for rows in tables().values() for row in rows if row not in PAGE]
    assert not missing, "\n".join(missing)


def tables() -> dict[str, list[str]]:
    """Return the rows of the page's tables."""
    return {
        "ERRORS": _errors(),
        "SRAM": [
            _row(
                capacity, f"`{cell}`", _three(found.read_j, 1e12), _three(found.write_j, 1e12),
                _three(found.area_m2, 1e6), _three(found.leakage_w, 1),
                _three(found.latency_s, 1e9),
            )
            for capacity in ("64 KiB", "1 MiB", "16 MiB", "64 GiB")
            for cell in ("itrs-hp", "itrs-lstp")
            for found in [
                rl.component("sram", capacity=capacity, width="512 bit", cell=cell, node="22 nm")
            ]
        ],
        "MAC": [
            _row(
                f"`{variant}`", *(_three(one.read_j, 1e12) for one in found),
                *(_three(one.area_m2, 1e12) for one in found),
            )
            for variant in rl.components["mac"].variants
            for found in [
                [rl.component("mac", variant=variant, node=n) for n in ("45 nm", "22 nm", "7 nm")]
            ]
        ],
        "LINKS": [
            _row(
                f"`{name}`", f"`{variant}`", _three(found.read_j, 1e12 / 8),
                _three(found.bandwidth_bytes_per_s, 1e-9), _three(found.latency_s, 1e9),
            )
            for name in ("dram", "memory-controller", "link")
            for variant in rl.components[name].variants
            for found in [rl.component(name, variant=variant, node="65 nm")]
        ],
        "SCALING": [
            _row(
                f"`{law}`",
                *(
                    _three(1 / rl.scale_node(1.0, "28 nm", to, quantity, law).factor, 1)  # type: ignore[arg-type]
                    for quantity in ("energy", "area")
                    for to in ("16 nm", "7 nm", "5 nm")
                ),
            )
            for law in ("stillmaker-baas", "tsmc", "sram")
        ],
    }  # fmt: skip


def _errors() -> list[str]:
    name = "fill_sram_grid"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    known = module.computed(module.read_grid())
    one, third = (
        module.summary(known[1], left(*known))
        for left in (module.leave_one_out, module.leave_third_out)
    )
    return [
        _row(
            f"`{a[0]}`", str(a[1]), f"{a[2]:.1%}", f"{a[3]:.1%}", f"{a[4]:.0%}", f"{a[5]:.1%}",
            f"{b[2]:.1%}", f"{b[3]:.1%}", f"{b[5]:.1%}",
        )
        for a, b in zip(one, third, strict=True)
    ]  # fmt: skip


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _three(value: float | None, scale: float) -> str:
    if value is None:
        return "-"
    return f"{value * scale:.3g}" if value * scale < 1000 else f"{value * scale:,.0f}"
