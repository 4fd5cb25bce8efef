"""Precisions: which number format each tensor of a training step has.

==================  ======  ======  ==========  ==========
tensor              fp32    tf32    fp16-mixed  bf16-mixed
==================  ======  ======  ==========  ==========
mini-batch          fp32    tf32    fp32        fp32
weight              fp32    fp32    fp32        fp32
weight copy         none    none    fp16        bf16
activation          fp32    tf32    fp16        bf16
gradient            that of the tensor it belongs to
norm weights        fp32    fp32    fp32        fp32
embedding tables    fp32    fp32    fp32        fp32
statistics          fp32    fp32    fp32        fp32
loss                fp32    fp32    fp32        fp32
optimizer state     fp32    fp32    fp32        fp32
==================  ======  ======  ==========  ==========

Mixed precision follows PyTorch's native automatic mixed precision (torch.amp: autocast and
GradScaler), which NVIDIA's DeepLearningExamples train their ConvNets with
(PyTorch/Classification/ConvNets/image_classification/training.py): a convolution or matrix
product casts what it reads to 16 bit, each weight once a step; its weight gradient is produced in
16 bit and cast to the fp32 of the weight; the optimizer and the all-reduce see fp32 gradients.
(Apex O2 keeps 16-bit gradients instead.) fp16 multiplies the loss by a scale and divides the
gradients by it before the update; bf16 has the range of fp32 and does without.

Norms and softmax compute in fp32 and give their output in their input's format, as the kernels of
cuDNN, apex and Megatron do (torch.amp would widen what layer norm and softmax give). A lookup
reads rows of the fp32 table and gives them in the compute format.

"tf32" is stored as fp32 in 4 bytes; the name says that tensor cores may round it when they
multiply. The first input of a contraction has the format that it multiplies in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload.graph import FORMAT_BYTES

MASTER = "fp32"
"""Format of weights, statistics, loss and optimizer state in every precision."""

_FP32_IN_MEMORY = frozenset({"fp32", "tf32"})


@dataclass(frozen=True, slots=True)
class Numerics:
    """A precision by name.

    Attributes
    ----------
    compute
        Format of the operands of convolutions and matrix products, hence of most activations.
    loss_scale
        What the loss is multiplied by before the backward pass; None: no loss scaling.
    """

    name: str
    compute: str
    loss_scale: float | None = None

    @property
    def delivered(self) -> str:
        """Format in which a mini-batch of real numbers arrives: fp32, whatever it is called."""
        return self.compute if same_in_memory(self.compute, MASTER) else MASTER


PRECISIONS: Mapping[str, Numerics] = MappingProxyType(
    {
        numerics.name: numerics
        for numerics in (
            Numerics("fp32", "fp32"),
            Numerics("tf32", "tf32"),
            # 2**16 is where torch.amp.GradScaler starts; the value changes no cost.
            Numerics("fp16-mixed", "fp16", loss_scale=65536.0),
            Numerics("bf16-mixed", "bf16"),
        )
    }
)
_PLANNED = frozenset({"fp8-mixed"})


def find(precision: str) -> Numerics:
    """Return a precision by name.

    Raises
    ------
    RidgelineError
        If it is unknown or not modelled yet.
    """
    if precision in PRECISIONS:
        return PRECISIONS[precision]
    allowed = ", ".join(PRECISIONS)
    if precision in _PLANNED:
        raise RidgelineError(f"precision {precision!r} is not modelled yet (modelled: {allowed})")
    raise RidgelineError(
        f"unknown precision {precision!r}{nearest(precision, PRECISIONS)} (known: {allowed})"
    )


def same_in_memory(a: str, b: str) -> bool:
    """Tell whether a tensor of format `a` can be read as format `b` without a cast."""
    return a == b or {a, b} <= _FP32_IN_MEMORY


def widest(formats: tuple[str, ...]) -> str:
    """Return the format with the most bytes; the first of equals."""
    return max(formats, key=FORMAT_BYTES.__getitem__)
