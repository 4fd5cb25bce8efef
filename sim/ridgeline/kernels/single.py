"""One op by itself on one device: what a user asks before any network comes in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.cost import OpCost
from ridgeline.kernels.pricing import price
from ridgeline.workload.graph import FORMAT_BYTES, Conv, Gemm, Graph, Op, Pass, Role, Tensor

_SIZE_LIMIT = 2**40


@dataclass(frozen=True)
class OpResult:
    """Time, traffic and energy of one op on one device.

    Attributes
    ----------
    time_s
        Latency plus the slowest of arithmetic and every memory level.
    parts_s
        What each of them alone takes: "launch", "arithmetic", and every memory level.
    utilisation
        Useful FLOPs over what the engine does at peak in that time.
    traffic_bytes
        Bytes at every memory level.
    compulsory_bytes
        Operands and result, each once.
    energy_j
        By component, with their total; idle power over the op's time is ``static``.
    calibrated
        Whether the achievable share of the peak is known; if not, the time is a bound.
    """

    op: str
    device: str
    engine: str
    format: str
    flops: int
    time_s: float
    parts_s: Mapping[str, float]
    bound: str
    utilisation: float
    traffic_bytes: Mapping[str, float]
    compulsory_bytes: int
    energy_j: Mapping[str, float]
    calibrated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def gemm(
    m: int, n: int, k: int, device: str | Device, *, batch: int = 1, format: str | None = None
) -> OpResult:
    """Price ``batch`` products C[m, n] = A[m, k] B[k, n] on a device.

    Parameters
    ----------
    device
        A device, or its name or path.
    format
        Number format of A, B and C; by default the one that the device is fastest in.

    Raises
    ------
    RidgelineError
        If a size is not positive, or the device does no matrix work in the format.
    """
    for name, value in {"m": m, "n": n, "k": k, "batch": batch}.items():
        _check_size(name, value)
    loops = Gemm(m, n, k, batch)
    shapes = ((batch, m, k), (batch, k, n), (batch, m, n))
    return _single(f"gemm {m}x{n}x{k}", "gemm", Pass.FORWARD, loops, shapes, device, format)


def conv(
    loops: Conv, device: str | Device, *, pass_: str = "forward", format: str | None = None
) -> OpResult:
    """Price one pass over a 2-D convolution on a device.

    Parameters
    ----------
    loops
        The forward loop nest.
    pass_
        forward, input-gradient or weight-gradient.
    format
        As for `gemm`.
    """
    passes = [p.value for p in Pass if p not in {Pass.RECOMPUTE, Pass.UPDATE}]
    if pass_ not in passes:
        raise RidgelineError(
            f"there is no pass {pass_!r}{nearest(pass_, passes)} (allowed: {', '.join(passes)})"
        )
    for name in ("batch", "c_in", "h_in", "w_in", "c_out", "r", "s", "groups"):
        _check_size(name, getattr(loops, name))
    if min(loops.h_out, loops.w_out) < 1:
        raise RidgelineError("the filter is larger than the padded image: there is no output")
    if loops.c_in % loops.groups or loops.c_out % loops.groups:
        raise RidgelineError(f"groups={loops.groups} must divide c_in and c_out")
    x = (loops.batch, loops.c_in, loops.h_in, loops.w_in)
    w = (loops.c_out, loops.c_in // loops.groups, loops.r, loops.s)
    y = (loops.batch, loops.c_out, loops.h_out, loops.w_out)
    shapes = {"forward": (x, w, y), "input-gradient": (y, w, x), "weight-gradient": (y, x, w)}
    name = f"conv {loops.c_in}x{loops.h_in}x{loops.w_in} -> {loops.c_out}, {loops.r}x{loops.s}"
    return _single(name, "conv2d", Pass(pass_), loops, shapes[pass_], device, format)


def op_energy_j(cost: OpCost, device: Device) -> dict[str, float]:
    """Joules of one op by component, priced by the device's energy table, with their total."""
    parts: dict[str, float] = dict.fromkeys(("compute", "registers", "sram", "dram"), 0.0)
    for name, flops in cost.flops.items():
        engine, _, format_ = name.rpartition(".")
        entry = device.engines[engine].energy[format_]
        parts["compute"] += flops * device.prices.price_j(entry, "J/FLOP")
    for name, moved in cost.traffic_bytes.items():
        level = device.memory[name]
        parts[level.kind] += moved * device.prices.price_j(level.energy, "J/B")
    parts["static"] = device.idle_power.value * cost.time_s(device)
    return {**parts, "total": math.fsum(parts.values())}


def _single(
    name: str,
    kind: str,
    pass_: Pass,
    loops: Gemm | Conv,
    shapes: tuple[tuple[int, ...], ...],
    device: str | Device,
    format_: str | None,
) -> OpResult:
    machine = load_device(device) if isinstance(device, str) else device
    format_ = _format(machine, format_)
    tensors = {
        tensor: Tensor(tensor, shape, format_, Role.ACTIVATION)
        for tensor, shape in zip("abc", shapes, strict=True)
    }
    op = Op(name, kind, pass_, name, ("a", "b"), ("c",), loops=loops)
    cost = price(op, Graph(name, 1, format_, tensors, (op,), "c"), machine)
    engine = next(iter(cost.engine_work))
    time_s = cost.time_s(machine)
    parts = {
        "launch": cost.latency_s,
        f"{engine} arithmetic": cost.compute_s(machine),
        **{f"{level} bandwidth": t for level, t in cost.memory_s(machine).items()},
    }
    peak = machine.engines[engine.rpartition(".")[0]].rates[format_].value
    return OpResult(
        op=f"{name}, {pass_.value}" if kind == "conv2d" else name,
        device=machine.name,
        engine=engine.rpartition(".")[0],
        format=format_,
        flops=op.matrix_flops,
        time_s=time_s,
        parts_s=parts,
        bound=max(parts, key=lambda part: parts[part]),
        utilisation=op.matrix_flops / (peak * time_s),
        traffic_bytes=cost.traffic_bytes,
        compulsory_bytes=sum(tensor.bytes for tensor in tensors.values()),
        energy_j=op_energy_j(cost, machine),
        calibrated=cost.calibrated,
    )


def _format(device: Device, wanted: str | None) -> str:
    """Check a number format, or choose the one in which the device does matrix work fastest."""
    rates = {
        format_: rate.value
        for engine in device.engines.values()
        if "matrix" in engine.runs
        for format_, rate in engine.rates.items()
    }
    if not rates:
        raise RidgelineError(f"{device.name} does no matrix work")
    if wanted is None:
        return max(rates, key=lambda format_: rates[format_])
    if wanted not in rates or wanted not in FORMAT_BYTES:
        raise RidgelineError(
            f"{device.name} does no matrix work in {wanted!r}{nearest(wanted, rates)} "
            f"(it does: {', '.join(sorted(rates))})"
        )
    return wanted


def _check_size(name: str, value: int) -> None:
    if not isinstance(value, int) or not 1 <= value <= _SIZE_LIMIT:
        raise RidgelineError(f"{name} must be a whole number from 1 to 2**40, found {value!r}")
