"""What a tracer hands over: values and steps, with whole numbers for one batch size.

A front end (PyTorch, ONNX) translates what it sees into these few kinds of steps; everything after
is shared: constants and views are resolved, idioms become the op they mean (`patterns`), traces of
several batch sizes become one with a symbolic batch (`symbolic`), and `emit` writes the graph.

Kinds of steps, and what they need to know besides their inputs and outputs:

==================  ===============================================================================
view                another shape or order of the same elements, or a broadcast: moves no data
stop                a view that no gradient passes
slice               axis, start, length, stride: a part of a tensor
split               axis: parts that together are the tensor
matmul              m, n, k, batch: products of inputs A and B
conv                n, c, h, w, f, r, s, stride, padding, dilation, groups (3-D is folded to 2-D)
conv-transpose      m, n, k, batch, and its window
bias                axis: add a weight, broadcast
batch-norm          inputs x, weight, bias, running mean, running variance
layer-norm          rows, inputs x, weight, maybe bias; also rms-norm and group-norm
max-pool, avg-pool  window: elements that an output element is made of
embedding           inputs indices, table
attention           n, heads, kv, rows, columns, size, of-value, causal, scale, dropout
recurrent           cell, reverse; inputs: gates, recurrent weight, maybe its bias
softmax, dropout, relu, sigmoid, tanh, gelu, silu, swiglu, geglu, rotary, add, multiply, scale
loss                which: cross-entropy, mse, bce; inputs x, target
fill                a constant that is made anew in each step
any other           a function of `ridgeline.workload.ops.functions`
==================  ===============================================================================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Origin = Literal["input", "weight", "frozen", "buffer", "constant", "made"]
"""Where a value comes from: the mini-batch, the network, code alone, or a step."""

Kind = Literal["real", "int64", "int32", "int8"]
"""Real numbers get their format from the precision of a graph; truth values are int8."""


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a trace. `number` is the value of a constant scalar where it is known."""

    name: str
    shape: tuple[Any, ...]
    kind: Kind
    origin: Origin
    number: float | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One operation of a trace; `source` is what the front end calls it.

    `region` numbers the checkpoint that it is in, whose inside the backward pass forms again: what
    it needs, or below 0 all of it; 0: the step is in none.
    """

    kind: str
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    region: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Capture:
    """A forward pass at one batch size: `loss` names the scalar at its end."""

    values: Mapping[str, Value]
    steps: tuple[TraceStep, ...]
    loss: str
    batch: int
    notes: tuple[str, ...] = ()

    def users(self) -> Counter[str]:
        """Count how often each value is read."""
        return Counter(name for step in self.steps for name in step.inputs)


class Recorder:
    """Collects values and steps in the order in which a front end meets them."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.steps: list[TraceStep] = []
        self.regions = self.region = 0
        """Checkpoints so far, and the number of that which is being recorded."""

    def value(
        self,
        shape: Iterable[int],
        kind: Kind,
        origin: Origin = "made",
        name: str = "",
        number: float | None = None,
    ) -> str:
        """Declare a value and return its name."""
        name = name or f"v{len(self.values)}"
        self.values[name] = Value(name, tuple(map(int, shape)), kind, origin, number)
        return name

    def like(self, name: str, shape: Iterable[int] | None = None) -> str:
        """Declare a value like another one, perhaps of another shape."""
        of = self.values[name]
        return self.value(of.shape if shape is None else shape, of.kind)

    def step(
        self,
        kind: str,
        layer: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        source: str = "",
        /,
        **attrs: Any,
    ) -> None:
        """Append a step; underscores in names of attributes stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in attrs.items()}
        ends = tuple(inputs), tuple(outputs)
        self.steps.append(TraceStep(kind, layer, *ends, named, source, self.region))


def resolved(capture: Capture) -> Capture:
    """Return the trace without constant arithmetic, without views and without dead steps.

    A step whose inputs are all known before the mini-batch arrives is a constant: it is not part of
    the training step. A buffer that depends on nothing stays a buffer.
    """
    return _alive(_without_views(_without_constants(capture)))


def _without_constants(capture: Capture) -> Capture:
    values = dict(capture.values)
    fixed = {v.name for v in values.values() if v.origin in {"buffer", "constant"}}
    steps = []
    for step in capture.steps:
        if fixed.issuperset(step.inputs) and step.kind not in _KEEPS_CONSTANTS:
            fixed.update(step.outputs)
            for name in step.outputs:
                values[name] = replace(values[name], origin="constant")
        else:
            steps.append(step)
    return replace(capture, values=values, steps=tuple(steps))


_KEEPS_CONSTANTS = frozenset({"loss"})


def _without_views(capture: Capture) -> Capture:
    """Let every step read the tensor behind a view."""
    root: dict[str, str] = {}
    steps = []
    for step in capture.steps:
        inputs = tuple(root.get(name, name) for name in step.inputs)
        if step.kind == "view":
            root[step.outputs[0]] = inputs[0]
        else:
            steps.append(replace(step, inputs=inputs))
    return replace(capture, steps=tuple(steps), loss=root.get(capture.loss, capture.loss))


def _alive(capture: Capture) -> Capture:
    """Keep what the loss depends on."""
    needed, kept = {capture.loss}, []
    for step in reversed(capture.steps):
        if not needed.isdisjoint(step.outputs):
            needed.update(step.inputs)
            kept.append(step)
    read = needed | {name for step in kept for name in step.outputs}
    values = {
        name: value
        for name, value in capture.values.items()
        if name in read or value.origin in {"weight", "frozen"}
    }
    return replace(capture, values=values, steps=tuple(reversed(kept)))
