"""ridgeline: how fast a machine trains a network, at what energy, and what limits it.

>>> import ridgeline as rl
>>> cluster = rl.load_cluster("dgx1-v100")
>>> model = rl.load_model("resnet50")
>>> plan = rl.Plan(data=8, global_batch=2048, precision="fp16-mixed")
>>> result = rl.simulate(model, cluster, plan)
>>> result.step_time_s, result.energy_j["total"]  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ridgeline.version import __version__

if TYPE_CHECKING:
    from ridgeline import plot, register, software
    from ridgeline.catalog_attrs import clusters, components, devices, energy_tables, models, nodes
    from ridgeline.errors import ConfigError, RidgelineError
    from ridgeline.hardware import (
        Cluster,
        Device,
        EnergyTable,
        Node,
        load_device,
        load_energy_table,
        load_node,
    )
    from ridgeline.hardware.components import ComponentEstimate, component, scale_node
    from ridgeline.html_report import report
    from ridgeline.input_files import load
    from ridgeline.kernels.fusion.schedule import fuse
    from ridgeline.kernels.single_op import conv, gemm
    from ridgeline.kernels.systolic.gemm import gemm_cycles
    from ridgeline.network.collectives import collective
    from ridgeline.network.resolve import load_cluster
    from ridgeline.parallel.memory.liveness_profile import memory
    from ridgeline.parallel.plan.plan import Plan
    from ridgeline.plugins import load_plugin
    from ridgeline.report.figures.house_style import style
    from ridgeline.report.result import Result
    from ridgeline.simulation import simulate
    from ridgeline.software import Stack, load_software
    from ridgeline.study.generation.generate import EngineOptions, generate
    from ridgeline.study.import_design import import_design
    from ridgeline.study.jobs.neighbours import simulate_jobs
    from ridgeline.study.sweep import load_rows, load_study, run_sweep
    from ridgeline.training.run_study import train_over
    from ridgeline.training.train import train
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.files import load_model
    from ridgeline.workload.model import Model
    from ridgeline.workload.trace.numpy_tracer import trace_numpy
    from ridgeline.workload.trace.torch_entry import trace

# Where each public name lives; it is imported when it is first used, so that `import ridgeline`
# stays quick.
_HOME = {
    "Cluster": "hardware",
    "ComponentEstimate": "hardware.components",
    "ConfigError": "errors",
    "Device": "hardware",
    "EnergyTable": "hardware",
    "EngineOptions": "study.generation.generate",
    "Execution": "workload.execution",
    "Model": "workload.model",
    "Node": "hardware",
    "Plan": "parallel.plan.plan",
    "Result": "report.result",
    "RidgelineError": "errors",
    "Slider": "report.figures.slider",
    "Stack": "software",
    "clusters": "catalog_attrs",
    "collective": "network.collectives",
    "component": "hardware.components",
    "components": "catalog_attrs",
    "conv": "kernels.single_op",
    "devices": "catalog_attrs",
    "energy_tables": "catalog_attrs",
    "fuse": "kernels.fusion.schedule",
    "gemm": "kernels.single_op",
    "gemm_cycles": "kernels.systolic.gemm",
    "generate": "study.generation.generate",
    "import_design": "study.import_design",
    "load": "input_files",
    "load_cluster": "network.resolve",
    "load_device": "hardware",
    "load_energy_table": "hardware",
    "load_model": "workload.files",
    "load_node": "hardware",
    "load_plugin": "plugins",
    "load_rows": "study.sweep",
    "load_software": "software",
    "load_study": "study.sweep",
    "memory": "parallel.memory.liveness_profile",
    "models": "catalog_attrs",
    "nodes": "catalog_attrs",
    "run_sweep": "study.sweep",
    "scale_node": "hardware.components",
    "simulate": "simulation",
    "simulate_jobs": "study.jobs.neighbours",
    "style": "report.figures.house_style",
    "trace": "workload.trace.torch_entry",
    "trace_numpy": "workload.trace.numpy_tracer",
    "train": "training.train",
    "train_over": "training.run_study",
}

_MODULES = ("plot", "register", "report", "software")
"""Modules: figures, decorators of extension points, the report (called), the stacks that ship."""

__all__ = [
    "Cluster",
    "ComponentEstimate",
    "ConfigError",
    "Device",
    "EnergyTable",
    "EngineOptions",
    "Execution",
    "Model",
    "Node",
    "Plan",
    "Result",
    "RidgelineError",
    "Slider",
    "Stack",
    "__version__",
    "clusters",
    "collective",
    "component",
    "components",
    "conv",
    "devices",
    "energy_tables",
    "fuse",
    "gemm",
    "gemm_cycles",
    "generate",
    "import_design",
    "load",
    "load_cluster",
    "load_device",
    "load_energy_table",
    "load_model",
    "load_node",
    "load_plugin",
    "load_rows",
    "load_software",
    "load_study",
    "memory",
    "models",
    "nodes",
    "plot",
    "register",
    "report",
    "run_sweep",
    "scale_node",
    "simulate",
    "simulate_jobs",
    "software",
    "style",
    "trace",
    "trace_numpy",
    "train",
    "train_over",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"ridgeline.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    value = getattr(import_module(f"ridgeline.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME, *_MODULES]
