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
    from ridgeline.report.figures.slider import Slider
    from ridgeline.report.figures.style import COLOURS, SERIES
    from ridgeline.report.result import Result
    from ridgeline.simulation import simulate
    from ridgeline.software import Stack, load_software
    from ridgeline.study.calibrate.this_machine import calibrate
    from ridgeline.study.compare import compare
    from ridgeline.study.design_study import DesignStudy as Study
    from ridgeline.study.generation.generate import EngineOptions, generate
    from ridgeline.study.import_design import import_design
    from ridgeline.study.jobs.neighbours import simulate_jobs
    from ridgeline.study.lint import lint
    from ridgeline.study.parts.parts_result import simulate_parts
    from ridgeline.study.planner.best_plan import plan
    from ridgeline.study.reproduce import reproduce
    from ridgeline.study.roofline import roofline
    from ridgeline.study.scaling import scaling
    from ridgeline.study.search.run import search
    from ridgeline.study.study_rows import StudyRows
    from ridgeline.study.sweep import load_rows
    from ridgeline.study.tables import pareto, top
    from ridgeline.study.topology import topology
    from ridgeline.study.validate import validate
    from ridgeline.study.verify import verify
    from ridgeline.study.whatif import whatif
    from ridgeline.training.run_study import train_over
    from ridgeline.training.train import train
    from ridgeline.workload.execution import Execution
    from ridgeline.workload.files import load_model
    from ridgeline.workload.model import Model
    from ridgeline.workload.trace.numpy_tracer import trace_numpy
    from ridgeline.workload.trace.torch_entry import trace

# Where each public name lives, and how it is called there if otherwise; it is imported when it is
# first used, so that `import ridgeline` stays quick.
_HOME = {
    "COLOURS": "report.figures.style",
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
    "SERIES": "report.figures.style",
    "Slider": "report.figures.slider",
    "Stack": "software",
    "Study": "study.design_study:DesignStudy",
    "StudyRows": "study.study_rows",
    "calibrate": "study.calibrate.this_machine",
    "clusters": "catalog_attrs",
    "collective": "network.collectives",
    "compare": "study.compare",
    "component": "hardware.components",
    "components": "catalog_attrs",
    "conv": "kernels.single_op",
    "devices": "catalog_attrs",
    "energy_tables": "catalog_attrs",
    "fuse": "kernels.fusion.schedule",
    "gemm": "kernels.single_op",
    "gemm_cycles": "kernels.systolic.gemm",
    "lint": "study.lint",
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
    "memory": "parallel.memory.liveness_profile",
    "models": "catalog_attrs",
    "nodes": "catalog_attrs",
    "pareto": "study.tables",
    "plan": "study.planner.best_plan",
    "reproduce": "study.reproduce",
    "roofline": "study.roofline",
    "scale_node": "hardware.components",
    "scaling": "study.scaling",
    "search": "study.search.run",
    "simulate": "simulation",
    "simulate_jobs": "study.jobs.neighbours",
    "simulate_parts": "study.parts.parts_result",
    "style": "report.figures.house_style",
    "top": "study.tables",
    "topology": "study.topology",
    "trace": "workload.trace.torch_entry",
    "trace_numpy": "workload.trace.numpy_tracer",
    "train": "training.train",
    "train_over": "training.run_study",
    "validate": "study.validate",
    "verify": "study.verify",
    "whatif": "study.whatif",
}

_MODULES = ("plot", "register", "report", "software")
"""Modules: figures, decorators of extension points, the report (called), the stacks that ship."""

__all__ = [
    "COLOURS",
    "SERIES",
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
    "Study",
    "StudyRows",
    "__version__",
    "calibrate",
    "clusters",
    "collective",
    "compare",
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
    "lint",
    "load",
    "load_cluster",
    "load_device",
    "load_energy_table",
    "load_model",
    "load_node",
    "load_plugin",
    "load_rows",
    "load_software",
    "memory",
    "models",
    "nodes",
    "pareto",
    "plan",
    "plot",
    "register",
    "report",
    "reproduce",
    "roofline",
    "scale_node",
    "scaling",
    "search",
    "simulate",
    "simulate_jobs",
    "simulate_parts",
    "software",
    "style",
    "top",
    "topology",
    "trace",
    "trace_numpy",
    "train",
    "train_over",
    "validate",
    "verify",
    "whatif",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"ridgeline.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    home, _, own = _HOME[name].partition(":")
    value = getattr(import_module(f"ridgeline.{home}"), own or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME, *_MODULES]
