"""How long a core of this machine takes to issue an op of a transformer layer from PyTorch.

Tensors of a few elements, so that dispatch, autograd and checkpointing are all that takes time. And
how long an op of an update takes, of optimizers that go from tensor to tensor.

    python benchmarks/host_issue.py
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

HIDDEN, HEADS, POSITIONS, LAYERS = 32, 2, 4, 24
OPS = 78  # that ridgeline counts in such a layer: forward, again, backward
WEIGHTS = 200
UPDATES = {  # with the ops of an update, as `ridgeline.workload.optimizers` has them
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-4}, 4),
    "adamw": (torch.optim.AdamW, {}, 9),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "weight_decay": 1e-4}, 8),
}


class Layer(nn.Module):
    """A pre-norm block with dropout, of separate ops."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.drop = nn.Dropout(0.1)
        self.mask = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        heads = (1, POSITIONS, 3, HEADS, HIDDEN // HEADS)
        q, k, v = self.qkv(self.norms[0](x)).view(heads).permute(2, 0, 3, 1, 4).unbind(0)
        p = (q @ k.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS)).masked_fill(self.mask, -1e4)
        y = (self.drop(torch.softmax(p, -1)) @ v).transpose(1, 2).reshape(1, POSITIONS, HIDDEN)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.down(functional.gelu(self.up(self.norms[1](x)))))


def main() -> None:
    """Print microseconds of processor time a layer and an op."""
    torch.set_num_threads(1)
    layers = [Layer() for _ in range(LAYERS)]
    best = math.inf
    for _ in range(20):
        begin = time.process_time()
        x = torch.randn(1, POSITIONS, HIDDEN, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=True)
        x.sum().backward()
        best = min(best, (time.process_time() - begin) / LAYERS)
    print(f"{best * 1e6:.0f} us a layer, {best / OPS * 1e6:.1f} us an op")
    for name, (make, options, ops) in UPDATES.items():
        weights = [nn.Parameter(torch.randn(4)) for _ in range(WEIGHTS)]
        for weight in weights:
            weight.grad = torch.randn(4)
        optimizer = make(weights, lr=1e-3, foreach=False, **options)
        best = math.inf
        for _ in range(20):
            begin = time.process_time()
            optimizer.step()
            best = min(best, (time.process_time() - begin) / WEIGHTS)
        print(f"{name}: {best * 1e6:.1f} us a tensor, {best / ops * 1e6:.1f} us an op")


if __name__ == "__main__":
    main()
