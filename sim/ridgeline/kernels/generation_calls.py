"""Ops of generation as calls of libraries' kernels (`kernels.library`).

Attention over a cache, the experts of a mixture and the states of linear attention are priced by
the models of the kernels that serving frameworks have, where one is known for the device; else as
any other op. A step reads weights and caches that are larger than any level on chip, so that a
call finds nothing there; no call is faster than its bytes pass the farthest memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import OpCost
from ridgeline.kernels.library.attention import (
    DECODE,
    PREFILL,
    SYSTOLIC,
    attention_work,
)
from ridgeline.kernels.library.experts import EXPERTS, experts_work
from ridgeline.kernels.library.kernel_model import SYSTOLIC_UNIT, LibraryCall, generation_of
from ridgeline.kernels.library.linear_attention import LINEAR, chunk_work
from ridgeline.kernels.op_signature import OpSignature
from ridgeline.workload.formats import find, number_bytes
from ridgeline.workload.graph import LIBRARY, WITHIN, Gemm, Graph, Op
from ridgeline.workload.ops.linear_attention import DeltaHeads

_NO_CACHE = {"near_bytes": 0.0}
_PRODUCTS = {"fp8-e4m3": "fp8", "fp8-block": "fp8-block", "nvfp4": "nvfp4", "int8": "int8-w8a8"}
"""Names of tables for experts by the format of their weights; others are as their inputs."""


def with_library_call(
    kind: OpSignature, cost: OpCost, device: Device, rates: Mapping[str, float]
) -> OpCost:
    """Return the price of an op of generation by its library's kernel; of others as it is."""
    op, graph = kind.op, kind.graph
    if op is None or graph is None or not op.attrs:
        return cost
    attrs = dict(op.attrs)
    if WITHIN in attrs and generation_of(device) in _KNOWN:
        return _taking(cost, 0.0, rates)
    if LIBRARY not in attrs:
        return cost
    call = library_call(op, graph, device)
    time_s = None if call is None else call.time_s(device)
    if time_s is None:
        return cost
    far = device.far_memory
    least_s = cost.traffic_bytes.get(far, 0.0) / rates[far]
    return _taking(cost, max(time_s, least_s), rates)


_KNOWN = frozenset({"mma", "wgmma", "tcgen05"})
"""Generations of devices for which experts of some format are known."""


def _taking(cost: OpCost, time_s: float, rates: Mapping[str, float]) -> OpCost:
    """Return a price with another time; what is counted stays."""
    latency_s = min(cost.latency_s, time_s)
    rest_s = time_s - latency_s
    busy = cost.spans(rates)
    longest = max([busy.compute_s, *busy.memory_s.values()])
    scale = rest_s / longest if longest > 0 else 0.0
    return replace(
        cost,
        latency_s=latency_s if longest > 0 else time_s,
        engine_work={name: scale * work for name, work in cost.engine_work.items()},
        level_work={name: scale * work for name, work in cost.level_work.items()},
        latency_parts=None,
        waiting_s=0.0,
        overlap=None,
    )


def library_call(op: Op, graph: Graph, device: Device) -> LibraryCall | None:
    """Return which kernel of a library does an op on a device; None where it has none."""
    match op.kind:
        case "flash-attention":
            return _attention(op, graph, device)
        case "gemm":
            return _experts(op, graph, device)
        case "linear-attention":
            return _states(op, graph)
        case _:
            return None


def _attention(op: Op, graph: Graph, device: Device) -> LibraryCall | None:
    attrs = dict(op.attrs)
    q, k, v = (graph.tensors[name] for name in op.inputs)
    n, rows, width = q.shape
    size = int(attrs["size"])
    heads, kv_heads = width // size, k.shape[-1] // size
    assert isinstance(op.loops, Gemm)
    cache = str(attrs["cache"])
    shape = {
        "batch": n, "heads": heads, "kv_heads": kv_heads, "head_dim": size, "seq_q": rows,
        "seq_kv": op.loops.n, "window": int(attrs.get("window", 0)),
    }  # fmt: skip
    compute = find(q.format)
    work = attention_work(
        shape, causal=rows > 1, cached=True, q_bytes=number_bytes(q.format),
        kv_bytes=number_bytes(cache) * (k.shape[-1] + v.shape[-1]) / (2 * k.shape[-1]),
    )  # fmt: skip
    kept = "fp8" if number_bytes(cache) < number_bytes(q.format) else "bf16"
    name = f"bf16/kv-{kept}"
    if generation_of(device) == SYSTOLIC_UNIT:
        return LibraryCall(SYSTOLIC, "attention-systolic", ("", "", "", "bf16"), work, compute.rate)
    of = (str(attrs[LIBRARY]), "", "", name)
    if rows == 1:
        return LibraryCall(DECODE, "attention-decode", of, {**work, **_NO_CACHE}, compute.rate)
    return LibraryCall(PREFILL, "attention-prefill", of, {**work, **_NO_CACHE}, compute.rate)


def _experts(op: Op, graph: Graph, device: Device) -> LibraryCall | None:
    """Return the fused call of all experts of a rank, of which `op` is the first product."""
    if generation_of(device) not in _KNOWN:
        return None
    attrs = dict(op.attrs)
    x, weight = (graph.tensors[name] for name in op.inputs[:2])
    own, wide, hidden = weight.shape
    gated = len(op.outputs) > 1
    rows, top_k = int(attrs["rows"]), int(attrs["top-k"])
    active = max(1, min(own, rows, round(own * float(attrs["chosen"]))))
    each, more = divmod(rows, active)
    counts = (each + 1,) * more + (each,) * (active - more)
    work = experts_work(
        counts, tokens=max(1, rows // top_k), top_k=top_k, own=own, hidden=hidden,
        inter=wide // (1 + gated), gated=gated, input_bytes=number_bytes(x.format),
        weight_bytes=number_bytes(weight.format), quantises=number_bytes(x.format) < 2,
    )  # fmt: skip
    name = _PRODUCTS.get(weight.format, "bf16")
    of = (str(attrs[LIBRARY]), "", "", name)
    return LibraryCall(EXPERTS, "experts", of, {**work, **_NO_CACHE}, find(x.format).rate)


def _states(op: Op, graph: Graph) -> LibraryCall | None:
    attrs = dict(op.attrs)
    n, positions, width = graph.tensors[op.outputs[0]].shape
    keys = graph.tensors[op.inputs[1]].shape[-1] // int(attrs["state"])
    values = max(1, keys * int(attrs["heads"]) // int(attrs["kv-heads"]))
    heads = DeltaHeads(
        keys, int(attrs["state"]), values, width // values,
        per_feature=bool(attrs["per-feature"]),
    )  # fmt: skip
    step = positions == 1
    work = chunk_work(n, positions, heads, step=step)
    table = "linear-step" if step else "linear-chunks"
    of = (str(attrs[LIBRARY]), "", "", str(attrs["rule-of"]))
    return LibraryCall(LINEAR, table, of, {**work, **_NO_CACHE}, "bf16")
