"""AmoebaNet-D: cells found by evolution.

Real et al., Regularized evolution for image classifier architecture search, AAAI 2019,
arXiv:1802.01548, Figure 6 (normal and reduction cell); scaled as in Huang et al., GPipe, NeurIPS
2019, arXiv:1811.06965, Table 1. The states that a normal cell hands on, [0, 3, 4, 6], are those of
Google's TPU implementation, with which GPipe's parameter counts come out; the paper prints
[4, 5, 6]. A factorised reduction's second convolution starts one pixel later, which is not
modelled.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

from pydantic import model_validator

from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Channels, Image, Network, family
from ridgeline.workload.families.decoder import Layers
from ridgeline.workload.ops.window import Pair

Step = tuple[int, str]


class _Cell(NamedTuple):
    """Pairs of (state, operation), whose results are added to a new state; states handed on."""

    pairs: tuple[tuple[Step, Step], ...]
    out: tuple[int, ...]


_NORMAL = _Cell(
    (
        ((1, "1x1"), (1, "max-3x3")),
        ((1, "none"), (0, "1x7-7x1")),
        ((0, "1x1"), (0, "1x7-7x1")),
        ((2, "max-3x3"), (2, "none")),
        ((1, "avg-3x3"), (5, "1x1")),
    ),
    (0, 3, 4, 6),
)
_REDUCTION = _Cell(
    (
        ((0, "max-2x2"), (0, "max-3x3")),
        ((2, "none"), (1, "3x3")),
        ((2, "1x7-7x1"), (2, "max-3x3")),
        ((3, "none"), (1, "max-2x2")),
        ((2, "avg-3x3"), (3, "1x1")),
    ),
    (4, 5, 6),
)


@family("amoebanet", network_kind="cnn")
class AmoebaNet(Network):
    """A stem that shrinks the image to an eighth, and three groups of cells."""

    sample: ClassVar[str] = "images"

    image: Image
    classes: Channels
    layers: Layers
    """Normal cells: L of GPipe's (L, D)."""
    filters: Channels
    """Filters: D of GPipe's (L, D); the stem has a quarter, every reduction twice as many."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.layers % 3 or self.filters % 16:
            raise ValueError("layers must be a multiple of 3, filters of 16")
        return self

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        x, labels = self.image.inputs(b)
        channels = self.filters // 4
        x = _relu_conv_bn(b, "stem1", x, channels, 3, (2, 2), relu=False)
        kinds = ["reduction", "reduction"]
        for group in range(3):
            kinds += ["reduction"] * (group > 0) + ["normal"] * (self.layers // 3)
        before = x
        for i, kind in enumerate(kinds):
            channels *= 2 if kind == "reduction" else 1
            cell = _REDUCTION if kind == "reduction" else _NORMAL
            x, before = _write(b, f"cell{i}", cell, x, before, channels), x
        x = ops.adaptive_avg_pool(b, "avgpool", x)
        logits = ops.linear(b, "fc", x, self.classes, flatten=True)
        return ops.cross_entropy(b, "loss", logits, labels)


def _write(b: GraphBuilder, name: str, cell: _Cell, x: str, before: str, channels: int) -> str:
    """Write a cell that reads the outputs of the two cells before it."""
    states = [
        _relu_conv_bn(b, f"{name}.in1", x, channels),
        _fitted(b, f"{name}.in2", before, channels, b.shape(x)[2:]),
    ]
    for i, pair in enumerate(cell.pairs, start=1):
        sides = []
        for side, (state, operation) in zip("ab", pair, strict=True):
            stride = 2 if cell is _REDUCTION and state < 2 else 1
            sides.append(_operation(b, f"{name}.{i}{side}", operation, states[state], stride))
        states.append(ops.add(b, f"{name}.{i}", *sides))
    return ops.concat(b, f"{name}.concat", [states[i] for i in cell.out])


def _fitted(b: GraphBuilder, name: str, x: str, channels: int, size: tuple[int, ...]) -> str:
    """Bring an older output to the size of the newer one."""
    if b.shape(x)[2:] != size:
        x = ops.relu(b, f"{name}.relu", x)
        halves = [
            ops.conv2d(b, f"{name}.conv{i}", x, channels // 2, 1, stride=2, bias=False)
            for i in (1, 2)
        ]
        return ops.batch_norm(b, f"{name}.bn", ops.concat(b, f"{name}.concat", halves))
    return x if b.shape(x)[1] == channels else _relu_conv_bn(b, name, x, channels)


def _operation(b: GraphBuilder, name: str, operation: str, x: str, stride: int) -> str:
    channels = b.shape(x)[1]
    match operation:
        case "none":
            return x
        case "1x1":
            return _relu_conv_bn(b, name, x, channels, 1, (stride, stride))
        case "max-2x2":
            return ops.max_pool(b, name, x, 2, stride=stride)
        case "max-3x3":
            return ops.max_pool(b, name, x, 3, stride=stride, padding=1)
        case "avg-3x3":
            return ops.avg_pool(b, name, x, 3, stride=stride, padding=1)
    inner: list[tuple[Pair, tuple[int, int]]] = [(3, (stride, stride))]
    if operation == "1x7-7x1":
        inner = [((1, 7), (1, stride)), ((7, 1), (stride, 1))]
    x = _relu_conv_bn(b, f"{name}.in", x, channels // 4)
    for i, (kernel, strides) in enumerate(inner, start=1):
        x = _relu_conv_bn(b, f"{name}.{i}", x, channels // 4, kernel, strides)
    return _relu_conv_bn(b, f"{name}.out", x, channels)


def _relu_conv_bn(
    b: GraphBuilder,
    name: str,
    x: str,
    filters: int,
    kernel: Pair = 1,
    stride: tuple[int, int] = (1, 1),
    *,
    relu: bool = True,
) -> str:
    if relu:
        x = ops.relu(b, f"{name}.relu", x)
    r, s = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (r // 2, s // 2)
    x = ops.conv2d(
        b, f"{name}.conv", x, filters, (r, s), stride=stride, padding=padding, bias=False
    )
    return ops.batch_norm(b, f"{name}.bn", x)
