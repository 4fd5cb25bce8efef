"""An ONNX graph at a batch size: shapes, small values, and the steps of its nodes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ridgeline.errors import ConfigError
from ridgeline.workload.trace import onnx_sequences
from ridgeline.workload.trace.ir import Capture, Kind, Origin, Recorder
from ridgeline.workload.trace.onnx_folded import FoldedLookup
from ridgeline.workload.trace.onnx_layers import LAYERS
from ridgeline.workload.trace.onnx_ops import SIMPLE, OnnxNode
from ridgeline.workload.trace.onnx_weights import Weights
from ridgeline.workload.trace.protobuf import Place

_REAL = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}
)
_SMALL = 2**12
"""Elements of the largest tensor whose values are carried along: sizes, axes, scalars."""
_GROWS = frozenset(
    ["ConstantOfShape", "Range", "Expand", "Tile", "Pad", "OneHot", "Resize", "EyeLike"]
)
"""Operators whose result may be much larger than what they read."""


_NOTHING = np.zeros(0)
HANDLERS = {**SIMPLE, **LAYERS}


class OnnxGraph:
    """A parsed model that can be walked at any batch size."""

    def __init__(
        self, model: Any, places: Mapping[str, Place], path: Path, dims: Mapping[str, int]
    ) -> None:
        self.model, self.path, self.dims = model, path, dims
        self.nodes = _ordered(model.graph, path)
        self.opsets = {o.domain: o.version for o in model.opset_import}
        self.weights = Weights(model, self.nodes, places, path)
        named = {i.name for i in model.graph.initializer}
        self.inputs = [i for i in model.graph.input if i.name not in named]
        self.symbol, self.batch = self._batch()

    def _batch(self) -> tuple[str, int]:
        """Return the symbol of the batch, if it has one, and a batch size to look at first."""
        for value in self.inputs:
            shape = value.type.tensor_type.shape.dim
            if len(shape) > 0:
                first = shape[0]
                return (
                    (first.dim_param, 2)
                    if not first.HasField("dim_value")
                    else ("", int(first.dim_value))
                )
        return "", 1

    def error(self, message: str) -> ConfigError:
        """Return an error that names the file."""
        return ConfigError(message, file=str(self.path))

    def capture(self, batch: int, loss: str) -> Capture:
        """Walk the graph at a batch size."""
        return Walk(self, batch).run(loss)

    def input_shape(self, value: Any, batch: int) -> tuple[int, ...]:
        """Shape of an input; a size that is only named must be given."""
        shape = []
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            fixed = dim.HasField("dim_value")
            if (i == 0 and (not fixed or dim.dim_value == self.batch)) or (
                dim.dim_param and dim.dim_param == self.symbol
            ):
                shape.append(batch)
            elif fixed:
                shape.append(int(dim.dim_value))
            elif dim.dim_param in self.dims:
                shape.append(self.dims[dim.dim_param])
            else:
                name = dim.dim_param or f"axis{i}"
                raise self.error(
                    f"the input {value.name!r} has the symbolic size {name!r}; give it as"
                    f' rl.load_model(path, {{"dims.{name}": 128}}) or --set model.dims.{name}=128'
                )
        return tuple(shape)


def _ordered(graph: Any, path: Path) -> list[Any]:
    """Nodes in an order in which they can run: that of the file as far as it can."""
    ready = {"", *(i.name for i in graph.initializer), *(i.name for i in graph.input)}
    ready.update(i.values.name for i in graph.sparse_initializer)
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output}
    readers: list[list[int]] = [[] for _ in nodes]
    waits = [0] * len(nodes)
    for place, node in enumerate(nodes):
        missing = [x for x in node.input if x not in ready and x not in makers]
        if missing:
            raise ConfigError(
                f"the node {node.name or node.op_type!r} reads {missing[0]!r}, which nothing makes",
                file=str(path),
            )
        for maker in {makers[x] for x in node.input if x not in ready}:
            readers[maker].append(place)
            waits[place] += 1
    able = [place for place, count in enumerate(waits) if count == 0]  # sorted, so it is a heap
    ordered = []
    while able:
        place = heapq.heappop(able)
        ordered.append(nodes[place])
        for reader in readers[place]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(able, reader)
    if len(ordered) < len(nodes):
        stuck = [node for node, count in zip(nodes, waits, strict=True) if count]
        names = ", ".join(n.name or n.op_type for n in stuck[:5])
        raise ConfigError(f"the graph has a cycle through the nodes {names}", file=str(path))
    return ordered


class Walk:
    """One pass over the nodes."""

    def __init__(self, graph: OnnxGraph, batch: int) -> None:
        self.graph, self.batch = graph, batch
        self.recorder = Recorder()
        self.types: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.notes: list[str] = []
        self.sequences: dict[str, list[str]] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.recorder.values[name].shape

    def declare(self, name: str, like: str, shape: tuple[int, ...]) -> None:
        """Declare what a node makes of a value of the same kind."""
        element = self.types[like].tensor_type.elem_type
        self.types[name] = helper.make_tensor_type_proto(element, shape)
        self.recorder.value(shape, kind_of(element), "made", name)

    def record(
        self, node: Any, kind: str, inputs: Iterable[str], outputs: Iterable[str], /, **attrs: Any
    ) -> None:
        """Append a step of a node."""
        layer = self.graph.weights.layer(node)
        self.recorder.step(kind, layer, inputs, outputs, node.op_type, **attrs)

    def run(self, loss: str) -> Capture:
        """Record all steps, and a loss of the outputs."""
        self._declare()
        for node in self.graph.nodes:
            self._visit(node)
        last = self._loss(loss)
        norms = sum(s.kind == "batch-norm" and s.source == "Conv" for s in self.recorder.steps)
        if norms:
            self.notes.append(
                f"{norms} batch normalisations were put back behind convolutions; biases that these"
                " had are not in the file"
            )
        self.notes += self.graph.weights.doubts()
        return Capture(
            self.recorder.values, tuple(self.recorder.steps), last, self.batch, tuple(self.notes)
        )

    def _declare(self) -> None:
        for value in self.graph.inputs:
            of = value.type.tensor_type
            shape = self.graph.input_shape(value, self.batch)
            self.types[value.name] = helper.make_tensor_type_proto(of.elem_type, shape)
            self.recorder.value(shape, kind_of(of.elem_type), "input", value.name)
        for tensor in self.graph.model.graph.initializer:
            shape, kind = tuple(tensor.dims), kind_of(tensor.data_type)
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, shape)
            number, origin = None, self.graph.weights.origin(tensor.name)
            if (
                len(shape) == 0 or math.prod(shape) <= _SMALL
            ) and tensor.data_location != TensorProto.EXTERNAL:
                values = self._values(tensor)
                self.known[tensor.name] = values
                single = values.size == 1 and kind == "real" and origin != "weight"
                number = float(values.reshape(-1)[0]) if single else None
            if table := self.graph.weights.tables.get(tensor.name):
                self.known.pop(tensor.name, None)
                self._declare_lookup(tensor.name, table, shape)
            else:
                self.recorder.value(shape, kind, origin, tensor.name, number)
        self._declare_merged()
        for name, first in self.graph.weights.tied.items():
            self.recorder.step("view", "", (first,), (name,))

    def _declare_lookup(self, name: str, table: FoldedLookup, shape: tuple[int, ...]) -> None:
        """Put back a table whose rows an exporter has copied to their places."""
        rows = self.recorder.value(table, "real", "weight", f"{name}.table")
        self.recorder.value(shape, "real", "made", name)
        kind = "view" if table.rows == 1 else "gather-elements"
        self.recorder.step(kind, "", (rows,), (name,), "folded lookup")

    def _declare_merged(self) -> None:
        """Give every node its own of what the file stores once."""
        weights, values = self.graph.weights, self.recorder.values
        turned: dict[str, tuple[int, ...]] = {}
        for node in self.graph.nodes:
            for name, own in weights.own(node).items():
                self.types[own] = self.types[name]
                if own in weights.bases:
                    turned[own] = values[name].shape
                elif own not in values:
                    self.recorder.value(values[name].shape, values[name].kind, "weight", own)
        for own, shape in turned.items():
            base = values[weights.bases[own]]
            self.recorder.value(shape, base.kind, "made", own)
            kind = "view" if base.elements == math.prod(shape) else "gather-elements"
            self.recorder.step(kind, "", (base.name,), (own,), "folded")
        for name in self.graph.weights.merged:
            self.recorder.values.pop(name)

    def _values(self, tensor: Any) -> Any:
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise self.graph.error(f"the initializer {tensor.name!r} is broken: {error}") from error

    def _visit(self, node: Any) -> None:
        if onnx_sequences.visit(self, node):
            return
        if node.op_type in _GROWS or not self._evaluate(node):
            for name, type_ in zip(node.output, self._inferred(node), strict=False):
                if name:
                    self.types[name] = type_
            if node.op_type in _GROWS and self._small(node.output):
                self._evaluate(node)
        outputs = [name for name in node.output if name]
        for name in outputs:
            of = self.types[name].tensor_type
            shape = tuple(int(d.dim_value) for d in of.shape.dim)
            values = self.known.get(name, _NOTHING)
            single = values.size == 1 and values.dtype.kind == "f"
            number = float(values.reshape(-1)[0]) if single else None
            origin: Origin = "constant" if name in self.known else "made"
            if name in self.graph.weights.copies:
                origin = self.graph.weights.origin(name)
            self.recorder.value(shape, kind_of(of.elem_type), origin, name, number)
        copied = set(outputs) <= self.graph.weights.copies.keys()
        if not copied and not all(name in self.known for name in outputs):
            inputs = [name for name in node.input if name]
            handler = HANDLERS.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
            view = OnnxNode(node, self.recorder, self.known, self.graph.weights)
            inputs = [view.own.get(name, name) for name in inputs]
            if handler is None:
                view.emit("unknown", inputs)
            else:
                handler(view)

    def _inferred(self, node: Any) -> list[Any]:
        """Types of a node's outputs, with concrete shapes."""
        try:
            schema = onnx.defs.get_schema(
                node.op_type, self.graph.opsets.get(node.domain, 1), node.domain
            )
            found = shape_inference.infer_node_outputs(
                schema,
                node,
                {x: self.types[x] for x in node.input if x},
                {x: numpy_helper.from_array(self.known[x]) for x in node.input if x in self.known},
                opset_imports=list(self.graph.model.opset_import),
                ir_version=self.graph.model.ir_version,
            )
        except (onnx.defs.SchemaError, shape_inference.InferenceError, RuntimeError, ValueError,
                TypeError) as error:  # fmt: skip
            return self._declared(node, str(error).splitlines()[0])
        types = [found.get(name) for name in node.output]
        if any(name and not _concrete(t) for name, t in zip(node.output, types, strict=True)):
            return self._declared(node, "its shape depends on values")
        return types

    def _declared(self, node: Any, why: str) -> list[Any]:
        """Types that the file itself gives for what cannot be inferred."""
        graph = self.graph.model.graph
        given = {v.name: v.type for v in (*graph.value_info, *graph.output)}
        types: list[Any] = []
        for name in node.output:
            if not name:
                types.append(None)
                continue
            if name not in given or not given[name].HasField("tensor_type"):
                place = node.name or node.op_type
                raise self.graph.error(f"the shape of node {place!r} ({node.op_type}): {why}")
            dims = self.graph.input_shape(_Named(name, given[name]), self.batch)
            types.append(helper.make_tensor_type_proto(given[name].tensor_type.elem_type, dims))
        return types

    def _small(self, names: Iterable[str]) -> bool:
        """Tell whether all these tensors have few elements."""
        return all(_elements(self.types[x]) <= _SMALL for x in names if x)

    def _evaluate(self, node: Any) -> bool:
        """Compute small values that depend on no input; tell whether it was done."""
        if node.op_type == "Shape":
            shape = [d.dim_value for d in self.types[node.input[0]].tensor_type.shape.dim]
            cut = {a.name: a.i for a in node.attribute}
            values = np.array(shape[cut.get("start", 0) : cut.get("end", len(shape))], np.int64)
            self._learn(node.output[0], values)
            return True
        if any(x and x not in self.known for x in node.input) or not self._small(node.input):
            return False
        trained = any(self.graph.weights.origin(x) == "weight" for x in node.input)
        if trained or "Random" in node.op_type or any(a.HasField("g") for a in node.attribute):
            return False
        outputs = [x for x in node.output if x]
        graph = helper.make_graph(
            [node], "constant",
            [helper.make_value_info(x, self.types[x]) for x in dict.fromkeys(node.input) if x],
            [helper.make_value_info(x, onnx.TypeProto()) for x in outputs],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=list(self.graph.model.opset_import))
        feeds = {x: self.known[x] for x in node.input if x}
        try:
            with np.errstate(all="ignore"):
                made = [np.asarray(v) for v in ReferenceEvaluator(model).run(None, feeds)]
        except Exception:
            return False  # the shape is inferred instead, and that is enough
        if any(v.dtype.kind not in "fiub" or v.size > _SMALL for v in made):
            return False
        for name, values in zip(outputs, made, strict=True):
            self._learn(name, values)
        return True

    def _learn(self, name: str, values: Any) -> None:
        self.known[name] = values
        element = helper.np_dtype_to_tensor_dtype(values.dtype)
        self.types[name] = helper.make_tensor_type_proto(element, values.shape)

    def _loss(self, which: str) -> str:
        outputs = self._outputs()
        total = ""
        for i, name in enumerate(outputs):
            one, chosen = self._one_loss(name, which, "labels" if i == 0 else f"labels{i}")
            self.notes.append(f"the loss of the output {name!r} was added: {chosen}")
            if total:
                sum_ = self.recorder.value((), "real")
                self.recorder.step("add", "loss", (total, one), (sum_,))
                one = sum_
            total = one
        return total

    def _outputs(self) -> list[str]:
        """Return the outputs that the loss is of: the logits where some are named so."""
        values = self.recorder.values
        names = [o.name for o in self.graph.model.graph.output if o.name in values]
        names = [n for n in names if values[n].kind == "real" and values[n].origin == "made"]
        plain = [n for n in names if not n.startswith(("present", "past_key"))]
        found = [n for n in plain if "logits" in n] or plain
        if not found:
            raise self.graph.error("no output of real numbers depends on the inputs")
        return found

    def _one_loss(self, name: str, which: str, labels: str) -> tuple[str, str]:
        shape = self.recorder.values[name].shape
        if which == "cross-entropy" and (len(shape) < 2 or (shape[-1] == 1 and len(shape) < 4)):
            which = "bce"
        axis = 1 if len(shape) > 3 else len(shape) - 1
        classes = which == "cross-entropy"
        of = [s for i, s in enumerate(shape) if not (classes and i == axis)]
        target = self.recorder.value(of, "int64" if classes else "real", "input", labels)
        loss = self.recorder.value((), "real")
        self.recorder.step("loss", "loss", (name, target), (loss,), which, which=which, axis=axis)
        return loss, which


class _Named:
    """A name with a type, as graph inputs are."""

    def __init__(self, name: str, type_: Any) -> None:
        self.name, self.type = name, type_


def kind_of(element: int) -> Kind:
    """Return what an ONNX tensor holds."""
    if element in _REAL:
        return "real"
    return {TensorProto.INT64: "int64", TensorProto.INT32: "int32"}.get(element, "int8")  # type: ignore[return-value]


def _concrete(type_: Any) -> bool:
    if type_ is None or not type_.HasField("tensor_type"):
        return False
    of = type_.tensor_type
    return of.HasField("shape") and all(d.HasField("dim_value") for d in of.shape.dim)


def _elements(type_: Any) -> int:
    return math.prod(int(d.dim_value) for d in type_.tensor_type.shape.dim)
