"""Views of things in notebooks, made by layers above those that the things belong to.

A device must show itself in Jupyter, but what it looks like is the business of `ridgeline.report`,
which it cannot import. So the view is found by name, when somebody looks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal

Kind = Literal["device", "node", "cluster", "model", "plan", "stack"]
_HOME = {
    "device": "ridgeline.report.html.machine",
    "node": "ridgeline.report.html.machine",
    "cluster": "ridgeline.report.html.machine",
    "model": "ridgeline.report.html.workload",
    "plan": "ridgeline.report.html.workload",
    "stack": "ridgeline.report.html.software",
}


def html(kind: Kind, thing: object) -> str:
    """Return a thing as an HTML fragment, by the function ``KIND_html`` of its view."""
    view = getattr(import_module(_HOME[kind]), f"{kind}_html")
    return str(view(thing))
