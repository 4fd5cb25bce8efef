"""A traced network as one of the families: it makes graphs of any batch and precision."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import PrivateAttr

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Network
from ridgeline.workload.graph import Graph
from ridgeline.workload.model import Model
from ridgeline.workload.trace import emit_layers, emit_steps  # noqa: F401 (register their kinds)
from ridgeline.workload.trace.emit import emit
from ridgeline.workload.trace.ir import Capture, resolved
from ridgeline.workload.trace.patterns import fused, trained
from ridgeline.workload.trace.symbolic import Symbolic, merge

Attention = Literal["separate", "flash"]


class TraceWarning(UserWarning):
    """Something in a trace is priced by an assumption."""


class Traced(Network):
    """A network that was traced rather than described."""

    family: Literal["trace"] = "trace"
    fingerprint: str
    """Hash of all steps of the trace."""
    attention: Attention = "separate"
    """Kernel of attention that was written as one function."""
    tokens: int = 0
    """Tokens in a sample; 0 where that has no meaning."""
    samples: str = "samples"
    """What one element of the batch is."""
    _trace: Symbolic = PrivateAttr()

    @classmethod
    def of(cls, trace: Symbolic, title: str, citation: str, optimizer: str,
           attention: Attention | None, tokens: int) -> Self:  # fmt: skip
        """Make the network of a trace."""
        network = cls(
            title=title,
            citation=citation,
            optimizer=optimizer,
            fingerprint=trace.fingerprint,
            attention=attention or "separate",
            tokens=tokens,
        )
        network._trace = trace
        return network

    @property
    def tokens_per_sample(self) -> int:
        """Tokens in a sample; 0 where that has no meaning."""
        return self.tokens

    @property
    def smallest_batch(self) -> int:
        """The smallest mini-batch that the trace can be evaluated for."""
        return self._trace.smallest_batch

    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""
        return emit(b, self._trace.at(b.batch), self.attention)

    def graph(self, b: GraphBuilder) -> Graph:
        """Write the forward graph and return it; weights that the loss does not need may stay."""
        return b.graph(self.build(b), partial=True, notes=self._trace.notes)


def traced_model(
    captures: Sequence[Capture],
    name: str,
    citation: str,
    *,
    optimizer: str,
    strict: bool,
    attention: Attention | None,
) -> Model:
    """Make a model of traces at several batch sizes, or at one.

    Where `attention` is None, the software that runs the model decides how it is computed.

    Raises
    ------
    RidgelineError
        If the loss depends on no weight, or, where `strict`, on operations that nobody knows.
    """
    simple = [fused(resolved(capture)) for capture in captures]
    if simple[0].loss not in trained(simple[0]):
        raise RidgelineError(f"{name}: the loss depends on no trained parameter")
    marks = (step.attrs["updates"] for step in simple[0].steps if step.kind == "backward")
    optimizer = next((rule for updates in marks for rule, _ in updates), optimizer)
    symbolic = merge(simple)
    tokens = _tokens(simple[0])
    network = Traced.of(symbolic, name, citation, optimizer, attention, tokens)
    model = Model(name, network, {} if attention is None else {"attention": attention})
    notes = [*_about_batch(symbolic, name), *_unknown(model, symbolic, name, strict)]
    for note in notes:
        warnings.warn(note, TraceWarning, stacklevel=3)
    return model


def _about_batch(trace: Symbolic, name: str) -> list[str]:
    if not trace.fixed_because:
        return []
    batch = trace.pattern.batch
    return [f"{name}: only batch {batch} can be priced: {trace.fixed_because}"]


def _unknown(model: Model, trace: Symbolic, name: str, strict: bool) -> list[str]:
    """Name the unknown operations with their number and their share of the forward FLOPs."""
    graph = model.forward(trace.smallest_batch)
    total = sum(op.matrix_flops + op.vector_flops for op in graph.ops) or 1
    counts: dict[str, tuple[int, int]] = {}
    for op in graph.ops:
        if op.kind == "unknown":
            what = str(dict(op.attrs)["op"])
            number, flops = counts.get(what, (0, 0))
            counts[what] = (number + 1, flops + op.vector_flops)
    if not counts:
        return []
    listed = ", ".join(f"{what} ({n} x, {f / total:.2%} of the forward FLOPs at one an element)"
                       for what, (n, f) in counts.items())  # fmt: skip
    if strict:
        raise RidgelineError(f"{name}: unknown operations: {listed}")
    return [f"{name}: unknown operations are priced by the bytes that they move: {listed}"]


def _tokens(capture: Capture) -> int:
    """Tokens of a sample: an integer input [batch, tokens] whose every token meets weights."""
    products = [step.attrs for step in capture.steps if step.kind == "matmul"]
    rows = {int(attrs["m"]) for attrs in products if attrs["batch"] == 1}
    for value in capture.values.values():
        indices = value.origin == "input" and value.kind == "int64" and len(value.shape) == 2
        if indices and value.shape[0] == capture.batch < value.elements in rows:
            return int(value.shape[1])
    return 0
