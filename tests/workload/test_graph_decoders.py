"""Decoders that differ from GPT and Llama in their norms, branches and experts."""

import pytest

from ridgeline.workload import load_model, peak
from ridgeline.workload.graph import Gemm

SMALL = {"vocabulary": 64, "sequence": 16, "layers": 2, "hidden": 32, "tied": False}
HEADS = {"attention": {"heads": 2}}


def graph_of(name, **fields):
    return load_model(name, {**SMALL, **fields}).training(2)


def test_norms_of_heads_share_their_weights_between_heads():
    with_norm = load_model("qwen3-8b").forward(1)
    without = load_model("qwen3-8b", {"attention.head_norm": False}).forward(1)
    assert with_norm.parameters - without.parameters == 36 * 2 * 128
    sums = with_norm.tensors["blocks.0.attention.query-norm.inverse-deviation"]
    assert sums.shape == (1, 4096, 32)


def test_norms_around_branches_are_twice_as_many():
    before = load_model("gemma2-2b", {"norms": "before"}).forward(1).parameters
    assert load_model("gemma2-2b").forward(1).parameters - before == 26 * 2 * 2304


def test_parallel_branches_read_one_stream():
    """PaLM reads one norm, GPT-NeoX two; neither sum waits for the other branch."""
    one = load_model("palm-8b", {"layers": 1, "sequence": 4}).forward(1)
    two = load_model("gpt-neox-20b", {"layers": 1, "sequence": 4}).forward(1)
    for graph, norms in ((one, 1), (two, 2)):
        names = [op.name for op in graph.ops if op.name.startswith("blocks.0.norm")]
        assert len(names) == norms
        (stream,) = {op.inputs[0] for op in graph.ops if op.name in names}
        assert stream == "embedding.y"
        assert "blocks.0.attention.add" not in {op.name for op in graph.ops}


@pytest.mark.parametrize("further", [1, 2])
def test_a_module_for_a_further_token_is_a_block_a_join_and_a_classifier(further):
    """DeepSeek-V3, Section 2.2: embedding and classifier are those of the network."""
    small = {**SMALL, "attention.heads": 2}
    base = load_model("llama2-7b", small).forward(2)
    more = load_model("llama2-7b", {**small, "further_tokens": further}).forward(2)
    hidden, width, vocabulary, tokens = 32, 11008, 64, 2 * 16
    block = 4 * hidden**2 + 3 * hidden * width + 2 * hidden
    assert more.parameters - base.parameters == further * (block + 2 * hidden**2 + 3 * hidden)
    products = 4 * hidden**2 + 3 * hidden * width + 2 * hidden**2 + hidden * vocabulary
    scores = 2 * 16 * hidden  # with keys, and of values
    assert more.flops() - base.flops() == further * 2 * tokens * (products + scores)


def test_experts_between_linear_layers_compute_with_fewer_features():
    fields = {"mixture": {"experts": 4, "top_k": 2, "width": 8, "latent": 16}}
    graph = graph_of("mixtral-8x7b", **fields, **HEADS)
    rows = graph.tensors["blocks.0.experts.dispatch.y"]
    assert rows.shape == (4, 2 * 16 * 2 // 4, 16)
    widths = {op.layer: op.loops for op in graph.ops if isinstance(op.loops, Gemm)}
    assert widths["blocks.0.experts.latent-down"].k in (32, 16)


def test_experts_without_a_gate_have_two_matrices():
    fields = {"mixture": {"experts": 4, "top_k": 2, "width": 8, "activation": "relu-squared"}}
    graph = graph_of("mixtral-8x7b", **fields, **HEADS)
    weights = {n: t.shape for n, t in graph.tensors.items() if n.startswith("blocks.0.experts.")}
    assert weights["blocks.0.experts.up.weight"] == (4, 8, 32)
    assert weights["blocks.0.experts.down.weight"] == (4, 32, 8)
    assert "blocks.0.experts.gate-up.weight" not in weights


def test_the_square_of_a_relu_keeps_its_input_like_gelu():
    plain, squared = (
        peak(graph_of("opt-125m", **{"attention.heads": 2, "feed_forward.activation": f})).total
        for f in ("gelu", "relu-squared")
    )
    assert plain == squared
