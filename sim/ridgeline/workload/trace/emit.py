"""Writes a trace as a forward graph, in the vocabulary of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Passes, Role, free_name
from ridgeline.workload.kinds import OpKind
from ridgeline.workload.numerics import MASTER, is_discrete, widest
from ridgeline.workload.ops.functions import FUNCTIONS, function
from ridgeline.workload.trace.ir import Capture, TraceStep
from ridgeline.workload.trace.patterns import trained

HELD = frozenset({Role.WEIGHT, Role.BUFFER, Role.WEIGHT_COPY})


def emit(b: GraphBuilder, capture: Capture, attention: str = "separate") -> str:
    """Write all steps of a trace to a builder; return the name of the loss tensor."""
    writer = TraceWriter(b, capture, attention)
    for step in capture.steps:
        writer.write(step)
    for value in capture.values.values():
        if value.origin in {"weight", "frozen"}:
            writer.read(value.name)  # one that nothing reads takes memory all the same
    return writer.read(capture.loss)


class TraceWriter:
    """Writes steps one after the other; `read` and `put` are what the kinds are written with."""

    def __init__(self, b: GraphBuilder, capture: Capture, attention: str) -> None:
        self.b, self.capture, self.attention = b, capture, attention
        self.values, self.trained = capture.values, trained(capture)
        self.names: dict[str, str] = {}
        self._turned = {
            step.inputs[1]: (step.attrs["n"], step.attrs["k"])
            for step in capture.steps
            if step.kind == "matmul"
            and self.values[step.inputs[1]].shape == (step.attrs["k"], step.attrs["n"])
            and self.values[step.inputs[1]].origin in {"weight", "frozen"}
        }  # matrices [k, n], which are [n, k] in all other graphs
        readers = capture.users()
        self._matrices = {  # what only one product reads
            step.inputs[1]: step.layer
            for step in capture.steps
            if step.kind == "matmul"
            and self.values[step.inputs[1]].origin in {"weight", "frozen"}
            and readers[step.inputs[1]] == 1
        }
        self._taken: set[str] = set()
        layers = {step.layer for step in capture.steps}
        self._parents = {layer[:i] for layer in layers for i, c in enumerate(layer) if c == "."} | {
            ""
        }
        self.layer = self.name = ""

    def write(self, step: TraceStep) -> None:
        """Write one step."""
        begun = len(self.b.ops)
        self._open(step)
        self._write(step)
        if step.region:
            made = (op.name for op in self.b.ops[begun:])
            self.b.checkpoints.setdefault(step.region, []).extend(made)

    def _write(self, step: TraceStep) -> None:
        writer = WRITERS.get(step.kind)
        if writer is not None:
            writer(self, step)
        elif step.kind in FUNCTIONS:
            self.function(step, step.kind)
        else:
            raise RidgelineError(f"{step.layer}: steps of kind {step.kind!r} cannot be written")

    def _open(self, step: TraceStep) -> None:
        """Choose the op's name and layer: a leaf module is a layer, other ops are their own."""
        if step.layer in self._parents:
            self.name = self._free(f"{step.layer}.{step.kind}".lstrip("."))
            self.layer = self.name
        else:
            taken = step.layer in self._taken
            self.name = self._free(f"{step.layer}.{step.kind}" if taken else step.layer)
            self.layer = step.layer

    def _free(self, name: str) -> str:
        free = free_name(name, self._taken)
        self._taken.add(free)
        return free

    def read(self, name: str) -> str:
        """Name of the tensor behind a value; what the step does not make is declared now."""
        if name not in self.names:
            value, b = self.values[name], self.b
            layer = self._matrices.get(name, "")
            if value.origin == "weight":
                made = b.weight(name, self._turned.get(name, value.shape), matrix_of=layer)
            elif value.origin == "input":
                made = b.input(name, value.shape, None if value.kind == "real" else value.kind)
            elif value.origin == "frozen":
                shape = self._turned.get(name, value.shape)
                if b.adapters is None:
                    made = b.frozen_weight(name, shape)
                else:
                    made = b.weight(name, shape, matrix_of=layer)
            elif value.origin in {"buffer", "constant"}:
                format_ = MASTER if value.kind == "real" else value.kind
                shape = self._turned.get(name, value.shape)
                while len(shape) > 2 and shape[0] == 1:
                    shape = shape[1:]
                made = b.tensor(name, shape, format_, Role.BUFFER)
            else:
                raise RidgelineError(f"the value {name!r} is read before it is made")
            self.names[name] = made
        return self.names[name]

    def reads(self, step: TraceStep) -> list[str]:
        """Names of all inputs; known numbers are part of the op."""
        return [self.read(x) for x in step.inputs if not self._number(x)]

    def _number(self, name: str) -> bool:
        value = self.values[name]
        return value.origin in {"constant", "buffer"} and value.elements == 1

    def compute(self, name: str) -> str:
        """Tensor behind a value in the format of matrix products."""
        return self.b.cast(self.read(name), self.b.numerics.compute, self.layer)

    def is_weight(self, name: str) -> bool:
        """Tell whether a value is held rather than made in the step."""
        return self.values[name].origin in {"weight", "frozen", "buffer", "constant"}

    def put(
        self,
        kind: OpKind,
        step: TraceStep,
        inputs: Sequence[str],
        format_: str,
        *,
        kept: Sequence[tuple[str, tuple[int, ...], str]] = (),
        buffers: Sequence[str] = (),
        flops: int | None = None,
        passes: Passes = (),
        attrs: Sequence[tuple[str, Any]] = (),
        in_place: bool = False,
        loops: Any = None,
        shape: tuple[int, ...] | None = None,
    ) -> str:
        """Append an op for a step: its outputs, and tensors that it keeps for its gradient.

        `flops` None: by the kind's cost an output element.
        """
        b = self.b
        ys = []
        for i, made in enumerate(step.outputs):
            of = self.values[made]
            suffix = "y" if i == 0 and len(step.outputs) == 1 else f"y{i}"
            form = format_ if of.kind == "real" else of.kind
            size = of.shape if shape is None or i else shape
            ys.append(b.activation(f"{self.name}.{suffix}", size, form))
            self.names[made] = ys[-1]
        more = [b.activation(f"{self.name}.{n}", shape_, form) for n, shape_, form in kept]
        b.emit(
            kind, self.layer, inputs, (*ys, *more, *buffers), name=self.name, loops=loops,
            flops=kind.forward.of(b.elements(ys[0])) if flops is None else flops,
            passes=passes, in_place=in_place, attrs=tuple(attrs),
        )  # fmt: skip
        return ys[0]

    def function(self, step: TraceStep, kind: str) -> None:
        """Write a function of the table."""
        inputs = self.reads(step)
        first, *rest = (self.values[name] for name in step.outputs)
        made = self.format_of(inputs)
        formats = [made if v.kind == "real" else v.kind for v in (first, *rest)]
        if kind in {"sum", "mean"} and first.elements == 1 and formats[0] == made:
            formats[0] = MASTER  # losses
        rows = step.attrs.get("rows")
        kept = [(v.shape, f) for v, f in zip(rest, formats[1:], strict=True)]
        if rows is not None:
            kept += [((rows,), MASTER), ((rows,), MASTER)]
        elif kind in {"peak", "order"} and not rest:
            kept.append((first.shape, "int64"))
        attrs = (("op", step.source),) if kind == "unknown" else ()
        made_names = function(
            self.b, self.layer, kind, inputs, first.shape, name=self.name, format_=formats[0],
            kept=kept, attrs=attrs,
        )  # fmt: skip
        for value, name in zip((first, *rest), made_names, strict=False):
            self.names[value.name] = name

    def format_of(self, inputs: Sequence[str]) -> str:
        """Format of a result: the widest of the activations that are real, or else of the rest."""
        b = self.b
        real = [x for x in inputs if not is_discrete(b.format(x), b.numerics)]
        made = [b.format(x) for x in real if b.tensors[x].role not in HELD]
        return widest(tuple(made or [b.format(x) for x in real] or [b.numerics.compute]))

    def whole(self, name: str, elements: int) -> str:
        """Tensor of a value that was broadcast by a view, with all its elements."""
        x = self.read(name)
        if self.b.elements(x) == elements:
            return x
        y, *_ = function(self.b, self.layer, "rearrange", [x], (elements,),
                         name=self._free(f"{self.name}.repeat"))  # fmt: skip
        return y


WRITERS: dict[str, Callable[[TraceWriter, TraceStep], None]] = {}
"""How each kind of step is written; a kind without is a row of `ops.functions`."""
