"""What NumPy's functions mean: their names to the steps of a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace.numpy_views import (
    Handler,
    astype,
    axes_of,
    copied,
    getitem,
    ravel,
    reshape,
    taken,
    transpose,
    view_of,
)

if TYPE_CHECKING:
    from ridgeline.workload.trace.numpy_tracer import NumpyTape, TracedArray

Shape = tuple[int, ...]
_REAL = np.dtype(np.float64)

_UNARY = {
    "exp": "exp", "exp2": "exp", "expm1": "expm1", "log": "log", "log2": "log", "log10": "log",
    "log1p": "log1p", "sqrt": "sqrt", "square": "square", "absolute": "absolute",
    "fabs": "absolute", "negative": "negate", "sin": "sine", "cos": "cosine", "tan": "tangent",
    "sinh": "hyperbolic", "cosh": "hyperbolic", "arcsin": "arc", "arccos": "arc", "arctan": "arc",
    "arcsinh": "arc", "arccosh": "arc", "arctanh": "arc", "tanh": "tanh",
    "reciprocal": "reciprocal", "floor": "step", "ceil": "step", "rint": "step", "sign": "step",
    "trunc": "step", "logical_not": "compare", "isnan": "compare", "isfinite": "compare",
    "positive": "view",
}  # fmt: skip
_COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and",
            "logical_or")  # fmt: skip


def _real(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    found = np.result_type(*dtypes)
    return found if found.kind == "f" else _REAL


def _number(x: Any) -> float | None:
    """Return an operand as a number, if it is one."""
    array = np.asarray(x) if not hasattr(x, "tape") else None
    if array is None or array.ndim or array.dtype.kind not in "fiub":
        return None
    return float(array)


def _unary(name: str, kind: str) -> Handler:
    def handle(tape: NumpyTape, x: TracedArray) -> TracedArray:
        keeps = name in {"negative", "absolute", "square", "positive", "sign"}
        dtype = x.dtype if keeps else np.dtype(bool) if kind == "compare" else _real(x.dtype)
        return tape.emit(kind, [x], x.shape, dtype)

    return handle


def _binary(kind: str, with_number: str, dtype: np.dtype[Any] | None = None) -> Handler:
    """Handle a function of two arrays, or of an array and a number."""

    def handle(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
        numbers = [n for n in (_number(a), _number(b)) if n is not None]
        arrays = [tape.taken(x) for x in (a, b)]
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        result = dtype or np.result_type(
            *(_typed(x, y) for x, y in zip((a, b), arrays, strict=True))
        )
        if numbers:
            (x,) = [x for x, of in zip(arrays, (a, b), strict=True) if _number(of) is None]
            return tape.emit(with_number, [x], shape, result, number=numbers[0])
        return tape.emit(kind, arrays, shape, result)

    return handle


def _typed(raw: Any, array: TracedArray) -> Any:
    """Type of an operand; a Python number takes that of the other (NEP 50)."""
    return raw if isinstance(raw, int | float) else array.dtype


def _divide(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
    x, y = tape.taken(a), tape.taken(b)
    shape, dtype = np.broadcast_shapes(x.shape, y.shape), _real(x.dtype, y.dtype)
    if (number := _number(b)) is not None:
        return tape.emit("scale", [x], shape, dtype, number=1 / number if number else math.inf)
    if (number := _number(a)) is not None:
        return tape.emit("reciprocal", [y], shape, dtype, number=number)
    return tape.emit("divide", [x, y], shape, dtype)


def _power(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
    number = _number(b)
    x = tape.taken(a)
    if number is None:
        y = tape.taken(b)
        shape = np.broadcast_shapes(x.shape, y.shape)
        return tape.emit("power-of", [x, y], shape, _real(x.dtype, y.dtype))
    known = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    return tape.emit(known.get(number, "power"), [x], x.shape, _real(x.dtype), exponent=number)


def _extremum(maximum: bool) -> Handler:
    def handle(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
        if _number(a) is not None:
            a, b = b, a
        number, x = _number(b), tape.taken(a)
        if number is not None:
            kind = "relu" if maximum and number == 0 else "clamp"
            return tape.emit(kind, [x], x.shape, x.dtype)
        y = tape.taken(b)
        shape = np.broadcast_shapes(x.shape, y.shape)
        return tape.emit("extremum", [x, y], shape, np.result_type(x.dtype, y.dtype))

    return handle


def _matmul(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
    x, y = tape.taken(a), tape.taken(b)
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: an operand has no axes")
    m, n = (x.shape[-2] if x.ndim > 1 else 1), (y.shape[-1] if y.ndim > 1 else 1)
    k, inner = x.shape[-1], y.shape[-2] if y.ndim > 1 else y.shape[0]
    if k != inner:
        raise ValueError(f"matmul: {list(x.shape)} and {list(y.shape)} do not fit")
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = (*lead, *((m,) if x.ndim > 1 else ()), *((n,) if y.ndim > 1 else ()))
    batch = math.prod(lead)
    if y.ndim <= 2:
        m, batch = m * batch, 1
    return tape.emit("matmul", [x, y], shape, _real(x.dtype, y.dtype), m=m, n=n, k=k, batch=batch)


def _dot(tape: NumpyTape, a: Any, b: Any) -> TracedArray:
    x, y = tape.taken(a), tape.taken(b)
    if not x.ndim or not y.ndim:
        return UFUNCS["multiply"](tape, a, b)  # type: ignore[no-any-return]
    if y.ndim > 2:
        raise RidgelineError("numpy.dot with more than two axes on the right; use matmul or einsum")
    return _matmul(tape, x, y)


def _einsum(tape: NumpyTape, subscripts: str, *operands: Any, **_: Any) -> TracedArray:
    terms, arrow, out = subscripts.replace(" ", "").partition("->")
    names = terms.split(",")
    if len(operands) != 2 or len(names) != 2 or not arrow or "." in subscripts:
        raise RidgelineError(
            f"einsum {subscripts!r}: two operands and '->' without '...' are known"
        )
    x, y = (tape.taken(one) for one in operands)
    sizes: dict[str, int] = {}
    for name, array in zip(names, (x, y), strict=True):
        if len(name) != array.ndim or len(set(name)) != len(name):
            raise RidgelineError(f"einsum {subscripts!r} does not fit {list(array.shape)}")
        for letter, size in zip(name, array.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise RidgelineError(f"einsum {subscripts!r}: {letter!r} has two sizes")
    first, second, last = set(names[0]), set(names[1]), set(out)
    if (first ^ second) - last or last - (first | second):
        raise RidgelineError(f"einsum {subscripts!r}: sums over one operand only are not known")

    def product(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    batch, k = product(first & second & last), product((first & second) - last)
    m, n = product(first - second), product(second - first)
    shape = tuple(sizes[letter] for letter in out)
    dtype = _real(x.dtype, y.dtype)
    if k == 1 and not (first & second) - last:
        return tape.emit("multiply", [x, y], shape, dtype)
    return tape.emit("matmul", [x, y], shape, dtype, m=m, n=n, k=k, batch=batch)


def reduced(
    tape: NumpyTape, kind: str, x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False,
    **more: Any,
) -> TracedArray:  # fmt: skip
    """Record a reduction over axes."""
    refused = set(more) - {"ddof", "ord", "initial", "where", "out"}
    if refused or more.get("out") is not None:
        raise RidgelineError(f"arguments {sorted(more)} of a reduction are not known")
    array = tape.taken(x)
    axes = axes_of(axis, array.ndim)
    keep = keepdims is True
    shape = [1 if i in axes else n for i, n in enumerate(array.shape) if keep or i not in axes]
    result = np.dtype(np.int64) if kind == "position" else array.dtype
    if kind in {"mean", "variance", "length"}:
        result = _real(array.dtype)
    return tape.emit(kind, [array], shape, np.dtype(dtype) if dtype else result)


def _reduction(kind: str) -> Handler:
    return lambda tape, x, *args, **kwargs: reduced(tape, kind, x, *args, **kwargs)


def _concatenate(tape: NumpyTape, arrays: Sequence[Any], axis: int = 0, **_: Any) -> TracedArray:
    xs = [tape.taken(x) for x in arrays]
    axis = axes_of(axis, xs[0].ndim)[0]
    sizes = [x.shape[axis] for x in xs]
    shape = (*xs[0].shape[:axis], sum(sizes), *xs[0].shape[axis + 1 :])
    dtype = np.result_type(*(x.dtype for x in xs))
    return tape.emit("concat", xs, shape, dtype, axis=axis, sizes=tuple(sizes))


def _stack(tape: NumpyTape, arrays: Sequence[Any], axis: int = 0, **_: Any) -> TracedArray:
    xs = [tape.taken(x) for x in arrays]
    axis = axes_of(axis, xs[0].ndim + 1)[0]
    shape = (*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:])
    dtype = np.result_type(*(x.dtype for x in xs))
    return tape.emit("concat", xs, shape, dtype, axis=axis, sizes=(1,) * len(xs))


def _split(tape: NumpyTape, x: Any, parts: Any, axis: int = 0) -> list[TracedArray]:
    array = tape.taken(x)
    axis = axes_of(axis, array.ndim)[0]
    empty = np.broadcast_to(np.zeros((), np.int8), array.shape)
    made = [tape.array(p.shape, array.dtype) for p in np.array_split(empty, parts, axis)]
    tape.step("split", "", [array.name], [one.name for one in made], "split", axis=axis)
    return made


def _where(tape: NumpyTape, condition: Any, a: Any, b: Any) -> TracedArray:
    xs = [tape.taken(x) for x in (condition, a, b)]
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    dtype = np.result_type(_typed(a, xs[1]), _typed(b, xs[2]))
    return tape.emit("select", xs, shape, dtype)


def _clip(tape: NumpyTape, x: Any, *_: Any, **__: Any) -> TracedArray:
    array = tape.taken(x)
    return tape.emit("clamp", [array], array.shape, array.dtype)


def _norm(tape: NumpyTape, x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    return reduced(tape, "length", x, axis, keepdims=keepdims)


def _pad(tape: NumpyTape, x: Any, widths: Any, *_: Any, **__: Any) -> TracedArray:
    array = tape.taken(x)
    pairs = np.broadcast_to(np.asarray(widths), (array.ndim, 2)).tolist()
    shape = [n + a + b for n, (a, b) in zip(array.shape, pairs, strict=True)]
    return tape.emit("pad", [array], shape, array.dtype)


def _same(kind: str) -> Handler:
    def handle(tape: NumpyTape, x: Any, *_: Any, **__: Any) -> TracedArray:
        array = tape.taken(x)
        return tape.emit(kind, [array], array.shape, array.dtype)

    return handle


def _repeated(name: str) -> Handler:
    def handle(tape: NumpyTape, x: Any, *args: Any, **kwargs: Any) -> TracedArray:
        array = tape.taken(x)
        shape = np.broadcast_to(np.zeros((), np.int8), array.shape)
        return tape.emit(
            "rearrange", [array], getattr(np, name)(shape, *args, **kwargs).shape, array.dtype
        )

    return handle


UFUNCS: dict[str, Handler] = {
    **{name: _unary(name, kind) for name, kind in _UNARY.items()},
    **{name: _binary("compare", "compare", np.dtype(bool)) for name in _COMPARE},
    "add": _binary("add", "shift"),
    "subtract": _binary("subtract", "shift"),
    "multiply": _binary("multiply", "scale"),
    "divide": _divide,
    "true_divide": _divide,
    "power": _power,
    "float_power": _power,
    "maximum": _extremum(maximum=True),
    "minimum": _extremum(maximum=False),
    "fmax": _extremum(maximum=True),
    "fmin": _extremum(maximum=False),
    "logaddexp": _binary("softplus", "softplus"),
    "arctan2": _binary("atan2", "atan2"),
    "matmul": _matmul,
}
"""NumPy's universal functions by name."""

FUNCTIONS: dict[str, Handler] = {
    **{name: view_of(name) for name in ("swapaxes", "moveaxis", "expand_dims", "squeeze",
                                      "broadcast_to", "atleast_1d", "atleast_2d", "rollaxis")},
    **{name: _repeated(name) for name in ("repeat", "tile")},
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "average": _reduction("mean"),
    "var": _reduction("variance"),
    "std": _reduction("variance"),
    "max": _reduction("peaks"),
    "amax": _reduction("peaks"),
    "min": _reduction("peaks"),
    "amin": _reduction("peaks"),
    "prod": _reduction("product-of"),
    "argmax": _reduction("position"),
    "argmin": _reduction("position"),
    "norm": _norm,
    "cumsum": _same("running-sum"),
    "cumprod": _same("running-product"),
    "roll": _same("rearrange"),
    "flip": _same("rearrange"),
    "tril": _same("triangle"),
    "triu": _same("triangle"),
    "dot": _dot,
    "inner": lambda tape, a, b: _dot(tape, a, transpose(tape, b)),
    "einsum": _einsum,
    "transpose": transpose,
    "reshape": reshape,
    "ravel": ravel,
    "flatten": ravel,
    "astype": astype,
    "copy": copied,
    "getitem": getitem,
    "take": taken,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "array_split": _split,
    "where": _where,
    "clip": _clip,
    "pad": _pad,
}  # fmt: skip
"""NumPy's other functions, and methods of arrays, by name."""
