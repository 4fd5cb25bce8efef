"""The published kernels that a device is calibrated by, priced at the peak rate."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.hardware import Device, load_device
from ridgeline.kernels import price
from ridgeline.kernels.shares import filter_class
from ridgeline.study.validate import shipped
from ridgeline.workload.formats import AS, find
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor

LARGE = 1e9
# The tiles of a block in the names of cuDNN's kernels, as its profiles show them
# (maxwell_scudnn_winograd_128x128_..._tile148n): 1 image, 4 x 8 tiles of 2 x 2 outputs.
BLOCK = {"rows": 8, "columns": 16, "source": "cudnn-names"}


@dataclass(frozen=True)
class Measured:
    """What the measurements call the device, and how the board they were made on differs."""

    device: str
    overrides: Mapping[str, object]


# DeepBench's P100 is the PCIe board: 9.3 TFLOP/s fp32 instead of 10.6, the same memory.
PCIE_BOARD = {
    "engines.cuda-cores.rates.fp32": "9.3 TFLOP/s",
    "engines.cuda-cores.rates.fp16": "18.7 TFLOP/s",
}
SOURCES = {
    "v100-sxm2-16gb": Measured("NV_V100", {}),
    "v100-sxm2-32gb": Measured("NV_V100", {}),
    "p100-sxm2": Measured("NV_P100", PCIE_BOARD),
    "p100-pcie": Measured("NV_P100", {"engines.cuda-cores.library": None}),  # of its time
    "titan-x-maxwell": Measured("NV_TitanX", {}),
    "titan-x-pascal": Measured("NV_TitanX_Pascal", {}),
    "gtx-1080ti": Measured("NV_1080Ti", {}),
    "mi25": Measured("AMD_MI25", {}),
    "vega-fe": Measured("AMD_VegaFE", {}),
    "xeon-phi-7250": Measured("IA_KNL7250", {}),
}


@dataclass(frozen=True)
class Kernel:
    """One measured kernel and what the model says about it at the peak rate.

    Attributes
    ----------
    engine, format, op, pass_, filter
        The class of the kernel.
    flops
        FLOPs of the direct algorithm.
    arithmetic_s, memory_s, latency_s
        Time of the arithmetic at the peak, of the slowest memory level, and the fixed time.
    measured_s
        Published time.
    blocked, transformed
        The same by Winograd's kernels, where there can be any: of blocks, and as products between
        transforms.
    """

    engine: str
    format: str
    op: str
    pass_: str | None
    filter: str | None
    flops: int
    arithmetic_s: float
    memory_s: float
    latency_s: float
    measured_s: float
    blocked: Kernel | None = None
    transformed: Kernel | None = None

    def predicted_s(self, fraction: float) -> float:
        """Time that the model predicts with this fraction of the peak."""
        return self.latency_s + max(self.arithmetic_s / fraction, self.memory_s)

    def later(self, more_s: float) -> Kernel:
        """Return the same kernel with so much more fixed time."""
        return replace(
            self,
            latency_s=self.latency_s + more_s,
            blocked=None if self.blocked is None else self.blocked.later(more_s),
            transformed=None if self.transformed is None else self.transformed.later(more_s),
        )

    @property
    def achieved(self) -> float:
        """Share of the peak that the kernel reached, if arithmetic bound it."""
        return self.arithmetic_s / (self.measured_s - self.latency_s)

    @property
    def counts(self) -> bool:
        """Tell whether the kernel is large and took longer than its traffic."""
        return self.flops > LARGE and self.measured_s - self.latency_s > self.memory_s


def format_of(row: Mapping[str, str]) -> str:
    """Return the number format of a kernel by what DeepBench calls it.

    It calls all kernels in half precision on a P100 pseudo fp16, stored so and multiplied as fp32.
    Its matrix products stay below the peak of fp32. Its convolutions reach 1.4 times as much where
    nothing can save multiplications (1 x 1, implicit products): they multiply halves.
    """
    format_ = find(row["asked"]).name
    return format_.partition(AS)[0] if row["kind"] == "conv" else format_


def class_lines(format_: str) -> list[str]:
    """Write what the kernels of a class multiply, and what they convert to it, as YAML."""
    stored, as_, multiplied = format_.partition(AS)
    if not as_:
        return [f"    format: {format_}"]
    return [f"    format: {multiplied}", f"    stored: {stored}"]


def read_kernels(device_name: str) -> list[Kernel]:
    """Read the published measurements of a device and price each kernel at the peak rate."""
    measured = SOURCES[device_name]
    device = load_device(device_name, measured.overrides)
    device, blocks, products = (
        load_device(device_name, {**measured.overrides, "achievable": rows})
        for rows in (at_the_peak(device), _in_blocks(device), _between_transforms(device))
    )
    with shipped("gemm").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["device"] == measured.device]
    shapes = {"gemm": "MNK", "conv": ("Kout", "R", "S")}  # some rows of the source lack the shape
    return [
        _kernel(row, device, blocks, products)
        for row in rows
        if row["kind"] in shapes and all(row[name] for name in shapes[row["kind"]])
    ]


def products_alone(device_name: str, least_sum: int) -> list[Kernel]:
    """Price products in fp32 by a library that splits sums into parts no shorter than this."""
    measured = SOURCES[device_name]
    rows = at_the_peak(load_device(device_name, measured.overrides))
    tried = {"value": least_sum, "source": "tried", "basis": "assumed"}
    sums = {f"engines.{row['engine']}.least_sum": tried for row in rows}
    device = load_device(device_name, {**measured.overrides, **sums, "achievable": rows})
    with shipped("gemm").open(newline="", encoding="utf-8") as stream:
        found = [row for row in csv.DictReader(stream) if row["device"] == measured.device]
    return [
        _priced(row, *_gemm(row), device)
        for row in found
        if (row["kind"], row["precision"]) == ("gemm", "fp32")
    ]


def at_the_peak(device: Device) -> list[dict[str, object]]:
    """Make every format run at the peak of its fastest engine, as if that had been measured."""
    fastest = {
        format_: name
        for name, engine in sorted(
            device.engines.items(), key=lambda item: max(r.value for r in item[1].rates.values())
        )
        if "matrix" in engine.runs
        for format_ in engine.rates
    }
    peak = {"value": 1.0, "source": "peak", "basis": "measured"}
    return [
        {"engine": name, "format": format_, "op": op, "fraction": peak}
        for format_, name in fastest.items()
        for op in ("gemm", "conv2d")
    ]


def _in_blocks(device: Device) -> list[dict[str, object]]:
    """As `at_the_peak`, with kernels of Winograd's that no direct kernel is faster than."""
    never = {"value": 1e-9, "source": "peak", "basis": "measured"}
    rows = at_the_peak(device)
    convolutions = [row for row in rows if row["op"] == "conv2d"]
    return [
        *({**row, "filter": "3x3", "block": BLOCK} for row in convolutions),
        *({**row, "filter": "direct", "fraction": never} for row in convolutions),
        *rows,
    ]


def _between_transforms(device: Device) -> list[dict[str, object]]:
    """As `at_the_peak`, with products of transformed tiles that no other kernel is faster than."""
    never = {"value": 1e-9, "source": "peak", "basis": "measured"}
    rows = at_the_peak(device)
    convolutions = [row for row in rows if row["op"] == "conv2d"]
    slow = ({**row, "filter": name, "fraction": never} for row in convolutions
            for name in ("3x3", "direct"))  # fmt: skip
    return [*({**row, "filter": "transformed"} for row in convolutions), *slow, *rows]


def _kernel(row: Mapping[str, str], device: Device, blocks: Device, products: Device) -> Kernel:
    op, graph = _conv(row) if row["kind"] == "conv" else _gemm(row)
    alone = _priced(row, op, graph, device)
    if alone.filter != "3x3":
        return alone
    one, other = (_priced(row, op, graph, device) for device in (blocks, products))
    return replace(alone, blocked=one, transformed=other)


def _priced(row: Mapping[str, str], op: Op, graph: Graph, device: Device) -> Kernel:
    cost = price(op, graph, device)
    (engine,) = cost.engine_work
    is_conv = isinstance(op.loops, Conv)
    return Kernel(
        engine=engine.rpartition(".")[0],
        format=format_of(row),
        op="conv2d" if is_conv else "gemm",
        pass_=op.pass_.value if is_conv else None,
        filter=filter_class(op.loops) if isinstance(op.loops, Conv) else None,
        flops=op.matrix_flops,
        arithmetic_s=cost.compute_s(device),
        memory_s=max(cost.memory_s(device).values()),
        latency_s=cost.latency_s,
        measured_s=float(row["time_ms"]) * 1e-3,
    )


def _gemm(row: Mapping[str, str]) -> tuple[Op, Graph]:
    m, n, k = (int(row[name]) for name in "MNK")
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    return _alone("gemm", Pass.FORWARD, Gemm(m, n, k), shapes, format_of(row))


def _conv(row: Mapping[str, str]) -> tuple[Op, Graph]:
    number = {name: int(value) for name, value in row.items() if value.isdecimal()}
    loops = Conv(
        batch=number["batch"],
        c_in=number["C"],
        h_in=number["H"],
        w_in=number["W"],
        c_out=number["Kout"],
        r=number["R"],
        s=number["S"],
        stride=(number["stride_h"], number["stride_w"]),
        padding=(number["pad_h"], number["pad_w"]),
    )
    x = (loops.batch, loops.c_in, loops.h_in, loops.w_in)
    w = (loops.c_out, loops.c_in, loops.r, loops.s)
    y = (loops.batch, loops.c_out, loops.h_out, loops.w_out)
    pass_ = Pass(row["pass"])
    shapes = {  # two operands, then the result, in the order of ridgeline.workload.ops
        Pass.FORWARD: {"x": x, "w": w, "y": y},
        Pass.INPUT_GRADIENT: {"dy": y, "w": w, "dx": x},
        Pass.WEIGHT_GRADIENT: {"dy": y, "x": x, "dw": w},
    }[pass_]
    return _alone("conv2d", pass_, loops, shapes, format_of(row))


def _alone(
    kind: str, pass_: Pass, loops: Gemm | Conv, shapes: Mapping[str, tuple[int, ...]], format_: str
) -> tuple[Op, Graph]:
    tensors = {
        name: Tensor(name, shape, format_, Role.ACTIVATION) for name, shape in shapes.items()
    }
    *inputs, output = tensors
    op = Op(kind, kind, pass_, kind, tuple(inputs), (output,), loops)
    return op, Graph(kind, 1, format_, tensors, (op,), output)
