"""The figures of a scaling study: its points as `report.figures_scaling` draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.report.figures_scaling import Curve, Roof, distributed_roofline, scaling_curves
from ridgeline.study.scaling import Scaling, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves_of(study: Scaling, *, sending: bool = False) -> list[Curve]:
    """Return the curve of every strategy that ran; `sending`: only where something is sent."""
    found = []
    for name in dict.fromkeys(point.strategy for point in study.points):
        points = [p for p in study.curve(name) if not sending or p.binding is not None]
        if points:
            found.append(
                Curve(
                    name,
                    [p.devices for p in points],
                    [p.result.samples_per_s for p in points if p.result is not None],
                    [p.flop_per_byte for p in points],
                    [p.flop_per_s for p in points],
                    [p.binding.name if p.binding else "" for p in points],
                )
            )
    return found


def roof_of(study: Scaling) -> Roof:
    """Return the ceilings of a study's device and network."""
    links: dict[str, float] = {}
    latency: dict[str, tuple[int, float]] = {}
    ran = [p for p in study.points if p.result is not None and p.binding is not None]
    for point in ran:
        for level in point.levels:
            links[level.name] = max(links.get(level.name, 0.0), level.bandwidth_bytes_per_s)
    for point in ran:
        latency[point.strategy] = point.devices, latency_flop_per_s(point)
    memory = max((_memory_flop_per_s(p) for p in study.points if p.result), default=np.inf)
    return Roof(study.peak_flop_per_s, memory, links, latency)


def latency_flop_per_s(point: ScalingPoint) -> float:
    """Return useful FLOP/s of a device if only the fixed times of its messages counted."""
    assert point.result is not None
    program = point.result.details.lowered.program
    phase_s = np.concatenate(([0.0], np.cumsum(program.latency_s * program.repeat)))
    row_s = phase_s[program.phase_ptr[1:]] - phase_s[program.phase_ptr[:-1]]
    sends = program.kind == program.kind_names.index("collective")
    by_stream = np.bincount(
        program.stream[sends].clip(0), weights=row_s[program.cost[sends]], minlength=1
    )
    fixed_s = float(by_stream.max())
    useful = point.result.flops_per_step / point.devices
    return useful / fixed_s if fixed_s else float("inf")


def _memory_flop_per_s(point: ScalingPoint) -> float:
    """Return useful FLOP/s of a device if only its far memory counted."""
    assert point.result is not None
    device = point.result.details.cluster.device
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    moved = point.result.traffic_bytes[device.far_memory]
    return point.result.flops_per_step / moved * far.bandwidth.value


def _heading(study: Scaling) -> tuple[str, str]:
    ran = [p.result for p in study.points if p.result is not None]
    made = ran[0].manifest["ridgeline"]
    batch = f"batch {study.points[0].batch} on {study.points[0].devices}"
    kind = f"{study.mode} scaling"
    return (
        f"{study.model.title} on {study.cluster.name}: {kind}",
        f"simulated, not measured: {study.model.name} on {study.cluster.name}, {kind}, {batch},"
        f" {ran[0].details.plan.precision}; ridgeline {made}",
    )


def draw_curves(study: Scaling) -> Axes:
    """Draw throughput over devices."""
    title, stamp = _heading(study)
    return scaling_curves(curves_of(study), title=title, stamp=stamp)


def draw_roofline(study: Scaling) -> Axes:
    """Draw the distributed roofline."""
    title, stamp = _heading(study)
    if not any(point.binding for point in study.points):
        raise RidgelineError("no device sends anything: a distributed roofline needs more devices")
    return distributed_roofline(
        curves_of(study, sending=True), roof_of(study), title=title, stamp=stamp
    )
