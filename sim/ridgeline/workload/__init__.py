"""What is computed: networks, and the graphs of their training steps.

Names are imported when they are first used, so that looking at a `Graph` needs no YAML reader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.workload.autodiff import training_graph, weight_gradients
    from ridgeline.workload.files import load_model
    from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
    from ridgeline.workload.liveness import MemoryPlan, memory_entries, peak
    from ridgeline.workload.model import Model
    from ridgeline.workload.summary import layer_table

_HOMES = {
    "Conv": "graph",
    "Gemm": "graph",
    "Graph": "graph",
    "MemoryPlan": "liveness",
    "Model": "model",
    "Op": "graph",
    "Pass": "graph",
    "Role": "graph",
    "Tensor": "graph",
    "layer_table": "summary",
    "load_model": "files",
    "memory_entries": "liveness",
    "peak": "liveness",
    "training_graph": "autodiff",
    "weight_gradients": "autodiff",
}

__all__ = [
    "Conv",
    "Gemm",
    "Graph",
    "MemoryPlan",
    "Model",
    "Op",
    "Pass",
    "Role",
    "Tensor",
    "layer_table",
    "load_model",
    "memory_entries",
    "peak",
    "training_graph",
    "weight_gradients",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
