"""Small networks in plain PyTorch, as people write them: what the live check trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class TorchAttention(nn.Module):  # type: ignore[misc]
    """Self-attention of separate ops: products, softmax, and the scores between them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width // heads)
        self.queries, self.keys, self.values, self.join = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over the positions of each sequence."""
        n, length, width = x.shape
        q, k, v = (
            f(x).view(n, length, self.heads, -1).transpose(1, 2)
            for f in (self.queries, self.keys, self.values)
        )
        weights = torch.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
        return self.join((weights @ v).transpose(1, 2).reshape(n, length, width))


class TorchBlock(nn.Module):  # type: ignore[misc]
    """Attention and two linear layers, each behind a normalisation and beside a sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = TorchAttention(width, heads)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what attention and the linear layers find."""
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Words(nn.Module):  # type: ignore[misc]
    """An embedding, what reads the sequence, and a classifier of every position."""

    def __init__(self, vocabulary: int, width: int, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(vocabulary, width), body
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every position."""
        x = self.body(self.embedding(tokens))
        return self.classifier(x[0] if isinstance(x, tuple) else x)


class Vectors(nn.Module):  # type: ignore[misc]
    """Weights that are only added up: gradients of some size, and next to no arithmetic."""

    def __init__(self, number: int, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(elements) for _ in range(number))

    def forward(self) -> torch.Tensor:
        """Return the sum of all weights."""
        return torch.stack([weight.sum() for weight in self.weights]).sum()


@dataclass(frozen=True)
class TorchCase:
    """A network, its mini-batches, and the optimizer.

    Attributes
    ----------
    inputs, labels
        Of a mini-batch of so many samples.
    classes
        Of a label.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    labels: Callable[[int], torch.Tensor]
    optimizer: str
    batches: tuple[int, ...]

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of all labels."""
        return nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


_VOCABULARY = 1000


def _tokens(length: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randint(_VOCABULARY, (batch, length))


CASES = (
    TorchCase("mlp", _mlp, lambda n: torch.randn(n, 784), lambda n: torch.randint(10, (n,)), "sgd",
         (8, 32, 128, 512)),
    TorchCase("cnn", _cnn, lambda n: torch.randn(n, 3, 32, 32), lambda n: torch.randint(10, (n,)),
         "sgd", (4, 16, 32)),
    TorchCase("lstm", lambda: Words(_VOCABULARY, 128, nn.LSTM(128, 128, batch_first=True)),
         _tokens(24), _tokens(24), "adam", (4, 16, 64)),
    TorchCase("transformer",
         lambda: Words(_VOCABULARY, 128, nn.Sequential(TorchBlock(128, 4), TorchBlock(128, 4))),
         _tokens(64), _tokens(64), "adam", (2, 8, 16)),
)  # fmt: skip


def step_of(case: TorchCase, batch: int, network: nn.Module, device: str) -> Callable[[], object]:
    """Return one training step of a network on a mini-batch that stays the same."""
    x, labels = case.inputs(batch).to(device), case.labels(batch).to(device)
    optimizer = OPTIMIZERS[case.optimizer](network.parameters())

    def step() -> None:
        optimizer.zero_grad()
        case.loss(network(x), labels).backward()
        optimizer.step()

    return step


def vectors_step(network: nn.Module) -> Callable[[], object]:
    """Return the forward and backward pass of `Vectors`, wrapped or not."""

    def step() -> None:
        network.zero_grad()
        network().backward()

    return step
