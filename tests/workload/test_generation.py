"""Steps of generation as graphs: caches, FLOPs and weights against closed forms and the zoo."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline import catalog, load_model
from ridgeline.config import read_yaml
from ridgeline.errors import RidgelineError
from ridgeline.workload.expert_load import expected_experts
from ridgeline.workload.families.decoder import Decoder
from ridgeline.workload.formats import number_bytes
from ridgeline.workload.generation import generation_model, learned_positions
from ridgeline.workload.generation_step import GenerationStep
from ridgeline.workload.graph import Graph, Role
from ridgeline.workload.model import Model, read_model
from ridgeline.workload.ops.cached_attention import met_keys
from thoroughly import further


def decoders() -> list[str]:
    """As their files say: tests are collected before anything is loaded."""
    files = {name: read_yaml(catalog.find("models", name)).data for name in catalog.names("models")}
    return [
        name for name, of in files.items() if of["family"] == "decoder" and not of.get("towers")
    ]


def test_decoders_are_what_is_loaded_as_one() -> None:
    for name in (*SOME, "bert-base", "t5-small"):
        network = read_model(name).network
        alone = isinstance(network, Decoder) and not network.towers
        assert (name in decoders()) == alone, name


SOME = [
    "gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3.2", "gpt-oss-20b",
    "gemma3-4b", "qwen3-next-80b-a3b", "nemotron-h-8b", "llama4-scout", "palm-8b",
]  # fmt: skip


def step_of(name: str, tokens: int, context: int, batch: int = 2, **fields: str) -> Graph:
    model = load_model(name)
    assert isinstance(model, Model)
    step = GenerationStep(tokens, context, **fields)
    return generation_model(model, step).inference(batch, "bf16-true")


def weight_elements(graph: Graph) -> int:
    return sum(t.elements for t in graph.tensors.values() if t.role is Role.WEIGHT)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("context", [0, 1, 5, 130])
@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (4, 0), (64, 0), (0, 8), (0, 50)])
def test_met_keys_are_those_of_a_mask(rows: int, context: int, window: int, chunk: int) -> None:
    query, key = np.arange(context, context + rows)[:, None], np.arange(context + rows)[None]
    mask = key <= query
    if window:
        mask &= key > query - window
    if chunk:
        mask &= key // chunk == query // chunk
    columns, scores = met_keys(rows, context, window, chunk)
    assert scores == mask.sum()
    assert columns == mask.any(axis=0).sum()


@pytest.mark.parametrize("name", SOME)
def test_weights_of_a_step_are_those_of_the_network(name: str) -> None:
    whole = load_model(name).forward(1)
    kept = sum(
        t.elements
        for t in whole.tensors.values()
        if t.role is Role.WEIGHT and not t.name.startswith("further")
    )
    for graph in (step_of(name, 1, 64), step_of(name, 16, 0), step_of(name, 4, 64)):
        assert weight_elements(graph) == kept


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "gpt-oss-20b", "deepseek-v2-lite"])
def test_decode_flops_grow_linearly_with_the_context_to_a_window(name: str) -> None:
    flops = [step_of(name, 1, context).flops() for context in (256, 512, 768, 1000)]
    rise = (flops[1] - flops[0]) / 256
    assert flops[2] - flops[1] == pytest.approx(256 * rise, rel=1e-12)
    network = load_model(name).network
    if name == "gpt-oss-20b":  # every other layer has a window of 128
        attention = network.attention or network.variants[0].attention
        layers = network.layers // 2
        assert rise == layers * 2 * 2 * attention.heads * 2 * attention.size(network.hidden)
    if name == "llama3-8b":
        assert rise == 32 * 2 * 2 * 32 * 2 * 128


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "mistral-7b"])
def test_prefill_in_parts_does_the_flops_of_prefill_at_once(name: str) -> None:
    def met(graph: Graph) -> float:
        attention = [op for op in graph.ops if op.kind == "flash-attention"]
        return math.fsum(op.matrix_flops * op.met_share for op in attention)

    parts = [(256, 0), (128, 256), (512, 384)]
    assert math.fsum(met(step_of(name, *part)) for part in parts) == pytest.approx(
        met(step_of(name, 896, 0)), rel=1e-12
    )


PUBLISHED = {  # bytes of a token in bf16: heads x features x 2 (K and V) x 2 B x layers
    "llama3-8b": 8 * 128 * 2 * 2 * 32,
    "llama3-70b": 8 * 128 * 2 * 2 * 80,
    "gpt3-175b": 96 * 128 * 2 * 2 * 96,
    "mixtral-8x7b": 8 * 128 * 2 * 2 * 32,
    "deepseek-v3": (512 + 64) * 2 * 61,  # arXiv:2412.19437: the latent vector and the rotated key
    "qwen3-next-80b-a3b": 2 * 256 * 2 * 2 * 12,  # one layer in four
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_of_a_token_in_the_cache(name: str) -> None:
    model = generation_model(load_model(name), GenerationStep(1, 64))
    layers = model.cached("bf16-true")
    assert sum(layer.token_bytes() for layer in layers) == PUBLISHED[name]
    narrow = generation_model(load_model(name), GenerationStep(1, 64, "fp8-e4m3"))
    assert 2 * sum(layer.token_bytes() for layer in narrow.cached("bf16-true")) == PUBLISHED[name]


def test_devices_share_heads_of_the_cache_and_have_latent_vectors_whole() -> None:
    grouped = generation_model(load_model("llama3-8b"), GenerationStep(1, 64)).cached("bf16-true")
    whole = grouped[0].token_bytes()
    assert [grouped[0].token_bytes(n) / whole for n in (1, 2, 8, 16)] == [1, 1 / 2, 1 / 8, 1 / 8]
    latent = generation_model(load_model("deepseek-v3"), GenerationStep(1, 64)).cached("bf16-true")
    assert latent[0].token_bytes(8) == latent[0].token_bytes()


def test_states_do_not_grow_and_are_read_and_written_once_a_step() -> None:
    model = generation_model(load_model("qwen3-next-80b-a3b"), GenerationStep(1, 64))
    layers = [
        layer for layer in model.cached("bf16-true") if layer.state_bytes and layer.heads < 64
    ]
    assert sum(layer.state_bytes for layer in layers) == 36 * 32 * 128 * 128 * 4
    graph = model.inference(2, "bf16-true")
    ops = [op for op in graph.ops if op.kind == "linear-attention"]
    assert len(ops) == 36
    assert graph.read_bytes(ops[0]) >= 2 * 2 * 32 * 128 * 128 * 4


def test_attention_reads_the_cache_and_writes_what_is_new() -> None:
    for kv_format in ("bf16", "fp8-e4m3", "nvfp4"):
        for tokens, context in ((1, 1000), (64, 0), (64, 1000)):
            graph = step_of("llama3-8b", tokens, context, batch=3, kv_format=kv_format)
            op = next(op for op in graph.ops if op.kind == "flash-attention")
            of = [graph.tensors[name] for name in op.inputs]
            new = sum(t.bytes for t in of)
            cached = 3 * 8 * 128 * 2 * number_bytes(kv_format)
            old = 0 if context == 0 else context
            assert graph.read_bytes(op) == pytest.approx(new + (old + tokens) * cached, rel=1e-6)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 1), (8, 2, 4), (64, 6, 100)])
def test_expected_experts_against_draws(experts: int, top_k: int, tokens: int) -> None:
    rng = np.random.default_rng(1)
    found = [
        len({int(e) for _ in range(tokens) for e in rng.permutation(experts)[:top_k]})
        for _ in range(400)
    ]
    assert expected_experts(experts, top_k, tokens) == pytest.approx(np.mean(found), rel=0.03)
    assert expected_experts(experts, top_k, 1) == pytest.approx(top_k)


def test_weights_of_a_step_are_stored_as_they_are_multiplied() -> None:
    model = generation_model(load_model("llama3-8b"), GenerationStep(1, 64))
    graph = model.inference(3, "fp8-mixed")  # three rows are multiplied in 8 bits, too
    formats = {t.format for t in graph.tensors.values() if t.role is Role.WEIGHT}
    assert formats == {"fp8-e4m3", "bf16"}
    size = sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT)
    assert size == pytest.approx(8.03e9 + 2 * 0.525e9, rel=0.001)  # tables stay in 16 bits
    assert not any(t.role is Role.WEIGHT_COPY for t in graph.tensors.values())


@pytest.mark.parametrize("name", [*SOME[:3], *further(*[n for n in decoders() if n not in SOME])])
def test_every_decoder_generates(name: str) -> None:
    limit = learned_positions(load_model(name)) or 4096
    for tokens, context in ((1, min(64, limit - 1)), (32, 0), (32, min(64, limit - 32))):
        graph = step_of(name, tokens, context)
        assert graph.tensors[graph.loss].shape == (2, 1, 1)


def test_what_cannot_generate_is_refused() -> None:
    step = GenerationStep(1, 64)
    with pytest.raises(RidgelineError, match=r"family 'resnet'.*decoder alone"):
        generation_model(load_model("resnet50"), step)
    with pytest.raises(RidgelineError, match=r"learned positions for 1024 tokens.*1025"):
        generation_model(load_model("gpt2"), GenerationStep(1, 1024))
