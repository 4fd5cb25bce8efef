"""Offload by module: which tensors leave, what memory that saves, and how long copies take."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.checkpointing.offload import offloadable
from ridgeline.parallel.checkpointing.offload_modules import OFFLOAD_MODULES, read_back
from ridgeline.parallel.checkpointing.recompute import with_recompute
from ridgeline.study.launch.megatron.plan import OFFLOAD_MODULES as MEGATRON

LAYERS, TOKENS = 3, 512
SMALL = {"layers": LAYERS, "sequence": TOKENS}


def saved(graph, module):
    """Bytes of floating-point activations that a module saves."""
    tensors = (graph.tensors[name] for name in read_back(graph, module))
    return sum(t.bytes for t in tensors if t.role == "activation" and t.format == "bf16")


@pytest.fixture(scope="module")
def mixture():
    model = rl.load_model("qwen3-30b-a3b", {**SMALL, "attention.kernel": "flash"})
    return model.training(1, "bf16-mixed")


# hidden 2048, 32 heads of queries and 4 of keys of 128, 8 of 128 experts of width 768
@pytest.mark.parametrize(
    ("module", "numbers_a_token"),
    [
        ("qkv_linear", 2048),
        ("attn_proj", 32 * 128),
        ("core_attn", 2 * 32 * 128 + 2 * 4 * 128),  # queries and results; keys and values
        ("attn_norm", 2048),
        ("mlp_norm", 2048),
        ("expert_fc1", 8 * 2048),
        ("moe_act", 8 * 2 * 768),
        ("fused_group_mlp", 8 * (2048 + 2 * 768 + 768)),
    ],
)
def test_modules_save_what_their_shapes_say(mixture, module, numbers_a_token):
    assert saved(mixture, module) == LAYERS * TOKENS * numbers_a_token * 2


def test_dense_networks_and_latent_attention_have_modules_too():
    dense = rl.load_model("llama3-8b", {**SMALL, "attention.kernel": "flash"})
    graph = dense.training(1, "bf16-mixed")
    assert saved(graph, "mlp") == LAYERS * TOKENS * (4096 + 3 * 14336) * 2
    assert saved(graph, "attn_proj") == LAYERS * TOKENS * 4096 * 2
    latent = rl.load_model("deepseek-v2-lite", {**SMALL, "latent_attention.kernel": "flash"})
    graph = latent.training(1, "bf16-mixed")
    assert saved(graph, "shared_experts") == (LAYERS - 1) * TOKENS * (2048 + 3 * 2816) * 2
    assert set(OFFLOAD_MODULES) == set(MEGATRON)


def test_all_sends_what_every_module_sends(mixture):
    every = set(offloadable(mixture, "all"))
    for module in OFFLOAD_MODULES:
        assert set(offloadable(mixture, module)) <= every
    joined = set(offloadable(mixture, "moe_act+attn_proj"))
    apart = {*offloadable(mixture, "moe_act"), *offloadable(mixture, "attn_proj")}
    assert joined == apart


def test_a_step_holds_less_by_what_has_left_and_copies_it_twice():
    model = rl.load_model("gpt2", {"layers": 4})
    plan = {"global_batch": 4, "precision": "bf16-mixed"}

    def step(offload):
        return rl.simulate(model, "dgx-a100", rl.Plan(**plan, offload=offload), software="ideal")

    kept, mlp, every = step("none"), step("mlp"), step("all")
    saved_bytes = kept.memory_bytes["activations"] - mlp.memory_bytes["activations"]
    graph = model.training(4, "bf16-mixed")
    most = sum(graph.tensors[name].bytes for name in offloadable(graph, "mlp"))
    assert saved_bytes == most
    assert every.memory_bytes["activations"] <= mlp.memory_bytes["activations"]
    links = set(mlp.traffic_bytes) - set(kept.traffic_bytes)
    passed = max(mlp.traffic_bytes[link] for link in links)
    assert passed == 2 * 2 * most  # out and back, from the device to a switch and on to the host
    assert kept.step_time_s < mlp.step_time_s < every.step_time_s


def test_stages_without_a_module_send_nothing():
    model = rl.load_model("deepseek-v2-lite", SMALL)
    plan = rl.Plan(
        global_batch=4, pipeline=3, precision="bf16-mixed", offload="mlp", recompute="full"
    )
    assert rl.simulate(model, "dgx-h100", plan, software="ideal").step_time_s > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("core_attn+", "found ''"),
        ("core-attn", "did you mean 'core_attn'"),
        ("all+mlp", "found 'all'"),
        ("", "found ''"),
    ],
)
def test_unknown_modules_are_refused(text, said):
    with pytest.raises(ConfigError, match="allowed: none, all, conv") as error:
        rl.Plan(global_batch=1, offload=text)
    assert said in str(error.value)


def test_modules_that_a_network_lacks_are_refused():
    plan = rl.Plan(global_batch=1, offload="expert_fc1", precision="bf16-mixed")
    with pytest.raises(RidgelineError, match="saves nothing in expert_fc1"):
        rl.simulate("gpt2", "dgx-a100", plan, software="ideal")
    with pytest.raises(RidgelineError, match="allowed: none, all, conv"):
        rl.memory("gpt2", rl.Plan(global_batch=1), offload="every")
    assert rl.Plan(global_batch=1, offload="attn_proj+core_attn").offload == "attn_proj+core_attn"


def kept(graph):
    """Bytes of activations that the forward pass leaves for the backward pass."""
    made = {name for op in graph.ops if op.pass_ == "forward" for name in op.outputs}
    read = {name for op in graph.ops if op.pass_ != "forward" for name in op.inputs}
    return sum(graph.tensors[n].bytes for n in made & read if graph.tensors[n].role == "activation")


@pytest.mark.parametrize("precision", ["bf16-mixed", "mxfp8-mixed"])
def test_what_is_formed_again_is_not_kept_in_a_narrow_format_either(precision):
    model = rl.load_model("qwen3-30b-a3b", {**SMALL, "attention.kernel": "flash"})
    graph = model.training(1, precision)
    numbers = LAYERS * TOKENS * 8 * 768  # of the activation function's results, which are freed
    (result,) = {
        t.bytes / t.elements
        for t in graph.tensors.values()
        if t.name.startswith("blocks.1.experts.swiglu.y")
        and t.name in read_back(graph, "fused_group_mlp")
    }
    assert kept(graph) - kept(with_recompute(graph, "moe_act")) == numbers * result
