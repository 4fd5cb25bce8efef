"""``rl.trace_numpy``: the training graph of plain NumPy code.

The function is called with arrays that have a shape and a type and no data; what it asks of NumPy
is recorded (through NumPy's own protocols, NEP 13 and NEP 18) and becomes the same steps as those
of a PyTorch module. Nothing is computed, so shapes may be as large as one likes, and code that
looks at values cannot be traced.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ridgeline.errors import RidgelineError, nearest
from ridgeline.workload import optimizers
from ridgeline.workload.model import Model
from ridgeline.workload.trace.ir import Capture, Kind, Recorder
from ridgeline.workload.trace.network import traced_model
from ridgeline.workload.trace.numpy_functions import FUNCTIONS, UFUNCS, Shape, reduced

Loss = Literal["mse", "cross-entropy", "bce"]
_BATCHES = (1, 2, 3)  # multiples of the example's batch


def trace_numpy(
    function: Callable[..., Any],
    *arrays: Any,
    weights: Sequence[int] | None = None,
    loss: Loss | None = None,
    optimizer: str = "sgd",
    name: str | None = None,
    strict: bool = False,
) -> Model:
    """Return the model of a NumPy function, for training steps of any batch and precision.

    Parameters
    ----------
    function
        Forward pass: of a mini-batch and weights, in any order.
    arrays
        Its arguments: arrays, or lists, tuples and dictionaries of arrays; only shapes and types
        matter. Axis 0 of those that are not weights is the mini-batch.
    weights
        Positions of the arguments that are trained; default: all but the first.
    loss
        What is minimised: "mse", "cross-entropy" over the last axis, or "bce"; targets become an
        input. None: the scalar that the function returns, or mse of what it returns.
    optimizer
        Its name, as in a plan.
    name
        Of the model; by default the function's.
    strict
        As in `rl.trace`.

    Raises
    ------
    RidgelineError
        If the function looks at data, or calls what is not known; with the name.
    """
    optimizers.find(optimizer)
    if not arrays:
        raise RidgelineError("give the arrays that the function is called with")
    trained = set(range(1, len(arrays)) if weights is None else weights)
    if not trained <= set(range(len(arrays))):
        raise RidgelineError(f"weights {sorted(trained)}: there are {len(arrays)} arguments")
    called = name or str(getattr(function, "__name__", "function"))
    example = _Example(function, arrays, trained, loss, called)
    return traced_model(
        example.captures(),
        called,
        f"traced from the NumPy function {called!r}",
        optimizer=optimizer,
        strict=strict,
        attention=None,
    )


class _Example:
    """The function and its arguments, at any batch size."""

    def __init__(
        self,
        function: Callable[..., Any],
        arrays: Sequence[Any],
        trained: set[int],
        loss: Loss | None,
        name: str,
    ) -> None:
        self.function, self.arrays, self.trained = function, arrays, trained
        self.loss, self.name = loss, name
        shapes = [
            leaf.shape
            for i, array in enumerate(arrays)
            if i not in trained
            for leaf in _leaves(array)
            if leaf.shape
        ]
        self.batch = shapes[0][0] if shapes else 1

    def captures(self) -> list[Capture]:
        """Trace at three batch sizes, or at the example's where that is not possible."""
        batches = (2, 3, 4) if self.batch == 1 else tuple(self.batch * i for i in _BATCHES)
        try:
            return [self.capture(batch) for batch in batches]
        except RidgelineError:
            return [self.capture(self.batch)]

    def capture(self, batch: int) -> Capture:
        """Record one forward pass with loss."""
        tape = NumpyTape()
        names = _names(self.function, len(self.arrays))
        args = [
            _mapped(array, partial(self._proxy, tape, batch, i in self.trained), names[i])
            for i, array in enumerate(self.arrays)
        ]
        try:
            result = self.function(*args)
            scalar = self._loss_of(tape, result)
        except RidgelineError:
            raise
        except Exception as error:
            raise RidgelineError(
                f"{self.name} fails on arrays of batch {batch}: {type(error).__name__}: {error}"
            ) from error
        return Capture(dict(tape.values), tuple(tape.steps), scalar, batch)

    def _proxy(
        self, tape: NumpyTape, batch: int, trained: bool, leaf: Any, path: str
    ) -> TracedArray:
        shape = tuple(leaf.shape)
        if trained:
            return tape.array(shape, leaf.dtype, "weight", path)
        if shape and shape[0] == self.batch:
            shape = (batch, *shape[1:])
        return tape.array(shape, leaf.dtype, "input", path)

    def _loss_of(self, tape: NumpyTape, result: Any) -> str:
        if not isinstance(result, TracedArray):
            raise RidgelineError(
                f"{self.name} returns {type(result).__name__}; an array or a scalar is needed"
            )
        if self.loss is None and result.ndim == 0:
            return result.name
        which = self.loss or "mse"
        axis = max(result.ndim - 1, 0)
        classes = which == "cross-entropy"
        target = tape.array(
            result.shape[:axis] if classes else result.shape,
            np.dtype(np.int64 if classes else np.float32),
            "input",
            "targets",
        )
        scalar = tape.value((), "real")
        tape.step("loss", "loss", [result.name, target.name], [scalar], which=which, axis=axis)
        return scalar


def _names(function: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []
    return [parameters[i] if i < len(parameters) else f"argument{i}" for i in range(count)]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield value


def _mapped(value: Any, make: Callable[[Any, str], Any], path: str) -> Any:
    """Return nested containers with every array replaced."""
    if isinstance(value, dict):
        return {key: _mapped(item, make, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, make, f"{path}.{i}") for i, item in enumerate(value))
    return make(value, path) if hasattr(value, "shape") and hasattr(value, "dtype") else value


class NumpyTape(Recorder):
    """Records what is done with traced arrays."""

    def array(
        self,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        origin: Literal["input", "weight", "constant", "made"] = "made",
        name: str = "",
    ) -> TracedArray:
        """Declare an array."""
        return TracedArray(
            self, self.value(shape, kind_of(dtype), origin, name), tuple(shape), dtype
        )

    def taken(self, x: Any) -> TracedArray:
        """Return an operand as a traced array; one with data becomes a constant."""
        if isinstance(x, TracedArray):
            return x
        array = np.asarray(x)
        number = float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else None
        value = self.value(array.shape, kind_of(array.dtype), "constant", number=number)
        return TracedArray(self, value, array.shape, array.dtype)

    def emit(
        self,
        kind: str,
        inputs: Sequence[TracedArray],
        shape: Sequence[int],
        dtype: np.dtype[Any],
        /,
        **attrs: Any,
    ) -> TracedArray:
        """Record a step with one result."""
        made = self.array(shape, dtype)
        real = kind_of(dtype) == "real" or kind in {"view", "position", "compare", "embedding"}
        self.step(
            kind if real else "integer", "", [x.name for x in inputs], [made.name], kind, **attrs
        )
        return made


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """Return the kind of number of a type."""
    if dtype.kind in "fc":
        return "real"
    if dtype.kind == "b":
        return "int8"
    if dtype.kind not in "iu":
        raise RidgelineError(f"arrays of type {dtype} cannot be traced")
    return "int64" if dtype.itemsize == 8 else "int32"


class TracedArray(NDArrayOperatorsMixin):
    """Shape and type of an array, and the tape that records what is done with it."""

    def __init__(self, tape: NumpyTape, name: str, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.tape, self.name = tape, name
        self.shape, self.dtype = tuple(int(n) for n in shape), np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> TracedArray:
        """The array with its axes in reverse order."""
        return FUNCTIONS["transpose"](self.tape, self)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<TracedArray {self.name}: {list(self.shape)} {self.dtype}>"

    def _no_data(self, *_: Any, **__: Any) -> Any:
        raise RidgelineError(
            "the function looks at the values of an array, which has none while it is traced"
        )

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __array__ = tolist = item = _no_data
    __setitem__ = _no_data

    def __getitem__(self, key: Any) -> TracedArray:
        return FUNCTIONS["getitem"](self.tape, self, key)  # type: ignore[no-any-return]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if kwargs.pop("out", None) is not None:
            self._no_data()
        if method == "reduce" and ufunc.__name__ in {"add", "maximum", "minimum", "multiply"}:
            kind = {"add": "sum", "multiply": "product-of"}.get(ufunc.__name__, "peaks")
            kwargs.setdefault("axis", 0)
            return reduced(self.tape, kind, *inputs, **kwargs)
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            known = nearest(ufunc.__name__, UFUNCS)
            raise RidgelineError(f"numpy.{ufunc.__name__} ({method}) cannot be traced{known}")
        return UFUNCS[ufunc.__name__](self.tape, *inputs)

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = function.__name__
        if name not in FUNCTIONS:
            raise RidgelineError(f"numpy.{name} cannot be traced{nearest(name, FUNCTIONS)}")
        return FUNCTIONS[name](self.tape, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Methods of an array are the functions of the same name."""
        if name.startswith("_") or name not in FUNCTIONS:
            raise AttributeError(f"a traced array has no {name!r}{nearest(name, FUNCTIONS)}")
        return lambda *args, **kwargs: FUNCTIONS[name](self.tape, self, *args, **kwargs)
