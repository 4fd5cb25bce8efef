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

**X-as-Y** is X in memory where -mixed has 16 bits, and multiplied as Y (`workload.formats`): master
weights and what is cast are as in mixed precision. "fp16-as-fp32" is fp16-mixed on devices that
multiply fp16 no faster than fp32, at the rate and with the kernels of fp32 ("fp16-stored" is
another name of it); "fp32-as-bf16" is what TPUs make of fp32. The loss is scaled where X is a float
of less range than fp32.

**fp16-autocast, bf16-autocast** widen as torch.amp does: lookups stay in fp32; softmax, layer norm
and group norm (not batch and instance norm) cast what they read to fp32 and give fp32; sums of both
formats are fp32 (PyTorch, "Automatic Mixed Precision package", ops that autocast to float32 and ops
that promote to the widest type). So a residual stream is fp32 from its embedding on. Programs that
convert the network itself (apex O2, Megatron) are "mixed".

**Narrow products.** "fp8-mixed", "fp8-dynamic", "fp8-block-mixed", "mxfp8-mixed", "mxfp4-mixed",
"nvfp4-mixed" and "int8-mixed" are bf16-mixed but for the matrix products with weights whose three
sizes are multiples of 16: their operands are quantised to 8 or 4 bits, their results are bf16.
Convolutions, attention scores, recurrences and, unless they say otherwise, the classifiers of
decoders stay in bf16. Quantising reads a tensor, looks for its largest magnitude, scales, converts,
and writes the tensor twice, as it is and transposed, for narrow matrix units take one layout only
(those of Blackwell read 8 bits in either: `parallel.passes.one_layout`). fp8: e4m3 for activations
and weights, e5m2 for gradients, scaled by the magnitudes of steps before (Micikevicius et al.,
arXiv:2209.05433; NVIDIA Transformer Engine, recipe "DelayedScaling", format HYBRID), so that a
tensor is read once. "fp8-dynamic" scales by the tensor's own magnitude, which takes a reading of
its own (PyTorch's torchao, float8 with tensorwise scaling, `hp_tensor_to_float8_dynamic`), and so
does int8 (Banner et al., "Scalable methods for 8-bit training of neural networks", NeurIPS 2018).
"fp8-block-mixed" and "mxfp8-mixed" have a scale for every 128 and every 32 numbers along one side
of a matrix, in e4m3 throughout; both copies have scales of their own, which the kernel that
quantises finds by the way, so that a tensor is read once and always written twice (NVIDIA,
Transformer Engine documentation, "FP8 Blockwise Scaling" and "MXFP8": rowwise and columnwise
usage). "mxfp4-mixed" is the same in 4 bits (Open Compute Project, "Microscaling formats (MX)
specification"). "nvfp4-mixed" has 4 bits, also in both copies, and a scale for every 16 numbers
beside that of the tensor's own magnitude (NVIDIA, "Pretraining large language models with NVFP4",
arXiv:2509.25149; NVIDIA Transformer Engine, recipe "NVFP4BlockScaling"); the rotation of what
weight gradients are products of runs in the same kernel and is not counted, and every layer is
narrow. The exchange of magnitudes among ranks is not modelled.

**bf16-true, fp16-true** have weights, gradients and optimizer state in 16 bits, without fp32 copies
and without a scale of the loss (Lightning, `precision="bf16-true"`; torchtitan,
`training.dtype="bfloat16"`).

**fp64, fp16, int16, int8** have everything in one format: mini-batch, weights, gradients, optimizer
state, statistics and loss. They are for machines that have no other arithmetic, and say what a step
takes there; whether a network converges so is another question, which is not answered.

**flex16+5** keeps weights, activations, gradients and optimizer state in 16 bits with one 5-bit
exponent a tensor, without fp32 copies (Köster et al., arXiv:1711.02213); the hardware tracks the
largest magnitudes. Statistics and the loss are fp32 here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload import formats

MASTER = "fp32"
"""Format of statistics and loss in every precision, of weights and optimizer state in most."""

_RANGE_BITS = formats.FORMATS[MASTER].exponent_bits
NARROW_MULTIPLE = 16
"""Sizes of a product in 8 bits are multiples of this (cuBLAS: 16 bytes; Transformer Engine)."""

PURE = ("fp64", "fp16", "int16", "int8")
"""Precisions that have one format for everything: of machines that have nothing else."""

_LOSS_SCALE = 65536.0  # where torch.amp.GradScaler starts; the value changes no cost


@dataclass(frozen=True, slots=True)
class Narrow:
    """How matrix products are done in a narrower format than `Numerics.compute`.

    Attributes
    ----------
    forward, gradient
        Formats of activations and weights, and of the gradients that come back.
    reads
        How often a tensor is read to be quantised: again, if its own magnitude is its scale.
    """

    forward: str
    gradient: str
    reads: int


@dataclass(frozen=True, slots=True)
class Numerics:
    """A precision by name.

    Attributes
    ----------
    compute
        Format of the operands of convolutions and matrix products, hence of most activations.
    loss_scale
        What the loss is multiplied by before the backward pass; None: no loss scaling.
    master
        Format of weights and optimizer state.
    narrow
        Formats of the operands of matrix products, if they are not in `compute`.
    widens
        Whether lookups, softmax and layer norm give `master` rather than their input's format.
    """

    name: str
    compute: str
    loss_scale: float | None = None
    master: str = MASTER
    narrow: Narrow | None = None
    widens: bool = False
    pure: bool = False
    """Whether everything has `compute`: statistics, loss and the mini-batch, too."""

    def of(self, format_: str) -> str:
        """Return the format of a tensor that would have another where the precision has several."""
        return self.compute if self.pure and format_ == MASTER else format_

    @property
    def delivered(self) -> str:
        """Format in which a mini-batch of real numbers arrives: fp32, whatever it is called."""
        return self.compute if self.pure or same_in_memory(self.compute, MASTER) else MASTER


PRECISIONS: Mapping[str, Numerics] = MappingProxyType(
    {
        numerics.name: numerics
        for numerics in (
            Numerics("fp32", "fp32"),
            Numerics("tf32", "tf32"),
            Numerics("fp16-mixed", "fp16", loss_scale=_LOSS_SCALE),
            Numerics("bf16-mixed", "bf16"),
            Numerics("fp16-autocast", "fp16", loss_scale=_LOSS_SCALE, widens=True),
            Numerics("bf16-autocast", "bf16", widens=True),
            Numerics("fp8-mixed", "bf16", narrow=Narrow("fp8-e4m3", "fp8-e5m2", reads=1)),
            Numerics("fp8-dynamic", "bf16", narrow=Narrow("fp8-e4m3", "fp8-e5m2", reads=2)),
            Numerics("fp8-block-mixed", "bf16", narrow=Narrow("fp8-block", "fp8-block", reads=1)),
            Numerics("mxfp8-mixed", "bf16", narrow=Narrow("mxfp8", "mxfp8", reads=1)),
            Numerics("mxfp4-mixed", "bf16", narrow=Narrow("mxfp4", "mxfp4", reads=1)),
            Numerics("nvfp4-mixed", "bf16", narrow=Narrow("nvfp4", "nvfp4", reads=2)),
            Numerics("int8-mixed", "bf16", narrow=Narrow("int8", "int8", reads=2)),
            Numerics("bf16-true", "bf16", master="bf16"),
            Numerics("fp16-true", "fp16", master="fp16"),
            Numerics("flex16+5", "flex16+5", master="flex16+5"),
            *(Numerics(name, name, master=name, pure=True) for name in PURE),
        )
    }
)


def is_discrete(format_: str, numerics: Numerics) -> bool:
    """Tell whether tensors of a format hold indices or truth values, which have no gradient.

    In a pure precision of integers these are the values of the network themselves.
    """
    return format_.startswith("int") and not (numerics.pure and format_ == numerics.compute)


def find(precision: str) -> Numerics:
    """Return a precision by name.

    Raises
    ------
    RidgelineError
        If it is unknown.
    """
    if precision in PRECISIONS:
        return PRECISIONS[precision]
    if formats.AS in formats.ALIASES.get(precision, precision):
        stored = formats.find(precision)
        scaled = stored.kind == "float" and stored.exponent_bits < _RANGE_BITS
        return Numerics(stored.name, stored.name, _LOSS_SCALE if scaled else None)
    allowed = ", ".join(PRECISIONS)
    raise RidgelineError(
        f"unknown precision {precision!r}{nearest(precision, PRECISIONS)} (known: {allowed}, and "
        f"X{formats.AS}Y: stored as X, multiplied as Y)"
    )


def same_in_memory(a: str, b: str) -> bool:
    """Tell whether a tensor of format `a` can be read as format `b` without a cast."""
    return formats.find(a).in_memory == formats.find(b).in_memory


def widest(names: tuple[str, ...]) -> str:
    """Return the format with the most bytes; the first of equals."""
    return max(names, key=formats.bytes_of)
