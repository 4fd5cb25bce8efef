"""The public names of ``import ridgeline as rl`` as pages; their texts are read by mkdocstrings."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterable
from typing import Any

import ridgeline as rl
from ridgeline import html_report

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "steps": (
        "Simulate a step",
        ("simulate", "Plan", "Result", "memory", "whatif", "compare", "simulate_parts"),
    ),
    "machines": (
        "Machines and networks of links",
        ("load_cluster", "load_node", "load_device", "load_energy_table", "load_software",
         "collective", "topology", "component", "scale_node", "import_design", "calibrate",
         "Cluster", "Node", "Device", "EnergyTable", "ComponentEstimate", "Stack"),
    ),
    "networks": (
        "Networks to train",
        ("load_model", "Model", "trace", "trace_numpy", "Execution", "load"),
    ),
    "ops": (
        "One op, one device",
        ("gemm", "conv", "gemm_cycles", "fuse", "roofline"),
    ),
    "studies": (
        "Many points",
        ("Study", "StudyRows", "load_rows", "top", "pareto", "plan", "scaling", "search"),
    ),
    "runs": (
        "Whole runs, generation, jobs",
        ("train", "train_over", "generate", "EngineOptions", "simulate_jobs"),
    ),
    "trust": ("Trust", ("validate", "reproduce", "lint", "verify")),
    "figures": ("Figures and reports", ("plot", "report", "style", "Slider", "COLOURS", "SERIES")),
    "catalogue": (
        "What ships, what is added, errors",
        ("models", "devices", "nodes", "clusters", "components", "energy_tables", "software",
         "register", "load_plugin", "ConfigError", "RidgelineError", "__version__"),
    ),
}  # fmt: skip
"""Pages: title, and public names in the order in which they are read."""


def python_index() -> str:
    """Write the page that lists all public names with their first lines."""
    parts = [
        "# Python",
        "`import ridgeline as rl`. A name is imported when it is first used. Which function does"
        " what a verb does: [the same from Python](../../python.md).",
    ]
    for page, (title, names) in GROUPS.items():
        rows = [
            f"| [`rl.{name}`]({page}.md#{_anchor(name)}) | {_summary(name)} |" for name in names
        ]
        parts.append("\n".join([f"## {title}", "", "| name | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def python_page(page: str) -> str:
    """Write a page of public names; ``::: place`` is what mkdocstrings fills in."""
    title, names = GROUPS[page]
    parts = [f"# {title}"]
    parts.extend(map(_entry, names))
    return "\n\n".join(parts) + "\n"


def _anchor(name: str) -> str:
    """Return the anchor of a name on its page: of mkdocstrings, or of a heading of ours."""
    if name in _VALUES or name in _MODULES:
        return f"rl-{name.strip('_').lower()}"
    return _place(_FUNCTIONS.get(name, getattr(rl, name)))


def _summary(name: str) -> str:
    """Return the first line of what a name is."""
    return _VALUES[name] if name in _VALUES else _first_line(getattr(rl, name))


def _first_line(value: object) -> str:
    first = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return first.replace("|", "\\|").replace("``", "`").replace("*", "\\*")


_SHELF = "that ship, as attributes and items; `search(words)` finds names."
_VALUES = {
    "COLOURS": "Colours of the figures, by what they stand for.",
    "SERIES": "Colours of series, in the order in which they are taken.",
    "__version__": "Version of the package, a string.",
    "clusters": f"Clusters {_SHELF}",
    "components": f"Components with a size {_SHELF}",
    "devices": f"Devices {_SHELF}",
    "energy_tables": f"Energy tables {_SHELF}",
    "models": f"Networks {_SHELF} `rl.models.resnet50`, `rl.models['gpt3-1.3b']`.",
    "nodes": f"Nodes {_SHELF}",
    "software": f"Software stacks {_SHELF}",
}
"""Of names that are values, which have no text of their own."""
_FUNCTIONS = {"report": html_report.report}
"""Packages that are called as a function."""
_MODULES = {
    "plot": [function.__name__ for function in rl.plot.KINDS.values()],
    "register": dir(rl.register),
}
"""Modules, and their functions that are meant to be called."""


def _entry(name: str) -> str:
    """Write the heading of a name and what stands under it."""
    heading = f"## rl.{name} {{ #{_anchor(name)} }}\n\n"
    if name in _VALUES:
        return heading + _VALUES[name]
    value = _FUNCTIONS.get(name, getattr(rl, name))
    if name in _MODULES:
        return heading + _functions(value, _MODULES[name])
    options = f"    options:\n      heading: rl.{name}\n      toc_label: rl.{name}"
    return f"::: {_place(value)}\n{options}"


def _place(value: Any) -> str:
    """Return the module and the name by which mkdocstrings finds the text of a thing."""
    assert getattr(importlib.import_module(value.__module__), value.__name__) is value
    return f"{value.__module__}.{value.__name__}"


def _functions(module: types.ModuleType, names: Iterable[str]) -> str:
    """Write a table of functions of a module, with the module's own text above it."""
    head, *rest = [" ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")]
    short = module.__name__.replace("ridgeline", "rl", 1)
    rows = [f"| `{short}.{name}` | {_first_line(getattr(module, name))} |" for name in names]
    text = "\n\n".join([head, *rest]).replace("``", "`")
    return "\n".join([text, "", "| function | |", "|---|---|", *rows])
