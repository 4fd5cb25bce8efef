"""What a parsed ONNX file states of itself: operator sets, sizes of tensors, and their data.

Weights are never read, those in other files least of all: a location is a text that nobody opens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.errors import ConfigError, short
from ridgeline.workload.trace.protobuf import Place

_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2, 27: 6,
    28: 6,
}  # fmt: skip
"""Of one element, by `TensorProto.DataType` of onnx.proto3."""
MAX_ELEMENTS = 2**48
"""Of one tensor: no file states more by intent, and products of such sizes stay exact."""


def check_tensors(model: Any, places: Mapping[str, Place], file: str) -> None:
    """Refuse a model whose operator set is unknown or whose sizes cannot be.

    Parameters
    ----------
    model
        The parsed file, without the data of large initializers.
    places
        Where that data is.

    Raises
    ------
    ConfigError
        If the operators are of no or of a later version than the onnx package knows, a size is
        negative or too large, or an initializer has more or fewer bytes than its sizes say.
    """
    from onnx import defs

    latest = defs.onnx_opset_version()
    versions = [one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}]
    for version in versions:
        if not 1 <= version <= latest:
            raise ConfigError(
                f"operators of version {version}; the onnx package here knows 1 to {latest}",
                file=file, field="opset_import",
            )  # fmt: skip
    for tensor in model.graph.initializer:
        _check_sizes(f"the initializer {short(tensor.name)}", tensor.dims, file)
        _check_data(tensor, places.get(tensor.name), file)
    for what, value in _values(model.graph):
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
        _check_sizes(f"the {what} {short(value.name)}", sizes, file)


def _values(graph: Any) -> Iterator[tuple[str, Any]]:
    for what, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            yield what, value


def _check_sizes(what: str, sizes: Any, file: str) -> None:
    if any(size < 0 for size in sizes) or math.prod(sizes) > MAX_ELEMENTS:
        found = " x ".join(str(size) for size in list(sizes)[:8])
        raise ConfigError(f"{what} cannot have the sizes {found}", file=file)


def _check_data(tensor: Any, place: Place | None, file: str) -> None:
    """Compare the bytes of an initializer with its sizes."""
    raw = place.size if place is not None and place.raw else len(tensor.raw_data)
    if raw == 0:
        return  # elsewhere, or as numbers, which the onnx package counts
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        raise ConfigError(
            f"the initializer {short(tensor.name)} has the data type {tensor.data_type}, which has"
            " no bytes of its own", file=file,
        )  # fmt: skip
    due = -(-math.prod(tensor.dims) * bits // 8)
    if raw != due:
        raise ConfigError(
            f"the initializer {short(tensor.name)} has {raw} bytes; its sizes need {due}", file=file
        )
