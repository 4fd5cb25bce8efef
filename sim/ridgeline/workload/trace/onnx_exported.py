"""What PyTorch's newer exporter says of a network: parameters, and who reads them.

An exporter that optimises a file stores equal data once, turns matrices round, multiplies norms
into convolutions and drops sums with zero: initializers alone are not the parameters. Files of
``torch.onnx.export(..., dynamo=True)`` keep, as metadata, the list of parameters (the signature of
the exported program), from which initializers a tensor was computed (``folded_from``), and the call
of PyTorch that a node comes from (``fx_node``), with its arguments by name. Two parameters of equal
values have two names there, one that is used twice has one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onnx import TensorProto

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_CALL = "pkg.torch.onnx.fx_node"
_INPUT = re.compile(r"^(\w+): PARAMETER target='([^']+)'", re.MULTILINE)
_TEXT = re.compile(
    r"%(?P<name>\w+) :.*?= call_\w+\[target=(?P<operator>[\w.]+)\]\((?P<arguments>.*)\)$", re.DOTALL
)
_REAL_TYPES = frozenset(
    [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16]
)  # sizes are computed from parameters, too
_PRODUCTS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
_STACKS = frozenset(["LSTM", "GRU", "RNN"])
_ADDS_BIAS = frozenset(["linear", "addmm", "convolution", "conv1d", "conv2d", "conv3d"])


class ExportedCall(NamedTuple):
    """A call of PyTorch: name in the exported program, operator, the parameters that it reads."""

    name: str
    operator: str
    parameters: tuple[str, ...]


class Exported:
    """The statements of a file, and what each node's initializers stand for.

    Attributes
    ----------
    parameters
        Names of all parameters, as in ``state_dict()``.
    stands_for
        For the output of a node: initializer -> the parameter that it stands for there.
    biases
        For the output of a node: the bias of zeros that the exporter left out.
    norms
        For the output of a convolution or product: scale and shift of the batch normalisation that
        the exporter multiplied into it.
    lost
        Parameters of calls of which no data is left, and whose sizes nothing tells.
    joined
        Initializers that were computed from several parameters, and are no stacked weights.
    """

    def __init__(self, model: Any, nodes: Sequence[Any], signature: str) -> None:
        self._named = dict(_INPUT.findall(signature))
        self.parameters = frozenset(self._named.values())
        self.roots = self._find_roots(model)
        self.stands_for: dict[str, dict[str, str]] = {}
        self.biases: dict[str, str] = {}
        self.norms: dict[str, tuple[str, str]] = {}
        groups: dict[str, tuple[ExportedCall, list[Any]]] = {}
        for node in nodes:
            call = self._call(node)
            groups.setdefault(call.name or f"node {node.output[0]}", (call, []))[1].append(node)
        found: set[str] = set()
        missing: dict[str, None] = {}
        for call, members in groups.values():
            left = self._assign(call, members, found)
            missing.update(dict.fromkeys(left))
        self.lost = tuple(p for p in missing if p not in found)
        stacked = {x for node in nodes if node.op_type in _STACKS for x in node.input}
        read = {x for node in nodes for x in node.input} - stacked
        self.joined = tuple(x for x, of in self.roots.items() if len(of) > 1 and x in read)

    @staticmethod
    def of(model: Any, nodes: Sequence[Any]) -> Exported | None:
        """Return what a file says of itself, if it does."""
        for field in model.graph.metadata_props:
            if field.key == _SIGNATURE and _INPUT.search(field.value):
                return Exported(model, nodes, field.value)
        return None

    def _find_roots(self, model: Any) -> dict[str, tuple[str, ...]]:
        """Return the parameters that every initializer is, or was computed from."""
        held = {t.name for t in model.graph.initializer if t.data_type in _REAL_TYPES}
        roots: dict[str, tuple[str, ...]] = {name: (name,) for name in held & self.parameters}
        for value in model.graph.value_info:
            text = _field(value.metadata_props, _FOLDED)
            if text is not None and value.name in held and value.name not in roots:
                roots[value.name] = tuple(x for x in _names(text) if x in self.parameters)
        return roots

    def _call(self, node: Any) -> ExportedCall:
        match = _TEXT.match(_field(node.metadata_props, _CALL) or "")
        if match is None:
            return ExportedCall("", "", ())
        arguments = re.findall(r"%(\w+)", match["arguments"])
        read = tuple(dict.fromkeys(self._named[x] for x in arguments if x in self._named))
        operator = match["operator"].removeprefix("torch.ops.").split(".")
        return ExportedCall(match["name"], operator[1] if len(operator) > 1 else operator[0], read)

    def _assign(self, call: ExportedCall, nodes: Sequence[Any], found: set[str]) -> list[str]:
        """Say what the initializers of a call's nodes stand for; return what stays without any.

        An initializer is the parameter of its name or the one that it was folded from, if the call
        reads that; else the next one that is left: it has the same data.
        """
        free = list(call.parameters)
        unclear: list[tuple[Any, str]] = []
        norm = "batch_norm" in call.operator and any(n.op_type in _PRODUCTS for n in nodes)
        for node in nodes:
            for name in dict.fromkeys(node.input):
                roots = self.roots.get(name, ())
                its = [p for p in roots if p in call.parameters]
                if not roots:
                    continue
                if its or norm or not call.parameters:
                    meant = its[0] if its else roots[0]
                    self._stand(node, name, meant if len(roots) == 1 else name)
                    found.update(its or roots)
                    free = [p for p in free if p not in its]
                else:
                    unclear.append((node, name))
        taken: dict[str, str] = {}
        for node, name in unclear:
            if name not in taken and free:
                taken[name] = free.pop(0)
            self._stand(node, name, taken.get(name, name))
            found.add(taken.get(name, self.roots[name][0]))
        return self._recover(call, nodes, free, found)

    def _stand(self, node: Any, name: str, parameter: str) -> None:
        self.stands_for.setdefault(node.output[0], {})[name] = parameter

    def _recover(
        self, call: ExportedCall, nodes: Sequence[Any], free: list[str], found: set[str]
    ) -> list[str]:
        """Put back what the optimiser of the file removed; return what it cannot."""
        products = [n for n in nodes if n.op_type in _PRODUCTS]
        if not products or not free:
            return free
        node = products[-1]
        if "batch_norm" in call.operator and len(call.parameters) == 2:
            self.norms[node.output[0]] = (call.parameters[0], call.parameters[1])
            found.update(call.parameters)
            bias = _bias_beside(self.stands_for.get(node.output[0], {}), node)
            if bias in self.parameters and bias not in node.input:
                self.biases[node.output[0]] = bias
                found.add(bias)
            return []
        if call.operator in _ADDS_BIAS and len(free) == 1 and free[0] == call.parameters[-1]:
            self.biases[node.output[0]] = free[0]
            found.update(free)
            return []
        return free


def _bias_beside(stands_for: Mapping[str, str], node: Any) -> str:
    """Return the name that the bias of a product's module has, from the name of its matrix."""
    matrix = stands_for.get(node.input[1], node.input[1])
    return f"{matrix.removesuffix('.weight')}.bias"


def _field(fields: Iterable[Any], key: str) -> str | None:
    return next((str(f.value) for f in fields if f.key == key), None)


def _names(text: str) -> tuple[str, ...]:
    """Read a list of texts as Python writes it."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(str(x) for x in found) if isinstance(found, list) else ()
