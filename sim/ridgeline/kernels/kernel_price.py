"""Price whole calls of kernels, many at a time: the graphs of `workload.kernel_graphs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.hardware.device import Device
from ridgeline.hardware.sourced import Sourced
from ridgeline.kernels.cache_residency import Found, residence
from ridgeline.kernels.cost import op_energy_j, peak_rates
from ridgeline.kernels.dtype_emulation import roof_of
from ridgeline.kernels.op_signature import described
from ridgeline.kernels.pricing import price_all
from ridgeline.workload.graph import Graph, Op, Role
from ridgeline.workload.kernel_graphs import compulsory_bytes
from ridgeline.workload.ops.attention import FLASH, met_scores


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """Time and energy of one call on one device.

    Attributes
    ----------
    time_s
        Of its ops, one after the other, each with its launch.
    roofline_s
        The longer of its arithmetic at the peak rates and its compulsory bytes at the bandwidth of
        the farthest memory.
    energy_j
        Of all events, and idle power over its time.
    saved_j
        What its events take less, since clock and voltage are below full ones (`clock`).
    """

    time_s: float
    roofline_s: float
    energy_j: float
    saved_j: float = 0.0

    @property
    def power_w(self) -> float:
        """Mean power while the call repeats."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, slots=True)
class Repetition:
    """How a benchmark repeats a call: what the last level on chip still holds of the ones before.

    Attributes
    ----------
    share
        Of the last level on chip that keeps what was touched; 0: nothing is held.
    weights
        Calls in turn have so many weights of their own, and the same inputs.
    """

    share: float = 0.0
    weights: int = 1


COLD = Repetition()


def price_kernels(
    graphs: Sequence[Graph], device: Device, repetition: Repetition = COLD
) -> list[KernelPrice]:
    """Return what calls cost on a device; equal ops of different calls are priced once.

    Parameters
    ----------
    repetition
        Where each call is repeated over and over: what is found on chip again.

    Raises
    ------
    RidgelineError
        If no engine of the device does the work of one of them.
    """
    if repetition.share:
        device = _keeping(device, repetition.share)
    found_by = [
        _found_again(graph, device, repetition.weights) if repetition.share else {}
        for graph in graphs
    ]
    kinds = [
        [described(op, graph, found.get(id(op))) for op in graph.ops]
        for graph, found in zip(graphs, found_by, strict=True)
    ]
    different = {kind: kind for kinds_ in kinds for kind in kinds_}
    costs = dict(zip(different, price_all(list(different), device), strict=True))
    rates = peak_rates(device)
    spent = {
        kind: (
            cost.spans(rates).time_s,
            op_energy_j(cost, device)["total"],
            math.fsum(cost.saved_j.values()),
        )
        for kind, cost in costs.items()
    }
    found = []
    for graph, kinds_ in zip(graphs, kinds, strict=True):
        each = [spent[kind] for kind in kinds_]
        found.append(
            KernelPrice(
                math.fsum(time_s for time_s, _, _ in each),
                roofline_s(graph, device),
                math.fsum(energy_j for _, energy_j, _ in each),
                math.fsum(saved_j for _, _, saved_j in each),
            )
        )
    return found


REPEATED = Repetition(0.5)
"""Calls of serving frameworks' benchmark. An L2 of two halves holds what both need twice, and does
not evict what is oldest: of 0.5, 0.6 and 1 the best share on devices that are left out (decision
0134); of products 0.75 (0140)."""


def _found_again(graph: Graph, device: Device, weights: int) -> dict[int, Found]:
    """Return where the ops of a call find their operands after many calls, by their identity."""
    played, last = _calls_in_turn(graph, weights)
    found = residence(played, device).found
    return {
        id(op): found[id(again)]
        for op, again in zip(graph.ops, last, strict=True)
        if id(again) in found
    }


def _calls_in_turn(graph: Graph, weights: int) -> tuple[Graph, tuple[Op, ...]]:
    """Write a call as often as it has weights, with the same inputs; return the last one's ops."""
    tensors = {
        name: replace(t, role=Role.BUFFER) if t.role is Role.INPUT else t
        for name, t in graph.tensors.items()
    }
    ops: list[Op] = []
    for turn in range(weights):
        own = {n: f"{n} {turn}" for n, t in graph.tensors.items() if t.role is not Role.INPUT}
        tensors |= {own[n]: replace(graph.tensors[n], name=own[n]) for n in own}
        ops += [
            replace(
                op,
                inputs=tuple(own.get(n, n) for n in op.inputs),
                outputs=tuple(own.get(n, n) for n in op.outputs),
            )
            for op in graph.ops
        ]
    played = replace(graph, tensors=tensors, ops=tuple(ops), loss=own.get(graph.loss, graph.loss))
    return played, played.ops[-len(graph.ops) :]


def _keeping(device: Device, share_: float) -> Device:
    """Return a device whose last level on chip keeps tensors from call to call."""
    near = [name for name, level in device.memory.items() if level.kind == "sram"]
    if not near or near[-1] == device.far_memory:
        return device
    level = device.memory[near[-1]]
    share = Sourced[float](value=share_, source="assumed", basis="assumed")
    kept = level.model_copy(update={"keeps": True, "kept_share": share})
    return device.model_copy(update={"memory": {**device.memory, near[-1]: kept}})


def roofline_s(graph: Graph, device: Device) -> float:
    """Time of a call at the peak rate of its formats and the bandwidth of the farthest memory.

    Without the scores that a mask hides.
    """
    compute_s = 0.0
    for op in graph.ops:
        if op.loops is not None:
            met = met_scores(op) if op.kind == FLASH.name else 1.0
            compute_s += met * op.matrix_flops / matrix_rate(op, graph, device)
    bandwidth = device.memory[device.far_memory].bandwidth
    assert bandwidth is not None
    return max(compute_s, compulsory_bytes(graph) / bandwidth.value)


def matrix_rate(op: Op, graph: Graph, device: Device) -> float:
    """Return the peak FLOP/s of a device for the products of an op; infinite where it has none."""
    format_ = roof_of(device, graph.tensors[op.inputs[0]].format)
    return max(
        (
            engine.rates[format_].value
            for engine in device.engines.values()
            if "matrix" in engine.runs and format_ in engine.rates
        ),
        default=math.inf,
    )
