"""Losses: means over a mini-batch, in fp32."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op
from ridgeline.workload.kinds import Cost, OpKind, op_kind
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.sharding_axes import Inner, OpAxes, Tensors
from ridgeline.workload.sharding_rules import plain_labels, sample_sharding

_LOG_SOFTMAX = "log-softmax"


def cross_entropy(
    b: GraphBuilder,
    layer: str,
    logits: str,
    labels: str,
    *,
    axis: int = -1,
) -> str:
    """Mean cross entropy of softmax(logits) over an axis; the log-probabilities are kept.

    Where the network's loss is separate, maximum, subtraction, exponential, sum and division are
    kernels of their own, in place: they read the logits five times and write them three times
    (Megatron-LM, `mpu/cross_entropy.py`). Else one kernel reads and writes them once.
    "log-softmax": log-softmax and the loss of its result are ops of their own, so that the backward
    pass forms the gradient of the log-probabilities in full, and then that of the logits (PyTorch,
    `cross_entropy`).
    """
    separate = b.separate_loss
    rest = list(b.shape(logits))
    del rest[axis]
    if tuple(rest) != b.shape(labels):
        raise RidgelineError(
            f"layer {layer!r}: logits {list(b.shape(logits))} and labels {list(b.shape(labels))}"
            " do not belong together"
        )
    logits = b.cast(logits, MASTER, layer)
    kept = b.activation(f"{layer}.log-probabilities", b.shape(logits), MASTER)
    loss = b.activation(f"{layer}.y", (), MASTER)
    flops = LOSS.forward.of(b.elements(logits))
    b.emit(
        LOSS,
        layer,
        (logits, labels),
        (loss, kept),
        flops=flops,
        attrs=(("axis", axis), *(((_LOG_SOFTMAX, 1),) if separate == _LOG_SOFTMAX else ())),
        passes=(5, 1) if separate is True else (),
        output_passes=(0, 3) if separate is True else (),
    )
    return loss


def binary_cross_entropy(b: GraphBuilder, layer: str, logits: str, targets: str) -> str:
    """Mean cross entropy of sigmoid(logits) against targets from 0 to 1."""
    return _pointwise(b, BCE_LOSS, layer, logits, targets)


def mean_squared_error(b: GraphBuilder, layer: str, x: str, targets: str) -> str:
    """Mean of (x - targets) ** 2."""
    return _pointwise(b, MSE_LOSS, layer, x, targets)


def smooth_l1(b: GraphBuilder, layer: str, x: str, targets: str) -> str:
    """Mean of d d / 2 where the difference d is under 1, else of |d| - 1 / 2.

    Girshick, Fast R-CNN, ICCV 2015, arXiv:1504.08083, equation 3.
    """
    return _pointwise(b, SMOOTH_L1_LOSS, layer, x, targets)


def ctc(b: GraphBuilder, layer: str, logits: str, labels: str) -> str:
    """Connectionist temporal classification of logits [batch, time, classes]; blank is the last.

    Graves et al., ICML 2006, Section 4.1: labels [batch, length] of full length; forward variables
    over 2 length + 1 states are kept with the log-probabilities.
    """
    (n, time, _), (_, length) = b.shape(logits), b.shape(labels)
    if length > time:
        raise RidgelineError(f"layer {layer!r}: {length} labels in {time} timesteps")
    logits = b.cast(logits, MASTER, layer)
    kept = b.activation(f"{layer}.log-probabilities", b.shape(logits), MASTER)
    states = b.activation(f"{layer}.forward-variables", (n, time, 2 * length + 1), MASTER)
    loss = b.activation(f"{layer}.y", (), MASTER)
    flops = LOSS.forward.of(b.elements(logits)) + CTC_LOSS.forward.of(b.elements(states))
    b.emit(CTC_LOSS, layer, (logits, labels), (loss, kept, states), flops=flops)
    return loss


def transducer(b: GraphBuilder, layer: str, logits: str, labels: str) -> str:
    """Transducer loss of logits [batch, time, 1 + labels, classes]; blank is the last class.

    Graves, Sequence transduction with recurrent neural networks, 2012, arXiv:1211.3711, Section
    2.4: forward variables and the logarithms of the sums over classes are kept, from which the
    gradient forms the probabilities again, as the programs of torchaudio and apex do.
    """
    (n, time, positions, _), (_, length) = b.shape(logits), b.shape(labels)
    if positions != length + 1:
        raise RidgelineError(f"layer {layer!r}: {length} labels have {positions} positions")
    kept = (
        b.activation(f"{layer}.log-sums", (n, time, positions), MASTER),
        b.activation(f"{layer}.forward-variables", (n, time, positions), MASTER),
    )
    loss = b.activation(f"{layer}.y", (), MASTER)
    states = n * time * positions
    flops = LOSS.forward.of(b.elements(logits)) + TRANSDUCER_LOSS.forward.of(states)
    b.emit(TRANSDUCER_LOSS, layer, (logits, labels), (loss, *kept), flops=flops)
    return loss


def _pointwise(b: GraphBuilder, kind: OpKind, layer: str, x: str, targets: str) -> str:
    if b.shape(x) != b.shape(targets):
        raise RidgelineError(
            f"layer {layer!r}: outputs {list(b.shape(x))} and targets {list(b.shape(targets))}"
            " do not belong together"
        )
    x = b.cast(x, MASTER, layer)
    loss = b.activation(f"{layer}.y", (), MASTER)
    b.emit(kind, layer, (x, targets), (loss,), flops=kind.forward.of(b.elements(x)))
    return loss


def _cross_entropy_gradient(g: GradientBuilder, op: Op) -> None:
    (logits, labels), (loss, kept) = op.inputs, op.outputs
    if g.wants(logits):
        flops = LOSS.gradient.of(g.elements(logits))
        by_two = (_LOG_SOFTMAX, 1) in op.attrs
        g.derive(
            LOSS,
            op,
            (logits, kept) if by_two else (logits,),
            (g.gradient(loss), kept, labels),
            flops=flops,
            output_passes=(1, 2) if by_two else (),  # the gradient of `kept`: written, then read
        )


def _pointwise_gradient(g: GradientBuilder, op: Op) -> None:
    (x, targets), (loss,) = op.inputs, op.outputs
    kind = _POINTWISE[op.kind]
    if g.wants(x):
        flops = kind.gradient.of(g.elements(x))
        g.derive(kind, op, (x,), (g.gradient(loss), x, targets), flops=flops)


def _ctc_gradient(g: GradientBuilder, op: Op) -> None:
    (logits, labels), (loss, kept, states) = op.inputs, op.outputs
    if g.wants(logits):
        flops = LOSS.gradient.of(g.elements(logits)) + CTC_LOSS.gradient.of(g.elements(states))
        g.derive(CTC_LOSS, op, (logits,), (g.gradient(loss), kept, states, labels), flops=flops)


def _transducer_gradient(g: GradientBuilder, op: Op) -> None:
    (logits, labels), (loss, *kept) = op.inputs, op.outputs
    if g.wants(logits):
        states = g.elements(kept[0])
        flops = LOSS.gradient.of(g.elements(logits)) + TRANSDUCER_LOSS.gradient.of(states)
        g.derive(
            TRANSDUCER_LOSS, op, (logits,), (g.gradient(loss), logits, *kept, labels), flops=flops
        )


def _cross_entropy_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Divided by classes, the rows' maxima, sums and target logits are summed over the devices.

    Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053, Section 3.
    """
    logits, labels = tensors[op.inputs[0]], tensors[op.inputs[1]]
    axis = int(dict(op.attrs).get("axis", -1)) % len(logits.shape)
    dims = tuple("v" if i == axis else f"d{i}" for i in range(len(logits.shape)))
    rest = tuple(label for label in dims if label != "v")
    sums = Inner("all-reduce", replace(logits, shape=labels.shape).bytes, repeat=3)
    return OpAxes((dims, rest), ((), dims), padded=frozenset({"v"}), inner={"v": (sums,)})


def _pointwise_sharding(op: Op, tensors: Tensors) -> OpAxes:
    """Take a mean over all elements."""
    labels = plain_labels(len(tensors[op.inputs[0]].shape))
    return OpAxes((labels, labels), ((),))


LOSS = op_kind(
    "loss",
    forward=Cost(5, "logit", "maximum, subtract, exp, sum, subtract the logarithm"),
    gradient=Cost(3, "logit", "exp, subtract the one-hot label, scale"),
    sharding=_cross_entropy_sharding,
)(_cross_entropy_gradient)
BCE_LOSS = op_kind(
    "bce-loss",
    forward=Cost(7, "logit", "max(x, 0) - x t + log(1 + exp(-|x|)) (6), add to the sum"),
    gradient=Cost(6, "logit", "sigmoid (4), subtract the target, scale"),
    sharding=_pointwise_sharding,
)(_pointwise_gradient)
MSE_LOSS = op_kind(
    "mse-loss",
    forward=Cost(3, "element", "subtract, square, add to the sum"),
    gradient=Cost(2, "element", "subtract, scale"),
    sharding=_pointwise_sharding,
)(_pointwise_gradient)
SMOOTH_L1_LOSS = op_kind(
    "smooth-l1-loss",
    forward=Cost(5, "element", "subtract, compare, square, halve, add to the sum"),
    gradient=Cost(3, "element", "subtract, clip to -1 .. 1, scale"),
    sharding=_pointwise_sharding,
)(_pointwise_gradient)
CTC_LOSS = op_kind(
    "ctc-loss",
    forward=Cost(
        6, "timestep and state", "log-sum of three (5), add; and cross entropy's per logit"
    ),
    gradient=Cost(8, "timestep and state", "backward variables (6), product and sum; and as above"),
    sharding=sample_sharding,
)(_ctc_gradient)
TRANSDUCER_LOSS = op_kind(
    "transducer-loss",
    forward=Cost(
        5, "timestep and position", "two products, log-sum of two; cross entropy's per logit"
    ),
    gradient=Cost(9, "timestep and position", "backward variables (5), two products; and as above"),
    sharding=sample_sharding,
)(_transducer_gradient)
_POINTWISE = {kind.name: kind for kind in (BCE_LOSS, MSE_LOSS, SMOOTH_L1_LOSS)}
