"""cuDNN's fp32 convolutions: algorithm choice and workspace.

A library has several algorithms; which is the fastest depends on the shape, and what each holds
beside the operands differs by gigabytes. With planes of height x width, N of them for the images
and channels of the input, N' for the output and F for pairs of channels of the filters:

==============  ===================================================================================
algorithm       work space
==============  ===================================================================================
implicit-gemm   none; with offsets computed beforehand 4 B for every tap and channel, left out here
gemm            the patches of one image as a matrix [c_in r s, h_out w_out]
fft             the spectra of N + N' + F planes, padded to powers of two; a real plane of a x b has
                a (b / 2 + 1) complex coefficients
fft-tiling      the spectra of all tiles of 32 x 32, which overlap by the filter's reach less one
winograd        none: transformed tiles stay in the processors
winograd-nonfused  transformed tiles of N + N' + F planes: 36 numbers for 4 x 4 results (F(4 x 4))
==============  ===================================================================================

(M. Mathieu, M. Henaff, Y. LeCun, "Fast Training of Convolutional Networks through FFTs", ICLR 2014;
N. Vasilache et al., "Fast Convolutional Nets With fbfft", ICLR 2015; A. Lavin, S. Gray, CVPR 2016;
which shapes each takes and which direction: NVIDIA, "cuDNN Library User Guide", versions 4 and 5.)

The time of an algorithm is that of its kernels one after the other, each the longer of arithmetic
and traffic at the rates that large products and copies reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device
from ridgeline.workload.graph import Conv, Graph, Op, Pass

Library = Literal["cudnn2", "cudnn4", "cudnn5", "caffe", "torch7"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
UNFOLDING: frozenset[Library] = frozenset({"caffe", "torch7"})
"""Libraries that have the algorithm "gemm" alone, image after image (`kernels.im2col`)."""

_FLOAT, _COMPLEX, _COMPLEX_MAC = 4, 8, 8  # bytes, bytes, FLOP
_LARGEST_FFT = 256  # padded input of the algorithm "fft" along an axis
_TILE = 32
_BLOCK_BYTES = 48 * 1024  # shared memory of a thread block, Maxwell to Turing
_OUTPUTS, _TAPS = 4, 3  # of F(4 x 4, 3 x 3)
_TRANSFORM_FLOP = 156  # of one tile of F(4 x 4), Lavin and Gray, section 4.3


class ConvolutionAlgorithm(NamedTuple):
    """One way to compute a convolution: what it holds beside the operands, and its time."""

    name: str
    workspace_bytes: int
    time_s: float


class Rates(NamedTuple):
    """What large products and copies reach on a device."""

    flop_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, device: Device) -> Rates:
        """Take them from a device's description.

        Raises
        ------
        RidgelineError
            If it has no engine for fp32 products.
        """
        peaks = {
            name: engine.rates["fp32"].value
            for name, engine in device.engines.items()
            if "fp32" in engine.rates and "matrix" in engine.runs
        }
        if not peaks:
            raise RidgelineError(f"{device.name}: no engine computes fp32 products")
        best = max(peaks, key=lambda name: peaks[name])
        shares = (
            row.fraction.value
            for row in device.achievable
            if (row.engine, row.format, row.op, row.stored) == (best, "fp32", "gemm", None)
        )
        far = device.memory[device.far_memory]
        assert far.bandwidth is not None  # a device without is refused when it is loaded
        return cls(peaks[best] * next(shares, 1.0), far.bandwidth.value * far.achievable.value)


def algorithms(
    loops: Conv, direction: Pass, rates: Rates, library: Library = "cudnn5"
) -> tuple[ConvolutionAlgorithm, ...]:
    """Return the algorithms that a library has for a convolution in one direction.

    Parameters
    ----------
    direction
        Forward, or one of the two gradients, which have algorithms of their own.
    library
        "cudnn4" has no Winograd kernels, and no tiles for the gradient of the filters; "cudnn2"
        has products alone; "caffe" and "torch7", without cuDNN, unfold every image.

    Raises
    ------
    RidgelineError
        If the library is unknown.
    """
    if library not in LIBRARIES:
        raise RidgelineError(
            f"unknown library {library!r}{nearest(library, LIBRARIES)} "
            f"(known: {', '.join(LIBRARIES)})"
        )
    return tuple(_algorithms(_Shape(loops, direction), rates, library))


def held_bytes(loops: Conv, direction: Pass, library: Library = "cudnn5") -> dict[str, int]:
    """Return the work space of every algorithm that a library has for a convolution, by name."""
    known = algorithms(loops, direction, Rates(1.0, 1.0), library)
    return {a.name: a.workspace_bytes for a in known}


def fastest(
    loops: Conv,
    direction: Pass,
    rates: Rates,
    library: Library = "cudnn5",
    room_bytes: float = math.inf,
) -> ConvolutionAlgorithm:
    """Return the fastest algorithm whose work space fits into `room_bytes`, or takes the least."""
    known = algorithms(loops, direction, rates, library)
    least = min(a.workspace_bytes for a in known)
    fitting = [a for a in known if a.workspace_bytes <= max(room_bytes, least)]
    return min(fitting, key=lambda a: (a.time_s, a.workspace_bytes))


def workspace_bytes(graph: Graph, device: Device, library: Library = "cudnn5") -> dict[str, int]:
    """Return the work space of every convolution of a graph, by op, with the fastest algorithms.

    A library finds the fastest by running it: operands and work space fit into the device, or
    another is taken. Convolutions in other formats than fp32 hold none: tensor cores run implicit
    products.
    """
    rates = Rates.of(device)
    found: dict[str, int] = {}
    for op in graph.ops:
        if isinstance(op.loops, Conv) and _is_fp32(op, graph):
            operands = sum(graph.tensors[name].bytes for name in (*op.inputs, *op.outputs))
            room = max(device.capacity_bytes - operands, 0)
            found[op.name] = fastest(op.loops, op.priced_as, rates, library, room).workspace_bytes
    return found


def _is_fp32(op: Op, graph: Graph) -> bool:
    return all(graph.tensors[name].format == "fp32" for name in (*op.inputs[:2], *op.outputs[:1]))


class _Shape:
    """Sizes of a convolution that all algorithms share."""

    def __init__(self, loops: Conv, direction: Pass) -> None:
        self.loops = loops
        self.is_weight_gradient = direction is Pass.WEIGHT_GRADIENT
        self.x_planes = loops.batch * loops.c_in
        self.y_planes = loops.batch * loops.c_out
        self.filter_planes = loops.c_out * loops.c_in // loops.groups
        self.products = loops.batch * self.filter_planes  # of planes
        self.x_bytes = self.x_planes * loops.h_in * loops.w_in * _FLOAT
        self.y_bytes = self.y_planes * loops.h_out * loops.w_out * _FLOAT
        self.filter_bytes = self.filter_planes * loops.r * loops.s * _FLOAT
        slides = (loops.stride, loops.dilation) == ((1, 1), (1, 1)) and loops.groups == 1
        inside = loops.padding[0] < loops.r and loops.padding[1] < loops.s
        self.slides = slides and inside
        self.result = (
            (loops.h_in, loops.w_in) if direction is Pass.INPUT_GRADIENT
            else (loops.h_out, loops.w_out)
        )  # fmt: skip

    @property
    def planes(self) -> int:
        """Planes of the two operands and of the result, in any direction."""
        return self.x_planes + self.y_planes + self.filter_planes

    @property
    def operand_bytes(self) -> int:
        """Operands and result."""
        return self.x_bytes + self.y_bytes + self.filter_bytes


def _algorithms(shape: _Shape, rates: Rates, library: Library) -> Iterator[ConvolutionAlgorithm]:
    loops, modern = shape.loops, library != "cudnn4"

    def kernel_s(flop: float, size_bytes: float) -> float:
        return max(flop / rates.flop_per_s, size_bytes / rates.bytes_per_s)

    direct_s = kernel_s(2.0 * loops.macs, shape.operand_bytes)
    if library not in UNFOLDING:
        yield ConvolutionAlgorithm("implicit-gemm", 0, direct_s)
    patches = loops.c_in * loops.r * loops.s * loops.h_out * loops.w_out * _FLOAT
    copying_s = kernel_s(0, 2.0 * patches * loops.batch)
    yield ConvolutionAlgorithm("gemm", patches, direct_s + copying_s)
    if library in {"cudnn2", *UNFOLDING} or not shape.slides:
        return
    sides = [_power_of_two(n + 2 * p) for n, p in
             zip((loops.h_in, loops.w_in), loops.padding, strict=True)]  # fmt: skip
    if max(sides) <= _LARGEST_FFT:
        yield _spectral("fft", shape, (sides[0], sides[1]), 1, rates)
    if max(loops.r, loops.s) < _TILE and (modern or not shape.is_weight_gradient):
        steps = (_TILE - loops.r + 1, _TILE - loops.s + 1)
        tiles = math.prod(-(-n // step) for n, step in zip(shape.result, steps, strict=True))
        yield _spectral("fft-tiling", shape, (_TILE, _TILE), tiles, rates)
    if modern and (loops.r, loops.s) == (_TAPS, _TAPS):
        yield from _winograd(shape, rates)


def _spectral(
    name: str, shape: _Shape, sides: tuple[int, int], tiles: int, rates: Rates
) -> ConvolutionAlgorithm:
    """Transform both operands, multiply them frequency by frequency, transform back."""
    height, width = sides
    plane_bytes = tiles * height * (width // 2 + 1) * _COMPLEX
    filters = shape.filter_planes * (plane_bytes // tiles)  # all tiles use the same
    spectra = (shape.x_planes + shape.y_planes) * plane_bytes + filters
    transform_flop = 2.5 * height * width * math.log2(height * width)
    flop = transform_flop * (tiles * (shape.x_planes + shape.y_planes) + shape.filter_planes)
    passes = 1 if plane_bytes // tiles <= _BLOCK_BYTES else 3  # rows, then columns: back and forth
    moved = shape.operand_bytes + passes * spectra
    products_s = max(
        _COMPLEX_MAC / _COMPLEX * plane_bytes * shape.products / rates.flop_per_s,
        spectra / rates.bytes_per_s,
    )
    transforms_s = max(flop / rates.flop_per_s, moved / rates.bytes_per_s)
    return ConvolutionAlgorithm(name, spectra, transforms_s + products_s)


def _winograd(shape: _Shape, rates: Rates) -> Iterator[ConvolutionAlgorithm]:
    """F(2 x 2) in one kernel, not for gradients of filters, and F(4 x 4) in three."""
    loops = shape.loops
    if not shape.is_weight_gradient:
        tiles = math.prod(-(-n // 2) for n in shape.result)
        flop = 2.0 * 16 * tiles * shape.products
        time_s = max(flop / rates.flop_per_s, shape.operand_bytes / rates.bytes_per_s)
        yield ConvolutionAlgorithm("winograd", 0, time_s)
    tiles = math.prod(-(-n // _OUTPUTS) for n in shape.result)
    side = _OUTPUTS + _TAPS - 1
    transformed = (
        (shape.x_planes + shape.y_planes) * tiles + loops.c_out * loops.c_in
    ) * side**2 * _FLOAT  # fmt: skip
    transforms = (shape.x_planes + shape.y_planes) * tiles * _TRANSFORM_FLOP
    moved = shape.operand_bytes + transformed
    transforms_s = max(transforms / rates.flop_per_s, moved / rates.bytes_per_s)
    products_s = max(
        2.0 * side**2 * tiles * shape.products / rates.flop_per_s, transformed / rates.bytes_per_s
    )
    yield ConvolutionAlgorithm("winograd-nonfused", transformed, transforms_s + products_s)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
