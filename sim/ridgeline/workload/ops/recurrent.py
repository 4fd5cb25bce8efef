"""Recurrences over time: LSTM, GRU and plain recurrent layers.

A recurrent layer is two ops, as cuDNN runs it (Appleyard et al., 2016, arXiv:1604.01946): the
inputs of all timesteps meet their weights in one matrix product (`ops.linear`), and the recurrence
is one op here, whose loops are one product a timestep, [batch, hidden] x [hidden, gates]. They run
one after the other, which the op says by the attribute "sequential"; a graph so has a few ops a
layer, however long the sequence is. All activations are [batch, time, features], with the input
products of the gates in place of operand A. Initial states are zero.

The backward pass is one sequential op, which hands back the gradient of the gates, and one matrix
product over all timesteps for the recurrent weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Gemm, Op, Pass
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.ops.contraction import BIAS, linear
from ridgeline.workload.sharding_axes import Inner, OpAxes, Tensors

Cell = Literal["lstm", "gru", "rnn-tanh", "rnn-relu"]


class _Form(NamedTuple):
    """Gates of a cell, and what it keeps for its gradient besides the hidden states."""

    gates: int
    saved: tuple[str, ...]  # names; "gates" are as wide as all gates, others as the states


_FORMS: dict[str, _Form] = {
    "lstm": _Form(4, ("cells", "gates")),
    "gru": _Form(3, ("candidates", "gates")),
    "rnn-tanh": _Form(1, ()),
    "rnn-relu": _Form(1, ()),
}


def recurrent(
    b: GraphBuilder,
    layer: str,
    x: str,
    hidden: int,
    cell: Cell,
    *,
    reverse: bool = False,
    bias: Literal["none", "one", "two"] = "two",
) -> str:
    """Recurrent layer over `x` [batch, time, features]; returns its hidden states.

    Hochreiter and Schmidhuber, Neural Computation 9(8), 1997 (LSTM, with forget gates); Cho et al.,
    EMNLP 2014, arXiv:1406.1078 (GRU, in the form of cuDNN, with the reset after the product).

    Parameters
    ----------
    reverse
        From the last timestep to the first.
    bias
        One with the inputs only, or a second one with the recurrent products as in cuDNN.
    """
    form = _FORMS[cell]
    gates = linear(b, f"{layer}.inputs", x, form.gates * hidden, bias=bias != "none")
    width = form.gates * hidden
    weights = [b.weight(f"{layer}.weight", (width, hidden))]
    if bias == "two":
        weights.append(b.weight(f"{layer}.bias", (width,)))
    return recurrence(b, layer, gates, weights, cell, reverse=reverse)


def recurrence(
    b: GraphBuilder,
    layer: str,
    gates: str,
    weights: Sequence[str],
    cell: Cell,
    *,
    reverse: bool = False,
) -> str:
    """Run a cell over the input products of its gates [batch, time, gates x hidden].

    `weights` are those of the recurrent product [gates x hidden, hidden] and maybe its bias.
    Returns the hidden states.
    """
    form, compute = _FORMS[cell], b.numerics.compute
    n, time, width = b.shape(gates)
    hidden = width // form.gates
    inputs = [gates, *(b.cast(weight, compute, layer) for weight in weights)]
    y = b.activation(f"{layer}.y", (n, time, hidden), compute)
    saved = [
        b.activation(f"{layer}.{name}", (n, time, width if name == "gates" else hidden), compute)
        for name in form.saved
    ]
    kind = _KINDS[cell]
    b.emit(
        kind,
        layer,
        inputs,
        (y, *saved),
        loops=Gemm(n, width, hidden, batch=time),
        flops=(kind.forward.flops + form.gates * (len(weights) - 1)) * b.elements(y),
        attrs=(("sequential", 1), ("reverse", int(reverse))),
    )
    return y


def _gradient(g: GradientBuilder, op: Op) -> None:
    gates, weight, *bias = op.inputs
    y, *saved = op.outputs
    kind = _KINDS[op.kind]
    assert isinstance(op.loops, Gemm)
    n, width, hidden, time = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
    g.derive(
        kind,
        op,
        (gates,),
        (g.gradient(y), weight, y, *saved),
        loops=Gemm(n, hidden, width, batch=time),  # dh [n, hidden] += dgates [n, width] w
        flops=kind.gradient.of(g.elements(y)),
    )
    g.derive(
        kind,
        op,
        (weight, *bias),
        (g.gradient(gates), y, *saved[-1:]),
        loops=Gemm(width, hidden, time * n),  # dw [width, hidden] = dgates' h of the step before
        flops=BIAS.gradient.of(g.elements(gates)) if bias else 0,
        attrs=op.attrs[1:],
    )


def _recurrent_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Gates [b, t, u] weight [u, h] -> states [b, t, u]; all states are gathered at each step."""
    states = tensors[op.outputs[0]]
    time = states.shape[1]
    step = Inner("all-gather", states.bytes // time, time)
    labels = ("b", "", "u")
    return OpAxes(
        (labels, ("u", ""), *((("u",),) * (len(op.inputs) - 2))),
        (labels,) * len(op.outputs),
        {"u": states.shape[2]},
        {"b": ("m",), "u": ("n",)},
        inner={"u": (step,)},
    )


def _recurrent_gradient_sharding(op: Op, tensors: Tensors, forward: Op, sig: OpAxes) -> OpAxes:
    """Read the states of the step before whole for the recurrent weights' gradient."""
    if op.pass_ is not Pass.WEIGHT_GRADIENT:
        return replace(sig, loops={"b": ("m",), "u": ("k",)})
    inputs = tuple(
        ("b", "", "") if name == forward.outputs[0] else labels
        for name, labels in zip(op.inputs, sig.inputs, strict=True)
    )
    return replace(sig, inputs=inputs, loops={"b": ("k",), "u": ("m",)}, inner={})


LSTM = op_kind(
    "lstm",
    forward=Cost(
        22,
        "state",
        "add the inputs' part (4), 3 sigmoids (12), tanh; c = f c + i g (3); o tanh c (2);"
        " a recurrent bias is 4 more",
    ),
    gradient=Cost(
        24,
        "state",
        "dh (1); do (2); dc, tanh c again (5); di, dg, df and dc of the step before (4);"
        " through 3 sigmoids (9) and a tanh (3); sum of a recurrent bias's gradient apart",
    ),
    sharding=_recurrent_sharding,
    gradient_sharding=_recurrent_gradient_sharding,
)(_gradient)
GRU = op_kind(
    "gru",
    forward=Cost(
        16,
        "state",
        "add the inputs' part (3), 2 sigmoids (8), reset (1), tanh; n + z (h - n) (3);"
        " a recurrent bias is 3 more",
    ),
    gradient=Cost(
        17,
        "state",
        "dh (2); dz (2) and dn (2), dr (1), through 2 sigmoids (6) and a tanh (3); reset (1)",
    ),
    sharding=_recurrent_sharding,
    gradient_sharding=_recurrent_gradient_sharding,
)(_gradient)
RNN_TANH = op_kind(
    "rnn-tanh",
    forward=Cost(2, "state", "add the inputs' part, tanh; a recurrent bias is 1 more"),
    gradient=Cost(4, "state", "dh (1); dh (1 - h h)"),
    sharding=_recurrent_sharding,
    gradient_sharding=_recurrent_gradient_sharding,
)(_gradient)
RNN_RELU = op_kind(
    "rnn-relu",
    forward=Cost(2, "state", "add the inputs' part, max(x, 0); a recurrent bias is 1 more"),
    gradient=Cost(2, "state", "dh (1); dh where h > 0"),
    sharding=_recurrent_sharding,
    gradient_sharding=_recurrent_gradient_sharding,
)(_gradient)
_KINDS = {kind.name: kind for kind in (LSTM, GRU, RNN_TANH, RNN_RELU)}
