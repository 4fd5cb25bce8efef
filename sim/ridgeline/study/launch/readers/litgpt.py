"""Configurations of LitGPT (YAML).

Facts from litgpt/pretrain.py, litgpt/finetune/full.py, litgpt/finetune/lora.py and
litgpt/config.py.
"""

from __future__ import annotations

import re
from typing import Any

from ridgeline.study.launch import adapters, batch, huggingface, optimizers, shape, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource

_NAME = "litgpt"
_WHERE: batch.Where = {
    "devices": ("devices", "num_nodes"),
    "global_batch": ("train.global_batch_size",),
}
_PRECISIONS = {
    "bf16-true": "bf16-mixed", "bf16-mixed": "bf16-mixed", "16-true": "fp16-mixed",
    "16-mixed": "fp16-mixed", "32-true": "fp32", "32": "fp32", "transformer-engine": "fp8-mixed",
    "transformer-engine-float16": "fp8-mixed",
}  # fmt: skip
_TARGETS = {
    "lora_query": ("q_proj",), "lora_key": ("k_proj",), "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",), "lora_mlp": adapters.ALL[4:], "lora_head": ("lm_head",),
}  # fmt: skip
_GATES = {"LLaMAMLP": "swiglu", "GemmaMLP": "geglu", "GptNeoxMLP": "gelu", "LLaMAMoE": "swiglu"}


def _recognises(text: str, suffix: str) -> float:
    if suffix not in {".yaml", ".yml"}:
        return 0.0
    where = re.search(r"^(checkpoint_dir|model_name|model_config):", text, re.MULTILINE)
    train = re.search(r"^train:", text, re.MULTILINE)
    known = re.search(
        r"^ +(global_batch_size|micro_batch_size|lr_warmup_steps):", text, re.MULTILINE
    )
    if not (where and train and known):
        return 0.0
    return 0.95 if re.search(r"litgpt|^eval:|tie_embeddings", text, re.MULTILINE) else 0.5


@reader(_NAME, _recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration of LitGPT."""
    draft = LaunchDraft(source, _NAME)
    tables.say_all(draft, source.yaml)
    pretrains = "checkpoint_dir" not in draft
    _network(draft)
    nodes = tables.count(draft, "num_nodes", "{} nodes") or 1
    each = tables.count(draft, "devices", "{} devices a node")
    draft.devices = None if each is None else each * nodes
    batch_size = tables.count(draft, "train.global_batch_size", "plan.global_batch={}")
    draft.plan["global_batch"] = batch_size or (512 if pretrains else 16)
    if batch_size is None:
        draft.note(f"train.global_batch_size is not given: {draft.plan['global_batch']}")
    micro = tables.count(draft, "train.micro_batch_size", "plan.micro_batch={}") or 1
    batch.settle(draft, micro, None, _WHERE)
    _program(draft, pretrains, nodes, each)
    _precision(draft)
    optimizer = "optimizer.class_path" if "optimizer.class_path" in draft else "optimizer"
    optimizers.take(draft, optimizer)
    huggingface.of_pytorch_2(draft)
    draft.plan.setdefault("optimizer", "adamw")
    _adapters(draft)
    tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
    return draft.job()


def _network(draft: LaunchDraft) -> None:
    length = tables.count(draft, "train.max_seq_length", "model sequence={}")
    own = [name for name in draft.said if name.startswith("model_config.")]
    if own:
        _described(draft, length)
        draft.ignore("model_name", became="model")
    else:
        where = "checkpoint_dir" if "checkpoint_dir" in draft else "model_name"
        path = draft.text(where, "model {}")
        if path is None:
            raise draft.error("the file does not say which network is trained (checkpoint_dir)")
        name = tables.table(_NAME)["names"].get(path.rpartition("/")[2].lower(), path)
        huggingface.described(draft, name, length, where)
    draft.ignore("model_config")
    if length is None:
        draft.note(
            "train.max_seq_length is not given: sequences have the network's own length here, there"
            " that of the data"
        )
    if tables.word(draft, "train.tie_embeddings", "model tied={}") == "true":
        draft.model_fields["tied"] = True


def _described(draft: LaunchDraft, length: int | None) -> None:
    def whole(name: str, default: int | None = None) -> int:
        found = tables.count(draft, f"model_config.{name}", f"model {name}={{}}") or default
        if found is None:
            raise draft.error(f"the file does not say model_config.{name}")
        return found

    def flag(name: str, *, default: bool) -> bool:
        return draft.flag(f"model_config.{name}", f"model {name}={{}}", default=default)

    hidden, heads = whole("n_embd"), whole("n_head")
    bias = flag("bias", default=True)
    mlp = draft.text("model_config.mlp_class_name", "model {}") or "GptNeoxMLP"
    norm = draft.text("model_config.norm_class_name", "model {}") or "LayerNorm"
    if mlp not in _GATES:
        raise draft.error(
            f"the feed-forward network {mlp} is not modelled", "model_config.mlp_class_name"
        )
    parallel = flag("parallel_residual", default=True)
    shared = flag("shared_attention_norm", default=False)
    description: dict[str, Any] = {
        "vocabulary": whole(
            "padded_vocab_size", draft.integer("model_config.vocab_size", "model {}")
        ),
        "layers": whole("n_layer"),
        "hidden": hidden,
        "sequence": length or whole("block_size", 4096),
        "attention": {
            "heads": heads,
            "kv_heads": whole("n_query_groups", heads),
            "head_size": whole("head_size", hidden // heads),
            "bias": flag("attn_bias", default=bias),
            "output_bias": bias,
        },
        "feed_forward": {
            "width": whole("intermediate_size", 4 * hidden),
            "activation": _GATES[mlp],
            "bias": bias,
        },
        "norm": "rms-norm" if norm == "RMSNorm" else "layer-norm",
        "positions": "rotary",
        "parallel": ("one-norm" if shared else "two-norms") if parallel else "no",
        "tied": False,
    }
    if mlp == "LLaMAMoE":
        description["mixture"] = {
            "experts": whole("n_expert"),
            "top_k": whole("n_expert_per_token"),
            "width": description["feed_forward"]["width"],
        }
    draft.ignore("model_config.block_size", became="model")
    match = shape.match(description)
    draft.model, draft.model_fields = match.model, dict(match.fields)
    draft.model_fields["sequence"] = description["sequence"]
    for note in match.notes:
        draft.note(note)


def _program(draft: LaunchDraft, pretrains: bool, nodes: int, each: int | None) -> None:
    """Fill what LitGPT does on several devices: FSDP, and recomputation where it fine-tunes."""
    plan = draft.plan
    plan["recompute"] = "none"
    if draft.devices == 1:
        draft.software = "pytorch-compile" if pretrains else "pytorch-amp-2021"
        return
    draft.software = "fsdp1"
    plan["zero_stage"] = 3
    if pretrains:
        draft.note("LitGPT compiles what it pretrains; the stack fsdp1 is not compiled")
        if nodes > 1 and each is not None:
            plan["hybrid_shard_size"] = each
    else:
        plan["recompute"] = "full"
        draft.note("LitGPT recomputes every block where it fine-tunes on several devices")


def _precision(draft: LaunchDraft) -> None:
    word = (draft.text("precision", "plan.precision: {}") or "bf16-true").lower()
    if word not in _PRECISIONS:
        raise draft.error(f"the precision {word} is not modelled", "precision")
    draft.plan["precision"] = _PRECISIONS[word]
    if word.endswith("-true") and word != "32-true" and "lora_r" not in draft:
        huggingface.narrow_weights(draft)


def _adapters(draft: LaunchDraft) -> None:
    quantized = tables.word(draft, "quantize", "frozen weights: {}")
    rank = tables.count(draft, "lora_r", "model adapters.rank={}")
    dropout = draft.number("lora_dropout", "model adapters.dropout={}") or 0.0
    on = [
        product
        for name, products in _TARGETS.items()
        if draft.flag(
            name, "model adapters.layers: {}", default=name in {"lora_query", "lora_value"}
        )
        for product in products
    ]
    if "adapter_prompt_length" in draft or "adapter_start_layer" in draft:
        raise draft.error("adapters of prompts (LLaMA-Adapter) are not modelled")
    if rank is None:
        if quantized is not None:
            raise draft.error("weights of few bits need adapters", "quantize")
        return
    missing = adapters.fill(draft, rank, on, dropout, "lora_r")
    if missing:
        draft.note(f"adapters beside {', '.join(missing)} are not modelled")
    if quantized is not None:
        adapters.frozen_bits(draft, 8 if "int8" in quantized else 4)
