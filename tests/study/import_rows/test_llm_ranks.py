"""Rows of language models: who shares experts and weights, and batches in tokens."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.study.import_rows.columns import translated
from ridgeline.study.validate.rows import MeasuredRow
from study.import_rows.steps_read import Read, configuration

BRIDGE = {
    "model": "Qwen3_235B_a22B", "accelerator": "DGX-H100", "n_accel": "256", "tp": "2", "pp": "8",
    "ep": "32", "micro_batch": "1", "global_batch_seqs": "2048", "precision": "FP8",
    "interconnect": "", "source": "NVIDIA-NeMo/Megatron-Bridge",
    "framework": "Megatron-Bridge/NeMo",
}  # fmt: skip
MAXTEXT = {
    "model": "32B", "accelerator": "TPU v5e", "n_accel": "512", "precision": "bf16", "tp": "",
    "interconnect": "", "source": "AI-Hypercomputer/maxtext configs/v5e", "framework": "MaxText",
}  # fmt: skip
GPT = {
    "model": "GPT-3 175B", "accelerator": "A100-80GB", "n_accel": "992", "tp": "8",
    "seq_len": "2048", "precision": "fp16", "sharding": "FSDP", "interconnect": "",
    "source": "", "framework": "",
}  # fmt: skip


def read(fields: dict[str, str], **more: str) -> Read:
    return configuration(translated(MeasuredRow("t.csv", 2, {**fields, **more})))


def plan(fields: dict[str, str], **more: str) -> ResolvedPlan:
    return read(fields, **more).plan


def test_recipes_of_megatron_bridge_fold_tensor_ranks_into_experts() -> None:
    made = plan(BRIDGE)
    assert (made.data, made.tensor, made.expert, made.expert_tensor_parallel) == (16, 2, 32, 1)
    with pytest.raises(RidgelineError, match="expert=32 must divide data=16"):
        plan(BRIDGE, framework="Megatron-Core")


@pytest.mark.parametrize("model", ["Nemotron_3_Super", "Nemotron_3_Ultra"])
def test_hybrid_networks_predict_two_further_tokens(model: str) -> None:
    made = read(BRIDGE, model=model, tp="1", pp="1", ep="64", seq_len="8192")
    assert made.model.description["further_tokens"] == 2
    elsewhere = read(BRIDGE, model=model, tp="1", pp="1", ep="64", seq_len="8192", source="mine")
    assert elsewhere.model.description["further_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "of_slice", "data"),
    [
        ({"n_accel": "256"}, 0, 256),
        ({"n_accel": "512"}, 256, 512),
        ({"n_accel": "2048", "model": "128B"}, 16, 128),
        ({"n_accel": "512", "framework": "torchtitan"}, 0, 512),
    ],
)
def test_slices_of_maxtext_are_replicas(fields: dict[str, str], of_slice: int, data: int) -> None:
    made = plan(MAXTEXT, **fields)
    assert (made.hybrid_shard_size, made.data) == (of_slice, data)


@pytest.mark.parametrize(
    ("device", "model", "chips", "other", "shape", "of_slice"),
    [
        ("v5p", "32B", "64", "1 x v5p-128", (4, 4, 4), 0),
        ("v5p", "32B", "128", "2 x v5p-128", (4, 4, 4), 16),
        ("v5p", "128B", "128", "1 x v5p-256", (8, 4, 4), 0),
        ("v5p", "128B", "512", "2 x v5p-512", (8, 8, 4), 32),
        ("v5p", "1024B", "2048", "1 x v5p-4096", (8, 16, 16), 0),
        ("v4", "52B", "384", "2 x v4-384", (4, 4, 12), 192),
        ("v4", "52B", "192", "", (4, 4, 12), 0),
    ],
)
def test_slices_of_pods_are_tori_whose_rings_tensor_parallel_chips_are(
    device: str, model: str, chips: str, other: str, shape: tuple[int, ...], of_slice: int
) -> None:
    """Google Cloud, TPU v4 and v5p: shapes of slices by their number of cores, two a chip."""
    fields = {"accelerator": f"TPU {device}", "model": model, "n_accel": chips, "other": other}
    made = read(MAXTEXT, **fields)
    fabric = made.cluster.fabric
    assert fabric is not None
    assert (fabric.shape, made.plan.hybrid_shard_size) == (shape, of_slice)
    assert fabric.slices_of(int(chips)) == (2 if other.startswith("2") else 1)


@pytest.mark.parametrize(
    ("device", "model", "again", "kernel"),
    [
        ("v5p", "128B", "projections", "flash"),
        ("v5p", "512B", "full", "flash"),
        ("v5e", "128B", "projections", "flash"),
        ("v4", "52B", "full", "separate"),
    ],
)
def test_what_scripts_of_maxtext_say(device: str, model: str, again: str, kernel: str) -> None:
    """Policies of rematerialization, kernels of attention, and what XLA runs beside products."""
    made = read(MAXTEXT, accelerator=f"TPU {device}", model=model, n_accel="2048", other="")
    attention = made.model.description["attention"]
    assert (made.plan.recompute, attention["kernel"]) == (again, kernel)
    assert (made.stack.overlap.gradients, made.stack.overlap.tensor) == ("gathers", "gathers")
    stated = read(MAXTEXT, model="32B", recompute="minimal_flash", framework="MaxText GPU")
    assert (stated.plan.recompute, stated.stack.overlap.gradients) == ("products", True)


def test_nodes_of_maxtext_on_gpus_are_slices() -> None:
    place: dict[str, Any] = {
        "model": "Llama-2 7B", "accelerator": "H100-80GB (GCP A3)", "n_accel": "32",
        "source": "maxtext/configs/gpu/a3/llama_2_7b", "framework": "MaxText GPU",
    }  # fmt: skip
    made = read(MAXTEXT, **place)
    assert made.cluster.name == "gcp-a3-tcpx"
    assert (made.plan.hybrid_shard_size, made.plan.micro_batch, made.sequence) == (8, 4, 4096)


@pytest.mark.parametrize(
    ("tokens", "batch"), [("2e6", 992), ("2031616", 992), ("1000", 124), ("4e6", 1984)]
)
def test_a_batch_in_tokens_is_shared_by_the_replicas(tokens: str, batch: int) -> None:
    """Tables round it, so that it is the nearest that can be."""
    assert plan(GPT, global_batch_tokens=tokens).global_batch == batch


def test_a_batch_in_sequences_is_taken_as_it_stands() -> None:
    made = plan(GPT, global_batch_tokens="2e6", global_batch_seqs="248")
    assert made.global_batch == 248
