"""Which initializers of an ONNX graph are trained, which are one, and the layers of nodes.

ONNX does not tell parameters from constants. An initializer of real numbers is taken to be trained
if it has more than one element and meets what depends on the mini-batch in a product, a sum, a
normalisation or a lookup; a table of several axes that only multiplies (the cosines of rotary
positions) is a constant, and so are the running statistics of batch normalisation.

Exporters store tied weights twice, once transposed. Two matrices of swapped shapes are one if all
of a few hundred elements, spread over them, are equal. Equal vectors they store once, for each of
their readers by an Identity or directly: then they are as many weights as there are readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from ridgeline.workload.trace.ir import Origin
from ridgeline.workload.trace.onnx_exported import Exported
from ridgeline.workload.trace.onnx_folded import LARGEST, FoldedLookup, folded, is_made_up
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
_WITH_MATRICES = frozenset(
    ["MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"]
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
        self._blank: list[str] = []  # lookups and masks of one number only
        self._first: dict[str, str] = {}  # parameter -> the initializer that has its shape
        self.leaves: dict[str, tuple[str, ...]] = {}
        """Initializers that a value is made of, by copies and views alone."""
        self.stated = Exported.of(model, nodes)
        """What the exporter says of the parameters, if it does."""
        self.copies = self._find_copies(nodes) if self.stated is None else {}
        """Results of Identity that are weights of their own."""
        self._tensors |= {y: self._tensors[x] for y, x in self.copies.items()}
        self._trained = self._find_trained(model, nodes)
        if self.stated is not None:
            real = {x for x, t in self._tensors.items() if int(t.data_type) in _REAL_TYPES}
            self._trained = {x for x in real if self.stated.roots.get(x)}
        self.tables = self._find_tables(nodes)
        """Lookups with constant positions that an exporter computed ahead, by initializer."""
        self.tied = self._find_tied(nodes) if self.stated is None else {}
        self.bases: dict[str, str] = {}
        """Weights that are another one in another shape, by name."""
        self.merged = self._find_merged(nodes) if self.stated is None else self._find_stood(nodes)

    def origin(self, name: str) -> Origin:
        """Where an initializer's values come from."""
        if name not in self._tensors:
            return "made"
        return "weight" if name in self._trained and name not in self.tied else "constant"

    def is_trained(self, name: str) -> bool:
        """Tell whether an initializer is a parameter, or made of some."""
        return name in self._trained

    def own(self, node: Any) -> dict[str, str]:
        """Names of vectors that this node has to itself, though the file stores them once.

        Exporters store equal data once: at the start of training all scales of norms are ones.
        """
        if self.stated is not None:
            meant = self.stated.stands_for.get(node.output[0], {})
            named = {x: self._in_shape(x, p) for x, p in meant.items() if x not in self.tables}
            return {x: p for x, p in named.items() if x != p}
        shared = [x for x in node.input if x in self.merged]
        return {x: f"{x}.{node.name or node.output[0]}" for x in shared}

    def doubts(self) -> list[str]:
        """Return what the file does not tell about the parameters."""
        said = []
        if self.stated is not None and self.stated.lost:
            said.append(
                f"the file names {_listed(self.stated.lost)} without data: not counted among the"
                " parameters"
            )
        if self.stated is not None and self.stated.joined:
            said.append(
                f"the exporter computed {_listed(self.stated.joined)} from several parameters each:"
                " counted as one"
            )
        seen = [name for name in self.tables if name not in self._blank]
        if seen:
            said.append(
                f"{_listed(seen)} are lookups that the exporter computed ahead: of their tables"
                " only the rows that were taken are counted"
            )
        if self._blank:
            said.append(
                f"{_listed(self._blank)}, computed ahead by the exporter, hold one number only:"
                " whether they are masks or learned, and of what size, cannot be seen; export with"
                " do_constant_folding=False or after training"
            )
        return said

    def bias(self, node: Any) -> str | None:
        """Name of a product's bias of which the file has no data."""
        return None if self.stated is None else self.stated.biases.get(node.output[0])

    def norm(self, node: Any) -> tuple[str, str] | None:
        """Scale and shift of the batch normalisation that was multiplied into a product."""
        return None if self.stated is None else self.stated.norms.get(node.output[0])

    def _in_shape(self, name: str, parameter: str) -> str:
        """Name of a parameter in the shape of the initializer that stands for it."""
        first = self._first.get(parameter, name)
        if list(self._tensors[first].dims) == list(self._tensors[name].dims):
            return parameter
        return f"{parameter}.{name}"

    def _find_stood(self, nodes: Sequence[Any]) -> set[str]:
        """Find the shapes of parameters, and initializers that are nowhere what they are named."""
        assert self.stated is not None
        used: set[str] = set()
        stood: set[str] = set()
        for node in nodes:
            for name, parameter in self.stated.stands_for.get(node.output[0], {}).items():
                first = parameter if parameter in self._tensors else name
                before = self._first.setdefault(parameter, first)
                if self._size(first) < self._size(before):  # copies of it were computed ahead
                    self._first[parameter] = first
        for node in nodes:
            own = self.own(node)
            stood.update(own)
            used.update(x for x in node.input if x not in own)
            for name, made in own.items():
                parameter = self.stated.stands_for[node.output[0]][name]
                if made != parameter:
                    self.bases[made] = parameter
        return stood - used

    def _find_copies(self, nodes: Sequence[Any]) -> dict[str, str]:
        """Return the weights that are stored once and copied for one of another name.

        Vectors, matrices that the network names, and those made up for another module: an exporter
        stores equal data once, and modules that were copied are equal until they are trained.
        """
        modules, copies = _modules(nodes), {}
        for node in nodes:
            if node.op_type != "Identity" or node.input[0] not in self._tensors:
                continue
            source, copy = node.input[0], node.output[0]
            other = not is_made_up(copy) or modules.get(copy) != modules.get(source)
            tensor = self._tensors[source]
            if self._may_train(tensor) and (other or _is_vector(tensor)):
                copies[copy] = source
        return copies

    def _find_tables(self, nodes: Sequence[Any]) -> dict[str, FoldedLookup]:
        """Find what was looked up or masked ahead among what only adds to activations."""
        inside = {name for node in nodes if node.op_type in _WITH_MATRICES for name in node.input}
        added = {x for node in nodes if node.op_type in {"Add", "Where"} for x in node.input}
        tables: dict[str, FoldedLookup] = {}
        for name in sorted(self._trained - inside):
            tensor = self._tensors[name]
            if _is_vector(tensor) or not (name in added or is_made_up(name)):
                continue
            size = int(np.prod(tensor.dims, dtype=np.int64))
            values = self._sample(name, np.arange(size)) if size <= LARGEST else None
            if values is None:
                continue
            values = values.reshape(tuple(tensor.dims))
            found = folded(values, is_added=name in added and self.stated is None)
            if not is_made_up(name) and (found != "mask" or values.min() == 0):
                continue  # named by the network: a weight, unless it hides something
            if found is not None and np.ptp(values) == 0:
                self._blank.append(name)
            if found == "mask":
                self._trained.discard(name)
            elif found is not None:
                tables[name] = found
        return tables

    def _find_merged(self, nodes: Sequence[Any]) -> set[str]:
        """Vectors that several nodes read, in a graph whose nodes share no matrix."""
        readers: dict[str, int] = {}
        for node in nodes:
            for name in node.input:
                if name not in self._trained or name in self.copies or node.op_type == "Gather":
                    continue
                if not _is_vector(self._tensors[name]) or node.op_type not in _PASSES_ON:
                    readers[name] = readers.get(name, 0) + 1
        several = {name for name, count in readers.items() if count > 1}
        several -= self.tables.keys()
        matrices = any(not _is_vector(self._tensors[name]) for name in several)
        shared = any(self._tensors[x].dims == self._tensors[y].dims for x, y in self.tied.items())
        return set() if matrices or shared else several

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
        copied = set(self.copies)
        trained: set[str] = set()
        for node in nodes:
            meets = not of_batch.isdisjoint(node.input)
            found = [roots.get(x, ()) for x in node.input]
            if meets:
                for i, sources in enumerate(found):
                    trained.update(x for x in sources if self._takes_weight(node, i, x))
            elif node.op_type in {"Add", *_PASSES_ON} and copied.isdisjoint(node.output):
                passed = tuple(dict.fromkeys(x for sources in found for x in sources))
                roots.update(dict.fromkeys(node.output, passed))
        self.leaves = roots
        return trained

    def _size(self, name: str) -> int:
        return int(np.prod(self._tensors[name].dims, dtype=np.int64))

    @staticmethod
    def _may_train(tensor: Any) -> bool:
        size = int(np.prod(tensor.dims, dtype=np.int64))
        return int(tensor.data_type) in _REAL_TYPES and size > 1

    def _takes_weight(self, node: Any, position: int, name: str) -> bool:
        if node.op_type == "BatchNormalization":
            return position in {1, 2}
        if node.op_type in _SCALES_ONLY:
            return _is_vector(self._tensors[name])
        return node.op_type not in {"Resize", "Clip", "Pad", "OneHot"}

    def _find_tied(self, nodes: Sequence[Any]) -> dict[str, str]:
        """Return the matrices that are another one, or another one transposed, by name.

        Copies that modules have of one another are equal, too, until they are trained: two matrices
        that the exporter made up for modules of other names are two.
        """
        first: dict[Any, str] = {}
        tied: dict[str, str] = {}
        modules = _modules(nodes)
        names = [n for n in self._tensors if n in self._trained and len(self._tensors[n].dims) == 2]
        names = [name for name in names if name not in self.copies]
        for name in sorted(names, key=lambda name: "::" in name or is_made_up(name)):
            rows, columns = (int(d) for d in self._tensors[name].dims)
            where = np.linspace(0, rows * columns - 1, _SAMPLES).astype(np.int64)
            found = self._sample(name, where)
            if found is None or np.ptp(found) == 0:
                continue
            key = (rows, columns, found.tobytes())
            other = first.get(key)
            if other is not None:
                made_up = is_made_up(name) and is_made_up(other)
                if not (made_up and modules.get(name) != modules.get(other)):
                    tied[name] = other
                continue
            first[key] = name
            i, j = where // rows, where % rows  # of the transposed matrix [columns, rows]
            first.setdefault((columns, rows, self._sample(name, j * columns + i).tobytes()), name)
        return tied

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


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return f"{len(names)} arrays ({listed}{', ...' if len(names) > 5 else ''})"


def _modules(nodes: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """Path of the module that reads an initializer, without the numbers of repeated calls."""
    paths: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if node.op_type == "Identity":
            continue
        path = tuple(re.sub(r"_\d+$", "", part) for part in node.name.split("/")[:-1])
        for name in node.input:
            paths.setdefault(name, path)
    return paths


def _is_vector(tensor: Any) -> bool:
    """Tell whether a tensor has one axis of more than one element."""
    return bool(max(tensor.dims, default=1) == int(np.prod(tensor.dims, dtype=np.int64)))
