"""Calls of kernels on a CUDA device: their shapes, and how PyTorch makes them.

Shapes are spread evenly over the logarithms of the sizes that training uses (`shapes.points`), with
multiples of 8 to 128 between others, so that any number of the first calls covers the space.
Columns are those of tables of measured calls (`study.validate.measured`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ridgeline.study.calibrate.clock import Run
from ridgeline.study.calibrate.shapes import between, points

_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}  # fmt: skip
_SIZES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8-e4m3": 1}
_STEPS = (1, 8, 64, 128)
"""What sizes are multiples of, in turn: of nothing, of a vector, of parts of a tile, of a tile."""
_SIDE = (16, 16384)
_FLOPS = (1e7, 3e12)
_BATCHED = (32, 4096)
_BATCHES = (4, 256)
_STREAMED = (1e5, 2e9)
_ATTENTION_FLOPS = (1e8, 2e12)
_PAIRS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "mul": torch.mul, "div": torch.div,
}  # fmt: skip
_SINGLE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu, "gelu": functional.gelu, "tanh": torch.tanh,
}  # fmt: skip
_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
BACKWARD = "bwd"
_DEVICE = "cuda"


@dataclass(frozen=True)
class CudaCall:
    """One call that is measured.

    Attributes
    ----------
    table
        The name of the table that its row belongs to.
    fields
        Columns of the shape, ``format`` and ``pass``.
    bytes, flops
        Of operands and results; of its arithmetic.
    make
        Makes operands, and returns what calls the kernel.
    tf32
        Whether fp32 products may round their operands.
    """

    table: str
    fields: Mapping[str, str]
    bytes: int
    flops: float
    make: Callable[[], Run]
    tf32: bool = False


def calls(seed: int) -> Iterator[CudaCall]:
    """Yield calls of every kind in turn, without end."""
    kinds = [
        *(_products(seed, format_) for format_ in ("bf16", "fp32", "fp8-e4m3", "tf32", "fp16")),
        _batched(seed),
        *(_convolutions(seed, format_) for format_ in ("fp32", "fp16")),
        _streams(seed, "fp32"),
        _streams(seed, "bf16"),
        *(_attention(seed, backend) for backend in _BACKENDS),
        _decoding(seed),
        _backward(seed),
    ]
    for one in itertools.cycle(kinds):
        yield next(one)


def _randn(*shape: int, format_: str, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, device=_DEVICE, dtype=_TYPES[format_])
    return made.requires_grad_(grad)


def _multiple(size: int, step: int) -> int:
    return max(step, size // step * step)


def _words(**sizes: object) -> dict[str, str]:
    return {name.rstrip("_"): str(value) for name, value in sizes.items()}


def _products(seed: int, format_: str) -> Iterator[CudaCall]:
    """Linear layers: x [m, k] times W [n, k] transposed."""
    # Scaled products of 8 bits take multiples of 16 alone (torch._scaled_mm).
    steps = itertools.cycle((16, 64, 128) if format_ == "fp8-e4m3" else _STEPS)
    for shares in points(3, seed):
        step = next(steps)
        m, n, k = (_multiple(between(*_SIDE, share), step) for share in shares)
        if not _FLOPS[0] <= 2.0 * m * n * k <= _FLOPS[1]:
            continue
        size, out = _SIZES[format_], 2 if format_ == "fp8-e4m3" else _SIZES[format_]
        yield CudaCall(
            "gemm",
            _words(op="linear", batch=1, m=m, n=n, k=k, format=format_, pass_="fwd"),
            size * (m * k + n * k) + out * m * n,
            2.0 * m * n * k,
            _scaled(m, n, k) if format_ == "fp8-e4m3" else _linear(m, n, k, format_),
            tf32=format_ == "tf32",
        )


def _linear(m: int, n: int, k: int, format_: str) -> Callable[[], Run]:
    def make() -> Run:
        x, w = _randn(m, k, format_=format_), _randn(n, k, format_=format_)
        y = torch.empty(m, n, device=_DEVICE, dtype=_TYPES[format_])
        return lambda: torch.mm(x, w.t(), out=y)

    return make


def _scaled(m: int, n: int, k: int) -> Callable[[], Run]:
    """Return a product of 8 bits with one scale a tensor, into bf16: no operand is quantised."""

    def make() -> Run:
        narrow = torch.float8_e4m3fn
        x, w = (_randn(*s, format_="bf16").to(narrow) for s in ((m, k), (n, k)))
        one = torch.ones((), device=_DEVICE)
        return lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)

    return make


def _batched(seed: int) -> Iterator[CudaCall]:
    formats, steps = itertools.cycle(("bf16", "fp32")), itertools.cycle(_STEPS)
    for *shares, last in points(4, seed):
        format_, step = next(formats), next(steps)
        m, n, k = (_multiple(between(*_BATCHED, share), step) for share in shares)
        batch = between(*_BATCHES, last)
        if not _FLOPS[0] <= 2.0 * batch * m * n * k <= _FLOPS[1] / 10:
            continue

        def make(batch: int = batch, m: int = m, n: int = n, k: int = k, f: str = format_) -> Run:
            a, b = _randn(batch, m, k, format_=f), _randn(batch, k, n, format_=f)
            y = torch.empty(batch, m, n, device=_DEVICE, dtype=_TYPES[f])
            return lambda: torch.bmm(a, b, out=y)

        yield CudaCall(
            "gemm",
            _words(op="bmm", batch=batch, m=m, n=n, k=k, format=format_, pass_="fwd"),
            _SIZES[format_] * batch * (m * k + n * k + m * n),
            2.0 * batch * m * n * k,
            make,
        )


def _convolutions(seed: int, format_: str) -> Iterator[CudaCall]:
    """Square filters without bias; images of 16 bits with channels last, as is advised for them."""
    windows = itertools.cycle(((3, 1), (1, 1), (3, 2), (5, 1), (7, 2)))
    steps = itertools.cycle((1, 8, 64))
    for x, y, z, w in points(4, seed):
        (taps, stride), step = next(windows), next(steps)
        batch, side = between(1, 128, x), between(7, 224, y)
        c_in, c_out = (_multiple(between(3, 1024, share), step) for share in (z, w))
        out = (side + 2 * (taps // 2) - taps) // stride + 1
        flops = 2.0 * batch * out * out * c_in * c_out * taps * taps
        if not _FLOPS[0] <= flops <= _FLOPS[1] / 10 or out < 1:
            continue

        def make(
            batch: int = batch, c_in: int = c_in, c_out: int = c_out, side: int = side,
            taps: int = taps, stride: int = stride,
        ) -> Run:  # fmt: skip
            layout = torch.contiguous_format if format_ == "fp32" else torch.channels_last
            images = _randn(batch, c_in, side, side, format_=format_).to(memory_format=layout)
            filters = _randn(c_out, c_in, taps, taps, format_=format_).to(memory_format=layout)
            return lambda: functional.conv2d(images, filters, stride=stride, padding=taps // 2)

        yield CudaCall(
            "conv",
            _words(batch=batch, c_in=c_in, c_out=c_out, kernel_size=taps, input_size=side,
                   stride=stride, padding=taps // 2, output_size=out, format=format_, pass_="fwd"),
            _SIZES[format_] * (batch * (c_in * side**2 + c_out * out**2) + c_in * c_out * taps**2),
            flops,
            make,
        )  # fmt: skip


def _streams(seed: int, format_: str) -> Iterator[CudaCall]:
    """Elementwise functions, norms and softmax over matrices."""
    ops = itertools.cycle((*_PAIRS, *_SINGLE, "ln", "softmax"))
    for x, y in points(2, seed):
        op, cols = next(ops), between(128, 16384, y)
        moved = between(*_STREAMED, x)
        tensors = 3 if op in _PAIRS else 2
        rows = moved // (tensors * _SIZES[format_] * cols)
        if not rows:
            continue

        def make(op: str = op, rows: int = rows, cols: int = cols) -> Run:
            a = _randn(rows, cols, format_=format_)
            if op in _PAIRS:
                b, pair = _randn(rows, cols, format_=format_), _PAIRS[op]
                return lambda: pair(a, b)
            if op == "ln":
                w, c = _randn(cols, format_=format_), _randn(cols, format_=format_)
                return lambda: functional.layer_norm(a, (cols,), w, c)
            if op == "softmax":
                return lambda: torch.softmax(a, -1)
            single = _SINGLE[op]
            return lambda: single(a)

        yield CudaCall(
            "streams",
            _words(op=op, rows=rows, cols=cols, format=format_, pass_="fwd"),
            tensors * _SIZES[format_] * rows * cols,
            rows * cols,
            make,
        )


@dataclass(frozen=True)
class _Heads:
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq_q: int
    seq_kv: int
    causal: bool

    @property
    def flops(self) -> float:
        half = 0.5 if self.causal and self.seq_q > 1 else 1.0
        return half * 4.0 * self.batch * self.heads * self.head_dim * self.seq_q * self.seq_kv

    @property
    def bytes(self) -> int:
        queries = 2 * self.seq_q * self.heads
        return 2 * self.batch * self.head_dim * (queries + 2 * self.seq_kv * self.kv_heads)

    def fields(self, pass_: str) -> dict[str, str]:
        return _words(
            batch=self.batch, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            seq_q=self.seq_q, seq_kv=self.seq_kv, causal=self.causal, window=0,
            format="bf16", pass_=pass_,
        )  # fmt: skip

    def tensors(self, *, grad: bool = False) -> list[torch.Tensor]:
        q = (self.batch, self.heads, self.seq_q, self.head_dim)
        kv = (self.batch, self.kv_heads, self.seq_kv, self.head_dim)
        return [_randn(*shape, format_="bf16", grad=grad) for shape in (q, kv, kv)]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal and self.seq_q > 1, enable_gqa=self.heads > self.kv_heads
        )


def _heads(seed: int) -> Iterator[_Heads]:
    """Attention over positions of one sequence, causal and not, with few key heads and many."""
    dims, groups = itertools.cycle((64, 128)), itertools.cycle((1, 4, 8))
    causal = itertools.cycle((True, True, False))
    for x, y, z in points(3, seed):
        group = next(groups)
        heads = group * max(1, between(4, 64, x) // group)
        seq = _multiple(between(128, 16384, y), 128)
        made = _Heads(between(1, 64, z), heads, heads // group, next(dims), seq, seq, next(causal))
        if _ATTENTION_FLOPS[0] <= made.flops <= _ATTENTION_FLOPS[1]:
            yield made


def _attention(seed: int, backend: str) -> Iterator[CudaCall]:
    for heads in _heads(seed):
        yield _attending(heads, backend)


def _attending(heads: _Heads, backend: str) -> CudaCall:
    def make() -> Run:
        tensors = heads.tensors()

        def run() -> torch.Tensor:
            with sdpa_kernel(_BACKENDS[backend]):
                return heads.attend(*tensors)

        return run

    fields = {**heads.fields("fwd"), "kernel": backend}
    return CudaCall("attention", fields, heads.bytes, heads.flops, make)


def _decoding(seed: int) -> Iterator[CudaCall]:
    for x, y, z in points(3, seed):
        kv_heads, seq = between(1, 16, x), _multiple(between(128, 32768, y), 128)
        heads = _Heads(between(1, 256, z), 8 * kv_heads, kv_heads, 128, 1, seq, causal=True)
        if heads.bytes <= _STREAMED[1]:
            yield _attending(heads, "flash")


def _backward(seed: int) -> Iterator[CudaCall]:
    """Go back through attention, norms, softmax and functions, by themselves."""
    attention = {name: _heads(seed + 1) for name in _BACKENDS}
    matrices = points(2, seed + 1)
    for op in itertools.cycle(("flash", "ln", "cudnn", "softmax", "gelu")):
        if op in attention:
            heads = next(attention[op])

            def make(heads: _Heads = heads, op: str = op) -> Run:
                wanted = heads.tensors(grad=True)
                with sdpa_kernel(_BACKENDS[op]):
                    y = heads.attend(*wanted)
                return _back(y, wanted)

            fields = {**heads.fields(BACKWARD), "kernel": op}
            yield CudaCall("attention_backward", fields, 2 * heads.bytes, 2.5 * heads.flops, make)
            continue
        x, y = next(matrices)
        cols = between(128, 16384, y)
        rows = max(1, between(1e6, _STREAMED[1] / 2, x) // (6 * cols))

        def make_stream(op: str = op, rows: int = rows, cols: int = cols) -> Run:
            a = _randn(rows, cols, format_="bf16", grad=True)
            if op == "ln":
                parameters = [_randn(cols, format_="bf16", grad=True) for _ in range(2)]
                done = functional.layer_norm(a, (cols,), *parameters)
                return _back(done, [a, *parameters])
            done = torch.softmax(a, -1) if op == "softmax" else functional.gelu(a)
            return _back(done, [a])

        yield CudaCall(
            "streams_backward",
            _words(op=op, rows=rows, cols=cols, format="bf16", pass_=BACKWARD),
            6 * rows * cols,
            rows * cols,
            make_stream,
        )


def _back(y: torch.Tensor, wanted: list[torch.Tensor]) -> Run:
    seed = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, wanted, seed, retain_graph=True)
