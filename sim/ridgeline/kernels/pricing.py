"""Price one op on one device: time = latency + max(arithmetic, traffic at each memory level).

This is the roofline with measured efficiencies, applied per op (Williams, Waterman, Patterson,
"Roofline", CACM 52(4), 2009), with the tile reuse of `traffic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device, Engine, Work
from ridgeline.kernels import winograd
from ridgeline.kernels.alike import Alike
from ridgeline.kernels.cost import Moved, OpCost
from ridgeline.kernels.engines import ENGINE_MODELS
from ridgeline.kernels.mapped import MAPPED_MODELS, mappable
from ridgeline.kernels.mapping.given import Given
from ridgeline.kernels.sparsity import effect_of
from ridgeline.kernels.traffic import (
    FAST,
    Search,
    accumulator_of,
    near_levels,
    operands_of,
    streamed_bytes,
)
from ridgeline.workload.formats import bytes_of, find
from ridgeline.workload.graph import Gemm, Graph, Op

# Frameworks do elementwise arithmetic in fp32 registers whatever the storage format is (PyTorch's
# "opmath" type of half and bfloat16 tensors is float).
VECTOR_FORMAT = "fp32"
_ATTENTION_TILE = 128  # keys that fused attention works on at a time (FlashAttention-2: 64 or 128)


def price(
    op: Op,
    graph: Graph,
    device: Device,
    given: Given | None = None,
    search: Search = FAST,
) -> OpCost:
    """Return what an op of a graph costs on a device.

    Parameters
    ----------
    given
        A mapping file, for a contraction: what it settles of the layout.
    search
        How a mapping is searched for, where the device has buffers that need one.

    Raises
    ------
    RidgelineError
        If no engine of the device does this work in this number format.
    """
    if op.loops is None:
        return _streaming(float(streamed_bytes(op, graph)), op, device)
    return _contraction(op, graph, device, given, search)


def price_all(kinds: Sequence[Alike], device: Device) -> list[OpCost]:
    """Return what ops cost on a device, as `price` says it of each."""
    return [
        price(kind.op, kind.graph, device)
        if kind.op is not None and kind.graph is not None and kind.op.loops is not None
        else _streaming(kind.streamed_bytes, kind.op, device)
        for kind in kinds
    ]


def _contraction(
    op: Op, graph: Graph, device: Device, given: Given | None, search: Search
) -> OpCost:
    """Price a contraction on the engine that does it fastest, measured efficiencies first."""
    format_ = find(graph.tensors[op.inputs[0]].format).rate
    able = _engines(device, "matrix", format_, op)
    if given is not None:
        able = mappable(device, able, given)
    costs = [_on_engine(op, graph, device, name, format_, given, search) for name in able]
    if given is None and winograd.applies(op):
        for name in able:
            kernels = device.engines[name].winograd
            if kernels is not None and format_ in kernels.formats:
                costs += [_winograd(op, graph, device, name, format_, m) for m in kernels.outputs]
    return min(costs, key=lambda cost: (not cost.calibrated, cost.time_s(device)))


def _on_engine(
    op: Op,
    graph: Graph,
    device: Device,
    name: str,
    format_: str,
    given: Given | None,
    search: Search,
) -> OpCost:
    engine = device.engines[name]
    operands = operands_of(op, graph, device, accumulator_of(engine, format_), search)
    zeros = effect_of(op, graph, engine, operands.gemm)
    if given is None:
        dense = ENGINE_MODELS[engine.kind](op, operands, device, name, format_)
    else:
        dense = MAPPED_MODELS[engine.kind](op, operands, device, name, format_, given)
    done = unmasked(op)
    busy = zeros.busy(replace(dense, peak_flops=dense.peak_flops * done))
    moved = dict.fromkeys(near_levels(device), busy.near)
    far = operands.far if busy.far is None else busy.far
    moved[device.far_memory] = zeros.moved(far)
    registers = _instructions(op.matrix_flops * zeros.issued, engine, format_)
    moved |= {
        level: registers
        for level, description in device.memory.items()
        if description.kind == "registers"
    }
    cost = OpCost(
        latency_s=device.launch_latency.value + busy.latency_s,
        engine_work={f"{name}.{format_}": busy.peak_flops},
        flops={f"{name}.{format_}": op.matrix_flops * zeros.worked * done},
        traffic_bytes={level: by_operand.total for level, by_operand in moved.items()},
        moved=moved,
        useful=zeros.useful,
        issued=zeros.issued,
        stored=(zeros.a_stored, zeros.b_stored),
        notes=zeros.notes,
        waiting_s=busy.waiting_s,
        calibrated=busy.calibrated,
        mapping=busy.mapping,
        mapped=busy.mapped,
    )
    if op.vector_flops:  # a fused epilogue: bias, scaling
        _add_vector(cost, op, device)
    return _with_levels(cost, device)


def _winograd(
    op: Op, graph: Graph, device: Device, name: str, format_: str, outputs: int
) -> OpCost:
    """Price a convolution as transforms and matrix products on one engine."""
    products, transformed = winograd.as_products(op, graph, outputs)
    cost = _on_engine(products, transformed, device, name, format_, None, FAST)
    direct = operands_of(op, graph, device, accumulator_of(device.engines[name], format_))
    kernels = device.engines[name].winograd
    assert kernels is not None
    far = direct.far
    if not kernels.fused:  # what is transformed is written, and read by the products; then theirs
        again, sizes = cost.moved[device.far_memory], transformed.tensors
        far = Moved(
            direct.a_bytes + sizes["inputs"].bytes + again.a,
            direct.b_bytes + sizes["filters"].bytes + again.b,
            direct.rest_bytes + sizes["products"].bytes + again.rest,
            again.partial,
        )
    moved = {**cost.moved, device.far_memory: far}
    cost = replace(
        cost,
        moved=moved,
        traffic_bytes={level: by_operand.total for level, by_operand in moved.items()},
        issued=products.matrix_flops / op.matrix_flops,
        notes=(*cost.notes, f"Winograd F({outputs} x {outputs}, 3 x 3): {kernels.source}"),
    )
    return _with_levels(cost, device)


def unmasked(op: Op) -> float:
    """Share of the tiles of scores that fused attention computes: none that a causal mask hides.

    Of `t` columns of tiles a row of tiles at place i needs i, so (t + 1) / 2 on average (Dao,
    FlashAttention-2, 2023, arXiv:2307.08691, Section 3.1, "causal masking"). Separate ops compute
    all scores.
    """
    if op.kind != "flash-attention" or not dict(op.attrs).get("causal"):
        return 1.0
    assert isinstance(op.loops, Gemm)
    tiles = math.ceil(op.loops.n / _ATTENTION_TILE)
    return (tiles + 1) / (2 * tiles)


def _instructions(flops: float, engine: Engine, format_: str) -> Moved:
    """Bytes of registers that instructions read and write for so many FLOPs."""
    shape, size = engine.instruction, bytes_of(format_)
    count = flops / (2 * shape.m * shape.n * shape.k)
    return Moved(
        a=count * shape.m * shape.k * size,
        b=count * shape.n * shape.k * size,
        rest=0.0,
        partial=count * 2 * shape.m * shape.n * bytes_of(accumulator_of(engine, format_)),
    )


def _streaming(moved: float, op: Op | None, device: Device) -> OpCost:
    """Price what moves so many bytes through all of the memory."""
    cost = OpCost(
        latency_s=device.launch_latency.value,
        traffic_bytes=dict.fromkeys(device.memory, moved),
    )
    if op is not None and op.vector_flops:
        _add_vector(cost, op, device)
    return _with_levels(cost, device)


def _with_levels(cost: OpCost, device: Device) -> OpCost:
    """Turn the traffic into work at every level that has a bandwidth."""
    for name, moved in cost.traffic_bytes.items():
        level = device.memory[name]
        if level.bandwidth is not None:
            cost.level_work[name] = moved / level.achievable.value
    return cost


def _add_vector(cost: OpCost, op: Op, device: Device) -> None:
    able = _engines(device, "vector", VECTOR_FORMAT, op)
    name = max(able, key=lambda engine: device.engines[engine].rates[VECTOR_FORMAT].value)
    key = f"{name}.{VECTOR_FORMAT}"
    cost.engine_work[key] = cost.engine_work.get(key, 0.0) + op.vector_flops
    cost.flops[key] = cost.flops.get(key, 0.0) + op.vector_flops


def _engines(device: Device, work: Work, format_: str, op: Op) -> list[str]:
    """Names of the engines that do this work in this format; it is an error if there are none."""
    able = [
        name
        for name, engine in device.engines.items()
        if work in engine.runs and format_ in engine.rates
    ]
    if not able:
        formats = {f for e in device.engines.values() if work in e.runs for f in e.rates}
        raise RidgelineError(
            f"{device.name} has no engine for {work} work in {format_} (op {op.name!r}); "
            f"it does {work} work in: {', '.join(sorted(formats)) or 'no format'}"
        )
    return able
