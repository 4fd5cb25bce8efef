"""Single op on one device, without a network or a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast, overload

from ridgeline.errors import RidgelineError, nearest, short
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.breakdown import time_breakdown
from ridgeline.kernels.cost import OpCost, engine_rate, op_energy_j, price_of_place
from ridgeline.kernels.latency_parts import LatencyParts
from ridgeline.kernels.mapping.mapping_file import MappingFile, load_mapping
from ridgeline.kernels.pricing import price
from ridgeline.kernels.systolic.device import by_dataflow
from ridgeline.kernels.traffic import SearchOptions, pooled_notes
from ridgeline.workload import formats
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor
from ridgeline.workload.sparsity import Sparsity, parse

_SIZE_LIMIT = 2**40
_MOST_ELEMENTS = 2**53
"""Of a tensor: 18 petabytes in fp16. Counts of tiles are exact below."""
_DEFAULT_BITS = 16  # networks are trained in no fewer bits unless one says so


class PricedOp(NamedTuple):
    """An op with its price on a device, and the mapping file that it was priced with."""

    op: Op
    cost: OpCost
    device: Device
    given: MappingFile | None


@dataclass(frozen=True)
class OpResult:
    """Time, traffic and energy of one op on one device.

    Attributes
    ----------
    flops
        Of the dense op.
    useful_flops
        Of them, those that meet no zero.
    issued_flops
        Of them, those that take time on the engine.
    worked_flops
        Of them, those that take energy: fewer than are issued where arithmetic is gated.
    time_s
        Latency plus the slowest of arithmetic and every memory level.
    parts_s
        What each of them alone takes: "launch", the engine's "arithmetic" with the array's own fill
        and drain, and every memory level's "bandwidth"; and the other parts of the latency that
        there are: "fill", "copy", "exchange", "barrier", "drain", and a level's "stall".
    breakdown_s
        The time in parts that do not overlap and sum to it (`breakdown.TimeBreakdown`): "launch",
        "fill", "copy", "arithmetic", "stall" by memory level, "exchange", "barrier", "drain", and
        their "total".
    utilisation
        Issued FLOPs over what the engine does at its dense peak in that time.
    traffic_bytes
        Bytes at every memory level.
    compulsory_bytes
        Operands and result, each once, as they are stored.
    energy_j
        By component, with their total; idle power over the op's time is ``static``.
    level_energy_j
        Of it, what every memory level takes for its traffic.
    area_mm2
        Of the device, where its file says it.
    calibrated
        Whether the achievable share of the peak is known; if not, the time is a bound.
    notes
        What a reader must be told beside the numbers.
    mapping
        Which loops run where, where the engine's model lays them out.
    tile
        Of a product whose output tiles are shared by processors: the tile, where its menu comes
        from, and what tile and wave quantisation leave of the peak.
    mapped
        Of a mapping that was searched for: its loops, cycles and seconds with the stalls apart,
        bytes over every border by operand, compulsory bytes and the lower bound of any mapping.
    request
        What was asked for: with it `repeat` prices the op again.
    priced
        The op, its price and the device, for figures; not among the plain values.
    """

    op: str
    device: str
    engine: str
    format: str
    sparsity: str
    flops: int
    useful_flops: float
    issued_flops: float
    worked_flops: float
    time_s: float
    parts_s: Mapping[str, float]
    breakdown_s: Mapping[str, Any]
    bound: str
    utilisation: float
    traffic_bytes: Mapping[str, float]
    compulsory_bytes: float
    energy_j: Mapping[str, float]
    level_energy_j: Mapping[str, float]
    area_mm2: float | None
    calibrated: bool
    notes: tuple[str, ...]
    mapping: str
    tile: Mapping[str, Any] | None
    mapped: Mapping[str, Any] | None
    request: Mapping[str, Any] = field(default_factory=dict)
    priced: PricedOp | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {
            name: v for name, v in asdict(replace(self, priced=None)).items() if name != "priced"
        }


def gemm(
    m: int,
    n: int,
    k: int,
    device: str | Device,
    *,
    batch: int = 1,
    format: str | None = None,
    sparsity: str | tuple[int, int] | Sparsity | None = None,
    density: float | None = None,
    sparsity_kind: str | None = None,
    block: str | tuple[int, int] | None = None,
    mapping: str | MappingFile | None = None,
    objective: str = "time",
) -> OpResult:
    """Price ``batch`` products C[m, n] = A[m, k] B[k, n] on a device.

    Parameters
    ----------
    device
        A device, or its name or path.
    format
        Number format of A, B and C; by default, of those with at least 16 bits if there are any,
        the one that the device is fastest in.
    sparsity
        Zeros in B, or of the kind "activation" in A: ``"2:4"``, ``"unstructured 0.3"``,
        ``"block 32x32 0.1"``, ``"activation 0.5"``. What they save is up to the device.
    density, sparsity_kind, block
        The same in parts: share of non-zeros, kind, rows and columns of a block.
    mapping
        ``"fast"`` (the default) or ``"optimal"``: how the best mapping is searched for, where the
        device has buffers that need one. Or a mapping file, or its path: which loops run where,
        the rest searched for.
    objective
        What is searched for: least ``"time"``, ``"energy"`` or their product ``"edp"``.

    Raises
    ------
    RidgelineError
        If a size is not positive, a sparsity cannot be read, or the device does no matrix work in
        the format.
    """
    for name, value in {"m": m, "n": n, "k": k, "batch": batch}.items():
        _check_size(name, value)
    loops = Gemm(m, n, k, batch)
    shapes = ((batch, m, k), (batch, k, n), (batch, m, n))
    zeros = parse(sparsity, density, sparsity_kind, block)
    op = Op(f"gemm {m}x{n}x{k}", "gemm", Pass.FORWARD, "", ("A", "B"), ("C",), loops=loops)
    sparse = "A" if _of_activations(zeros) else "B"
    result = _single(op, shapes, device, format, zeros, sparse, mapping, objective)
    sizes = {"op": "gemm", "m": m, "n": n, "k": k, "batch": batch}
    return _asked(result, sizes, device, zeros, mapping, objective)


_Pair = int | tuple[int, int]
"""One number for both, or rows and columns."""


@overload
def conv(
    batch: int,
    c_in: int,
    height: int,
    width: int,
    c_out: int,
    filter: _Pair,
    device: str | Device,
    *,
    stride: _Pair = 1,
    padding: _Pair = 0,
    dilation: _Pair = 1,
    groups: int = 1,
    pass_: str = "forward",
    format: str | None = None,
    sparsity: str | tuple[int, int] | Sparsity | None = None,
    density: float | None = None,
    sparsity_kind: str | None = None,
    block: str | tuple[int, int] | None = None,
    mapping: str | MappingFile | None = None,
    objective: str = "time",
) -> OpResult: ...


@overload
def conv(
    batch: Conv,
    device: str | Device,
    /,
    *,
    pass_: str = "forward",
    format: str | None = None,
    sparsity: str | tuple[int, int] | Sparsity | None = None,
    density: float | None = None,
    sparsity_kind: str | None = None,
    block: str | tuple[int, int] | None = None,
    mapping: str | MappingFile | None = None,
    objective: str = "time",
) -> OpResult: ...


def conv(
    batch: int | Conv,
    c_in: int | str | Device = 0,
    height: int = 0,
    width: int = 0,
    c_out: int = 0,
    filter: _Pair = 0,
    device: str | Device = "",
    *,
    stride: _Pair = 1,
    padding: _Pair = 0,
    dilation: _Pair = 1,
    groups: int = 1,
    pass_: str = "forward",
    format: str | None = None,
    sparsity: str | tuple[int, int] | Sparsity | None = None,
    density: float | None = None,
    sparsity_kind: str | None = None,
    block: str | tuple[int, int] | None = None,
    mapping: str | MappingFile | None = None,
    objective: str = "time",
) -> OpResult:
    """Price one pass over a 2-D convolution on a device.

    Parameters
    ----------
    batch, c_in, height, width, c_out
        Images, their channels, rows and columns, and channels of the output. Or a loop nest
        (`workload.graph.Conv`) and the device alone.
    filter
        Rows and columns of the filter: 3, or (5, 20).
    device
        A device, or its name or path.
    stride, padding, dilation
        Of the filter, down and across: 2, or (2, 1).
    groups
        Of channels.
    pass_
        forward, input-gradient or weight-gradient.
    format, sparsity, density, sparsity_kind, block, mapping, objective
        As for `gemm`; zeros are in the weights, or of the kind "activation" in the images. A pass
        that does not read them is dense.
    """
    if isinstance(batch, Conv):
        loops, device = batch, device if isinstance(c_in, int) else c_in
    else:
        if isinstance(c_in, str | Device) or device == "":
            raise RidgelineError(
                "expected batch, c_in, height, width, c_out, filter and device, or a loop nest and"
                f" a device; found {short(batch)}, {short(c_in)} and "
                f"{'no device' if device == '' else 'others'}"
            )
        loops = Conv(
            batch, c_in, height, width, c_out, *_pair("filter", filter),
            _pair("stride", stride), _pair("padding", padding), _pair("dilation", dilation), groups,
        )  # fmt: skip
    passes = [p.value for p in Pass if p not in {Pass.RECOMPUTE, Pass.UPDATE}]
    if pass_ not in passes:
        raise RidgelineError(
            f"there is no pass {pass_!r}{nearest(pass_, passes)} (allowed: {', '.join(passes)})"
        )
    for name in ("batch", "c_in", "h_in", "w_in", "c_out", "r", "s", "groups"):
        _check_size(name, getattr(loops, name))
    for name in ("stride", "dilation"):
        if min(getattr(loops, name)) < 1:
            raise RidgelineError(f"{name} must be at least 1, found {min(getattr(loops, name))}")
    if min(loops.padding) < 0:
        raise RidgelineError(f"padding must be at least 0, found {min(loops.padding)}")
    if min(loops.h_out, loops.w_out) < 1:
        raise RidgelineError("the filter is larger than the padded image: there is no output")
    if loops.c_in % loops.groups or loops.c_out % loops.groups:
        raise RidgelineError(f"groups={loops.groups} must divide c_in and c_out")
    x = (loops.batch, loops.c_in, loops.h_in, loops.w_in)
    w = (loops.c_out, loops.c_in // loops.groups, loops.r, loops.s)
    y = (loops.batch, loops.c_out, loops.h_out, loops.w_out)
    name = f"conv {loops.c_in}x{loops.h_in}x{loops.w_in} -> {loops.c_out}, {loops.r}x{loops.s}"
    # Names of the operands in the order of the product, and their shapes.
    names, shapes = {
        "forward": (("images", "weights", "C"), (x, w, y)),
        "input-gradient": (("gradient", "weights", "C"), (y, w, x)),
        "weight-gradient": (("gradient", "images", "C"), (y, x, w)),
    }[pass_]
    op = Op(f"{name}, {pass_}", "conv2d", Pass(pass_), "", names[:2], names[2:], loops=loops)
    zeros = parse(sparsity, density, sparsity_kind, block)
    sparse = "images" if _of_activations(zeros) else "weights"
    result = _single(op, shapes, device, format, zeros, sparse, mapping, objective)
    sizes = {"op": "conv", **asdict(loops), "pass": pass_}
    return _asked(result, sizes, device, zeros, mapping, objective)


def _pair(name: str, value: _Pair) -> tuple[int, int]:
    """Return rows and columns of one number or of two."""
    pair = (value, value) if isinstance(value, int) else value
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(n, int) for n in pair)
    ):
        raise RidgelineError(f"{name} is a whole number, or two of them, found {value!r}")
    return pair[0], pair[1]


def _asked(
    result: OpResult,
    sizes: Mapping[str, Any],
    device: str | Device,
    zeros: Sparsity | None,
    mapping: str | MappingFile | None,
    objective: str,
) -> OpResult:
    """Add what was asked for, as plain values; a device that is no name by its own."""
    request = {
        **sizes,
        "device": device if isinstance(device, str) else device.name,
        "format": result.format,
        "sparsity": None if zeros is None else str(zeros),
        "mapping": mapping if mapping is None or isinstance(mapping, str) else str(mapping),
        "objective": objective,
    }
    return replace(result, request=request)


def repeat(request: Mapping[str, Any], device: str | Device | None = None) -> OpResult:
    """Price an op again from the request in its result.

    Parameters
    ----------
    request
        `OpResult.request`, or what JSON made of it.
    device
        Instead of the one that is named there.

    Raises
    ------
    RidgelineError
        If something is missing, or cannot be priced any more.
    """
    told = dict(request)
    try:
        kind, where = told.pop("op"), told.pop("device")
        how = {name: told.pop(name) for name in ("format", "sparsity", "mapping", "objective")}
        if kind == "gemm":
            return gemm(device=where if device is None else device, **told, **how)
        pass_ = told.pop("pass")
        sizes: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in told.items()}
        loops = Conv(**sizes)
        return conv(loops, where if device is None else device, pass_=pass_, **how)
    except (KeyError, TypeError) as error:
        raise RidgelineError(f"this is no request of ridgeline gemm or conv: {error}") from error


def _of_activations(zeros: Sparsity | None) -> bool:
    return zeros is not None and zeros.kind == "activation"


def _single(
    op: Op,
    shapes: tuple[tuple[int, ...], ...],
    device: str | Device,
    format_: str | None,
    zeros: Sparsity | None,
    sparse: str,
    mapping: str | MappingFile | None,
    objective: str,
) -> OpResult:
    for name, shape in zip((*op.inputs, *op.outputs), shapes, strict=True):
        if math.prod(shape) > _MOST_ELEMENTS:
            raise RidgelineError(
                f"{name} has {math.prod(shape):.3g} elements; at most 2**53 are counted exactly"
            )
    search, given = _searched(mapping, objective)
    machine = load_device(device) if isinstance(device, str) else device
    format_ = _format(machine, format_)
    tensors = {
        name: Tensor(name, shape, format_, Role.ACTIVATION, zeros if name == sparse else None)
        for name, shape in zip((*op.inputs, *op.outputs), shapes, strict=True)
    }
    cost = price(op, Graph(op.name, 1, format_, tensors, (op,), "C"), machine, given, search)
    engine = next(iter(cost.engine_work))
    time_s = cost.time_s(machine)
    parts, spent = _each_alone(cost, machine, engine), time_breakdown(cost, machine)
    limits = {  # what an engine waits for within its own time is no arithmetic
        **parts,
        **{f"{level} stall": waited_s for level, waited_s in spent.stall_s.items()},
        f"{engine} arithmetic": spent.arithmetic_s,
        "fill": spent.fill_s,
        "drain": spent.drain_s,
    }
    stored = dict(zip(op.inputs, cost.stored, strict=True))
    energy_j = op_energy_j(cost, machine)
    mapped = _report(op, cost, machine, engine.rpartition(".")[0], search)
    compulsory = sum(t.bytes * stored.get(name, 1.0) for name, t in tensors.items())
    if mapped is not None:  # without what no product touches, which is not moved
        compulsory = min(compulsory, mapped["compulsory_bytes"])
    return OpResult(
        op=op.name,
        device=machine.name,
        engine=engine.rpartition(".")[0],
        format=format_,
        sparsity="none" if zeros is None else f"{zeros} in {sparse}",
        flops=op.matrix_flops,
        useful_flops=op.matrix_flops * cost.useful,
        issued_flops=op.matrix_flops * cost.issued,
        worked_flops=cost.flops[engine],
        time_s=time_s,
        parts_s=parts,
        breakdown_s=spent.to_dict(),
        bound=max(limits, key=lambda part: limits[part]),
        utilisation=op.matrix_flops * cost.issued / (engine_rate(machine, engine) * time_s),
        traffic_bytes=cost.traffic_bytes,
        compulsory_bytes=compulsory,
        energy_j=energy_j,
        level_energy_j={
            level: size * price_of_place(machine, level).price_j
            for level, size in cost.traffic_bytes.items()
        },
        area_mm2=None if machine.area is None else machine.area.value * 1e6,
        calibrated=cost.calibrated,
        notes=(
            *cost.notes,
            *(() if cost.tile is None else (str(cost.tile),)),
            *_registers(machine, engine.rpartition(".")[0]),
            *_idle(mapped),
            *pooled_notes(machine),
            *(f"not modelled: {what}" for what in machine.unpriced),
            *machine.component_notes,
            *_above_design_power(energy_j, time_s, machine),
        ),
        mapping=cost.mapping if mapped is None else mapped["text"],
        tile=None if cost.tile is None else cost.tile.to_dict(),
        mapped=mapped,
        priced=PricedOp(op, cost, machine, given),
    )


def _each_alone(cost: OpCost, device: Device, engine: str) -> dict[str, float]:
    """Return what launch, arithmetic, every memory level and the parts of the latency take."""
    stated = cost.latency_parts or LatencyParts(cost.latency_s)
    others = {
        "fill": stated.fill_s,
        "copy": stated.copy_s,
        "exchange": stated.exchange_s,
        "barrier": stated.barrier_s,
        "drain": stated.drain_s,
        **{f"{level} stall": time_s for level, time_s in stated.stall_s},
    }
    return {
        "launch": stated.launch_s,
        f"{engine} arithmetic": cost.compute_s(device) * (1.0 - cost.port_wait_share),
        **{f"{level} bandwidth": t for level, t in cost.memory_s(device).items()},
        **{name: time_s for name, time_s in others.items() if time_s > 0},
    }


def _registers(device: Device, engine: str) -> tuple[str, ...]:
    """Say where the traffic of registers comes from, if the device has any."""
    if all(level.kind != "registers" for level in device.memory.values()):
        return ()
    described = device.engines[engine]
    if by_dataflow(described):
        return (
            "register traffic: derived from the array's dataflow, a hop a cycle (no `instruction` "
            "stated)",
        )
    shape = described.instruction
    stated = "stated" if "instruction" in described.model_fields_set else "not stated, taken as"
    return (f"register traffic: `instruction` {stated} {shape.m}x{shape.n}x{shape.k}",)


def _idle(mapped: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Say that arrays have nothing to do for want of a network between them."""
    idle = None if mapped is None else mapped["idle_arrays"]
    if idle is None:
        return ()
    return (
        f"{idle['working']} of {idle['of']} arrays work: a tile is cut along batch, m and n; along "
        "k, too, where the network between arrays is described (`network` of `array`)",
    )


def _above_design_power(
    energy_j: Mapping[str, float], time_s: float, device: Device
) -> tuple[str, ...]:
    power_w = energy_j["total"] / time_s
    if device.tdp is None or power_w <= device.tdp.value:
        return ()
    return (
        f"{power_w:,.0f} W is above the design power of {device.tdp.value:,.0f} W: it would lower "
        "its clock, which is not modelled",
    )


def _searched(
    mapping: str | MappingFile | None, objective: str
) -> tuple[SearchOptions, MappingFile | None]:
    """Tell a mapper's name from a mapping file."""
    if objective not in ("time", "energy", "edp"):
        raise RidgelineError(
            f"there is no objective {objective!r}{nearest(objective, ['time', 'energy', 'edp'])} "
            f"(allowed: time, energy, edp)"
        )
    wanted = cast('Literal["time", "energy", "edp"]', objective)
    if mapping is None or mapping == "fast":
        return SearchOptions("fast", wanted), None
    if mapping == "optimal":
        return SearchOptions("optimal", wanted), None
    return SearchOptions("fast", wanted), load_mapping(mapping) if isinstance(
        mapping, str
    ) else mapping


def _report(
    op: Op, cost: OpCost, device: Device, engine: str, search: SearchOptions
) -> dict[str, Any] | None:
    if cost.mapped is None:
        return None
    from ridgeline.kernels.buffered import report  # there is a mapping, so numba is there

    described = device.engines[engine]
    grid = described.array or described.grid
    return report(op, *cost.mapped, search, None if grid is None else grid.clock.value)


def _format(device: Device, wanted: str | None) -> str:
    """Check a number format, or choose the one of `gemm`'s default."""
    rates: dict[str, float] = {}
    for engine in device.engines.values():
        for format_, rate in engine.rates.items() if "matrix" in engine.runs else ():
            rates[format_] = max(rates.get(format_, 0.0), rate.value)
    if not rates:
        raise RidgelineError(f"{device.name} does no matrix work")
    if wanted is None:
        wide = [format_ for format_ in rates if formats.find(format_).bits >= _DEFAULT_BITS]
        return max(wide or rates, key=lambda format_: rates[format_])
    if formats.find(wanted).rate not in rates.keys() | device.converted.keys():
        raise RidgelineError(
            f"{device.name} does no matrix work in {wanted!r}{nearest(wanted, rates)} "
            f"(it does: {', '.join(sorted(rates))})"
        )
    return wanted


def _check_size(name: str, value: int) -> None:
    if not isinstance(value, int) or not 1 <= value <= _SIZE_LIMIT:
        raise RidgelineError(f"{name} must be a whole number from 1 to 2**40, found {value!r}")
