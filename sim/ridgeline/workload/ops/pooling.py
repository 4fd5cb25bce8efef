"""Pooling over windows of images.

Max pooling keeps the position of each maximum as int64 for its gradient, as PyTorch does; its
input is not needed again.
"""

from __future__ import annotations

from ridgeline.errors import RidgelineError
from ridgeline.workload.builder import GradientBuilder, GraphBuilder
from ridgeline.workload.graph import Op, Role
from ridgeline.workload.kinds import Cost, op_kind
from ridgeline.workload.ops.window import Pair, check, image, pair, steps
from ridgeline.workload.sharding_rules import channel_sharding

Attrs = tuple[tuple[str, int], ...]


def max_pool(
    b: GraphBuilder,
    layer: str,
    x: str,
    kernel: Pair,
    *,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
) -> str:
    """Maximum of each window; the stride is the kernel unless given."""
    y, attrs = _pool(b, layer, x, kernel, stride, padding, ceil_mode)
    indices = b.tensor(f"{layer}.indices", b.shape(y), "int64", Role.ACTIVATION)
    flops = MAX_POOL.forward.of(_window_elements(b.elements(y), attrs))
    b.emit(MAX_POOL, layer, (x,), (y, indices), flops=flops, attrs=attrs)
    return y


def avg_pool(
    b: GraphBuilder,
    layer: str,
    x: str,
    kernel: Pair,
    *,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
) -> str:
    """Mean of each window, padding counted in; the stride is the kernel unless given."""
    y, attrs = _pool(b, layer, x, kernel, stride, padding, ceil_mode)
    flops = AVG_POOL.forward.of(_window_elements(b.elements(y), attrs))
    b.emit(AVG_POOL, layer, (x,), (y,), flops=flops, attrs=attrs)
    return y


def pool_volume(b: GraphBuilder, layer: str, x: str, kernel: int) -> str:
    """Maximum of windows side by side along all axes of images or volumes [n, c, ...]."""
    n, c, *sizes = b.shape(x)
    if len(sizes) == 2:
        return max_pool(b, layer, x, kernel)
    if min(sizes) < kernel:
        raise RidgelineError(f"layer {layer!r}: a window of {kernel} does not fit on {sizes}")
    shape = (n, c, *[size // kernel for size in sizes])
    y = b.activation(f"{layer}.y", shape, b.format(x))
    indices = b.tensor(f"{layer}.indices", shape, "int64", Role.ACTIVATION)
    flops = MAX_POOL.forward.of(b.elements(y) * kernel ** len(sizes))
    attrs = (("kernel", kernel),)
    b.emit(MAX_POOL, layer, (x,), (y, indices), flops=flops, attrs=attrs)
    return y


def adaptive_avg_pool(b: GraphBuilder, layer: str, x: str, size: Pair = 1) -> str:
    """Mean of size x size windows that cover the image; size 1 is global average pooling."""
    n, c, h, w = image(layer, b.shape(x))
    y = b.activation(f"{layer}.y", (n, c, *pair(size)), b.format(x))
    flops = ADAPTIVE_AVG_POOL.forward.of(_adaptive_elements((n, c, h, w), b.shape(y)))
    b.emit(ADAPTIVE_AVG_POOL, layer, (x,), (y,), flops=flops)
    return y


def adaptive_windows(size: int, positions: int) -> list[tuple[int, int]]:
    """Start and end of each window on one axis, as torch.nn.AdaptiveAvgPool2d places them."""
    return [(i * size // positions, -(-(i + 1) * size // positions)) for i in range(positions)]


def _pool(
    b: GraphBuilder,
    layer: str,
    x: str,
    kernel: Pair,
    stride: Pair | None,
    padding: Pair,
    ceil_mode: bool,
) -> tuple[str, Attrs]:
    """Declare the output and return it with the attributes that define the windows."""
    n, c, h, w = image(layer, b.shape(x))
    (r, s), (p, q) = pair(kernel), pair(padding)
    u, v = pair(kernel if stride is None else stride)
    check(layer, (h, w), (r, s), (p, q))
    if 2 * p > r or 2 * q > s:
        raise RidgelineError(f"layer {layer!r}: padding {p} x {q} is over half of {r} x {s}")
    shape = (n, c, steps(h, r, u, p, ceil_mode), steps(w, s, v, q, ceil_mode))
    attrs = (
        ("kernel_h", r),
        ("kernel_w", s),
        ("stride_h", u),
        ("stride_w", v),
        ("padding_h", p),
        ("padding_w", q),
    )
    return b.activation(f"{layer}.y", shape, b.format(x)), attrs


def _window_elements(outputs: int, attrs: Attrs) -> int:
    window = dict(attrs)
    return outputs * window["kernel_h"] * window["kernel_w"]


def _adaptive_elements(x: tuple[int, ...], y: tuple[int, ...]) -> int:
    rows, columns = (
        sum(end - start for start, end in adaptive_windows(x[axis], y[axis])) for axis in (2, 3)
    )
    return x[0] * x[1] * rows * columns


def _max_pool_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y, indices) = op.inputs, op.outputs
    if g.wants(x):
        flops = MAX_POOL.gradient.of(g.elements(y))
        g.derive(MAX_POOL, op, (x,), (g.gradient(y), indices), flops=flops)


def _avg_pool_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        flops = AVG_POOL.gradient.of(op.vector_flops // AVG_POOL.forward.flops)
        g.derive(AVG_POOL, op, (x,), (g.gradient(y),), flops=flops)


def _adaptive_avg_pool_gradient(g: GradientBuilder, op: Op) -> None:
    (x,), (y,) = op.inputs, op.outputs
    if g.wants(x):
        elements = op.vector_flops // ADAPTIVE_AVG_POOL.forward.flops
        flops = ADAPTIVE_AVG_POOL.gradient.of(elements)
        g.derive(ADAPTIVE_AVG_POOL, op, (x,), (g.gradient(y),), flops=flops)


_AVERAGE = Cost(1, "window element", "additions and one division a window")
_SPREAD = Cost(2, "window element", "dx += dy / window")

MAX_POOL = op_kind(
    "max-pool",
    forward=Cost(1, "window element", "a comparison"),
    gradient=Cost(1, "output element", "an addition at the maximum"),
    sharding=channel_sharding,
)(_max_pool_gradient)
AVG_POOL = op_kind("avg-pool", forward=_AVERAGE, gradient=_SPREAD, sharding=channel_sharding)(
    _avg_pool_gradient
)
ADAPTIVE_AVG_POOL = op_kind(
    "adaptive-avg-pool", forward=_AVERAGE, gradient=_SPREAD, sharding=channel_sharding
)(_adaptive_avg_pool_gradient)
