"""Views of things, made by layers above those that the things belong to.

A device must show itself in Jupyter, but what it looks like is the business of `ridgeline.report`,
which it cannot import; a `Result` is plain data, and its summary and figures are made of it. So a
view is found by name, when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

Kind = Literal["device", "node", "cluster", "model", "plan", "stack", "result", "study"]
_HTML = {
    "device": "ridgeline.report.html.machine",
    "node": "ridgeline.report.html.machine",
    "cluster": "ridgeline.report.html.machine",
    "model": "ridgeline.report.html.workload",
    "plan": "ridgeline.report.html.workload",
    "stack": "ridgeline.report.html.software",
    "result": "ridgeline.report.html.result",
    "study": "ridgeline.study.study_html",
}
# Views of results and studies: where the function is that makes each.
_VIEWS = {
    "critical_path_s": "ridgeline.report.critical_path:critical_path_s",
    "draw": "ridgeline.report.figures.result:draw",
    "execution_text": "ridgeline.report.summary:execution_text",
    "held_memory": "ridgeline.report.figures.memory:held",
    "html_report": "ridgeline.html_report:report",
    "ledger": "ridgeline.report.step_ledger:ledger",
    "manifest": "ridgeline.report.manifest:manifest",
    "run_costs": "ridgeline.training.figure:run_costs",
    "run_study": "ridgeline.training.figure:run_study_figure",
    "run_timeline": "ridgeline.training.figure:run_timeline",
    "scaling_figure": "ridgeline.study.scaling_figures:draw",
    "scaling_roof": "ridgeline.study.scaling_figures:roof_of",
    "stated_node_power": "ridgeline.report.power:stated_node_power",
    "summary_text": "ridgeline.report.short_summary:summary_text",
    "uncertainty": "ridgeline.report.uncertainty:uncertainty",
    "write_trace": "ridgeline.report.perfetto:write_trace",
}


def html(kind: Kind, thing: object) -> str:
    """Return a thing as an HTML fragment, by the function ``KIND_html`` of its view."""
    view = getattr(import_module(_HTML[kind]), f"{kind}_html")
    return str(view(thing))


def view(name: str) -> Callable[..., Any]:
    """Return the function that makes this view of a result or a study."""
    module, function = _VIEWS[name].split(":")
    made: Callable[..., Any] = getattr(import_module(module), function)
    return made
