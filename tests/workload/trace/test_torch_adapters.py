"""Adapters on traced modules: exactly those of a module that has them written into it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-trace")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import ridgeline as rl  # noqa: E402
from ridgeline.errors import ConfigError, RidgelineError  # noqa: E402
from ridgeline.workload.graph import Graph, Pass, Role  # noqa: E402

SIZE, TOKENS, BATCH, RANK = 32, 16, 4, 3


class LowRank(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A frozen layer with two narrow ones beside it, as Hu et al. define it."""

    def __init__(self, base: Any, down: Any, up: Any) -> None:
        super().__init__()
        self.base, self.down, self.up = base, down, up
        base.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + 2.0 * self.up(self.down(x))


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(SIZE)
        self.q_proj = torch.nn.Linear(SIZE, SIZE)
        self.v_proj = torch.nn.Linear(SIZE, SIZE, bias=False)
        self.up, self.down = torch.nn.Linear(SIZE, 4 * SIZE), torch.nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        y = torch.nn.functional.scaled_dot_product_attention(self.q_proj(y), y, self.v_proj(y))
        return x + self.down(torch.nn.functional.gelu(self.up(y)))


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.patch = torch.nn.Conv1d(8, SIZE, 3, padding=1)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(SIZE, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.patch(x).transpose(1, 2)).mean(1))


def written_in(*names: str) -> Any:
    """Return the module with adapters of its own beside the linear layers of these names."""
    net = Net().requires_grad_(False)
    for path, module in list(net.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in names:
            down = torch.nn.Linear(module.in_features, RANK, bias=False)
            up = torch.nn.Linear(RANK, module.out_features, bias=False)
            setattr(net.get_submodule(parent), name, LowRank(module, down, up))
    return net


def trained(graph: Graph) -> int:
    weights = (t for t in graph.tensors.values() if t.role is Role.WEIGHT)
    return sum(t.elements for t in weights if t.name not in graph.frozen)


EXAMPLE = torch.empty(BATCH, 8, TOKENS)


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (("q_proj", "v_proj"), "q_proj+v_proj"),
        (("up",), "blocks.*.up"),
        (("q_proj", "v_proj", "up", "down"), "all-linear"),
        (("q_proj", "v_proj", "up", "down", "head"), "q_proj+v_proj+up+down+head"),
    ],
)
def test_adapters_are_those_of_a_module_that_has_them(names: tuple[str, ...], layers: str) -> None:
    module = written_in(*names)
    theirs = rl.trace(module, EXAMPLE).training(BATCH)
    model = rl.trace(Net(), EXAMPLE).with_adapters(f"rank={RANK},layers={layers}")
    ours = model.training(BATCH)
    assert trained(ours) == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert ours.parameters == sum(p.numel() for p in module.parameters())
    assert trained(theirs) == trained(ours)
    for part in Pass:
        assert ours.flops(part) == theirs.flops(part)
    module.train()
    with FlopCounterMode(display=False) as counter:
        labels = torch.zeros(BATCH, dtype=torch.long)
        out = module(torch.randn(BATCH, 8, TOKENS))
        torch.nn.functional.cross_entropy(out, labels).backward()
    assert ours.flops() == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_matrices_in_few_bits() -> None:
    model = rl.trace(Net(), EXAMPLE)
    packed = model.with_adapters(f"rank={RANK},layers=all-linear,base_format=nf4")
    graph = packed.training(BATCH, "bf16-mixed")
    narrow = {t.name for t in graph.tensors.values() if t.format == "nf4"}
    assert narrow == {f"blocks.{i}.{name}.weight" for i in (0, 1)
                      for name in ("q_proj", "v_proj", "up", "down")}  # fmt: skip


@pytest.mark.thorough
def test_plans_hold_less_of_matrices_in_few_bits() -> None:
    model = rl.trace(Net(), EXAMPLE)
    packed = model.with_adapters(f"rank={RANK},layers=all-linear,base_format=nf4")
    for plan in ({"data": 4, "zero_stage": 3}, {"data": 2, "tensor": 2, "recompute": "full"}):
        step = rl.Plan(global_batch=16, precision="bf16-mixed", **plan)
        whole, mine = (rl.simulate(one, "dgx-h100", step) for one in (model, packed))
        assert mine.memory_bytes["optimizer"] < whole.memory_bytes["optimizer"]
        assert mine.memory_bytes["weights"] < whole.memory_bytes["weights"]


def test_a_convolution_and_a_tied_table() -> None:
    model = rl.trace(Net(), EXAMPLE).with_adapters(f"rank={RANK},layers=patch")
    assert trained(model.forward(BATCH)) == RANK * (8 * 3 + SIZE)

    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner = torch.nn.Embedding(50, SIZE), torch.nn.Linear(SIZE, SIZE)

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.linear(self.inner(self.table(x)), self.table.weight)
            return torch.nn.functional.linear(x, self.table.weight.T)

    graph = (
        rl.trace(Tied(), torch.empty(2, 8, dtype=torch.int64))
        .with_adapters("2,layers=inner,base_format=int8")
        .training(2, "bf16-mixed")
    )
    assert graph.tensors["inner.weight"].format == "int8"
    assert graph.tensors["table.weight"].format == "bf16"  # lookups read it, too


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_and_hugging_face_take_them_from_the_file(tmp_path: Any) -> None:
    onnx, config = tmp_path / "net.onnx", tmp_path / "config.json"
    torch.onnx.export(
        Net(), (EXAMPLE,), str(onnx), dynamo=False, input_names=["x"],
        dynamic_axes={"x": {0: "batch"}}, training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
    )  # fmt: skip
    model = rl.load_model(str(onnx), {"adapters": {"rank": 2, "layers": ["*q_proj*"]}})
    assert trained(model.forward(2)) == 2 * 2 * (SIZE + SIZE)
    config.write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,'
        ' "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,'
        ' "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false}'
    )
    model = rl.load_model(str(config), {"adapters.rank": 4, "adapters.layers": ["q_proj"]})
    assert trained(model.forward(1)) == 2 * 4 * (64 + 64)
    with pytest.raises(ConfigError, match="rnk"):
        rl.load_model(str(config), {"adapters.rnk": 4})
    with pytest.raises(RidgelineError, match="no linear layer fits"):
        rl.trace(Net(), EXAMPLE).with_adapters("2,layers=nothing")
