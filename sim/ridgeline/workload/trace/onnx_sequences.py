"""ONNX sequences: lists of tensors, as exporters write them for ``split`` and ``stack``.

A sequence is no value of a trace; it is the names of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ridgeline.errors import RidgelineError


class NodeWalk(Protocol):
    """What the pass over the nodes (`onnx_graph.Walk`) knows, and does for a node."""

    known: dict[str, Any]
    sequences: dict[str, list[str]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a value."""

    def declare(self, name: str, like: str, shape: tuple[int, ...]) -> None:
        """Declare what a node makes of a value of the same kind."""

    def record(
        self, node: Any, kind: str, inputs: Iterable[str], outputs: Iterable[str], /, **attrs: Any
    ) -> None:
        """Append a step of a node."""


def visit(walk: NodeWalk, node: Any) -> bool:
    """Record a node that makes or reads a sequence; tell whether it was one."""
    handler = _HANDLERS.get(node.op_type)
    if handler is not None:
        handler(walk, node)
    return handler is not None


def _split(walk: NodeWalk, node: Any) -> None:
    x = node.input[0]
    attrs = {a.name: a.i for a in node.attribute}
    shape = walk.shape(x)
    axis = attrs.get("axis", 0) % len(shape)
    sizes = _sizes(walk, node, shape[axis])
    squeezed = len(node.input) < 2 and not attrs.get("keepdims", 1)
    parts = []
    for i, size in enumerate(sizes):
        middle = () if squeezed else (size,)
        part = f"{node.output[0]}.{i}"
        walk.declare(part, x, (*shape[:axis], *middle, *shape[axis + 1 :]))
        parts.append(part)
    kind = "split" if len(parts) > 1 else "view"
    walk.record(node, kind, (x,), parts, axis=axis)
    walk.sequences[node.output[0]] = parts


def _sizes(walk: NodeWalk, node: Any, whole: int) -> Sequence[int]:
    """Lengths of the parts: given one by one, or one for all, or 1."""
    if len(node.input) < 2 or not node.input[1]:
        return [1] * whole
    given = walk.known.get(node.input[1])
    if given is None:
        raise RidgelineError(f"the node {node.name!r} splits into parts of unknown size")
    if given.ndim:
        return [int(size) for size in given]
    each = int(given)
    return [min(each, whole - start) for start in range(0, whole, each)]


def _at(walk: NodeWalk, node: Any) -> None:
    position = walk.known.get(node.input[1])
    parts = walk.sequences.get(node.input[0])
    if parts is None or position is None:
        raise RidgelineError(f"the node {node.name!r} takes an unknown part of a sequence")
    part = parts[int(position.reshape(-1)[0])]
    walk.declare(node.output[0], part, walk.shape(part))
    walk.record(node, "view", (part,), node.output)


def _construct(walk: NodeWalk, node: Any) -> None:
    walk.sequences[node.output[0]] = list(node.input)


def _concat(walk: NodeWalk, node: Any) -> None:
    parts = walk.sequences.get(node.input[0])
    if parts is None:
        raise RidgelineError(f"the node {node.name!r} joins an unknown sequence")
    attrs = {a.name: a.i for a in node.attribute}
    shape = walk.shape(parts[0])
    stacked = bool(attrs.get("new_axis", 0))
    axis = attrs["axis"] % (len(shape) + stacked)
    sizes = [1 if stacked else walk.shape(part)[axis] for part in parts]
    tail = shape[axis:] if stacked else shape[axis + 1 :]
    walk.declare(node.output[0], parts[0], (*shape[:axis], sum(sizes), *tail))
    if len(parts) == 1:
        walk.record(node, "view", parts, node.output)
    else:
        walk.record(node, "concat", parts, node.output, axis=axis, sizes=tuple(sizes))


_HANDLERS: dict[str, Callable[[NodeWalk, Any], None]] = {
    "SplitToSequence": _split,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "ConcatFromSequence": _concat,
}
