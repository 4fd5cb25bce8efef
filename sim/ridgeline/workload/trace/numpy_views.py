"""NumPy's views and indices: parts and other shapes of an array."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.workload.trace.numpy_tracer import NumpyTape, TracedArray

Handler = Callable[..., Any]


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return axes as numbers that are not negative."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(np.lib.array_utils.normalize_axis_index(int(one), ndim) for one in given)


def _viewed(tape: NumpyTape, x: TracedArray, view: Callable[[Any], Any]) -> TracedArray:
    """Record a view whose shape NumPy finds on an array without memory."""
    empty = np.broadcast_to(np.zeros((), np.int8), x.shape)
    return tape.emit("view", [x], view(empty).shape, x.dtype)


def view_of(name: str) -> Handler:
    """Return the handler of a function that gives a view."""

    def handle(tape: NumpyTape, x: Any, *args: Any, **kwargs: Any) -> TracedArray:
        return _viewed(tape, tape.taken(x), lambda a: getattr(np, name)(a, *args, **kwargs))

    return handle


def transpose(tape: NumpyTape, x: Any, *axes: Any) -> TracedArray:
    """Reverse or permute axes."""
    given = axes[0] if len(axes) == 1 and (axes[0] is None or np.ndim(axes[0])) else axes or None
    return _viewed(tape, tape.taken(x), lambda a: np.transpose(a, given))


def reshape(tape: NumpyTape, x: Any, *shape: Any, **kwargs: Any) -> TracedArray:
    """Give the same elements another shape."""
    array = tape.taken(x)
    given = kwargs.get("shape", kwargs.get("newshape", shape))
    while len(given) == 1 and np.ndim(given[0]):
        given = given[0]
    sizes = [int(n) for n in (given if np.ndim(given) else (given,))]
    if sizes.count(-1) == 1:
        rest = math.prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = array.size // rest if rest else 0
    if math.prod(sizes) != array.size:
        raise ValueError(f"cannot reshape {list(array.shape)} into {sizes}")
    return tape.emit("view", [array], sizes, array.dtype)


def ravel(tape: NumpyTape, x: Any, *_: Any) -> TracedArray:
    """Give the same elements one axis."""
    array = tape.taken(x)
    return tape.emit("view", [array], (array.size,), array.dtype)


def astype(tape: NumpyTape, x: TracedArray, dtype: Any, **_: Any) -> TracedArray:
    """Convert; formats are those of the precision."""
    return tape.emit("view", [x], x.shape, np.dtype(dtype))


def copied(tape: NumpyTape, x: TracedArray, *_: Any, **__: Any) -> TracedArray:
    """Copy."""
    return tape.emit("view", [x], x.shape, x.dtype)


def getitem(tape: NumpyTape, x: TracedArray, key: Any) -> TracedArray:
    """Slices of one axis, views, and rows taken by indices."""
    keys = key if isinstance(key, tuple) else (key,)
    arrays = [k for k in keys if hasattr(k, "tape") or isinstance(k, np.ndarray | list)]
    if arrays:
        return _taken_rows(tape, x, keys)
    empty = np.broadcast_to(np.zeros((), np.int8), x.shape)
    shape = empty[key].shape
    if math.prod(shape) == x.size:
        return tape.emit("view", [x], shape, x.dtype)
    cuts = _cuts(keys, x)
    if len(cuts) != 1:
        return tape.emit("rearrange", [x], shape, x.dtype)
    ((axis, (start, length)),) = cuts.items()
    cut = list(x.shape)
    cut[axis] = length
    part = tape.emit("slice", [x], cut, x.dtype, axis=axis, start=start, length=length)
    return part if part.shape == shape else tape.emit("view", [part], shape, x.dtype)


def _cuts(keys: Sequence[Any], x: TracedArray) -> dict[int, tuple[int, int]]:
    """Axis -> start and length, of the axes that are cut without steps; else empty."""
    used = sum(k is not None and k is not Ellipsis for k in keys)
    cuts, axis = {}, 0
    for k in keys:
        if k is None:
            continue
        if k is Ellipsis:
            axis += x.ndim - used
            continue
        if isinstance(k, slice):
            start, stop, step = k.indices(x.shape[axis])
            if step != 1:
                return {}
            if stop - start != x.shape[axis]:
                cuts[axis] = (start, max(stop - start, 0))
        else:
            cuts[axis] = (int(k) % max(x.shape[axis], 1), 1)
        axis += 1
    return cuts


def _taken_rows(tape: NumpyTape, x: TracedArray, keys: Sequence[Any]) -> TracedArray:
    indices = [tape.taken(k) for k in keys if not isinstance(k, slice) and k is not None]
    if len(keys) == 1 and indices[0].dtype.kind != "b":
        if x.ndim == 2:
            shape = (*indices[0].shape, x.shape[1])
            return tape.emit("embedding", [indices[0], x], shape, x.dtype, sparse=0)
        return tape.emit(
            "gather-elements", [x, indices[0]], (*indices[0].shape, *x.shape[1:]), x.dtype
        )
    if any(i.dtype.kind == "b" for i in indices) or any(not hasattr(k, "shape") for k in keys):
        raise RidgelineError("indexing by masks, or by arrays and slices together, is not known")
    lead = np.broadcast_shapes(*(i.shape for i in indices))
    return tape.emit("gather-elements", [x, *indices], (*lead, *x.shape[len(keys) :]), x.dtype)


def taken(tape: NumpyTape, x: Any, indices: Any, axis: Any = None, **_: Any) -> TracedArray:
    """Take elements along an axis by indices."""
    array, i = tape.taken(x), tape.taken(indices)
    if axis == 0:
        return _taken_rows(tape, array, (i,))
    axis = 0 if axis is None else axes_of(axis, array.ndim)[0]
    shape = (*array.shape[:axis], *i.shape, *array.shape[axis + 1 :])
    return tape.emit("gather-elements", [array, i], shape, array.dtype)
