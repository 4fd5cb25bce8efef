"""NumPy's kernels, as one writes a training step with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.calibrate.clock import Run, cpu_watch
from ridgeline.study.calibrate.machine import MeasuredProcessor, processor
from ridgeline.study.calibrate.probes import Shape
from ridgeline.workload.graph import Conv, Gemm

Array = NDArray[Any]
_TYPES = {"fp32": np.float32, "fp64": np.float64}
_RATE = np.float32(1e-3)


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def relu_back(dy: Array, y: Array) -> Array:
    """Return the gradient of `relu` from its output."""
    return np.asarray(dy * (y > 0))


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    probabilities: Array = e / e.sum(axis=-1, keepdims=True)
    return probabilities


def cross_entropy(logits: Array, labels: Array) -> tuple[Any, Array]:
    """Return the mean cross-entropy of the classes, and the logarithms of the probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -log_probabilities[np.arange(len(labels)), labels].mean(), log_probabilities


def cross_entropy_back(log_probabilities: Array, labels: Array) -> Array:
    """Return the gradient of `cross_entropy` by the logits."""
    gradient = np.exp(log_probabilities)
    gradient[np.arange(len(labels)), labels] -= 1
    gradient /= len(labels)
    return gradient


def sgd(weight: Array, gradient: Array) -> None:
    """Take a step of plain gradient descent, in place."""
    weight -= _RATE * gradient


class NumpyBackend:
    """NumPy; its products come from the BLAS that it is built with."""

    name = "numpy"
    device: Literal["cpu", "cuda"] = "cpu"
    formats: tuple[str, ...] = ("fp32", "fp64")

    def __init__(self, threads: int, seed: int) -> None:
        self.threads, self.watch = threads, cpu_watch(threads)
        self.random = np.random.default_rng(seed)
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        self.versions = (
            f"NumPy {np.__version__} ({blas.get('name', 'BLAS')} {blas.get('version', '')})"
        )

    def _array(self, *shape: int, format_: str = "fp32") -> Array:
        return self.random.standard_normal(shape).astype(_TYPES[format_])

    def described(self) -> MeasuredProcessor:
        """Describe this machine's processor."""
        return processor()

    def product(self, gemm: Gemm, pass_: str, format_: str) -> Run | None:
        """Multiply two matrices, of which a gradient has one transposed."""
        lead = (gemm.batch,) if gemm.batch > 1 else ()
        a = self._array(*lead, gemm.m, gemm.k, format_=format_)
        b = self._array(*lead, gemm.k, gemm.n, format_=format_)
        if pass_ == "input-gradient":
            b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
        if pass_ == "weight-gradient":
            a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
        return lambda: a @ b

    def convolution(self, conv: Conv, pass_: str, format_: str) -> Run | None:
        """Multiply windows and filters: the convolution as a product, as one writes it in NumPy."""
        if (conv.stride, conv.dilation, conv.groups) != ((1, 1), (1, 1), 1):
            return None
        x = self._array(conv.batch, conv.c_in, conv.h_in, conv.w_in, format_=format_)
        w = self._array(conv.c_out, conv.c_in, conv.r, conv.s, format_=format_)
        y = self._array(conv.batch, conv.c_out, conv.h_out, conv.w_out, format_=format_)
        if pass_ == "forward":
            return lambda: np.tensordot(
                _windows(x, conv.padding, (conv.r, conv.s)), w, ((1, 4, 5), (1, 2, 3))
            )
        if pass_ == "weight-gradient":
            return lambda: np.tensordot(
                y, _windows(x, conv.padding, (conv.r, conv.s)), ((0, 2, 3), (0, 2, 3))
            )
        around = (conv.r - 1 - conv.padding[0], conv.s - 1 - conv.padding[1])
        return lambda: np.tensordot(
            _windows(y, around, (conv.r, conv.s)), w[:, :, ::-1, ::-1], ((1, 4, 5), (0, 2, 3))
        )

    def stream(self, name: str, shape: Shape) -> Mapping[str, Run]:
        """Run the functions of a probe."""
        x, y = self._array(*shape), self._array(*shape)
        rows, width = shape[0], shape[-1]
        labels = self.random.integers(width, size=rows)
        bias, log_probabilities = self._array(width), np.log(softmax(x))
        known: Mapping[str, Mapping[str, Run]] = {
            "relu": {"forward": lambda: relu(x), "input-gradient": lambda: relu_back(y, x)},
            "sigmoid": {
                "forward": lambda: 1 / (1 + np.exp(-x)),
                "input-gradient": lambda: y * x * (1 - x),
            },
            "tanh": {"forward": lambda: np.tanh(x), "input-gradient": lambda: y * (1 - x * x)},
            "add": {"forward": lambda: x + y},
            "multiply": {"forward": lambda: x * y},
            "softmax": {"forward": lambda: softmax(x)},
            "bias": {"forward": lambda: x + bias, "weight-gradient": lambda: x.sum(axis=0)},
            "loss": {
                "forward": lambda: cross_entropy(x, labels),
                "input-gradient": lambda: cross_entropy_back(log_probabilities, labels),
            },
        }
        return known.get(name, {})

    def recurrence(self, batch: int, hidden: int, steps: int) -> Mapping[str, Run]:
        """Return nothing: NumPy has no recurrent layers."""
        return {}

    def update(self, rule: str, tensors: int, elements: int) -> Run | None:
        """Take steps of gradient descent."""
        if rule != "sgd":
            return None
        weights = [self._array(elements) for _ in range(tensors)]
        gradients = [self._array(elements) for _ in range(tensors)]

        def run() -> None:
            for weight, gradient in zip(weights, gradients, strict=True):
                sgd(weight, gradient)

        return run

    def add(self, elements: int) -> Run:
        """Add into memory that is there."""
        a, b, c = (np.ones(elements, np.float32) for _ in range(3))
        add: Callable[..., Any] = np.add
        return lambda: add(a, b, out=c)

    def backward_chain(self, depth: int) -> Run | None:
        """Return nothing: NumPy walks no graph."""
        return None


def _windows(x: Array, padding: tuple[int, int], size: tuple[int, int]) -> Array:
    around = ((0, 0), (0, 0), *((p, p) for p in padding))
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, around), size, axis=(2, 3))
