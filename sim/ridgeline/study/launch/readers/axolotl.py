"""Configurations of axolotl (YAML).

Facts from axolotl/utils/schemas/*.py and axolotl's documentation of its configuration.
"""

from __future__ import annotations

import re

from ridgeline.study.launch import adapters, batch, deepspeed, fsdp, huggingface, optimizers, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource

_NAME = "axolotl"
_MESH = {
    "shard": "dp_shard_size", "replicate": "dp_replicate_size", "tensor": "tensor_parallel_size",
    "context": "context_parallel_size", "expert": "expert_parallel_size",
}  # fmt: skip
_WHERE: batch.Where = {
    "data": ("dp_shard_size", "dp_replicate_size"),
    "tensor": ("tensor_parallel_size",),
    "expert": ("expert_parallel_size",),
    "global_batch": ("batch_size", "micro_batch_size"),
}
_ATTENTION = {
    "flash_attention": "flash", "sdp_attention": "flash", "flex_attention": "flash",
    "xformers_attention": "flash", "eager_attention": "eager",
}  # fmt: skip


def _recognises(text: str, suffix: str) -> float:
    if suffix not in {".yaml", ".yml"} or not re.search(r"^base_model:", text, re.MULTILINE):
        return 0.0
    known = r"^(datasets|pretraining_dataset|micro_batch_size|sequence_len|adapter|num_epochs|rl):"
    return 0.95 if re.search(known, text, re.MULTILINE) else 0.4


@reader(_NAME, _recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration of axolotl."""
    draft = LaunchDraft(source, _NAME)
    tables.say_all(draft, source.yaml)
    _refuse(draft)
    sequence = tables.count(draft, "sequence_len", "model sequence={}") or 512
    huggingface.network(draft, "base_model", sequence)
    stated = _engine(draft)
    huggingface.precision(draft, *_switches(draft))
    fsdp.mesh(draft, _names(draft))
    _software(draft)
    optimizers.take(draft, "optimizer")
    draft.plan.setdefault("optimizer", "adamw")
    _adapters(draft)
    _recompute(draft)
    micro, accumulation = _batch(draft, stated)
    batch.settle(draft, micro, accumulation, _WHERE)
    huggingface.of_pytorch_2(draft)
    fsdp.stack(draft)
    packed = draft.flag("sample_packing", "sequences are full: {}")
    if not packed:
        draft.note(f"samples are not packed: all count as sequences of {sequence} tokens here")
    tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
    return draft.job()


def _refuse(draft: LaunchDraft) -> None:
    for name, reason in tables.table(_NAME)["refused"].items():
        inside = next((each for each in draft.said if each.startswith(f"{name}.")), None)
        off = str(draft.value(name)).strip().lower() in {"none", "false", "", "{}", "[]", "0"}
        if inside is not None or not off:
            raise draft.error(reason.format(draft.value(name)), inside or name)
        draft.ignore(name)
    if draft.value("unfrozen_parameters"):
        _unfrozen(draft)
    if draft.value("processor_type"):
        raise draft.error(
            "networks of images or sound and text are not modelled (processor_type)",
            "processor_type",
        )
    for name in ("tiled_mlp", "use_pose"):
        if draft.flag(name, "not modelled: {}"):
            draft.note(f"{name} is not modelled: the network runs as a whole")


def _unfrozen(draft: LaunchDraft) -> None:
    patterns = [str(each) for each in draft.value("unfrozen_parameters")]
    whole = any(
        re.fullmatch(r"\^?(model\.)?(language_model\.)?(\.?\*)?\$?", each) for each in patterns
    )
    if not whole:
        raise draft.error("training of some weights alone is not modelled", "unfrozen_parameters")
    draft.ignore("unfrozen_parameters", became="all weights of the language model are trained")


def _engine(draft: LaunchDraft) -> deepspeed.Batch:
    at = next((name for name in draft.said if name.startswith("fsdp_config.")), None)
    at = at or next((name for name in ("fsdp", "fsdp_version") if draft.value(name)), None)
    engine = draft.value("deepspeed")
    inline = next((name for name in draft.said if name.startswith("deepspeed.")), None)
    if at is not None and (engine or inline):
        raise draft.error("fsdp and deepspeed are both on", inline or "deepspeed")
    draft.ignore("fsdp_version", "fsdp", "deepspeed", "fsdp_config")
    if inline is not None:
        return deepspeed.take(draft, "deepspeed.")
    if engine:
        draft.ignore("deepspeed", became="DeepSpeed's configuration")
        return huggingface.engine(draft, str(engine), "deepspeed")
    if at is not None:
        fsdp.take(draft, words="fsdp")
    else:
        draft.software = "pytorch-amp-2021"
    return deepspeed.Batch(None, None, None)


def _switches(draft: LaunchDraft) -> tuple[str, str]:
    if "bf16" not in draft and "fp16" not in draft and "bfloat16" not in draft:
        draft.say("bf16", "auto")
    bf16 = "bfloat16" if draft.flag("bfloat16", "plan.precision=bf16-mixed: {}") else "bf16"
    fp16 = "float16" if draft.flag("float16", "plan.precision=fp16-mixed: {}") else "fp16"
    return bf16, fp16


def _names(draft: LaunchDraft) -> dict[str, str]:
    others = ("sequence_parallel_degree", "context_parallel.size")
    context = next((name for name in others if name in draft), _MESH["context"])
    return {**_MESH, "context": context}


def _software(draft: LaunchDraft) -> None:
    if draft.plan.get("context", 1) > 1:
        word = tables.word(draft, "ring_attn_func", "plan.cp_comm_type: {}")
        backend = tables.word(draft, "context_parallel.backend", "plan.cp_comm_type: {}")
        rings = word == "batch_ring" or backend == "ring"
        draft.plan["cp_comm_type"] = "ring" if rings else "all-gather"
        if backend in {"ulysses", "usp"}:
            draft.note(deepspeed.ULYSSES)
    narrow = draft.plan["precision"].endswith("-mixed")
    if draft.software == "pytorch-amp-2021" and narrow and not draft.value("adapter"):
        huggingface.narrow_weights(draft)
    compiled = tables.word(draft, "torch_compile", "software, compiled: {}")
    draft.ignore("torch_compile_backend", became="software")
    if compiled in {"true", "1"}:
        if draft.software == "pytorch-amp-2021":
            draft.software = "pytorch-compile"
        else:
            draft.note(f"the compiler is not part of the stack {draft.software}")
    for name, kernel in _ATTENTION.items():
        if draft.flag(name, f"software.kernels.attention={kernel}: {{}}"):
            draft.software_settings["kernels.attention"] = kernel
    huggingface.attention(draft, "attn_implementation")
    if draft.flag("s2_attention", "not modelled: {}"):
        raise draft.error("shifted sparse attention is not modelled", "s2_attention")
    plugins = draft.value("plugins") or []
    draft.ignore("plugins", became="kernels of others, as the stack has them")
    losses = ("CutCrossEntropy", "Liger")
    if any(word in str(each) for each in plugins for word in losses):
        draft.software_settings["kernels.cross_entropy"] = "fused"


def _adapters(draft: LaunchDraft) -> None:
    kind = tables.word(draft, "adapter", "adapters: {}")
    bits = 4 if draft.flag("load_in_4bit", "frozen weights of 4 bits: {}") else 16
    bits = 8 if draft.flag("load_in_8bit", "frozen weights of 8 bits: {}") else bits
    narrow = tables.word(draft, "peft.weight_dtype", "frozen weights in {}")
    bits = {"int4": 4, "nf4": 4, "int8": 8}.get(narrow or "", bits)
    draft.ignore("peft.backend", "peft.group_size", became="frozen weights")
    if kind is None:
        if bits != 16:
            raise draft.error("weights of few bits need adapters", "load_in_4bit")
        names = [name for name in draft.said if name.startswith("lora_")]
        draft.ignore(*names, became="no effect, there is no adapter")
        return
    if kind not in {"lora", "qlora"}:
        raise draft.error(f"adapters by {kind} are not modelled", "adapter")
    rank = tables.count(draft, "lora_r", "model adapters.rank={}")
    if rank is None:
        raise draft.error("the file does not say the rank of the adapters (lora_r)", "adapter")
    dropout = draft.number("lora_dropout", "model adapters.dropout={}") or 0.0
    linear = draft.flag("lora_target_linear", "model adapters.layers, all: {}")
    targets = draft.value("lora_target_modules") or []
    draft.ignore("lora_target_modules", became="model adapters.layers")
    if isinstance(targets, str):
        found = adapters.products(targets) or (targets,)
    else:
        found = tuple(str(each) for each in targets)
    wanted = (*adapters.ALL, *found) if linear or not found else found
    where = draft.placed(("lora_target_modules", "lora_target_linear", "lora_r"))
    missing = adapters.fill(draft, rank, wanted, dropout, where or "adapter")
    missing = tuple(name for name in missing if name not in adapters.ALL or not linear)
    if missing:
        draft.note(f"adapters beside {', '.join(missing)} are not modelled")
    if draft.value("lora_target_parameters"):
        draft.ignore("lora_target_parameters", became="not modelled")
        draft.note("adapters beside the products of routed experts are not modelled")
    if draft.value("lora_modules_to_save"):
        draft.ignore("lora_modules_to_save", became="not modelled")
        draft.note("weights that are trained beside the adapters are frozen here")
    draft.ignore("quantize_moe_experts", became="frozen weights")
    if kind == "qlora" or bits < 16:
        adapters.frozen_bits(draft, min(bits, 4 if kind == "qlora" else bits))


def _recompute(draft: LaunchDraft) -> None:
    word = tables.word(draft, "gradient_checkpointing", "plan.recompute: {}")
    draft.plan.setdefault("recompute", "none")
    offload = str(draft.value("activation_offloading")).lower()
    draft.ignore("activation_offloading", became="plan.offload")
    if word is not None and word not in {"false", "0", "no"}:
        draft.plan["recompute"] = "full"
    if (word or "").startswith(("offload", "unsloth")) or offload not in {"none", "false"}:
        draft.plan["offload"] = "all"


def _batch(draft: LaunchDraft, engine: deepspeed.Batch) -> tuple[int | None, int | None]:
    micro = tables.count(draft, "micro_batch_size", "plan.micro_batch={}")
    accumulation = tables.count(draft, "gradient_accumulation_steps", "accumulation of {}")
    total = tables.count(draft, "batch_size", "plan.global_batch={}")
    for mine, other, name in (
        (micro, engine.micro, "micro_batch_size"),
        (accumulation, engine.accumulation, "gradient_accumulation_steps"),
    ):
        if None not in {mine, other} and mine != other:
            raise draft.error(f"{mine} here, {other} in DeepSpeed's settings", name)
    if total is None:
        accumulation = accumulation or engine.accumulation or 1
    draft.plan["global_batch"] = total or engine.total
    return micro or engine.micro or 1, accumulation
