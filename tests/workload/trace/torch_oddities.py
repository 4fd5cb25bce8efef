"""Networks of kinds that the zoo does not have, small, for the tests of the tracer."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional


class SqueezeExcite(nn.Module):
    """An inverted bottleneck with depthwise convolution, gate and stochastic depth."""

    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, stride=2, padding="valid")
        self.expand, self.norm = nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c)
        self.depthwise = nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c)
        self.down, self.up = nn.Conv2d(4 * c, c, 1), nn.Conv2d(c, 4 * c, 1)
        self.project, self.head = nn.Conv2d(4 * c, c, 1), nn.Linear(c, 10)

    def forward(self, x):
        x = self.stem(x)
        y = functional.silu(self.depthwise(functional.silu(self.norm(self.expand(x)))))
        gate = self.up(functional.silu(self.down(functional.adaptive_avg_pool2d(y, 1))))
        y = self.project(y * torch.sigmoid(gate))
        y = y * torch.empty(y.shape[0], 1, 1, 1).bernoulli_(0.9) / 0.9
        return self.head((x + y).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.c = (
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv2d(16, 8, 3, padding="same"),
        )
        self.norm, self.out = nn.GroupNorm(4, 8), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        a = functional.relu(self.a(x))
        b = functional.relu(self.b(functional.max_pool2d(a, 2)))
        coarse = functional.interpolate(b[:, :8], scale_factor=2, mode="bilinear")
        return self.out(self.norm(self.c(torch.cat([a, self.up(b) + coarse], 1))))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 16, 16)
        self.token, self.where = (
            nn.Parameter(torch.zeros(1, 1, 64)),
            nn.Parameter(torch.zeros(1, 17, 64)),
        )
        block = nn.TransformerEncoderLayer(
            64, 4, 128, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.where
        return self.head(self.norm(self.blocks(x))[:, 0])


class ShiftedWindows(nn.Module):
    """Attention in windows, rolled, with a table of biases (Swin)."""

    def __init__(self, d=32, heads=4, w=4):
        super().__init__()
        self.d, self.heads, self.w = d, heads, w
        self.qkv, self.out, self.norm = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)
        self.table = nn.Parameter(torch.zeros((2 * w - 1) ** 2, heads))
        self.register_buffer("index", torch.zeros(w * w, w * w, dtype=torch.int64))
        self.head = nn.Linear(d, 7)

    def forward(self, x):
        n, h, v, c = x.shape
        w = self.w
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(n, h // w, w, v // w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)
        parts = self.qkv(y).reshape(-1, w * w, 3, self.heads, c // self.heads)
        q, k, val = parts.permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)
        p = (q * c**-0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
        y = self.out((p @ val).transpose(1, 2).reshape(-1, w * w, c))
        y = y.view(n, h // w, v // w, w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, v, c)
        return self.head((x + torch.roll(y, (2, 2), (1, 2))).mean((1, 2)))


class Experts(nn.Module):
    def __init__(self, d=32, experts=4):
        super().__init__()
        self.gate, self.experts = nn.Linear(d, experts, bias=False), experts
        self.up = nn.Parameter(torch.zeros(experts, d, 64))
        self.down = nn.Parameter(torch.zeros(experts, 64, d))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        n, s, d = x.shape
        t = x.reshape(-1, d)
        weights, chosen = self.gate(t).softmax(-1).topk(2, -1)
        share = (functional.one_hot(chosen, self.experts).float() * weights[..., None]).sum(1)
        y = functional.gelu(torch.einsum("td,edf->etf", t, self.up))
        y = torch.einsum("te,etd->td", share, torch.einsum("etf,efd->etd", y, self.down))
        return self.head(y.view(n, s, d))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.tables = nn.ModuleList([nn.EmbeddingBag(100, 16, mode="sum") for _ in range(4)])
        self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, sparse):
        d = self.bottom(dense)
        t = torch.stack([d, *(e(sparse[:, i]) for i, e in enumerate(self.tables))], 1)
        i, j = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([d, torch.bmm(t, t.transpose(1, 2))[:, i, j]], 1))


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.make = nn.Sequential(
            nn.ConvTranspose2d(100, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
            nn.ConvTranspose2d(32, 3, 4, 2, 1, groups=1), nn.Tanh(),
        )  # fmt: skip
        self.judge = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
            nn.InstanceNorm2d(16, affine=True), nn.Flatten(), nn.Linear(256, 1),
        )  # fmt: skip

    def forward(self, real):
        fake = self.make(torch.randn(real.shape[0], 100, 1, 1))
        real, fake = self.judge(real), self.judge(fake)
        return functional.softplus(-real).mean() + functional.softplus(fake).mean()


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8)
        self.b = nn.Conv3d(8, 16, (3, 1, 1), stride=(2, 1, 1), groups=2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = functional.max_pool3d(functional.relu(self.norm(self.a(x))), 2)
        return self.head(functional.adaptive_avg_pool3d(self.b(x), 1).flatten(1))


class Nested(nn.Module):
    """Inputs in a dictionary with a list, two outputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(4, 16)
        self.one, self.two, self.unused = nn.Linear(16, 3), nn.Linear(16, 2), nn.Linear(5, 5)

    def forward(self, d):
        h = torch.tanh(self.a(d["x"]) + self.b(d["y"][0]))
        return {"one": self.one(h), "two": self.two(h)}


class Waves(nn.Module):
    """Dilated causal convolutions of one axis with gates (WaveNet)."""

    def __init__(self):
        super().__init__()
        self.start, self.end = nn.Conv1d(1, 16, 1), nn.Conv1d(16, 8, 1)
        self.gates = nn.ModuleList([nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(4)])
        self.out = nn.ModuleList([nn.Conv1d(16, 16, 1) for _ in range(4)])

    def forward(self, x):
        x, skip = self.start(x), 0
        for gates, out in zip(self.gates, self.out, strict=True):
            a, b = gates(functional.pad(x, (gates.dilation[0], 0))).chunk(2, 1)
            y = out(torch.tanh(a) * torch.sigmoid(b))
            skip, x = skip + y, x + y
        return self.end(functional.relu(skip))


class StateSpace(nn.Module):
    """A selective scan by cumulative sums (Mamba)."""

    def __init__(self, d=32, n=8):
        super().__init__()
        self.n = n
        self.enter, self.leave = nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.conv = nn.Conv1d(2 * d, 2 * d, 4, padding=3, groups=2 * d)
        self.select, self.step = nn.Linear(2 * d, 2 * n + 2, bias=False), nn.Linear(2, 2 * d)
        self.a, self.skip = nn.Parameter(torch.zeros(2 * d, n)), nn.Parameter(torch.ones(2 * d))
        self.head = nn.Linear(d, 11)

    def forward(self, u):
        x, z = self.enter(u).chunk(2, -1)
        x = self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = functional.silu(x)
        step, b, c = self.select(x).split([2, self.n, self.n], -1)
        step = functional.softplus(self.step(step))
        decay = torch.cumsum(step[..., None] * -torch.exp(self.a), 1)
        drive = step[..., None] * b[:, :, None] * x[..., None]
        h = torch.cumsum(drive * torch.exp(-decay), 1) * torch.exp(decay)
        y = (h * c[:, :, None]).sum(-1) + x * self.skip
        return self.head(self.leave(y * functional.silu(z)))


class Capsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.weight = (
            nn.Conv2d(1, 32, 9, 2),
            nn.Parameter(torch.zeros(1, 400, 10, 16, 8)),
        )

    def forward(self, x):
        u = self.conv(x).view(x.shape[0], -1, 8)
        size = (u**2).sum(-1, keepdim=True)
        u = size / (1 + size) * u / torch.sqrt(size + 1e-8)
        votes, b = (
            (self.weight @ u[:, :, None, :, None]).squeeze(-1),
            torch.zeros(x.shape[0], 400, 10),
        )
        for i in range(3):
            v = (b.softmax(-1)[..., None] * votes).sum(1)
            length = v.norm(dim=-1, keepdim=True)
            v = v * length / (1 + length**2)
            b = b + (votes * v[:, None]).sum(-1) if i < 2 else b
        return v.norm(dim=-1)


class Cells(nn.Module):
    """A bidirectional GRU, attention with time first, and a cell in a loop."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.gru = nn.GRU(16, 24, 2, bidirectional=True, dropout=0.1)
        self.attention = nn.MultiheadAttention(48, 4)
        self.cell, self.head = nn.LSTMCell(48, 10), nn.Linear(10, 50)

    def forward(self, x):
        y, _ = self.gru(self.table(x))
        y, _ = self.attention(y, y, y)
        h = c = torch.zeros(y.shape[1], 10)
        out = []
        for t in range(4):
            h, c = self.cell(y[t], (h, c))
            out.append(h)
        return self.head(torch.stack(out))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
        self.table, self.head = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
        self.head.weight = self.table.weight

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.body(self.table(source), self.table(target), tgt_mask=mask))


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 3, padding=1, padding_mode="reflect"), nn.Conv2d(3, 3, 3)
        self.act, self.shuffle = nn.PReLU(), nn.PixelShuffle(2)

    def forward(self, x):
        y = self.b(self.shuffle(self.act(self.a(x))))
        return functional.l1_loss(y, torch.zeros(x.shape[0], 3, 14, 14))


class Contrast(nn.Module):
    """Every sample with every other."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)

    def forward(self, x, y):
        a, b = functional.normalize(self.a(x)), functional.normalize(self.a(y))
        return functional.cross_entropy(a @ b.t(), torch.arange(x.shape[0]))


class Choices(nn.Module):
    """A weighted sum of grouped convolutions (a cell of a differentiable search)."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=g) for g in (1, 2, 8)])
        self.alpha, self.head = nn.Parameter(torch.zeros(3)), nn.Linear(8, 3)

    def forward(self, x):
        w = self.alpha.softmax(0)
        return self.head(sum(w[i] * conv(x) for i, conv in enumerate(self.convs)).amax((2, 3)))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 9)
        )

    def forward(self, x):
        return self.layers(x)


@dataclass(frozen=True)
class Case:
    """A network, the shapes of a sample (None: where the batch goes), whether it is indices."""

    make: type
    shapes: tuple
    options: dict = field(default_factory=dict)

    def example(self, batch):
        def make(shape):
            if isinstance(shape, dict):
                return {key: make(value) for key, value in shape.items()}
            if isinstance(shape, list):
                return [make(value) for value in shape]
            sizes = [batch if size is None else size for size in shape if size != "ids"]
            return torch.randint(0, 4, sizes) if "ids" in shape else torch.randn(sizes)

        return [make(shape) for shape in self.shapes]


CASES = [
    Case(SqueezeExcite, ((None, 3, 33, 33),)),
    Case(UNet, ((None, 3, 16, 16),)),
    Case(VisionTransformer, ((None, 3, 64, 64),)),
    Case(ShiftedWindows, ((None, 8, 8, 32),)),
    Case(Experts, ((None, 6, 32),)),
    Case(Recommender, ((None, 13), (None, 4, 3, "ids"))),
    Case(Adversaries, ((None, 3, 8, 8),)),
    Case(Video, ((None, 3, 8, 12, 12),)),
    Case(Nested, ({"x": (None, 8), "y": [(None, 4)]},)),
    Case(Waves, ((None, 1, 64),)),
    Case(StateSpace, ((None, 10, 32),)),
    Case(Capsules, ((None, 1, 27, 27),)),
    Case(Cells, ((12, None, "ids"),), {"batch_dim": 1}),
    Case(Translator, ((None, 7, "ids"), (None, 5, "ids"))),
    Case(Upscaler, ((None, 3, 8, 8),)),
    Case(Contrast, ((None, 8), (None, 8))),
    Case(Choices, ((None, 8, 8, 8),)),
]
# Without grouped convolutions: PyTorch's counter takes their weight gradients for dense ones.
TRAINED = [
    Case(Perceptron, ((None, 24),)),
    Case(VisionTransformer, ((None, 3, 64, 64),)),
    Case(UNet, ((None, 3, 16, 16),)),
    Case(ShiftedWindows, ((None, 8, 8, 32),)),
    Case(Experts, ((None, 6, 32),)),
    Case(Capsules, ((None, 1, 27, 27),)),
]
