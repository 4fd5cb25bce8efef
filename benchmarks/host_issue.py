"""How long a core of this machine takes to issue an op of a transformer layer from PyTorch.

Tensors of a few elements, so that dispatch, autograd and checkpointing are all that takes time. And
how long an op of an update takes, of optimizers that go from tensor to tensor; and routing to experts
by separate ops, with rows put in order by cutting them at every expert and joining the pieces, as
Megatron-Core does without its fused kernels.

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
TOKENS, CHOICES, RANKS = 4, 2, 4
EXPERTS = (64, 256)
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


def routed(x: Tensor, router: Tensor, experts: int) -> Tensor:
    """Choose experts, copy rows to them, order them by expert, and back; experts do nothing."""
    logits = x @ router.t()
    weights, chosen = torch.topk(torch.softmax(logits, -1), CHOICES, dim=-1)
    weights = torch.zeros_like(logits).scatter(1, chosen, weights)
    chosen = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    _balance(logits)
    counts = chosen.sum(0)
    for part in (counts.view(RANKS, -1).sum(1), counts.view(RANKS, -1).contiguous(), counts):
        part.to("cpu", copy=True)
    mask = chosen.t().contiguous()
    places = torch.arange(TOKENS).unsqueeze(0).expand(experts, -1).masked_select(mask)
    weights = weights.t().contiguous().masked_select(mask)
    sizes = counts.tolist()
    order = torch.arange(experts).view(RANKS, -1).t().flatten().tolist()
    rows = _ordered(x.index_select(0, places), sizes, order)
    rows = rows * _ordered(weights, sizes, order).unsqueeze(-1)
    rows = _ordered(rows, sizes, order)
    return torch.zeros_like(x).scatter_add(0, places.unsqueeze(1).expand(-1, HIDDEN), rows)


def _balance(logits: Tensor) -> Tensor:
    """Auxiliary loss of uneven experts."""
    scores = torch.softmax(logits, -1)
    _, chosen = torch.topk(scores, CHOICES, dim=-1)
    tokens = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool().sum(0)
    return (scores.sum(0) * tokens).sum() / TOKENS


def _ordered(rows: Tensor, sizes: list[int], order: list[int]) -> Tensor:
    parts = torch.split(rows, sizes)
    return torch.cat([parts[i] for i in order])


def routing(op_s: float) -> None:
    """Print what routing takes of the host, in the time of ops of a layer."""
    for experts in EXPERTS:
        router = torch.randn(experts, HIDDEN, requires_grad=True)
        best = [math.inf, math.inf]
        for _ in range(20):
            x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
            begin = time.process_time()
            y = routed(x, router, experts)
            half = time.process_time()
            y.sum().backward()
            passes = half - begin, time.process_time() - half
            best = [min(pair) for pair in zip(best, passes, strict=True)]
        forward, backward = (f"{time_s / op_s:.1f}" for time_s in best)
        print(f"routing to {experts} experts: {forward} ops forward, {backward} backward")


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
    routing(best / OPS)
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
