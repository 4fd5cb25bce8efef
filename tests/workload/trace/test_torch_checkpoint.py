"""Checkpoints in traces: FLOPs are those that PyTorch counts, and inputs of regions are kept."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import (  # noqa: E402
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import ridgeline as rl  # noqa: E402
from ridgeline.parallel.checkpointing.recompute import with_recompute  # noqa: E402
from ridgeline.workload.graph import Graph, Pass  # noqa: E402
from ridgeline.workload.trace.native import graph_file  # noqa: E402
from ridgeline.workload.trace.network import TraceWarning  # noqa: E402

SIZE, TOKENS, BATCH = 64, 16, 8


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(SIZE)
        self.up, self.down = torch.nn.Linear(SIZE, 4 * SIZE), torch.nn.Linear(4 * SIZE, SIZE)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Four blocks, some of them in checkpoints."""

    def __init__(self, how: str, every: int = 1) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(4)])
        self.head = torch.nn.Linear(SIZE, 10)
        self.how, self.every = how, every

    def forward(self, x: Any) -> Any:
        if self.how == "sequential":
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        else:
            for number, block in enumerate(self.blocks):
                x = self.run(block, x) if number % self.every == 0 else block(x)
        return self.head(x.mean(1))

    def run(self, block: Any, x: Any) -> Any:
        if self.how == "nested":
            return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False), x,
                              use_reentrant=False)  # fmt: skip
        if self.how == "policy":
            saves = [torch.ops.aten.mm.default]
            return checkpoint(
                block, x, use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts(saves),
            )  # fmt: skip
        return block(x) if self.how == "none" else checkpoint(
            block, x, use_reentrant=self.how == "reentrant"
        )  # fmt: skip


def graphs(module: Any, *example: Any) -> tuple[Graph, Graph]:
    graph = rl.trace(module, *example).training(BATCH, "fp32")
    return graph, with_recompute(graph, "none")


def counted(module: Any) -> int:
    """FLOPs of a step as PyTorch counts them while it runs."""
    x = torch.randn(BATCH, TOKENS, SIZE, requires_grad=module.how == "reentrant")
    with FlopCounterMode(display=False) as counter:
        labels = torch.zeros(BATCH, dtype=torch.long)
        torch.nn.functional.cross_entropy(module(x), labels).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("how", ["none", "reentrant", "plain", "sequential", "nested"])
def test_flops_are_those_that_pytorch_counts(how: str, every: int) -> None:
    module = Net(how, every)
    graph, changed = graphs(module, torch.empty(BATCH, TOKENS, SIZE))
    done = sum(op.matrix_flops for op in changed.ops)
    assert done == pytest.approx(counted(module), rel=0.02)
    assert changed.flops() == graph.flops()
    assert (changed is graph) is (how == "none")


@pytest.mark.parametrize("how", ["reentrant", "plain", "nested"])
def test_what_is_kept_is_what_autograd_saves(how: str) -> None:
    """Inputs of the four blocks, and what the classifier and the loss save."""
    _, changed = graphs(Net(how), torch.empty(BATCH, TOKENS, SIZE))
    saved = 4 * (4 * BATCH * TOKENS * SIZE)
    rest = 4 * (BATCH * SIZE + 2 * BATCH * 10 + 2 * BATCH) + 8 * BATCH
    assert changed.activation_bytes == pytest.approx(saved + rest, rel=0.05)
    again = {op.layer.split(".")[1] for op in changed.ops if op.pass_ is Pass.RECOMPUTE}
    assert again == {"0", "1", "2", "3"}


def test_a_policy_is_a_warning_with_its_line() -> None:
    with pytest.warns(TraceWarning, match=r"test_torch_checkpoint\.py:\d+ is not read"):
        graph, changed = graphs(Net("policy"), torch.empty(BATCH, TOKENS, SIZE))
    assert changed.activation_bytes < graph.activation_bytes


def test_code_without_gradients_has_no_regions() -> None:
    class Frozen(Net):
        def run(self, block: Any, x: Any) -> Any:
            with torch.no_grad():
                return checkpoint(block, x, use_reentrant=False)

    graph, changed = graphs(Frozen("plain"), torch.empty(BATCH, TOKENS, SIZE))
    assert changed is graph
    assert not graph.checkpoints


def test_pytorch_is_left_as_it_was() -> None:
    import torch.utils.checkpoint as module

    before = module.CheckpointFunction, module._checkpoint_without_reentrant_generator
    rl.trace(Net("plain"), torch.empty(BATCH, TOKENS, SIZE))
    after = module.CheckpointFunction, module._checkpoint_without_reentrant_generator
    assert before == after


def test_traces_with_other_regions_are_other_networks() -> None:
    example = torch.empty(BATCH, TOKENS, SIZE)
    prints = [
        rl.trace(Net(how, every), example).network.fingerprint  # type: ignore[attr-defined]
        for how, every in (("none", 1), ("plain", 1), ("plain", 2), ("reentrant", 1))
    ]
    assert len(set(prints)) == 4


def test_regions_are_in_files_of_graphs(tmp_path: Any) -> None:
    import json

    graph, changed = graphs(Net("plain", 2), torch.empty(BATCH, TOKENS, SIZE))
    forward = rl.trace(Net("plain", 2), torch.empty(BATCH, TOKENS, SIZE)).forward(BATCH, "fp32")
    path = tmp_path / "net.json"
    path.write_text(json.dumps(graph_file(forward)), "utf-8")
    read = rl.load_model(str(path)).training(BATCH, "fp32")
    assert read.checkpoints == graph.checkpoints != ()
    again = with_recompute(read, "none")
    assert again.activation_bytes == changed.activation_bytes


def test_transformers_turns_them_on_for_its_layers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100, use_cache=False,
    )  # fmt: skip
    tokens = torch.empty(2, 32, dtype=torch.int64)
    with torch.device("meta"):
        plain = transformers.LlamaForCausalLM(config)
        regions = transformers.LlamaForCausalLM(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it has another name in its next release
        regions.gradient_checkpointing_enable({"use_reentrant": False})
    usual, _ = graphs(plain, tokens)
    graph, changed = graphs(regions, tokens)
    assert len(graph.checkpoints) == 3
    assert [op.name for op in graph.ops] == [op.name for op in usual.ops]
    assert changed.activation_bytes < usual.activation_bytes / 2


def test_code_that_asks_whether_gradients_are_on_is_told_so() -> None:
    class Asks(Net):
        def run(self, block: Any, x: Any) -> Any:
            assert torch.is_grad_enabled()
            with torch.no_grad():
                assert not torch.is_grad_enabled()
            return block(x)

    before = torch.is_grad_enabled
    rl.trace(Asks("plain"), torch.empty(BATCH, TOKENS, SIZE))
    assert torch.is_grad_enabled is before


def test_a_step_is_slower_and_holds_less() -> None:
    example = torch.empty(BATCH, TOKENS, SIZE)
    plan = rl.Plan(global_batch=64, precision="fp32")
    usual, changed = (
        rl.simulate(rl.trace(Net(how), example), "dgx-h100", plan) for how in ("none", "plain")
    )
    assert changed.step_time_s > usual.step_time_s
    assert changed.memory_bytes["total"] < usual.memory_bytes["total"]
