"""What PyTorch code asks of values: routing, lengths, masks, flags. Answers and refusals."""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-trace")

from torch import nn
from torch.nn import functional
from torch.utils import flop_counter

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.workload.graph import Pass
from ridgeline.workload.trace.network import TraceWarning

pytestmark = pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
EXPERTS, CHOSEN, WIDTH = 4, 2, 16


class Routed(nn.Module):
    """A mixture of experts, with its rows found in one of several ways."""

    def __init__(self, how, experts=EXPERTS):
        super().__init__()
        self.how, self.gate = how, nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(experts)])

    def forward(self, x):
        lead, x = x.shape[:-1], x.reshape(-1, WIDTH)
        weights, chosen = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        return getattr(self, self.how)(x, weights, chosen).view(*lead, WIDTH)

    def where(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out

    def nonzero(self, x, weights, chosen):
        out = torch.zeros_like(x)
        mask = functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for number in (mask.sum(dim=(-1, -2)) > 0).nonzero():
            place, rows = torch.where(mask[number[0]])
            made = self.experts[int(number)](x[rows]) * weights[rows, place, None]
            out = out.index_add(0, rows, made)
        return out

    def masks(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for k in range(CHOSEN):
            for number, expert in enumerate(self.experts):
                mask = chosen[:, k] == number
                if mask.any():
                    out[mask] += expert(x[mask]) * weights[mask, k, None]
        return out

    def sorted(self, x, weights, chosen):
        flat = chosen.view(-1)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=len(self.experts)).tolist()
        parts = x[order // CHOSEN].split(counts)
        made = torch.cat([f(part) for f, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(x).index_add(0, order // CHOSEN, made * weights.view(-1, 1)[order])


@pytest.mark.parametrize("how", ["where", "nonzero", "masks", "sorted"])
def test_every_expert_gets_its_even_share_of_the_rows(how):
    with pytest.warns(TraceWarning, match="every choice is taken to be made equally often"):
        model = rl.trace(Routed(how), torch.empty(4, 8, WIDTH), loss="mse")
    for batch in (4, 12):
        graph = model.training(batch, "fp32")
        rows = batch * 8
        expected = 2 * rows * WIDTH * (EXPERTS + CHOSEN * WIDTH)
        assert graph.flops(Pass.FORWARD) == expected
    assert graph.parameters == sum(p.numel() for p in Routed(how).parameters())
    assert any("equally often" in note for note in graph.notes)


def test_rows_that_do_not_divide_evenly_are_traced_at_larger_batches():
    graph = rl.trace(Routed("where", 8), torch.empty(1, 5, WIDTH), loss="mse").training(8, "fp32")
    assert graph.flops(Pass.FORWARD) == 2 * 40 * WIDTH * (8 + CHOSEN * WIDTH)


def test_a_hugging_face_mixture_costs_the_same_in_each_of_its_implementations():
    transformers = pytest.importorskip("transformers")
    costs = set()
    for how in ("eager", "grouped_mm"):
        config = transformers.MixtralConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=48, vocab_size=64, num_local_experts=4, experts_implementation=how,
        )  # fmt: skip
        config.architectures = ["MixtralForCausalLM"]
        graph = rl.trace(config, torch.empty(2, 8, dtype=torch.int64)).training(4, "fp32")
        costs.add((graph.flops(Pass.FORWARD), graph.flops(), graph.parameters))
    assert len(costs) == 1


class Packed(nn.Module):
    def __init__(self, cell, packs):
        super().__init__()
        self.packs, self.head = packs, nn.Linear(24, 3)
        self.cell = cell(8, 12, 2, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        if not self.packs:
            return self.head(self.cell(x)[0])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return self.head(y)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_packed_sequences_are_those_of_the_full_length(cell):
    inputs = torch.empty(4, 6, 8), torch.full((4,), 6)
    packed, plain = (rl.trace(Packed(cell, p), *inputs).training(6, "fp32") for p in (True, False))
    assert packed.flops() == plain.flops()
    assert packed.parameters == plain.parameters
    assert any("full length" in note for note in packed.notes)


class Odd(nn.Module):
    """Small things that real code does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))
        self.table = torch.ones(1, 4, 8)  # neither parameter nor buffer
        self.inner = torch.jit.script(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x[:, :: int(self.stride)] + self.table.detach().type_as(x).to(x.device, copy=True)
        self.head = self.head.to(x.dtype)
        return self.head(torch.relu(self.inner(x)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_numbers_in_buffers_plain_tensors_scripts_and_conversions():
    graph = rl.trace(Odd(), torch.empty(2, 8, 8)).training(5, "fp32")
    assert graph.parameters == 8 * 9 + 3 * 9
    assert graph.flops(Pass.FORWARD) == 2 * 5 * 4 * 8 * (8 + 3)


def test_attention_with_changed_scores_costs_what_plain_attention_costs():
    from torch.nn.attention.flex_attention import flex_attention

    class Attention(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call, self.qkv, self.out = call, nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            return self.out(self.call(q, k, v).transpose(1, 2).flatten(2))

    def near(score, b, h, row, column):
        return score - (row - column).abs()

    calls = lambda q, k, v: flex_attention(q, k, v, near), functional.scaled_dot_product_attention
    x = torch.empty(2, 6, 16)
    changed, plain = (rl.trace(Attention(c), x, loss="mse").training(2, "fp32") for c in calls)
    assert changed.flops() == plain.flops()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("size", "window"), [(64, 100), (128, 512), (32, 1), (128, 0)])
def test_blocks_that_a_mask_leaves_out_are_not_computed(size, window, inside):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = 512

    def near(batch, head, row, column):
        return (row >= column) & (row - column < window)

    def mask():
        return create_block_mask(near, None, None, length, length, "cpu", BLOCK_SIZE=size)

    class Attention(nn.Module):
        def __init__(self, masked):
            super().__init__()
            self.qkv, self.masked = nn.Linear(16, 48), masked
            self.blocks = mask() if masked and not inside else None

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            blocks = mask() if self.masked and inside else self.blocks
            return flex_attention(q, k, v, block_mask=blocks).transpose(1, 2).flatten(2)

    x = torch.empty(2, length, 16)
    whole, masked = (
        rl.trace(Attention(on), x, loss="mse").training(2, "fp32") for on in (False, True)
    )
    of_scores = 3 * 2 * (2 * 2 * length * length * (8 + 8))
    rows, columns = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    seen = near(0, 0, rows, columns).unfold(0, size, size).unfold(1, size, size)
    done = seen.flatten(2).any(-1).float().mean().item()
    assert whole.flops() - masked.flops() == pytest.approx((1 - done) * of_scores, rel=1e-6)


def test_complex_products_and_distances_are_products():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(8, 6, dtype=torch.complex64))
            self.codes = nn.Parameter(torch.ones(10, 6))

        def forward(self, x):
            y = (torch.view_as_complex(x) @ self.w).abs()
            return torch.cdist(y, self.codes)

    graph = rl.trace(Complex(), torch.empty(30, 8, 2), loss="mse").training(30, "fp32")
    assert graph.flops(Pass.FORWARD) == 8 * 30 * 8 * 6 + 2 * 30 * 6 * 10


def test_ctc_is_a_loss():
    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 5)

        def forward(self, x, y):
            scores = self.head(x).log_softmax(-1).transpose(0, 1)
            frames, letters = (torch.full((x.shape[0],), n) for n in (x.shape[1], y.shape[1]))
            return functional.ctc_loss(scores, y, frames, letters)

    inputs = torch.empty(2, 12, 8), torch.ones(2, 4, dtype=torch.int64)
    assert rl.trace(Speech(), *inputs).training(6, "fp32").flops(Pass.FORWARD) == 2 * 72 * 8 * 5


class Masked(nn.Module):
    """Rows chosen by values, written in several ways."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner = how, nn.Linear(8, 8)

    def forward(self, x):
        return getattr(self, self.how)(x)

    def rows(self, x):
        return self.inner(x[x.sum(-1) > 0])

    def places(self, x):
        return self.inner(x.index_select(0, (x[:, 0] > 0).nonzero().squeeze(1)))

    def written(self, x):
        out, mask = torch.zeros_like(x), torch.where(x[:, 0] > 0)[0]
        out[mask] = self.inner(x[mask])
        return out

    def selected(self, x):
        return self.inner(torch.masked_select(x, x > 0).view(-1, 8))

    def checked(self, x):
        if torch.isnan(x).any() or not torch.isfinite(x).all():
            raise ValueError("not finite")
        mask = x.sum(-1) > 0
        return self.inner(x[mask]) if mask.any() else self.inner(x)


@pytest.mark.parametrize("how", ["rows", "places", "written", "selected", "checked"])
@pytest.mark.parametrize("share", [0.5, 0.25, 1.0])
def test_of_rows_behind_a_mask_a_stated_share_is_computed(how, share):
    with pytest.warns(TraceWarning, match=f"{share:.0%} of their elements"):
        model = rl.trace(Masked(how), torch.empty(16, 8), loss="mse", mask_share=share)
    for batch in (16, 48):
        assert model.training(batch).flops(Pass.FORWARD) == 2 * share * batch * 64


class Differentiates(nn.Module):
    """Gradients with respect to inputs or weights as a part of the loss."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner = how, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return getattr(self, self.how)(x)

    def penalty(self, x):
        x = x.detach().requires_grad_(True)
        y = self.inner(x)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        return y.mean() + (slope.norm(2, 1) - 1).square().mean()

    def adapted(self, x):
        layer = self.inner[0]
        loss = layer(x).square().mean()
        slope, shift = torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=True)
        return functional.linear(x, layer.weight - slope, layer.bias - shift).square().mean()


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """PyTorch's FLOP formulas without its tracker of modules, which `autograd.grad` upsets."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        formula = flop_counter.flop_registry.get(func._overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        return out


@pytest.mark.parametrize("how", ["penalty", "adapted"])
def test_gradients_that_a_forward_pass_asks_for_are_part_of_it(how):
    module = Differentiates(how)
    graph = rl.trace(module, torch.empty(8, 8)).training(6, "fp32")
    with Counter() as counter:
        loss = module(torch.randn(6, 8))
        assert graph.flops(Pass.FORWARD) == counter.total
        loss.backward()
    # PyTorch forms the gradient of the loss with respect to the penalty's x, too, which nobody asks
    unasked = 2 * 6 * 8 * 16 if how == "penalty" else 0
    assert graph.flops() == counter.total - unasked


class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            aim = self.target(x)
        return (self.online(x) - aim).square().mean()


def test_code_without_gradients_has_no_backward_pass():
    graph = rl.trace(Target(), torch.empty(4, 8)).training(4, "fp32")
    assert graph.parameters == 2 * 72
    assert graph.flops(Pass.FORWARD) == 2 * 2 * 4 * 64
    assert graph.flops(Pass.WEIGHT_GRADIENT) == 2 * 4 * 64


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Forms(nn.Module):
    """Bilinear forms, weight norm, Fourier transforms; a data class as output."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Bilinear(8, 6, 5)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=-1).abs()
        return Answer(self.normed(self.pairs(x[..., :8], spectrum[..., :6])), x)


def test_bilinear_forms_weight_norm_and_transforms_are_known():
    graph = rl.trace(Forms(), torch.empty(4, 3, 10), strict=True).training(4, "fp32")
    assert graph.flops(Pass.FORWARD) == 2 * 12 * (8 * 6 * 5 + 5 * 4)
    assert graph.parameters == sum(p.numel() for p in Forms().parameters())


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, x):
        return self.inner(x) * (2 if x.sum() > 0 else 3)


def test_a_sum_that_decides_is_refused():
    with pytest.raises(RidgelineError, match="no values"):
        rl.trace(Decides(), torch.empty(4, 8))
