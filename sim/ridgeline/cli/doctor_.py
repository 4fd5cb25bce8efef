"""``ridgeline doctor``: check the installation, and measure it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.errors import RidgelineError
from ridgeline.report.tables import plain_table
from ridgeline.version import __version__

_FOR_DEVELOPERS = {"test", "lint"}
_BOUND = re.compile(r"([\w.-]+?)\s*>=\s*([\w.]+)")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_RELEASE = re.compile(r"(\d+(?:\.\d+)*)[.-]?(a|b|rc|dev)?")
_TASKS = 20_000


class Requirement(NamedTuple):
    """A package, its lowest version, and the extras that bring it: none if it is always needed."""

    package: str
    least: str
    extras: tuple[str, ...]


def doctor_(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Check the installation: versions of packages, shipped files, compiled kernels; measure it.

    The status is 1 if something is wrong.

    Parameters
    ----------
    json
        Print the findings as JSON.
    """
    packages = [(each, _package(each)) for each in _requirements()]
    findings = [
        {"check": "ridgeline", "ok": True, "finding": __version__},
        {"check": "python", "ok": True, "finding": platform.python_version()},
        *(finding for _, finding in packages),
        _import(),
        _catalogue(),
        *_kernels(),
    ]
    ok = all(finding["ok"] for finding in findings)
    bad = [f"'{each.package}>={each.least}'" for each, found in packages if not found["ok"]]
    mend = f"python -m pip install --upgrade {' '.join(bad)}" if bad else None
    if json:
        print_json({"ok": ok, "findings": findings, "mend": mend})
    else:
        _print(findings)
        if mend:
            console().print(f"to mend it: {mend}", soft_wrap=True, markup=False)
    return 0 if ok else 1


def _print(findings: list[dict[str, Any]]) -> None:
    from rich.text import Text

    rows = plain_table({"check": "left", "": "left", "finding": "left"})
    for finding in findings:
        said = "ok" if finding["ok"] else "FAILS"
        rows.add_row(finding["check"], said, Text(finding["finding"]))
    console().print(rows)


def _requirements() -> list[Requirement]:
    """Return what the metadata ask for: of the installed package, or of the checkout it is in."""
    project = catalog.root() / "pyproject.toml"
    if project.is_file():
        stated = tomllib.loads(project.read_text("utf-8"))["project"]
        lines = [(line, "") for line in stated["dependencies"]] + [
            (line, extra)
            for extra, those in stated["optional-dependencies"].items()
            for line in those
        ]
    else:
        lines = [
            (line, found[1] if (found := _EXTRA.search(line)) else "")
            for line in metadata.requires("ridgeline") or []
        ]
    made: dict[str, Requirement] = {}
    for line, extra in lines:
        bound = _BOUND.match(line)
        if bound is None or extra in _FOR_DEVELOPERS:
            continue
        before = made.get(bound[1])
        extras = (*(before.extras if before else ()), extra) if extra else ()
        made[bound[1]] = Requirement(bound[1], bound[2], extras)
    return list(made.values())


def _package(asked: Requirement) -> dict[str, Any]:
    """Tell whether a package is there, and as new as the metadata says that it has to be."""
    try:
        version = metadata.version(asked.package)
    except metadata.PackageNotFoundError:
        if asked.extras:
            ways = " or ".join(f"'ridgeline[{extra}]'" for extra in asked.extras)
            found = f"not installed (pip install {ways})"
            return {"check": asked.package, "ok": True, "finding": found}
        found = f"not installed; {asked.least} or newer is needed"
        return {"check": asked.package, "ok": False, "finding": found}
    if _order(version) >= _order(asked.least):
        return {"check": asked.package, "ok": True, "finding": version}
    found = f"{version}; {asked.least} or newer is needed"
    return {"check": asked.package, "ok": False, "finding": found}


def _order(version: str) -> tuple[list[int], bool]:
    """Return what versions are compared by: 2.10 is 2.10.0, and 2.10rc1 is before both."""
    found = _RELEASE.match(version)
    numbers = [int(number) for number in found[1].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, not (found and found[2])


def _import() -> dict[str, Any]:
    """Measure `import ridgeline` in a new process."""
    code = (
        f"import sys, time; sys.path[:] = {sys.path!r}; began = time.process_time();"
        " import ridgeline; print(time.process_time() - began)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"check": "import", "ok": False, "finding": last}
    seconds = float(done.stdout)
    found = f"{seconds:.3f} s of CPU"
    return {"check": "import", "ok": True, "finding": found, "seconds": seconds}


def _catalogue() -> dict[str, Any]:
    """Load everything that is shipped."""
    from ridgeline.hardware import load_cluster, load_energy_table
    from ridgeline.workload.files import load_network

    loaders = {
        "models": load_network,
        "devices": load_cluster,
        "nodes": load_cluster,
        "clusters": load_cluster,
        "energy": load_energy_table,
    }
    counts = []
    began = time.process_time()
    for kind, loader in loaders.items():
        names = catalog.names(kind)
        for name in names:
            try:
                loader(name)
            except RidgelineError as error:
                return {"check": "catalogue", "ok": False, "finding": str(error)}
        counts.append(f"{len(names)} {kind}")
    seconds = time.process_time() - began
    found = f"{', '.join(counts)}; all read in {seconds:.1f} s of CPU"
    return {"check": "catalogue", "ok": True, "finding": found, "seconds": seconds}


def _kernels() -> list[dict[str, Any]]:
    """Play a small program on both executors and compare; then a larger one, for its time."""
    from ridgeline._jit import cache_folder
    from ridgeline.engine.builder import ProgramBuilder, WorkPhase
    from ridgeline.engine.executor import run
    from ridgeline.engine.program import Program
    from ridgeline.engine.reference import run_reference

    def two_flows(tasks: int) -> Program:
        builder = ProgramBuilder()
        link = builder.add_resource("link", 2.0, shared=True)
        row = builder.add_cost([WorkPhase(0.5, {link: 4.0})], {})
        for name in "ab":
            stream = builder.add_stream(name, builder.add_rank())
            for _ in range(tasks // 2):
                builder.add_task("flow", name, stream=stream, cost=row)
        return builder.build()

    program = two_flows(2)
    began = time.process_time()
    fast = run(program).makespan_s
    seconds = time.process_time() - began
    slow = run_reference(program).makespan_s
    where = cache_folder()
    cached = f"cache in {where}" if where else "no writable cache: compiled anew in every process"
    found = f"ready after {seconds:.1f} s of CPU, {cached}"
    ready = {"check": "kernels", "ok": fast == slow == 4.5, "finding": found, "seconds": seconds}
    program = two_flows(_TASKS)
    began = time.perf_counter()
    span_s = run(program).makespan_s
    rate = _TASKS / (time.perf_counter() - began)
    found = f"{rate / 1e6:.2f} million tasks a second, two at a time on one link"
    right = abs(span_s / (4.5 * _TASKS / 2) - 1) < 1e-9
    return [ready, {"check": "speed", "ok": right, "finding": found, "tasks_per_s": rate}]
