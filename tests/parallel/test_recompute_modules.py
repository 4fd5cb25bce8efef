"""Recomputation by modules: the gradients stay, activations shrink by what is formed again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from test_recompute import SGD, assert_same_gradients, assert_well_formed

import ridgeline as rl
from oracles.graph_zoo import tiny
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.checkpointing.modules import MODULES, module_blocks, parse_modules
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.workload import load_model
from ridgeline.workload.graph import Graph, Pass

LATENT = {
    "layers": 3, "sequence": 32, "hidden": 64, "vocabulary": 128, "latent_attention.heads": 4,
    "latent_attention.rank": 16, "latent_attention.query_rank": 24,
    "latent_attention.plain_size": 8, "latent_attention.rotary_size": 4,
    "latent_attention.value_size": 8, "mixture.experts": 4, "mixture.top_k": 2,
    "mixture.width": 16, "mixture.first_dense": 1, "mixture.shared_width": 16,
    "feed_forward.width": 96,
}  # fmt: skip
PAIRS = [(name,) for name in MODULES] + list(itertools.combinations(MODULES, 2)) + [MODULES]


def latent(kernel: str = "separate") -> Graph:
    fields: dict[str, Any] = {**LATENT, "latent_attention.kernel": kernel}
    return load_model("deepseek-v3", fields).training(2, "fp16-mixed", SGD)


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_gradients_stay_as_they_are(names: tuple[str, ...]) -> None:
    graph = latent()
    changed = with_recompute(graph, "+".join(names))
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed)
    assert changed.activation_bytes < graph.activation_bytes
    assert any(op.pass_ is Pass.RECOMPUTE for op in changed.ops)


@pytest.mark.parametrize("mode", ["layernorm", "mlp", "layernorm+mlp", "core_attn+layernorm+mlp"])
def test_networks_without_experts_have_modules_too(mode: str) -> None:
    graph = tiny("gpt").training(2, "fp16-mixed", SGD)
    changed = with_recompute(graph, mode)
    assert_well_formed(graph, changed)
    assert_same_gradients(graph, changed)


@pytest.mark.parametrize("tensor", [2, 4])
def test_a_device_forms_its_own_part_again(tensor: int) -> None:
    graph = divide(latent("flash"), ShardingSpec(tensor=tensor, sequence=True)).graph
    changed = with_recompute(graph, "mla_up_proj+moe_act")
    assert_well_formed(graph, changed)
    assert changed.activation_bytes < graph.activation_bytes


def test_more_modules_keep_no_more() -> None:
    graph = latent("flash")
    sizes = {
        names: with_recompute(graph, "+".join(names)).activation_bytes
        for n in range(1, 4)
        for names in itertools.combinations(("mla_up_proj", "moe_act", "layernorm", "mlp"), n)
    }
    for few, many in itertools.product(sizes, sizes):
        if set(few) < set(many):
            assert sizes[many] < sizes[few] < graph.activation_bytes


def test_latent_up_projections_are_what_is_saved() -> None:
    """Queries, keys and values of all heads, before and after rotation; the latents are kept."""
    graph = load_model(
        "deepseek-v3", {"layers": 4, "latent_attention.kernel": "flash"}
    ).training(1, "bf16-mixed")  # fmt: skip
    saved = graph.activation_bytes - with_recompute(graph, "mla_up_proj").activation_bytes
    heads, positions = 128, 4096
    keys_and_values = heads * (192 + 192 + 128) * positions * 2  # joined q, joined k, v
    assert keys_and_values <= saved / 4 <= 1.2 * keys_and_values


_OF_TRANSFORMERS = {
    "blocks.": "model.layers.", ".norm1": ".input_layernorm", ".norm2": ".post_attention_layernorm",
    ".attention.query-norm": ".self_attn.q_a_layernorm",
    ".attention.query-up": ".self_attn.q_b_proj",
    ".attention.key-value-norm": ".self_attn.kv_a_layernorm",
    ".attention.key-value-up": ".self_attn.kv_b_proj",
    ".attention.query-down": ".self_attn.q_a_proj",
    ".attention.key-value-down": ".self_attn.kv_a_proj_with_mqa",
    ".attention.output": ".self_attn.o_proj", ".attention.add": ".add",
    ".attention.join": ".self_attn.concat", ".attention.": ".self_attn.",
    ".experts.router": ".mlp.gate", ".experts.shared": ".mlp.shared_experts",
    ".experts.gate-up": ".mlp.experts.gate_up_proj", ".experts.": ".mlp.experts.",
    ".feed-forward.add": ".add.2", ".feed-forward.": ".mlp.",
}  # fmt: skip
"""What layers of a network of transformers are called, by the beginnings of their names here."""


def as_in_transformers(layer: str) -> str:
    for ours, theirs in _OF_TRANSFORMERS.items():
        layer = layer.replace(ours, theirs)
    return layer


@pytest.mark.parametrize("name", MODULES)
def test_networks_of_other_names_have_the_same_modules(name: str) -> None:
    graph = latent()
    ops = tuple(replace(op, layer=as_in_transformers(op.layer)) for op in graph.ops)
    found = module_blocks(graph, name)
    assert found
    assert module_blocks(replace(graph, ops=ops), name) == found


def test_norms_behind_branches_and_of_heads_are_kept() -> None:
    """Gemma's norms after a branch are added to the stream; those of heads are of attention."""
    fields = {"layers": 2, "sequence": 8, "hidden": 16, "vocabulary": 32}
    gemma = load_model("gemma2-2b", {**fields, "attention.heads": 2, "attention.kv_heads": 1})
    graph = gemma.training(1, "bf16-mixed")
    layers = {graph.ops[i].layer for block in module_blocks(graph, "layernorm") for i in block}
    assert layers == {f"blocks.{n}.norm{k}" for n in range(2) for k in (1, 2)}


def test_plans_name_modules_in_any_order() -> None:
    plan = rl.Plan(global_batch=8, recompute="moe_act+mla_up_proj")
    assert plan == rl.Plan(global_batch=8, recompute="mla_up_proj+moe_act")
    assert parse_modules(plan.recompute) == ("moe_act", "mla_up_proj")
    with pytest.raises(ConfigError, match="mean 'moe_act'"):
        rl.Plan(global_batch=8, recompute="moe_acts")
    with pytest.raises(ConfigError, match="gpt2 has no mla_up_proj"):
        rl.simulate("gpt2", "v100-sxm2-16gb", rl.Plan(global_batch=8, recompute="mla_up_proj"))
    with pytest.raises(RidgelineError, match=r"did you mean .full."):
        with_recompute(latent(), "ful")


def test_a_recipe_fits_where_its_authors_ran_it() -> None:
    """DeepSeek-V3 on 256 GB200 in bf16 recomputes the up-projections, without which it is too big.

    Megatron-Bridge, scripts/performance/configs/deepseek.
    """
    plan = {
        "data": 64, "pipeline": 4, "virtual_stages": 4, "schedule": "interleaved", "expert": 64,
        "micro_batch": 1, "global_batch": 1024, "precision": "bf16-mixed", "zero_stage": 1,
        "stage_balance": "layers",
    }  # fmt: skip
    fits = [
        rl.simulate(
            "deepseek-v3", "gb200-nvl64-ndr", rl.Plan(**plan, recompute=mode),  # type: ignore[arg-type]
            software="megatron-bridge",
        ).fits
        for mode in ("none", "mla_up_proj")
    ]  # fmt: skip
    assert fits == [False, True]
