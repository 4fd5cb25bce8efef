"""Which initializers of an ONNX graph are trained, which are one, and the layers of nodes.

ONNX does not tell parameters from constants. An initializer of real numbers is taken to be trained
if it has more than one element and meets what depends on the mini-batch in a product, a sum, a
normalisation or a lookup; a table of several axes that only multiplies (the cosines of rotary
positions) is a constant, and so are the running statistics of batch normalisation.

Exporters store tied weights twice, once transposed. Two matrices of swapped shapes are one if all
of a few hundred elements, spread over them, are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from ridgeline.workload.trace.ir import Origin
from ridgeline.workload.trace.protobuf import Place

_REAL_TYPES: Mapping[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.BFLOAT16: np.uint16,
}
_PASSES_ON = frozenset(
    [
        "Transpose",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Identity",
        "Cast",
        "Expand",
        "Slice",
        "Gather",
        "Flatten",
        "Split",
        "Tile",
        "Concat",
    ]
)
_SCALES_ONLY = frozenset({"Mul", "Div", "Where", "Pow"})
_SAMPLES = 256


class Weights:
    """What the initializers of a graph are."""

    def __init__(
        self, model: Any, nodes: Sequence[Any], places: Mapping[str, Place], path: Path
    ) -> None:
        self._tensors = {t.name: t for t in model.graph.initializer}
        self._places, self._path = places, path
        self.leaves: dict[str, tuple[str, ...]] = {}
        """Initializers that a value is made of, by copies and views alone."""
        self._trained = self._find_trained(model, nodes)
        self.merged = self._find_merged(nodes)
        self.tied = self._find_tied()

    def origin(self, name: str) -> Origin:
        """Where an initializer's values come from."""
        if name not in self._tensors:
            return "made"
        return "weight" if name in self._trained and name not in self.tied else "constant"

    def own(self, node: Any) -> dict[str, str]:
        """Names of vectors that this node has to itself, though the file stores them once.

        Exporters store equal data once: at the start of training all scales of norms are ones.
        """
        shared = [x for x in node.input if x in self.merged]
        return {x: f"{x}.{node.name or node.output[0]}" for x in shared}

    def _find_merged(self, nodes: Sequence[Any]) -> set[str]:
        """Vectors that several nodes read, in a graph whose nodes share no matrix."""
        readers: dict[str, int] = {}
        for node in nodes:
            for name in node.input:
                if name in self._trained and node.op_type not in {"Gather", *_PASSES_ON}:
                    readers[name] = readers.get(name, 0) + 1
        several = {name for name, count in readers.items() if count > 1}
        matrices = any(len(self._tensors[name].dims) > 1 for name in several)
        return set() if matrices else several

    def layer(self, node: Any) -> str:
        """Path of the module that a node belongs to: from its weights' names, or its own."""
        for field in node.metadata_props:
            if field.key.endswith("name_scopes"):  # a list, as Python writes it
                scopes = re.findall(r"'([^']*)'", field.value)
                return str(scopes[-2]) if len(scopes) > 1 else ""
        for name in node.input:
            if name in self._trained and "::" not in name and "." in name:
                return str(name.rpartition(".")[0])
        parts = [p for p in node.name.split("/") if p]
        if len(parts) < 2:
            return ""
        path = ""
        for part in parts[:-1]:  # exporters repeat a list's name before its element
            path = part if not path or part.startswith(f"{path}.") else f"{path}.{part}"
        return re.sub(r"[^\w.\-]", "_", path)

    def _find_trained(self, model: Any, nodes: Sequence[Any]) -> set[str]:
        of_batch = {i.name for i in model.graph.input} - self._tensors.keys()
        for node in nodes:
            if not of_batch.isdisjoint(node.input) and node.op_type != "Shape":
                of_batch.update(node.output)
        roots: dict[str, tuple[str, ...]] = {
            name: (name,) for name, t in self._tensors.items() if self._may_train(t)
        }
        trained: set[str] = set()
        for node in nodes:
            meets = not of_batch.isdisjoint(node.input)
            found = [roots.get(x, ()) for x in node.input]
            if meets:
                for i, sources in enumerate(found):
                    trained.update(x for x in sources if self._takes_weight(node, i, x))
            elif node.op_type in _PASSES_ON:
                passed = tuple(dict.fromkeys(x for sources in found for x in sources))
                roots.update(dict.fromkeys(node.output, passed))
        self.leaves = roots
        return trained

    @staticmethod
    def _may_train(tensor: Any) -> bool:
        size = int(np.prod(tensor.dims, dtype=np.int64))
        return int(tensor.data_type) in _REAL_TYPES and size > 1

    def _takes_weight(self, node: Any, position: int, name: str) -> bool:
        if node.op_type == "BatchNormalization":
            return position in {1, 2}
        if node.op_type in _SCALES_ONLY:
            dims = self._tensors[name].dims
            return bool(max(dims) == int(np.prod(dims, dtype=np.int64)))
        return node.op_type not in {"Resize", "Clip", "Pad", "OneHot"}

    def _find_tied(self) -> dict[str, str]:
        """Return the initializers that are another one transposed, by name."""
        shapes: dict[tuple[int, ...], list[str]] = {}
        for name in self._tensors:
            if name in self._trained and len(self._tensors[name].dims) == 2:
                shape = tuple(int(d) for d in self._tensors[name].dims)
                shapes.setdefault(shape, []).append(name)
        tied: dict[str, str] = {}
        for (rows, columns), names in shapes.items():
            for other in shapes.get((columns, rows), ()):
                for name in names:
                    free = name < other and name not in tied and other not in tied
                    if free and self._equal(name, other, rows, columns):
                        first, second = (other, name) if "::" in name else (name, other)
                        tied[second] = first
        return tied

    def _equal(self, name: str, other: str, rows: int, columns: int) -> bool:
        """Compare elements (i, j) of one with (j, i) of the other."""
        where = np.linspace(0, rows * columns - 1, _SAMPLES).astype(np.int64)
        i, j = where // columns, where % columns
        a, b = self._sample(name, i * columns + j), self._sample(other, j * rows + i)
        return a is not None and b is not None and bool(np.array_equal(a, b)) and np.ptp(a) > 0

    def _sample(self, name: str, where: Any) -> Any:
        """Elements of an initializer, without reading it all; None if it is stored elsewhere."""
        tensor, place = self._tensors[name], self._places.get(name)
        if place is None:
            if tensor.data_location == TensorProto.EXTERNAL:
                return None
            return numpy_helper.to_array(tensor).reshape(-1)[where]
        dtype = np.dtype(_REAL_TYPES[tensor.data_type])
        if (where.max() + 1) * dtype.itemsize > place.size:
            return None
        data = np.memmap(self._path, dtype, "r", place.offset, (place.size // dtype.itemsize,))
        return np.array(data[where])
