"""The wheel: what is in it, and that it works outside the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ridgeline"}
    assert "ridgeline/py.typed" in names
    assert "ridgeline/study/published.csv" in names
    assert {f"ridgeline/report/html_page/report.{end}" for end in ("js", "css")} <= set(names)
    for folder in ("models", "hwconfigs/devices", "hwconfigs/nodes", "hwconfigs/clusters"):
        start = f"ridgeline/_data/{folder}/"
        shipped = {n.removeprefix(start) for n in names if n.startswith(start)}
        there = ROOT / folder
        assert shipped == {str(path.relative_to(there)) for path in there.rglob("*.yaml")}


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 5e6


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Installed beside the dependencies of this environment, with no home to write to."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    site = next((home / "lib").glob("python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    here = [p for p in sys.path if p.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(here))
    environment = {
        **{k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "XDG_CACHE_HOME"}},
        "HOME": str(tmp_path / "nowhere"),
    }
    arguments = ["run", "resnet18", "dgx1-v100", "--plan", "data=8", "--batch", "64", "--json"]
    code = (
        "import sys; from ridgeline import catalog; assert '_data' in str(catalog.root());"
        f"from ridgeline.cli import execute; sys.exit(execute({arguments!r}))"
    )
    done = subprocess.run(
        [python, "-c", code],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["manifest"]["plan"]["devices"] == 8
