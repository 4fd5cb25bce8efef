"""The selective scan of Mamba's first version, as one op.

Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, 2023,
arXiv:2312.00752, Algorithm 2 and Section 3.3. Every feature has a state of a few numbers; with the
step d = softplus of what a position says, and A, B, C as in `state_space`,

    state <- exp(d A) state + d B x;    y = C state + D x.

The states are never in memory: the kernel scans positions in registers, and the backward pass forms
them again (state-spaces/mamba, csrc/selective_scan).
"""

from __future__ import annotations

from fractions import Fraction

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.generation_step import CachedLayer
from ridgeline.workload.graph import Op, Passes
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import OpAxes, Tensors


def selective_scan(b: GraphBuilder, layer: str, x: str, steps: str, mixers: tuple[str, str]) -> str:
    """Let the states of every feature run over positions; returns [batch, positions, features].

    Parameters
    ----------
    x, steps
        What states take up, and what d is made of; [batch, positions, features].
    mixers
        B and C; [batch, positions, numbers of a state].
    """
    features, numbers = b.shape(x)[2], b.shape(mixers[0])[2]
    if b.shape(steps) != b.shape(x) or b.shape(mixers[1]) != b.shape(mixers[0]):
        raise RidgelineError(f"layer {layer!r}: steps, B and C do not fit what is scanned")
    decay = b.weight(f"{layer}.decay", (features, numbers))
    skip = b.weight(f"{layer}.skip", (features,))
    y = b.activation(f"{layer}.y", b.shape(x), b.format(x))
    flops = SELECTIVE_SCAN.forward.of(b.elements(x) * numbers)
    passes: Passes = ()
    if b.generation is not None:  # states come from memory and go there
        of_states = 4 * features * numbers
        b.cached.append(CachedLayer(layer, features, 0, MASTER, state_bytes=of_states))
        each = Fraction(2 * of_states * b.shape(x)[0]) / Fraction(b.tensors[x].bytes)
        passes = (1 + each, 1, 1, 1, 1, 1)
    inputs = (x, steps, *mixers, decay, skip)
    b.emit(SELECTIVE_SCAN, layer, inputs, (y,), flops=flops, passes=passes)
    return y


def _selective_scan_gradient(g: GradientBuilder, op: Op) -> None:
    dy = g.gradient(op.outputs[0])
    numbers = g.shape(op.inputs[2])[2]
    g.derive(
        SELECTIVE_SCAN,
        op,
        tuple(filter(g.wants, op.inputs)),
        (dy, *op.inputs),
        flops=SELECTIVE_SCAN.gradient.of(g.elements(dy) * numbers),
    )


def _selective_scan_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """X, steps [b, s, f], B, C [b, s, n], decay [f, n], skip [f] -> y [b, s, f]."""
    rows, shared = ("b", "", "f"), ("b", "", "")
    return OpAxes((rows, rows, shared, shared, ("f", ""), ("f",)), (rows,))


SELECTIVE_SCAN = op_kind(
    "selective-scan",
    forward=Cost(
        8, "number of a state", "d A, exp, times the state; d B x (2), added; times C, added"
    ),
    gradient=Cost(
        24,
        "number of a state",
        "the states again (6); gradients of the state (2), of C and y (2), of B and x (4), of d and"
        " A (6), and their sums (4)",
    ),
    sharding=_selective_scan_sharding,
)(_selective_scan_gradient)
