"""Multilayer perceptrons in plain NumPy: forward, backward and update, as one writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.calibrate.numpy_backend import (
    cross_entropy,
    cross_entropy_back,
    relu,
    relu_back,
    sgd,
)
from ridgeline.workload.model import Model
from ridgeline.workload.trace.numpy_tracer import trace_numpy

Array = NDArray[Any]


@dataclass(frozen=True)
class NumpyCase:
    """A perceptron and its mini-batches."""

    name: str
    widths: tuple[int, ...]
    batches: tuple[int, ...]

    def weights(self) -> list[Array]:
        """Return matrices and biases, in turn."""
        random = np.random.default_rng(0)
        made: list[Array] = []
        for fan_in, fan_out in zip(self.widths, self.widths[1:], strict=False):
            made.append((random.standard_normal((fan_in, fan_out)) / fan_in**0.5).astype("f4"))
            made.append(np.zeros(fan_out, np.float32))
        return made


CASES = (
    NumpyCase("numpy-mlp", (784, 512, 256, 10), (8, 32, 128, 512)),
    NumpyCase("numpy-deep-mlp", (256, 256, 256, 256, 256, 256, 10), (16, 64, 256)),
    NumpyCase("numpy-wide-mlp", (1024, 2048, 100), (16, 128)),
)


def logits(x: Any, weights: Sequence[Any]) -> Any:
    """Return what the last layer says."""
    return _activations(x, weights)[-1]


def _activations(x: Any, weights: Sequence[Any]) -> list[Any]:
    made = [x]
    for i in range(0, len(weights), 2):
        y = made[-1] @ weights[i] + weights[i + 1]
        made.append(relu(y) if i + 2 < len(weights) else y)
    return made


def model_of(case: NumpyCase) -> Model:
    """Trace the forward pass; the rest of the step is derived."""
    x = np.zeros((4, case.widths[0]), np.float32)
    return trace_numpy(logits, x, case.weights(), loss="cross-entropy", name=case.name)


def step_of(case: NumpyCase, batch: int) -> Callable[[], object]:
    """Return one training step on a mini-batch that stays the same."""
    random, weights = np.random.default_rng(1), case.weights()
    x = random.standard_normal((batch, case.widths[0])).astype(np.float32)
    labels = random.integers(case.widths[-1], size=batch)

    def step() -> None:
        made = _activations(x, weights)
        _, log_probabilities = cross_entropy(made[-1], labels)
        gradient = cross_entropy_back(log_probabilities, labels)
        for i in range(len(weights) - 2, -1, -2):
            below = gradient @ weights[i].T if i else None
            of_weights, of_bias = made[i // 2].T @ gradient, gradient.sum(axis=0)
            sgd(weights[i], of_weights)
            sgd(weights[i + 1], of_bias)
            if below is not None:
                gradient = relu_back(below, made[i // 2])

    return step
