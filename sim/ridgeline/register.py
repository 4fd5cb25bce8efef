"""Decorators of all extension points: ``from ridgeline import register``, ``@register.KIND(...)``.

Each takes a name first, registers what stands below it and raises RidgelineError where the name is
taken or the signature is another; see ``docs/extending.md``. A decorator is imported when it is
used. Devices, nodes, clusters, models of a known family and software stacks are files, not code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.cli.app import verb
    from ridgeline.network.algorithm import algorithm as collective
    from ridgeline.parallel.pass_manager import graph_pass
    from ridgeline.parallel.schedule import schedule
    from ridgeline.report.figures.style import figure
    from ridgeline.study.launch.registry import reader as launch_reader
    from ridgeline.workload.families import family
    from ridgeline.workload.kinds import op_kind
    from ridgeline.workload.optimizers import optimizer

_HOME = {
    "collective": "network.algorithm:algorithm",
    "engine_model": "kernels.contraction_time:ENGINE_MODELS.register",
    "fabric": "network.topology:FABRICS.register",
    "family": "workload.families:family",
    "figure": "report.figures.style:figure",
    "graph_pass": "parallel.pass_manager:graph_pass",
    "launch_reader": "study.launch.registry:reader",
    "op_kind": "workload.kinds:op_kind",
    "optimizer": "workload.optimizers:optimizer",
    "routing": "network.routing:ROUTINGS.register",
    "schedule": "parallel.schedule:schedule",
    "topology": "network.inline:INLINE.register",
    "verb": "cli.app:verb",
}
"""Where each decorator is."""

__all__ = [
    "collective",
    "family",
    "figure",
    "graph_pass",
    "launch_reader",
    "op_kind",
    "optimizer",
    "schedule",
    "verb",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"ridgeline.register has no {name!r} (it has: {', '.join(_HOME)})")
    module, _, path = _HOME[name].partition(":")
    found: Any = import_module(f"ridgeline.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    return found


def __dir__() -> list[str]:
    return sorted(_HOME)
