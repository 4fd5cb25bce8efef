"""What every installation must do: run by `install_matrix.py` with the Python of one installation.

    python install_smoke.py STUDY.yaml [--short]

in an empty working folder. Imports nothing of this checkout. Prints JSON: for each check its error
("" if it passed) and seconds, and the numbers that must be the same in every installation.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STUDY = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
FIGURES = "Bilder für Übung 1"  # spaces, and letters that are not ASCII
TABLE, PAGE = "Größe.csv", "Bericht über 2 Punkte.html"
ASCII_ONLY = {"PYTHONCOERCECLOCALE": "0"}
"""Beside LANG=C and PYTHONUTF8=0."""
GEMM = ("gemm", "4096", "4096", "4096", "--device", "v100-sxm2-16gb")
VALUES: dict[str, float] = {}


def command(*words: str, status: int = 0, **environment: str) -> str:
    """Run the installed console script and return what it prints."""
    program = Path(sys.prefix, "Scripts" if os.name == "nt" else "bin", "ridgeline")
    done = subprocess.run(
        [str(program), *words], capture_output=True, env={**os.environ, **environment}, check=False
    )
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == status, f"{' '.join(words)}: {done.returncode}: {errors[-600:]}"
    assert not re.search("Traceback|Warning", errors), errors[-600:]
    return done.stdout.decode("utf-8", "replace")


def answer(*words: str, **environment: str) -> Any:
    """Run the installed console script and return its JSON."""
    return json.loads(command(*words, "--json", **environment))


def keep(name: str, value: float) -> None:
    """Keep a number that must be the same in every installation."""
    assert 0 < value < math.inf, (name, value)
    VALUES[name] = value


def check_place() -> None:
    """The package is the installed one, and nothing can be written where it lies."""
    found = importlib.util.find_spec("ridgeline")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    assert Path(sys.prefix).resolve() in package.resolve().parents, package
    for folder in (package, Path(sys.prefix)):
        try:
            Path(folder, "written").write_text("", encoding="utf-8")
        except OSError:
            continue
        raise AssertionError(f"{folder} can be written")
    assert not any(str(package) in path for path in sys.path), "the package is on sys.path"


def check_import() -> None:
    """`import ridgeline` takes little, and imports no package."""
    code = (
        "import sys, time; began = time.process_time(); import ridgeline;"
        " spent = time.process_time() - began; print(spent, 'numpy' in sys.modules)"
    )
    best = math.inf
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        spent, numpy = done.stdout.decode("ascii").split()
        best = min(best, float(spent))
    assert best < 0.05, f"{best:.3f} s of CPU"
    assert numpy == "False"


def check_doctor() -> None:
    found = answer("doctor")
    assert found["ok"], [finding for finding in found["findings"] if not finding["ok"]]


def check_run() -> None:
    words = ("run", "resnet18", "dgx1-v100", "--plan", "data=8", "--batch", "64")
    made = answer(*words, "--out", FIGURES)
    keep("run: step time, s", made["step_time_s"])
    keep("run: energy, J", made["energy_j"]["total"])
    for name in ("roofline.png", "timeline.png", "energy.png", "trace.json", "result.json"):
        assert Path(FIGURES, name).stat().st_size > 500, name
    assert "step time" in command(*words)


def check_gemm() -> None:
    made = answer(*GEMM)
    keep("gemm: time, s", made["time_s"])


def check_collective() -> None:
    made = answer("collective", "all-reduce", "100MB", "dgx1-v100")
    keep("collective: time, s", made["time_s"])


def check_sweep() -> None:
    """Two points, and another process for each; then the report of the rows."""
    command("sweep", str(STUDY), "--output", TABLE, "--processes", "2")
    lines = Path(TABLE).read_text("utf-8").splitlines()
    assert len(lines) == 3, lines
    column = lines[0].split(",").index("step_time_s")
    for number, line in enumerate(lines[1:]):
        keep(f"sweep: step time {number}, s", float(line.split(",")[column]))


def check_report() -> None:
    command("report", TABLE, "--out", PAGE)
    page = Path(PAGE).read_text("utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "</html>" in page


def check_validate() -> None:
    assert command("validate", "pipeline", "--json").startswith(("{", "["))


def check_mistake() -> None:
    command("run", "resnet18", "no such machine", status=2)


def check_encoding() -> None:
    """In ASCII, what has no letter is written as well as it can be, and files are found."""
    assert "Focal loss" in command("show", "retinanet", **ASCII_ONLY)
    command("top", TABLE, "--by", "step_time_s", **ASCII_ONLY)
    command("report", TABLE, "--out", PAGE, **ASCII_ONLY)
    assert TABLE in Path(PAGE).read_text("utf-8")


def check_without_cache() -> None:
    """Where no folder can be written, kernels are compiled anew, and answers are the same."""
    nowhere = str(Path(sys.prefix, "no folder"))
    made = answer(*GEMM, RIDGELINE_CACHE_DIR=nowhere)
    assert made["time_s"] == VALUES["gemm: time, s"], made
    assert not Path(nowhere).exists()


def check_study() -> None:
    """The extra `study`."""
    import ridgeline as rl

    command("sweep", str(STUDY), "--output", "Größe.parquet", **ASCII_ONLY)
    table = rl.load_rows("Größe.parquet")
    rows = rl.Study(str(STUDY)).run(progress=False)
    first = VALUES["sweep: step time 0, s"]
    for found in (table, rows.to_polars(), rows.to_pandas(), rows.to_xarray()):
        steps = found["step_time_s"]
        assert len(steps) == 2
        assert abs(float(steps[0]) / first - 1) < 1e-9


def check_search() -> None:
    """The extra `search`."""
    for method in ("tpe", "nsga2", "nsga3"):
        found = answer("search", str(STUDY), "--method", method)
        assert found, method


def check_cluster() -> None:
    """The extra `cluster`."""
    from distributed import LocalCluster

    import ridgeline as rl

    with LocalCluster(
        n_workers=1, processes=False, dashboard_address=None, local_directory="Arbeiter"
    ) as cluster:
        rows = rl.Study(str(STUDY)).run(cluster=cluster.scheduler_address, progress=False)
    assert len(rows) == 2


def check_notebook() -> None:
    """The extra `notebook`."""
    import nbformat
    from nbclient import NotebookClient

    cell = "import ridgeline as rl\nrl.load_device('v100-sxm2-16gb')"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(book, timeout=600, kernel_name="python3").execute()
    shown = [out for out in book.cells[0].outputs if out["output_type"] == "execute_result"]
    assert len(shown) == 1, book.cells[0].outputs
    assert "text/html" in shown[0]["data"], shown


SHORT = (check_place, check_import, check_doctor)
ALWAYS = (
    *SHORT, check_run, check_gemm, check_collective, check_sweep, check_report, check_validate,
    check_mistake, check_encoding, check_without_cache,
)  # fmt: skip
EXTRAS = {
    "xarray": check_study,
    "optuna": check_search,
    "distributed": check_cluster,
    "nbclient": check_notebook,
}


def main() -> None:
    """Run all checks whose packages are installed, and print what came of them."""
    extras = (check for name, check in EXTRAS.items() if importlib.util.find_spec(name))
    checks: list[Callable[[], None]] = list(SHORT) if "--short" in sys.argv else [*ALWAYS, *extras]
    outcome = {}
    for check in checks:
        began = time.monotonic()
        error = ""
        try:
            check()
        except Exception as problem:  # whatever it is, the other checks go on
            error = f"{type(problem).__name__}: {problem}"
        name = check.__name__.removeprefix("check_")
        outcome[name] = {"error": error, "seconds": time.monotonic() - began}
    sys.stdout.write(json.dumps({"checks": outcome, "values": VALUES}) + "\n")


if __name__ == "__main__":
    main()
