"""The networks of the agreement tests, written in plain PyTorch as their papers say."""

import math

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        return functional.relu(self.main(x) + (self.shortcut(x) if self.shortcut else x))


class ResNet50(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        stages, channels = [], 64
        for i, count in enumerate(blocks):
            for j in range(count):
                stages.append(Bottleneck(channels, 64 << i, 2 if i and not j else 1))
                channels = 256 << i
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Vgg16(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def attend(q, k, v, dropout, causal, training):
    """Attention as the three operations of its definition."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
    return functional.dropout(scores.softmax(-1), dropout, training) @ v


class Gpt2Block(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        n, s, h = x.shape
        parts = self.qkv(self.norm1(x)).split(h, dim=-1)
        q, k, v = (t.view(n, s, self.heads, h // self.heads).transpose(1, 2) for t in parts)
        y = attend(q, k, v, self.p, True, self.training).transpose(1, 2).reshape(n, s, h)
        x = x + self.drop(self.out(y))
        y = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.drop(self.down(y))


class Gpt2(nn.Module):
    def __init__(self, layers=12, hidden=768, heads=12, vocabulary=50257, length=1024, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Gpt2Block(hidden, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BertBlock(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        n, s, h = x.shape
        q, k, v = (
            layer(x).view(n, s, self.heads, h // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = attend(q, k, v, self.p, False, self.training).transpose(1, 2).reshape(n, s, h)
        x = self.norm1(x + self.drop(self.out(y)))
        return self.norm2(x + self.drop(self.down(functional.gelu(self.up(x)))))


class Bert(nn.Module):
    """Both heads of pre-training; only masked positions are filled in."""

    def __init__(self, layers=12, hidden=768, heads=12, vocabulary=30522, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(512, hidden)
        self.segments = nn.Embedding(2, hidden)
        self.norm, self.drop = nn.LayerNorm(hidden), nn.Dropout(dropout)
        self.blocks = nn.ModuleList([BertBlock(hidden, heads, dropout) for _ in range(layers)])
        self.pooler, self.next = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.decoder.weight = self.tokens.weight

    def forward(self, ids, segments, masked):
        x = self.tokens(ids) + self.segments(segments)
        x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = self.drop(self.norm(x))
        for block in self.blocks:
            x = block(x)
        follows = self.next(torch.tanh(self.pooler(x[:, 0])))
        where = masked.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        y = functional.gelu(self.transform(torch.gather(x, 1, where)))
        return self.decoder(self.transform_norm(y)), follows


class RmsNorm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, hidden, heads, kv_heads, width):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = RmsNorm(hidden), RmsNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x, cos, sin):
        n, s, h = x.shape
        y = self.norm1(x)
        q = self.query(y).view(n, s, self.heads, self.size).transpose(1, 2)
        k, v = (
            layer(y).view(n, s, self.kv_heads, self.size).transpose(1, 2)
            for layer in (self.key, self.value)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.heads // self.kv_heads
        k, v = (
            t[:, :, None].expand(n, self.kv_heads, group, s, self.size).reshape(n, -1, s, self.size)
            for t in (k, v)
        )
        y = attend(q, k, v, 0.0, True, self.training).transpose(1, 2).reshape(n, s, h)
        x = x + self.out(y)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(
        self, layers=32, hidden=4096, heads=32, kv_heads=8, width=14336, vocabulary=128256
    ):
        super().__init__()
        self.size = hidden // heads
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(
            [LlamaBlock(hidden, heads, kv_heads, width) for _ in range(layers)]
        )
        self.norm = RmsNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids):
        where = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        step = torch.arange(0, self.size, 2, device=ids.device, dtype=torch.float32) / self.size
        angles = torch.outer(where, 500000.0**-step)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class LstmLm(nn.Module):
    def __init__(self, vocabulary=10000, hidden=1500, dropout=0.65):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.first = nn.LSTM(hidden, hidden, batch_first=True)
        self.second = nn.LSTM(hidden, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids):
        x, _ = self.first(self.drop(self.embedding(ids)))
        x, _ = self.second(self.drop(x))
        return self.head(self.drop(x))
