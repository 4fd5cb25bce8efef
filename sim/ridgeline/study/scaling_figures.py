"""The figures of a scaling study: its points as `report.figures.scaling` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.report.figures.embedded import set_origin
from ridgeline.report.figures.scaling import distributed_roofline, scaling_curves
from ridgeline.report.figures.scaling_points import Curve, Roof
from ridgeline.study.scaling import Scaling, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("scaling", "distributed-roofline")
Saved = Mapping[str, Any]


def curves_of(saved: Saved, *, sending: bool = False) -> list[Curve]:
    """Return the curve of every strategy that ran; `sending`: only where something is sent.

    Parameters
    ----------
    saved
        A study as `Scaling.to_dict` gives it.
    """
    found = []
    for name in dict.fromkeys(point["strategy"] for point in saved["points"]):
        points = [
            point
            for point in saved["points"]
            if point["strategy"] == name
            and "step_time_s" in point
            and (point["binding_link"] is not None or not sending)
        ]
        if points:
            found.append(
                Curve(
                    name,
                    [p["devices"] for p in points],
                    [p["samples_per_s"] for p in points],
                    [p["flop_per_sent_byte"] or np.inf for p in points],
                    [p["flop_per_s_per_device"] for p in points],
                    [p["binding_link"] or "" for p in points],
                    [p["envelope_flop_per_s"] for p in points],
                )
            )
    return found


def roof_of(study: Scaling) -> dict[str, Any]:
    """Return the ceilings of a study's device and network, the fields of a `Roof`."""
    links: dict[str, float] = {}
    latency: dict[str, tuple[int, float]] = {}
    ran = [p for p in study.points if p.result is not None and p.binding is not None]
    for point in ran:
        for level in point.levels:
            links[level.name] = max(links.get(level.name, 0.0), level.bandwidth_bytes_per_s)
    for point in ran:
        if np.isfinite(ceiling := latency_flop_per_s(point)):
            latency[point.strategy] = point.devices, ceiling
    memory = max(_memory_flop_per_s(p) for p in study.points if p.result)
    return {
        "peak_flop_per_s": study.peak_flop_per_s,
        "less_arithmetic": max(p.less_arithmetic for p in study.points if p.result),
        "memory_flop_per_s": memory,
        "links": links,
        "latency": latency,
    }


def latency_flop_per_s(point: ScalingPoint) -> float:
    """Return useful FLOP/s of a device if only the fixed times of its messages counted."""
    assert point.result is not None
    useful = point.result.flops_per_step / point.devices
    return useful / point.fixed_s if point.fixed_s else float("inf")


def _memory_flop_per_s(point: ScalingPoint) -> float:
    """Return useful FLOP/s of a device if only its far memory counted."""
    assert point.result is not None
    device = point.result.details.cluster.device
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    moved = point.result.traffic_bytes[device.far_memory]
    return point.result.flops_per_step / moved * far.bandwidth.value


def draw(kind: str, saved: Saved, ax: Axes | None = None, *, file: str = "") -> Axes:
    """Draw a study's curves ("scaling") or its "distributed-roofline".

    Parameters
    ----------
    saved
        As `Scaling.to_dict` gives it, or read from JSON.
    file
        Name for messages.

    Raises
    ------
    RidgelineError
        If there is no such figure, the study is not whole, or nothing is sent.
    """
    if kind not in KINDS:
        raise RidgelineError(
            f"there is no figure {kind!r} of a scaling study{nearest(kind, KINDS)}"
            f" (there are: {', '.join(KINDS)})"
        )
    try:
        title, stamp = _heading(saved)
        if kind == "scaling":
            made = scaling_curves(curves_of(saved), title=title, stamp=stamp, ax=ax)
            return _recorded(made, kind, saved, ax)
        curves = curves_of(saved, sending=True)
        if not curves:
            raise RidgelineError(
                "no device sends anything: a distributed roofline needs more devices"
            )
        roof = Roof(**saved["roof"])
        made = distributed_roofline(curves, roof, title=title, stamp=stamp, ax=ax)
        return _recorded(made, kind, saved, ax)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        lacks = f": there is no {error}" if isinstance(error, KeyError) else ""
        raise ConfigError(
            f"it is no scaling study, JSON of ridgeline scaling --json{lacks}", file=file
        ) from error


def _recorded(made: Axes, kind: str, saved: Saved, ax: Axes | None) -> Axes:
    """Remember in a figure of its own the study that it is of."""
    if ax is None:
        set_origin(made, {
            "simulated": True,
            "repeat": {"of": "scaling", "kind": kind},
            "scaling": dict(saved),
            "states": {
                "scaling": f"{saved['scaling']} scaling",
                "accuracy_note": "accuracy unmodelled",
                "throughput": [p.get("samples_per_s") for p in saved["points"]],
            },
        })  # fmt: skip
    return made


def _heading(saved: Saved) -> tuple[str, str]:
    first, kind = saved["points"][0], f"{saved['scaling']} scaling"
    return (
        f"{saved['title']} on {saved['cluster']}: {kind}",
        f"simulated, not measured: {saved['model']} on {saved['cluster']}, {kind}, batch"
        f" {first['batch']} on {first['devices']}, {saved['precision']},"
        f" software {saved['software']}; ridgeline"
        f" {saved['ridgeline']}, manifests {saved['hash']}",
    )
