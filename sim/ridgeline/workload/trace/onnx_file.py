"""``rl.load_model("network.onnx")``: the training graph of an ONNX forward graph.

Sizes come from the shape inference of the onnx package, one node after the other, with the values
of small integer tensors carried along, at three batch sizes. Weights are never read: an initializer
is a shape. What an exporter has left out of the forward pass is put back: a loss is added, batch
normalisation and dropout are those of training.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload import optimizers
from ridgeline.workload.model import Model
from ridgeline.workload.trace.network import TraceWarning, traced_model
from ridgeline.workload.trace.onnx_check import check_tensors
from ridgeline.workload.trace.protobuf import slim

_OPTIONS = {
    "loss": "cross-entropy",
    "optimizer": "adamw",
    "attention": None,
    "strict": False,
}
_LOSSES = ("cross-entropy", "mse", "bce", "smooth-l1")
MAX_NODES = 500_000
_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""What attributes and names of wrong types and sizes end in; no schema checks them all."""


def load_onnx(path: Path, options: Mapping[str, Any]) -> Model:
    """Load an ONNX file as a model.

    Parameters
    ----------
    options
        "loss" (cross-entropy, mse, bce, smooth-l1), "optimizer", "attention" (separate, flash;
        by default as the software does that runs the model),
        "strict", and "dims.NAME" for every symbolic size besides the batch.

    Raises
    ------
    ConfigError
        If the file is no ONNX model, is cut off or cyclic, or a size or an option is missing.
    """
    chosen, dims = _read_options(options)
    model, places = _parsed(path)
    from onnx.checker import ValidationError

    from ridgeline.workload.trace.onnx_graph import OnnxGraph

    try:
        graph = OnnxGraph(model, places, path, dims)
        captures = _captures(graph, chosen["loss"])
    except (ValidationError, *_DAMAGE) as error:
        raise ConfigError(
            f"a node cannot be read: {type(error).__name__}: {str(error)[:200]}", file=str(path)
        ) from error
    for doubt in graph.weights.doubts():
        warnings.warn(f"{path.stem}: {doubt}", TraceWarning, stacklevel=3)
    return traced_model(
        captures,
        path.stem,
        f"ONNX graph {model.graph.name!r}, made by {model.producer_name or 'an unnamed exporter'}"
        f" {model.producer_version}".rstrip(),
        optimizer=chosen["optimizer"],
        strict=chosen["strict"],
        attention=chosen["attention"],
    )


def _captures(graph: Any, loss: str) -> list[Any]:
    """Walk the graph at three batch sizes, or only at the one that it was exported with."""
    batch = graph.batch
    try:
        return [graph.capture(size, loss) for size in _sizes(batch)]
    except (RidgelineError, *_DAMAGE):
        return [graph.capture(batch, loss)]  # tells what is wrong if this fails, too


def _sizes(batch: int) -> tuple[int, int, int]:
    """Batch sizes to look at: multiples, but not one, where axes have rules of their own."""
    return (batch, 2 * batch, 3 * batch) if batch > 1 else (2, 3, 4)


def _read_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    chosen, dims = dict(_OPTIONS), {}
    for name, value in options.items():
        if name.startswith("dims.") and isinstance(value, int) and value > 0:
            dims[name.removeprefix("dims.")] = value
        elif name in _OPTIONS:
            chosen[name] = value
        else:
            allowed = ", ".join([*_OPTIONS, "dims.NAME"])
            raise ConfigError(
                f"unknown option{nearest(name, _OPTIONS)} (allowed: {allowed})", field=name
            )
    if chosen["loss"] not in _LOSSES:
        raise ConfigError(f"unknown loss {chosen['loss']!r} (known: {', '.join(_LOSSES)})")
    if chosen["attention"] not in {"separate", "flash", None}:
        raise ConfigError(f"unknown attention {chosen['attention']!r} (known: separate, flash)")
    optimizers.find(str(chosen["optimizer"]))
    return chosen, dims


def _parsed(path: Path) -> tuple[Any, Any]:
    """Parse a file without its weights."""
    data, places = slim(path)
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise RidgelineError(
            "reading ONNX files needs the onnx package: pip install 'ridgeline[trace]'"
        ) from error
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ConfigError(
            "not an ONNX file: its fields have wrong types", file=str(path)
        ) from error
    if not model.graph.node:
        raise ConfigError("the ONNX file has no graph with nodes", file=str(path))
    if len(model.graph.node) > MAX_NODES:
        raise ConfigError(f"over {MAX_NODES} nodes", file=str(path))
    check_tensors(model, places, str(path))
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:
            raise ConfigError(
                f"its functions cannot be inlined: {error}", file=str(path)
            ) from error
    return model, places
