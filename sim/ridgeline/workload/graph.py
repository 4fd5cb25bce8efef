"""A Graph: the ops and tensors of one training step, with exact shapes, formats, FLOPs and bytes.

A graph is concrete: it is built for one batch size and one precision. 1 MAC = 2 FLOP.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from ridgeline.workload import formats
from ridgeline.workload.sparsity import Sparsity

FORMAT_BYTES = formats.FORMAT_BYTES
"""Bytes of one number of each format, in whole bytes."""

Passes = tuple[int | Fraction, ...]
PIECES = "pieces"
"""Of how many that the rows of a product are cut in some are done by an op: an attribute."""


class Pass(StrEnum):
    """The part of a training step that an op belongs to."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"  # a forward op done again in the backward pass
    INPUT_GRADIENT = "input-gradient"
    WEIGHT_GRADIENT = "weight-gradient"
    UPDATE = "update"


class Role(StrEnum):
    """What a tensor is for; it decides how long it lives and which memory kind it counts to."""

    INPUT = "input"  # a mini-batch: images, tokens, labels
    # parameters that the optimizer owns (a master copy in fp32 in mixed precision), and those that
    # nothing updates (`Graph.frozen`), in the format that they are computed with
    WEIGHT = "weight"
    WEIGHT_COPY = "weight-copy"  # a weight cast to the compute format; made once a step
    BUFFER = "buffer"  # running statistics: kept across steps, not trained, not a parameter
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation-gradient"
    WEIGHT_GRADIENT = "weight-gradient"
    STATE = "state"  # optimizer state: momentum, variances
    HOST = "host"  # a copy in the host's memory; takes none of the device's


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array: shape, number format and role."""

    name: str
    shape: tuple[int, ...]
    format: str
    role: Role
    sparsity: Sparsity | None = None
    """Of an operand of a contraction: the zeros that an engine may make use of."""

    def reshaped(self, shape: tuple[int, ...]) -> Tensor:
        """Return the same tensor in another shape; itself if it has that one."""
        if shape == self.shape:
            return self
        return Tensor(self.name, shape, self.format, self.role, self.sparsity)

    def renamed(self, name: str) -> Tensor:
        """Return the same tensor under another name."""
        return Tensor(name, self.shape, self.format, self.role, self.sparsity)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes: of all bits, what the elements share among them, rounded up."""
        return _bytes(self.format, self.shape)


@lru_cache(maxsize=8192)
def _bytes(format_: str, shape: tuple[int, ...]) -> int:
    """Size of an array: networks have few different ones, which are asked for often."""
    return -(-formats.find(format_).tensor_bits(math.prod(shape)) // 8)


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` products C[m, n] += A[m, k] B[k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Conv:
    """The forward loop nest of a 2-D convolution; its two gradients have the same loops.

    Images [batch, c_in, h_in, w_in], filters [c_out, c_in / groups, r, s], outputs
    [batch, c_out, h_out, w_out]. `stride`, `padding` and `dilation` are (height, width). Of a
    volume, `taps` is how many times its channels stand in `c_in`: once for each tap along the axis
    that is folded away.
    """

    batch: int
    c_in: int
    h_in: int
    w_in: int
    c_out: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    taps: int = 1

    @property
    def h_out(self) -> int:
        """Height of the output."""
        reach = self.dilation[0] * (self.r - 1) + 1
        return (self.h_in + 2 * self.padding[0] - reach) // self.stride[0] + 1

    @property
    def w_out(self) -> int:
        """Width of the output."""
        reach = self.dilation[1] * (self.s - 1) + 1
        return (self.w_in + 2 * self.padding[1] - reach) // self.stride[1] + 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the direct convolution, padding counted as work."""
        filters = self.c_out * (self.c_in // self.groups) * self.r * self.s
        return self.batch * self.h_out * self.w_out * filters


EPILOGUE = "epilogue"
"""Attribute of a product: the functions, joined by +, that are applied to its results on their way
out (`parallel.passes.product_epilogues`)."""

LIBRARY = "library"
"""Attribute of an op of generation: the framework whose kernel it is; "": of any of them."""
WITHIN = "within-library-call"
"""Attribute of an op of generation: the kernel of another one does it, where a library has that."""

MET = "met"
"""Attribute of fused attention: the share of its scores inside a window or chunk of its mask."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: what it reads, what it writes and how much arithmetic it does.

    Attributes
    ----------
    kind
        "conv2d", "gemm", "batch-norm", "relu", "add", "max-pool", "avg-pool", "softmax", "dropout",
        "cast", "bias", "loss", "optimizer", ...: a name that a device may have a special price for.
    loops
        The loop nest of a contraction (convolution or matrix product), else None.
    vector_flops
        Arithmetic outside contractions, in FLOP, done by a vector unit.
    input_passes
        How often each input is streamed from memory (batch norm reads its input twice: statistics,
        then normalisation); a fraction where only a part is touched (the rows of an embedding table
        that are looked up). Same length as `inputs`.
    in_place
        The first output overwrites the first input's storage.
    attrs
        What else defines the op, by name: window and stride of a pool, epsilon, drop probability.
        "causal" of attention: half of the products meet only masked scores. "sequential" of a
        recurrence: the products of the batch depend on each other and run one after the other.
        "columns" of a product: which rows of its weights it multiplies with, where not all.
        "kernels": how many one after the other do the op's work; 1 unless it is said. "blocks": how
        many thread blocks share it, where they may be fewer than a device's processors.
    output_passes
        How often each output is written; empty: once each.
    recomputed_flops
        The part of `matrix_flops` that repeats forward work (fused attention forms its scores
        again in the backward pass; an op of `Pass.RECOMPUTE` is nothing else).
    found
        By input and then output: how many levels that keep tensors do not hold it, where the
        schedule of a whole step has settled it (`kernels.fusion`); None: as its device keeps it.
    """

    name: str
    kind: str
    pass_: Pass
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loops: Gemm | Conv | None = None
    vector_flops: int = 0
    input_passes: Passes = ()
    in_place: bool = False
    attrs: tuple[tuple[str, int | float | str], ...] = ()
    output_passes: Passes = ()
    recomputed_flops: int = 0
    found: tuple[float, ...] | None = None

    @property
    def parts(self) -> tuple[Op, ...]:
        """The ops that this one is made of: itself, or those of fused layers (`FusedOp`)."""
        return (self,)

    @property
    def matrix_flops(self) -> int:
        """FLOPs of the contraction at its mathematical shape."""
        return 2 * self.loops.macs if self.loops is not None else 0

    @property
    def priced_as(self) -> Pass:
        """The pass whose arithmetic this is: what is recomputed costs what it did before."""
        return Pass.FORWARD if self.pass_ is Pass.RECOMPUTE else self.pass_

    @property
    def sequential(self) -> bool:
        """Whether the products of a batch depend on each other, as the steps of a recurrence."""
        return ("sequential", 1) in self.attrs

    @property
    def kernels(self) -> int:
        """Kernels that do the op's work, one after the other."""
        return next((int(value) for name, value in self.attrs if name == "kernels"), 1)

    @property
    def launched(self) -> int:
        """Thread blocks of each of many launches that share the op's work; 0: all are launched."""
        return next((int(value) for name, value in self.attrs if name == "launched"), 0)

    @property
    def blocks(self) -> int:
        """Thread blocks that share the op's work; 0: enough for every device."""
        return next((int(value) for name, value in self.attrs if name == "blocks"), 0)

    @property
    def workspace_bytes(self) -> float:
        """The most work space that kernels of a convolution may have."""
        return next((float(value) for name, value in self.attrs if name == "workspace"), math.inf)

    @property
    def met_share(self) -> float:
        """Share of the scores of fused attention that its window or chunks leave; 1 elsewhere."""
        return next((float(share) for name, share in self.attrs if name == MET), 1.0)

    @property
    def causal(self) -> bool:
        """Whether half of the products meet only scores that a causal mask hides."""
        return ("causal", 1) in self.attrs


class CheckpointRegion(NamedTuple):
    """Forward ops that the backward pass forms again, in order: all (`whole`), or what it needs."""

    ops: tuple[str, ...]
    whole: bool = False


class BackwardPass(NamedTuple):
    """One backward pass of a step that has several, or several optimizers.

    Attributes
    ----------
    loss
        The tensor whose gradient is taken.
    after
        How many ops of the forward graph come before it.
    updates
        Which optimizers follow it, by name, and the weights that each updates.
    frozen
        Weights that it forms no gradients of.
    forgets
        Weights whose gradients of earlier passes are gone when it begins (``zero_grad``); those of
        others are added to.
    """

    loss: str
    after: int
    updates: tuple[tuple[str, tuple[str, ...]], ...]
    frozen: frozenset[str] = frozenset()
    forgets: frozenset[str] = frozenset()


def is_generated(op: Op) -> bool:
    """Tell whether an op is one that libraries for generation have a kernel for."""
    return any(name in (LIBRARY, WITHIN) for name, _ in op.attrs)


@dataclass(frozen=True)
class Graph:
    """Ops in an order in which they can run, and the tensors between them.

    A forward graph has only ops of Pass.FORWARD; `ridgeline.workload.autodiff.training_graph` makes
    the training graph of it.
    """

    name: str
    batch: int
    precision: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    loss: str  # the tensor whose gradient is taken
    sample: str = "samples"  # what one element of the batch is: "images", "sequences"
    tokens_per_sample: int = 0
    notes: tuple[str, ...] = field(default=())
    partial: bool = False
    """Whether weights may have no path to the loss, as in a user's own network: they are held,
    but get neither gradient nor update."""
    frozen: frozenset[str] = frozenset()
    """Weights that are not trained."""
    checkpoints: tuple[CheckpointRegion, ...] = ()
    """What the network's own code has the backward pass form again
    (`parallel.checkpointing.recompute`)."""
    backwards: tuple[BackwardPass, ...] = ()
    """The backward passes of a step that has several, or several optimizers; `loss` is the last."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every tensor."""
        return {name: tensor.bytes for name, tensor in self.tensors.items()}

    @cached_property
    def parameters(self) -> int:
        """Number of parameters, frozen ones included."""
        return sum(t.elements for t in self.tensors.values() if t.role is Role.WEIGHT)

    @cached_property
    def activation_bytes(self) -> int:
        """Bytes that the forward pass keeps for the backward pass, mini-batch included.

        These are the tensors of the forward pass that another pass reads, weights apart, whatever
        is computed again for it; none in a forward graph.
        """
        again = {name for op in self.ops if op.pass_ is not Pass.FORWARD for name in op.inputs}
        made = {name for op in self.ops if op.pass_ is Pass.FORWARD for name in op.outputs}
        kept = [self.tensors[name] for name in again]
        return sum(
            t.bytes
            for t in kept
            if t.role is Role.INPUT or (t.role is Role.ACTIVATION and t.name in made)
        )

    @cached_property
    def contractions(self) -> tuple[tuple[int, int], ...]:
        """Place of every contraction among the ops, and its FLOPs at the mathematical shape."""
        return tuple((i, op.matrix_flops) for i, op in enumerate(self.ops) if op.matrix_flops)

    @cached_property
    def useful_flops(self) -> int:
        """Matrix and convolution FLOPs of forward and backward."""
        return self.flops() - self.flops(Pass.UPDATE)

    def flops(
        self, pass_: Pass | None = None, *, causal_flops: Literal["full", "half"] = "full"
    ) -> int:
        """Return the matrix and convolution FLOPs of one pass, or of the whole step.

        What an op computes again (`Op.recomputed_flops`) is not counted.

        Parameters
        ----------
        pass_
            None: all passes.
        causal_flops
            "half" counts half of the products of causal attention. What a window or a chunk of it
            leaves out is never counted (`Op.met_share`).
        """
        total = 0
        for op in (part for whole in self.ops for part in whole.parts):
            if op.loops is not None and (pass_ is None or op.pass_ is pass_):
                useful = op.matrix_flops - op.recomputed_flops
                half = causal_flops == "half" and op.causal
                if op.met_share < (0.5 if half else 1.0):
                    total += int(useful * op.met_share)
                else:
                    total += useful // 2 if half else useful
        return total

    @cached_property
    def recomputed_flops(self) -> int:
        """Matrix FLOPs that ops of the backward pass spend on repeating forward work."""
        return sum(
            op.recomputed_flops if op.met_share == 1 else int(op.recomputed_flops * op.met_share)
            for whole in self.ops
            for op in whole.parts
        )

    def read_bytes(self, op: Op) -> int:
        """Bytes that `op` streams in, each input as often as its `input_passes` say."""
        return self._streamed(op.inputs, op.input_passes)

    def write_bytes(self, op: Op) -> int:
        """Bytes that `op` writes, each output as often as its `output_passes` say."""
        return self._streamed(op.outputs, op.output_passes)

    def _streamed(self, names: tuple[str, ...], passes: Passes) -> int:
        sizes = map(self.sizes.__getitem__, names)
        if not passes:
            return sum(sizes)
        return int(sum([n * size for n, size in zip(passes, sizes, strict=True)]))


@dataclass(frozen=True, eq=False)
class Same:
    """A graph as a key of a cache: equal only to itself."""

    graph: Graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.graph is self.graph


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, with the least number behind it that makes it new: x, x.2, x.3."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free
