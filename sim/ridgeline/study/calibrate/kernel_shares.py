"""Achievable shares of a device's peak rates from single kernels, by class.

The pricing is that of `ridgeline.kernels`: time = latency + max(arithmetic / fraction, traffic at
each level), where tile and wave quantisation is part of the arithmetic. One fraction is estimated
for each class (engine, format, op, pass, filter): the median, weighted by FLOP, of

    achieved = (arithmetic at the peak) / (measured time - launch latency)

over the kernels of the class that do more than `LARGE` FLOP and whose traffic alone does not
explain the measured time. With it the weighted median of predicted over measured time is 1.
Weighted by FLOP, because a training step is dominated by its large products; a median, because some
kernels of every class run far below the rest.

A convolution is more than one kernel (offsets are computed first, sums cleared, parts added up):
the fixed time of each pass is the one that leaves the smallest mean error (of logarithms) with the
fractions that follow from it.

Filters of 3 x 3 at stride 1 are priced in two ways: as one kind of kernels, or as Winograd's, which
fill blocks of outputs,
beside direct ones at the share of direct filters (`kernels.conv_algorithms`).
Where the share exceeds the peak, the way that leaves the smaller mean error (of logarithms) over
all kernels of the class is taken. A third way has the products of transformed tiles, too, by
kernels of their own; where it leaves the least error, both shares are given.

Rows of kernels have the columns of DeepBench's tables.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.hardware import Device
from ridgeline.hardware.device import Achievable
from ridgeline.kernels import price
from ridgeline.kernels.efficiency_table import filter_class
from ridgeline.workload.formats import AS, find
from ridgeline.workload.graph import Conv, Gemm, Graph, Op, Pass, Role, Tensor

LARGE = 1e9
# The tiles of a block in the names of cuDNN's kernels, as its profiles show them
# (maxwell_scudnn_winograd_128x128_..._tile148n): 1 image, 4 x 8 tiles of 2 x 2 outputs.
BLOCK = {"rows": 8, "columns": 16, "source": "cudnn-names"}
MOST_FIXED = 61  # microseconds
FILTERS = ("1x1", "3x3", "transformed", "larger", "direct")
_ROUNDS = 12
MIN_ROWS = 3  # a class with fewer rows falls back to the class of any pass


@dataclass(frozen=True)
class KernelShare:
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
    blocked: KernelShare | None = None
    transformed: KernelShare | None = None

    def predicted_s(self, fraction: float) -> float:
        """Time that the model predicts with this fraction of the peak."""
        return self.latency_s + max(self.arithmetic_s / fraction, self.memory_s)

    def later(self, more_s: float) -> KernelShare:
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


@dataclass(frozen=True)
class Fraction:
    """The result for one class; errors are of predicted over measured time, less one.

    Attributes
    ----------
    mean_error
        Mean of the logarithms' absolute values, over all kernels of the class.
    blocked
        Whether the share is of Winograd's kernels.
    more_s
        Fixed time besides the launch.
    """

    engine: str
    format: str
    op: str
    pass_: str | None
    filter: str | None
    value: float
    n_rows: int
    n_counted: int
    median_error: float
    median_abs_error: float
    p10_error: float
    p90_error: float
    mean_error: float
    blocked: bool = False
    more_s: float | None = None


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Return the value at which half of the weight is reached; `values` are (value, weight)."""
    ascending = sorted(values)
    reached = list(itertools.accumulate(weight for _, weight in ascending))
    return ascending[bisect.bisect_left(reached, reached[-1] / 2)][0]


def fractions_of(kernels: Sequence[KernelShare]) -> Iterator[Fraction]:
    """Estimate every class of a device, the specific before the general."""
    for engine, format_ in sorted({(kernel.engine, kernel.format) for kernel in kernels}):
        same = [k for k in kernels if (k.engine, k.format) == (engine, format_)]
        gemms = [kernel for kernel in same if kernel.op == "gemm"]
        if any(kernel.counts for kernel in gemms):
            yield class_share(gemms, None, None)
        convs = [kernel for kernel in same if kernel.op == "conv2d"]
        for pass_ in ("forward", "input-gradient", "weight-gradient"):
            yield from _fixed_and_proportional([k for k in convs if k.pass_ == pass_])
        if any(kernel.counts for kernel in convs):
            yield class_share(convs, None, None)


def _fixed_and_proportional(convs: Sequence[KernelShare]) -> list[Fraction]:
    """Return the shares of one pass, with the fixed time that leaves the smallest mean error."""
    found: list[tuple[float, list[Fraction]]] = []
    known = 0
    for microseconds in range(MOST_FIXED):
        more_s = microseconds * 1e-6
        later = [kernel.later(more_s) for kernel in convs]
        classes = _by_filter(later)
        kinds = {str(row.filter).replace("transformed", "3x3") for row in classes}
        if classes and (not found or len(kinds) == known):  # enough kernels of each
            known = len(kinds)
            rows = [
                row for row in classes if row.filter != "transformed" or len(kinds) == len(classes)
            ]
            size = statistics.fmean(row.mean_error for row in rows for _ in range(row.n_rows))
            found.append((size, [replace(row, more_s=more_s) for row in classes]))
    return min(found, key=lambda one: one[0])[1] if found else []


def _by_filter(convs: Sequence[KernelShare]) -> list[Fraction]:
    found: dict[str, Fraction] = {}
    for filter_ in ("direct", "larger", "1x1", "3x3"):
        members = [kernel for kernel in convs if kernel.filter == filter_]
        if sum(kernel.counts for kernel in members) >= MIN_ROWS:
            found[filter_] = class_share(members, members[0].pass_, filter_)
    if "3x3" in found and "direct" in found:
        members = [kernel for kernel in convs if kernel.filter == "3x3"]
        found["3x3"] = _in_the_better_way(members, found["3x3"], found["direct"])
        alone = class_share(members, members[0].pass_, "3x3")
        transformed = _with_products(members, found["direct"]) if alone.value > 1 else []
        if transformed and transformed[0].mean_error < found["3x3"].mean_error:
            del found["3x3"]
            found |= {str(row.filter): row for row in transformed}
    return [found[name] for name in FILTERS if name in found]


def _with_products(members: Sequence[KernelShare], direct: Fraction) -> list[Fraction]:
    """Return the shares of 3 x 3 filters where products between transforms are there, too.

    Kernels are parted into those that each way is the faster for, whose weighted median is the
    share of the way, until both agree. Gradients of filters have no kernels of blocks.
    """
    ways = ("transformed",) if members[0].pass_ == "weight-gradient" else ("blocked", "transformed")
    of = {way: [getattr(kernel, way) for kernel in members] for way in ways}
    if any(kernel is None for way in ways for kernel in of[way]):
        return []
    shares = {"blocked": 1.5, "transformed": 0.8}  # where the search begins
    for _ in range(_ROUNDS):
        times = {way: [kernel.predicted_s(shares[way]) for kernel in of[way]] for way in ways}
        fastest = [min(ways, key=lambda way, i=i: times[way][i]) for i in range(len(members))]
        counted = {
            way: [k for k, best in zip(of[way], fastest, strict=True) if best == way and k.counts]
            for way in ways
        }
        if any(len(kernels) < MIN_ROWS for kernels in counted.values()):
            return []
        shares |= {
            way: weighted_median([(k.achieved, k.flops) for k in kernels])
            for way, kernels in counted.items()
        }
    errors = [
        min(
            kernel.predicted_s(direct.value), *(of[way][i].predicted_s(shares[way]) for way in ways)
        )
        / kernel.measured_s
        - 1
        for i, kernel in enumerate(members)
    ]
    if shares["transformed"] > 1:
        return []  # products do not exceed the peak: there are no such kernels
    deciles, first = statistics.quantiles(errors, n=10, method="inclusive"), members[0]
    return [
        Fraction(
            engine=first.engine,
            format=first.format,
            op=first.op,
            pass_=first.pass_,
            filter="3x3" if way == "blocked" else way,
            value=shares[way],
            n_rows=len(members),
            n_counted=len(counted[way]),
            median_error=statistics.median(errors),
            median_abs_error=statistics.median(map(abs, errors)),
            p10_error=deciles[0],
            p90_error=deciles[-1],
            mean_error=_size(errors),
            blocked=way == "blocked",
        )
        for way in ways
    ]


def _in_the_better_way(
    members: Sequence[KernelShare], alone: Fraction, direct: Fraction
) -> Fraction:
    """Return the share of 3 x 3 filters as one kind of kernels, or as Winograd's beside direct."""
    blocks = [kernel.blocked for kernel in members if kernel.blocked is not None]
    counted = [kernel for kernel in blocks if kernel.counts]
    if alone.value <= 1 or len(counted) < MIN_ROWS:  # only Winograd's kernels exceed the peak
        return alone
    value = weighted_median([(kernel.achieved, kernel.flops) for kernel in counted])
    errors = [
        min(other.predicted_s(value), kernel.predicted_s(direct.value)) / kernel.measured_s - 1
        for kernel, other in zip(members, blocks, strict=True)
    ]
    if _size(errors) >= alone.mean_error:
        return alone
    deciles = statistics.quantiles(errors, n=10, method="inclusive")
    return replace(
        alone,
        value=value,
        n_counted=len(counted),
        median_error=statistics.median(errors),
        median_abs_error=statistics.median(map(abs, errors)),
        p10_error=deciles[0],
        p90_error=deciles[-1],
        mean_error=_size(errors),
        blocked=True,
    )


def _size(errors: Iterable[float]) -> float:
    return statistics.fmean(abs(math.log1p(error)) for error in errors)


def class_share(members: Sequence[KernelShare], pass_: str | None, filter_: str | None) -> Fraction:
    """Estimate the share of one class of kernels."""
    counted = [kernel for kernel in members if kernel.counts]
    value = weighted_median([(kernel.achieved, kernel.flops) for kernel in counted])
    errors = sorted(kernel.predicted_s(value) / kernel.measured_s - 1 for kernel in counted)
    deciles = statistics.quantiles(errors, n=10, method="inclusive")
    first = members[0]
    return Fraction(
        engine=first.engine,
        format=first.format,
        op=first.op,
        pass_=pass_,
        filter=filter_,
        value=value,
        n_rows=len(members),
        n_counted=len(counted),
        median_error=statistics.median(errors),
        median_abs_error=statistics.median(map(abs, errors)),
        p10_error=deciles[0],
        p90_error=deciles[-1],
        mean_error=_size(k.predicted_s(value) / k.measured_s - 1 for k in members),
    )


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


def with_rows(device: Device, rows: Sequence[Mapping[str, object]]) -> Device:
    """Return a device with other shares than its own."""
    checked = tuple(Achievable.model_validate(row) for row in rows)
    return device.model_copy(update={"achievable": checked})


def kernels_of(rows: Sequence[Mapping[str, str]], device: Device) -> list[KernelShare]:
    """Price matrix products and convolutions of DeepBench's tables at the peak rate.

    Convolutions of 3 x 3 are priced in all three ways.
    """
    ways = (at_the_peak(device), _in_blocks(device), _between_transforms(device))
    direct, blocks, products = (with_rows(device, some) for some in ways)
    return [_kernel(row, direct, blocks, products) for row in rows if is_kernel(row)]


_SHAPES = {"gemm": ("M", "N", "K"), "conv": ("Kout", "R", "S")}


def is_kernel(row: Mapping[str, str]) -> bool:
    """Tell whether a row is a product or convolution with its shape, which some rows lack."""
    return row["kind"] in _SHAPES and all(row[name] for name in _SHAPES[row["kind"]])


def op_of(row: Mapping[str, str]) -> tuple[Op, Graph]:
    """Return the op of a row of DeepBench's tables."""
    return _conv(row) if row["kind"] == "conv" else _gemm(row)


def _kernel(
    row: Mapping[str, str], device: Device, blocks: Device, products: Device
) -> KernelShare:
    alone = priced_alone(row, device)
    if alone.filter != "3x3":
        return alone
    one, other = (priced_alone(row, way) for way in (blocks, products))
    return replace(alone, blocked=one, transformed=other)


def priced_alone(row: Mapping[str, str], device: Device) -> KernelShare:
    """Price the kernel of a row on a device."""
    op, graph = op_of(row)
    cost = price(op, graph, device)
    (engine,) = cost.engine_work
    is_conv = isinstance(op.loops, Conv)
    return KernelShare(
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
