"""``ridgeline doctor``: check the installation."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import Annotated

from cyclopts import Parameter

from ridgeline import catalog
from ridgeline.cli.output import console, print_json
from ridgeline.errors import RidgelineError
from ridgeline.report.tables import plain_table
from ridgeline.version import __version__

_PACKAGES = (
    "numpy", "numba", "simpy", "matplotlib", "cyclopts", "pydantic", "ruamel.yaml", "rich",
    "filelock",
)  # fmt: skip
_BOUND = re.compile(r"([\w.-]+)\s*>=\s*([\d.]+)")
_OPTIONAL = {"polars": "Parquet output of sweeps (pip install 'ridgeline[study]')"}


def doctor_(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Check the installation: packages, shipped files, compiled kernels and their cache.

    Parameters
    ----------
    json
        Print the findings as JSON.
    """
    findings = [
        {"check": "ridgeline", "ok": True, "finding": __version__},
        {"check": "python", "ok": True, "finding": platform.python_version()},
        *(_package(name, None) for name in _PACKAGES),
        *(_package(name, use) for name, use in _OPTIONAL.items()),
        _catalogue(),
        _kernels(),
    ]
    ok = all(finding["ok"] for finding in findings)
    if json:
        print_json({"ok": ok, "findings": findings})
    else:
        rows = plain_table({"check": "left", "": "left", "finding": "left"})
        for finding in findings:
            rows.add_row(
                str(finding["check"]), "ok" if finding["ok"] else "FAILS", str(finding["finding"])
            )
        console().print(rows)
    return 0 if ok else 1


def _package(name: str, optional_use: str | None) -> dict[str, object]:
    """Tell whether a package is there, and as new as this one says that it has to be."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if optional_use:
            found = f"not installed; needed for {optional_use}"
            return {"check": name, "ok": True, "finding": found}
        return {"check": name, "ok": False, "finding": "not installed"}
    least = _least_versions().get(name)
    if least is None or _numbers(version) >= _numbers(least):
        return {"check": name, "ok": True, "finding": version}
    found = f"{version}; {least} or newer is needed (pip install '{name}>={least}')"
    return {"check": name, "ok": False, "finding": found}


def _least_versions() -> dict[str, str]:
    """Return the lowest version of each package, as the installed metadata has it."""
    try:
        needed = metadata.requires("ridgeline") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return {}
    return {found[1]: found[2] for line in needed if (found := _BOUND.match(line))}


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison."""
    return tuple(map(int, re.findall(r"\d+", version)))


def _catalogue() -> dict[str, object]:
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
    for kind, loader in loaders.items():
        names = catalog.names(kind)
        for name in names:
            try:
                loader(name)
            except RidgelineError as error:
                return {"check": "catalogue", "ok": False, "finding": str(error)}
        counts.append(f"{len(names)} {kind}")
    return {"check": "catalogue", "ok": True, "finding": ", ".join(counts)}


def _kernels() -> dict[str, object]:
    """Play a small program on both executors and compare."""
    from ridgeline._jit import cache_folder
    from ridgeline.engine.builder import ProgramBuilder, WorkPhase
    from ridgeline.engine.executor import run
    from ridgeline.engine.reference import run_reference

    builder = ProgramBuilder()
    link = builder.add_resource("link", 2.0, shared=True)
    row = builder.add_cost([WorkPhase(0.5, {link: 4.0})], {})
    for name in "ab":
        stream = builder.add_stream(name, builder.add_rank())
        builder.add_task("flow", name, stream=stream, cost=row)
    program = builder.build()
    fast, slow = run(program).makespan_s, run_reference(program).makespan_s
    where = cache_folder()
    cached = f"cache in {where}" if where else "no writable cache: compiled anew in every process"
    return {"check": "kernels", "ok": fast == slow == 4.5, "finding": cached}
