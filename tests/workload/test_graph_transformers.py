"""Transformers against closed formulas: parameters, FLOPs, what the backward pass needs."""

import pytest

from oracles.graph_zoo import shallow
from ridgeline.errors import ConfigError
from ridgeline.workload import Conv, Pass, Role, load_model
from ridgeline.workload.graph import Gemm

DECODERS = ["gpt2", "gpt2-xl", "gpt3-125m", "gpt3-175b", "megatron-1.7b", "megatron-1t"]


def sizes(name):
    n = load_model(name).network
    return n.layers, n.hidden, n.sequence, n.vocabulary


@pytest.mark.parametrize("name", DECODERS)
def test_gpt_parameters(name):
    """12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h), Narayanan et al., SC 2021, equation 2.

    And the last norm, which the equation leaves out.
    """
    layers, h, s, v = sizes(name)
    expected = layers * (12 * h * h + 13 * h) + (v + s) * h + 2 * h
    assert load_model(name).forward(1).parameters == expected


@pytest.mark.parametrize("name", DECODERS)
def test_gpt_flops_are_six_a_parameter_and_token_plus_attention(name):
    """Per token 6 FLOP for each weight of a matrix, and 12 l h s for scores and context."""
    model = load_model(name)
    layers, h, s, v = sizes(name)
    graph = model.training(2)
    matrices = layers * 12 * h * h + v * h
    assert graph.flops() == 2 * s * (6 * matrices + 12 * layers * h * s)
    assert graph.flops(Pass.FORWARD) * 3 == graph.flops()
    half = graph.flops() - 2 * s * 6 * layers * h * s
    assert graph.flops(causal_flops="half") == half
    assert graph.tokens_per_sample == s


@pytest.mark.parametrize("heads", [8, 16])
@pytest.mark.parametrize("batch", [1, 4])
def test_activations_of_a_gpt_block_are_those_of_korthikanti(heads, batch):
    """34 s b h + 5 a s^2 b bytes, Korthikanti et al., MLSys 2023, arXiv:2205.05198, equation 1.

    In 16 bits with dropout. What they leave out: mean and deviation of every token in two norms.
    """
    sizes = {"sequence": 128, "hidden": 256, "attention.heads": heads, "feed_forward.width": 1024}
    few, many = (
        load_model("gpt3-175b", sizes | {"layers": n}).training(batch, "bf16-mixed") for n in (1, 3)
    )
    s, h = 128, 256
    block = batch * (34 * s * h + 5 * heads * s * s) + 2 * 2 * 4 * batch * s
    assert many.activation_bytes - few.activation_bytes == 2 * block


def test_fused_attention_keeps_no_scores_and_forms_them_again():
    layers, h, s = 2, 12288, 2048
    plain = shallow("gpt3-175b").training(1, "bf16-mixed")
    fused = load_model("gpt3-175b", {"layers": 2, "attention.kernel": "flash"})
    graph = fused.training(1, "bf16-mixed")
    assert graph.flops() == plain.flops()
    assert graph.flops(causal_flops="half") == plain.flops(causal_flops="half")
    assert graph.recomputed_flops == layers * 2 * s * s * h
    assert plain.recomputed_flops == 0
    done = sum(op.matrix_flops for op in graph.ops)
    assert done == plain.flops() + graph.recomputed_flops
    scores = 5 * 96 * s * s  # Korthikanti's second term; beside it the context stays, with sums
    sums = 4 * 96 * s
    assert plain.activation_bytes - graph.activation_bytes == layers * (scores - sums)
    assert not any("scores" in name for name in graph.tensors)


def test_operands_of_every_product_come_first_and_fit_its_loops():
    """Sizes of A [batch, m, k] and B [batch, k, n] are those of the first two inputs."""
    exempt = {"flash-attention", "lstm", "conv-transpose2d"}
    for name in ("bert-base", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "t5-small", "dlrm"):
        graph = shallow(name).training(2)
        for op in graph.ops:
            if isinstance(op.loops, Gemm) and op.kind not in exempt:
                a, b = (graph.tensors[x].elements for x in op.inputs[:2])
                m, n, k, batch = op.loops.m, op.loops.n, op.loops.k, op.loops.batch
                if op.kind == "dot-interaction":  # only half of the scores is kept
                    assert b == batch * k * n
                else:
                    assert (a, b) == (batch * m * k, batch * k * n), op


def test_shared_key_heads_save_parameters_and_bytes_not_flops_of_scores():
    many = load_model("llama2-70b", {"layers": 1, "attention.kv_heads": 64}).forward(1)
    few = load_model("llama2-70b", {"layers": 1}).forward(1)
    assert many.parameters - few.parameters == 2 * 8192 * (8192 - 1024)
    flops = [
        sum(op.matrix_flops for op in g.ops if op.kind.startswith("attention-"))
        for g in (many, few)
    ]
    assert flops[0] == flops[1]
    (scores,) = [op for op in few.ops if op.kind == "attention-scores"]
    assert (scores.loops.m, scores.loops.batch) == (8 * 4096, 8)


def test_one_product_for_queries_keys_and_values_or_three():
    fused = load_model("gpt2", {"layers": 2})
    apart = load_model("gpt2", {"layers": 2, "attention.fused": False})
    a, b = fused.training(2), apart.training(2)
    assert a.parameters == b.parameters
    assert a.flops() == b.flops()
    assert a.activation_bytes == b.activation_bytes
    assert sum(op.loops is not None for op in b.ops) > sum(op.loops is not None for op in a.ops)


def test_an_unfused_gate_keeps_one_more_tensor():
    """silu(gate), which the multiplication's gradient reads."""
    s, width = 8192, 14336
    fused, apart = (
        load_model("llama3-8b", {"layers": 1, "feed_forward.fused": fused}).training(1)
        for fused in (True, False)
    )
    assert apart.flops() == fused.flops()
    assert apart.parameters == fused.parameters
    assert apart.activation_bytes - fused.activation_bytes == 4 * s * width


def test_tied_embeddings_collect_gradients_of_lookup_and_classifier():
    graph = shallow("gpt2").training(1, "bf16-mixed")
    (total,) = [op for op in graph.ops if op.kind == "add" and op.layer == "embedding"]
    assert total.pass_ is Pass.WEIGHT_GRADIENT
    assert graph.tensors[total.outputs[0]].shape == (50257, 768)
    assert "head.weight" not in graph.tensors


def test_bert_base_on_128_tokens_has_the_flops_of_the_literature():
    """22.5 billion: Jiao et al., TinyBERT, Findings of EMNLP 2020, arXiv:1909.10351, Table 1."""
    graph = load_model("bert-base", {"sequence": 128, "masked": 20}).forward(1)
    encoder = sum(op.matrix_flops for op in graph.ops if op.layer.startswith("blocks."))
    assert encoder == pytest.approx(22.5e9, rel=0.01)
    heads = 2 * (20 * (768 * 768 + 768 * 30522) + 768 * 768 + 768 * 2)
    assert graph.flops() == encoder + heads


def test_only_masked_tokens_reach_the_classifier_of_bert():
    graph = load_model("bert-large").forward(3)
    rows = {op.layer: op.loops.m for op in graph.ops if isinstance(op.loops, Gemm)}
    assert rows["masked"] == rows["masked.transform"] == 3 * 80
    assert rows["next"] == rows["pooler"] == 3


@pytest.mark.parametrize(
    ("name", "chosen", "shared"),
    [("mixtral-8x7b", 2, 0), ("deepseek-v2-lite", 6, 2), ("deepseek-v3", 8, 1)],
)
def test_experts_compute_each_token_as_often_as_it_is_routed(name, chosen, shared):
    model = shallow(name)
    n = model.network
    graph = model.forward(1)
    block = f"blocks.{n.layers - 1}.experts"
    flops = sum(
        op.matrix_flops
        for op in graph.ops
        if op.layer.startswith(block) and not op.layer.endswith("router")
    )
    one = 3 * 2 * n.hidden * n.mixture.width
    assert flops == n.sequence * (chosen + shared) * one
    rows = graph.tensors[f"{block}.dispatch.y"].shape
    assert rows == (n.mixture.experts, n.sequence * chosen // n.mixture.experts, n.hidden)


def test_a_capacity_factor_computes_empty_rows():
    even, roomy = (
        load_model("mixtral-8x7b", {"layers": 1, "mixture.capacity_factor": f}).forward(1)
        for f in (1.0, 1.25)
    )
    experts = [
        sum(op.matrix_flops for op in g.ops if "experts." in op.layer and "router" not in op.layer)
        for g in (even, roomy)
    ]
    assert experts[1] == 1.25 * experts[0]


def test_deepseek_activates_37_billion_parameters_a_token():
    """DeepSeek-V3 report, abstract: 671B parameters with 37B activated; the embedding apart."""
    graph = load_model("deepseek-v3").forward(1)
    attention = sum(op.matrix_flops for op in graph.ops if op.kind.startswith("attention-"))
    active = (graph.flops() - attention) / 2 / graph.tokens_per_sample
    assert active == pytest.approx(37e9, rel=0.015)


def test_latent_attention_scores_have_both_parts_of_a_head():
    graph = shallow("deepseek-v2").forward(1)
    scores = next(op for op in graph.ops if op.kind == "attention-scores")
    context = next(op for op in graph.ops if op.kind == "attention-context")
    assert scores.loops.k == 128 + 64
    assert context.loops.n == 128
    latent = graph.tensors["blocks.0.attention.key-value-down.y0"]
    assert latent.shape == (1, 4096, 512)


def test_t5_stacks_share_one_table_of_relative_biases():
    graph = load_model("t5-base").training(1)
    biased = [op for op in graph.ops if op.kind == "relative-bias" and op.pass_ is Pass.FORWARD]
    assert len(biased) == 12 + 12
    tables = {op.inputs[1] for op in biased}
    assert tables == {"encoder.relative-bias.weight", "decoder.relative-bias.weight"}
    assert graph.tensors["encoder.relative-bias.weight"].shape == (32, 12)
    assert {op.in_place for op in biased} == {True}


def test_fixed_tables_are_no_parameters():
    for name in ("transformer-base", "llama3-8b"):
        graph = shallow(name).training(1)
        buffers = {t.name for t in graph.tensors.values() if t.role is Role.BUFFER}
        assert buffers
        updated = {op.inputs[0] for op in graph.ops if op.kind == "optimizer"}
        assert buffers.isdisjoint(updated)


def test_vision_transformers_see_patches_and_one_more_token():
    graph = load_model("vit-l16").forward(2)
    assert graph.tensors["class-token.y"].shape == (2, 197, 1024)
    assert graph.tensors["first.y"].shape == (2, 1, 1024)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("gpt2", {"attention.heads": 7}, "7 heads do not divide 768 features"),
        ("llama3-8b", {"attention.kv_heads": 3}, "kv_heads 3 must divide heads 32"),
        ("gpt2", {"max_positions": 10}, "1024 has over 10 positions"),
        ("deepseek-v3", {"attention": {"heads": 4}}, "either attention or latent_attention"),
        ("deepseek-v3", {"positions": "learned"}, "needs rotary positions"),
        ("mixtral-8x7b", {"mixture.top_k": 9}, "top_k 9 is more than 8"),
        ("gpt2", {"feed_forward.activation": "gelo"}, "gelu"),
        ("gpt2", {"dropout": 1.0}, "less than 1"),
        ("llama3-8b", {"attention.head_size": 3}, "cannot be rotated in pairs"),
        ("bert-base", {"sequence": 513}, "513 positions"),
    ],
)
def test_impossible_transformers_are_explained(name, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_model(name, overrides)


def test_feed_forward_layers_may_be_convolutions_of_one_tap():
    base = load_model("transformer-multi30k").training(2)
    linear = load_model("transformer-multi30k", {"feed_forward.convolutions": False}).training(2)
    assert base.flops() == linear.flops()
    assert base.parameters == linear.parameters
    convolved = [op for op in base.ops if isinstance(op.loops, Conv)]
    assert len(convolved) == 3 * 2 * 12  # passes of two layers in twelve blocks
    assert not any(isinstance(op.loops, Conv) for op in linear.ops)
    with pytest.raises(ConfigError, match="convolutions are two layers; swiglu needs three"):
        load_model("llama3-8b", {"feed_forward.convolutions": True})


def test_padding_is_set_to_zero_after_each_branch():
    fields = {"encoder_layers": 2, "decoder_layers": 1}
    graphs = [
        load_model("transformer-multi30k", {**fields, "padded": padded}).forward(2)
        for padded in (True, False)
    ]
    hidden, plain = ([op for op in g.ops if op.layer.endswith(".hidden")] for g in graphs)
    assert len(hidden) == 2 * 2 + 3
    assert plain == []
    assert len(graphs[0].ops) - len(graphs[1].ops) == len(hidden)
