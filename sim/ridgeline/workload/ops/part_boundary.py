"""Ends of a part of a network: what it takes from parts before it, and hands to parts behind it.

None of them computes or moves anything: what is sent between parts is priced where they are played
together (`study.parts`). They stand where a tensor has to be whole on every device, and where its
gradient comes and goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.workload.builder import TRAINED_BEFORE, GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Pass, Role, Tensor
from ridgeline.workload.kinds import op_kind
from ridgeline.workload.sharding_axes import whole

_NO_KERNEL = (("kernels", 0),)


def take_over(b: GraphBuilder, layer: str, tensors: Sequence[Tensor], *, trained: bool) -> None:
    """Declare tensors that another part has made; with `trained` their gradients go back there."""
    ticket = b.input(f"{layer}.samples", (b.batch,), "int64")
    names = [b.activation(t.name, t.shape, t.format) for t in tensors]
    b.emit(
        TAKE_OVER,
        layer,
        (ticket,),
        names,
        passes=(0,),
        output_passes=(0,) * len(names),
        attrs=(*_NO_KERNEL, TRAINED_BEFORE) if trained else _NO_KERNEL,
    )


def hand_over(b: GraphBuilder, layer: str, tensors: Sequence[str]) -> str:
    """Hand tensors to another part; returns what stands for its loss."""
    y = b.activation(f"{layer}.y", (1,), "fp32")
    b.emit(
        HAND_OVER,
        layer,
        tuple(tensors),
        (y,),
        passes=(0,) * len(tensors),
        output_passes=(0,),
        attrs=_NO_KERNEL,
    )
    return y


def _give_back(g: GradientBuilder, op: Op) -> None:
    """Let the gradients of what was taken over go back."""
    gradients = [g.gradient(name) for name in op.outputs if g.has_gradient(name)]
    sent = g.tensor(f"{op.layer}.sent", (1,), "fp32", Role.ACTIVATION_GRADIENT)
    g.emit(
        TAKE_OVER,
        op.layer,
        gradients,
        (sent,),
        name=give_back_name(op.layer),
        pass_=Pass.INPUT_GRADIENT,
        passes=(0,) * len(gradients),
        output_passes=(0,),
        attrs=_NO_KERNEL,
    )


def _gradients_come(g: GradientBuilder, op: Op) -> None:
    """Take the gradients of what was handed over."""
    wanted = [name for name in op.inputs if g.wants(name)]
    g.derive(HAND_OVER, op, wanted, (), output_passes=(0,) * len(wanted))


def give_back_name(layer: str) -> str:
    """Name of the op behind which gradients of what a layer took over are complete."""
    return f"{layer}.give-back"


TAKE_OVER = op_kind("take-over", sharding=whole)(_give_back)
HAND_OVER = op_kind("hand-over", sharding=whole)(_gradients_come)
