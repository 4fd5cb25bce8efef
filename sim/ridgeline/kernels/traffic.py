"""Bytes that an op moves at each memory level of a device.

A contraction is looked at as a matrix product C[m, n] = A[m, k] B[k, n] whose output tile stays in
registers while panels of A and B stream by (loop order m, n, k with k innermost). Then what leaves
a memory level is (Timeloop's footprint-times-trips rule for that order)

    A * ceil(n / columns) + B * ceil(m / rows) + C

with the output tile of rows x columns that the registers *below one instance of the next nearer
level* can hold: below one L1 lies one register file, below the L2 lie all of them. Half of the
registers hold the tile, half hold operands in flight. Footprints are the tensors' own bytes, so
that the overlap of convolution windows counts as caught by the level below.
"""

from __future__ import annotations

import math

from ridgeline.hardware.device import Device
from ridgeline.workload.graph import FORMAT_BYTES, Conv, Gemm, Graph, Op, Pass

_TILE_SHARE = 0.5  # of the registers: accumulators; the rest is for operands, addresses, buffers


def as_gemm(loops: Gemm | Conv, pass_: Pass) -> Gemm:
    """Return the matrix product that one pass over a contraction amounts to.

    For a convolution this is the implicit GEMM, one product per group, with the operands in the
    order of the op's inputs: forward (x, w) m = N*P*Q, n = K/g, k = C/g*R*S; input gradient (dy, w)
    m = N*P*Q, n = C/g, k = K/g*R*S, so that m*n*k is the forward's work; weight gradient (dy, x)
    m = K/g, n = C/g*R*S, k = N*P*Q.
    """
    if isinstance(loops, Gemm):
        return loops
    pixels = loops.batch * loops.h_out * loops.w_out
    c_in, c_out = loops.c_in // loops.groups, loops.c_out // loops.groups
    window = loops.r * loops.s
    match pass_:
        case Pass.INPUT_GRADIENT:
            return Gemm(m=pixels, n=c_in, k=c_out * window, batch=loops.groups)
        case Pass.WEIGHT_GRADIENT:
            return Gemm(m=c_out, n=c_in * window, k=pixels, batch=loops.groups)
        case _:
            return Gemm(m=pixels, n=c_out, k=c_in * window, batch=loops.groups)


def held_accumulators(device: Device, accumulate: str) -> dict[str, int]:
    """Output elements that the registers below one instance of the next nearer level hold."""
    levels = list(device.memory.items())
    registers = levels[0][1].capacity.value
    held = {}
    for position, (name, _) in enumerate(levels):
        instances = levels[max(position - 1, 0)][1].instances.value
        held[name] = int(_TILE_SHARE * registers / instances / FORMAT_BYTES[accumulate])
    return held


def output_tile(m: int, n: int, held: int) -> tuple[int, int]:
    """Rows and columns of the output tile of at most `held` elements: square, or as the output is.

    Where one side of the output is shorter than the square's, the other side gets the room.
    """
    side = max(1, math.isqrt(held))
    if m <= side:
        return m, max(1, held // m)
    if n <= side:
        return max(1, held // n), n
    return side, side


def streamed_bytes(op: Op, graph: Graph) -> int:
    """Bytes that an op reads and writes when every tensor is streamed."""
    return graph.read_bytes(op) + graph.write_bytes(op)


def contraction_bytes(op: Op, graph: Graph, device: Device, accumulate: str) -> dict[str, float]:
    """Bytes that leave or enter each memory level above the registers, for a contraction.

    The first two inputs are the operands A and B; further inputs (a bias) are streamed once.
    """
    assert op.loops is not None
    gemm = as_gemm(op.loops, op.pass_)
    a, b = (graph.tensors[name].bytes for name in op.inputs[:2])
    rest = streamed_bytes(op, graph) - a - b
    moved: dict[str, float] = {}
    for name, held in held_accumulators(device, accumulate).items():
        if device.memory[name].kind != "registers":
            rows, columns = output_tile(gemm.m, gemm.n, held)
            moved[name] = a * math.ceil(gemm.n / columns) + b * math.ceil(gemm.m / rows) + rest
    return moved
