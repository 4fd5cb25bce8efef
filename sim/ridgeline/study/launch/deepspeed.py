"""What a DeepSpeed configuration says of a step, wherever it stands.

Facts from deepspeed.ai/docs/config-json and deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ridgeline.study.launch import optimizers, tables
from ridgeline.study.launch.job import LaunchDraft

_WORDS = {"bf16-mixed": ("bf16.enabled", "bfloat16.enabled"), "fp16-mixed": ("fp16.enabled",)}
OFFLOAD = (
    "optimizer state or weights in the host's memory (ZeRO-Offload) are not modelled: they count on"
    " the device here, memory is an upper bound, and transfers and the host's update take no time"
)
ULYSSES = (
    "sequence parallelism of Ulysses sends heads all to all; here keys and values are gathered"
    " instead"
)
_SIZE = {"bf16-mixed": 2, "fp16-mixed": 2}


@dataclass(frozen=True)
class Batch:
    """The batch as a DeepSpeed configuration has it; None: left open."""

    total: int | None
    micro: int | None
    accumulation: int | None


def take(draft: LaunchDraft, prefix: str = "") -> Batch:
    """Read what a draft has of a DeepSpeed configuration into its plan and software.

    Parameters
    ----------
    prefix
        What the names of the configuration's settings begin with.

    Raises
    ------
    ConfigError
        If settings contradict each other.
    """
    _stage(draft, prefix)
    _precision(draft, prefix)
    optimizers.take(draft, f"{prefix}optimizer.type")
    coupled = draft.value(f"{prefix}optimizer.params.adam_w_mode") is False
    if str(draft.value(f"{prefix}optimizer.type")).lower() == "adam" and not coupled:
        draft.plan["optimizer"] = (
            "adamw"  # DeepSpeed's Adam decays weights so unless told otherwise
        )
    _placement(draft, prefix)
    _parallel(draft, prefix)
    _not_modelled(draft, prefix)
    batch = Batch(
        tables.count(draft, f"{prefix}train_batch_size", "plan.global_batch={}"),
        tables.count(draft, f"{prefix}train_micro_batch_size_per_gpu", "plan.micro_batch={}"),
        tables.count(draft, f"{prefix}gradient_accumulation_steps", "accumulation of {}"),
    )
    ignored = tables.table("deepspeed")["ignored"]
    patterns = {key: [prefix + each for each in names] for key, names in ignored.items()}
    tables.ignore_patterns(draft, patterns)
    for name, said in draft.said.items():
        if name.startswith(prefix) and said.value == "auto":
            draft.ignore(name, became="as the trainer says")
    return batch


def _stage(draft: LaunchDraft, prefix: str) -> None:
    name = f"{prefix}zero_optimization.stage"
    stage = draft.integer(name, "plan.zero_stage={}") if draft.value(name) != "auto" else None
    whole = f"{prefix}zero_optimization"
    if whole in draft and isinstance(draft.value(whole), bool):
        stage = int(draft.flag(whole, "plan.zero_stage, {}"))
    if stage is not None and stage not in range(4):
        raise draft.error(f"allowed: 0, 1, 2 or 3; found {stage}", name)
    if stage is not None:
        draft.plan["zero_stage"] = stage
    else:
        draft.plan.setdefault("zero_stage", 0)
    draft.software = "deepspeed"


def _precision(draft: LaunchDraft, prefix: str) -> None:
    on: dict[str, str] = {}
    for precision, names in _WORDS.items():
        for name in names:
            full = prefix + name
            if full in draft and draft.value(full) == "auto":
                draft.ignore(full, became="as the trainer says")
            elif draft.flag(full, f"plan.precision={precision}: {{}}"):
                on[precision] = full
    if len(on) > 1:
        raise draft.error("fp16 and bf16 are both on", on["bf16-mixed"])
    if on:
        draft.plan["precision"] = next(iter(on))
    if draft.flag(f"{prefix}amp.enabled", "plan.precision=fp16-mixed: {}"):
        draft.plan["precision"] = "fp16-mixed"
    draft.ignore(f"{prefix}amp.opt_level", became="plan.precision")


def _placement(draft: LaunchDraft, prefix: str) -> None:
    zero = f"{prefix}zero_optimization."
    for device, old in (
        ("offload_optimizer", "cpu_offload"),
        ("offload_param", "cpu_offload_params"),
    ):
        place = tables.word(draft, f"{zero}{device}.device", "not modelled: {}")
        if draft.flag(f"{zero}{old}", "not modelled: {}") and place is None:
            place = "cpu"
        for name in list(draft.said):
            if name.startswith(f"{zero}{device}.") and not draft.said[name].became:
                draft.ignore(name, became="not modelled" if place else "no effect on a step")
        if place is not None:
            draft.note(OFFLOAD)
    if _said(draft, f"{zero}reduce_bucket_size") and draft.plan.get("zero_stage") != 3:
        elements = draft.number(
            f"{zero}reduce_bucket_size", "software.gradients.bucket, {} numbers"
        )
        size = _SIZE.get(str(draft.plan.get("precision")), 4)
        draft.software_settings["gradients.bucket"] = (elements or 0) * size
    else:
        draft.ignore(f"{zero}reduce_bucket_size", became="as the stack has it")
    if _said(draft, f"{zero}overlap_comm"):
        overlap = draft.flag(f"{zero}overlap_comm", "software.overlap.gradients={}")
        draft.software_settings["overlap.gradients"] = overlap
    shared = tables.count(draft, f"{zero}mics_shard_size", "plan.hybrid_shard_size={}")
    if shared is not None:
        draft.plan["hybrid_shard_size"] = shared
    copies = tables.count(draft, f"{zero}zero_hpz_partition_size", "not modelled: {}")
    if copies is not None and copies > 1:
        draft.note("copies of weights within a node (ZeRO++ hpZ) are not modelled")


def _said(draft: LaunchDraft, name: str) -> bool:
    """Tell whether a setting has a value, rather than nothing or "auto"."""
    return str(draft.value(name)).lower() not in {"none", "auto"}


def _parallel(draft: LaunchDraft, prefix: str) -> None:
    tensor = tables.count(draft, f"{prefix}tensor_parallel.autotp_size", "plan.tensor={}")
    tensor = tensor or tables.count(draft, f"{prefix}tensor_parallel.tp_size", "plan.tensor={}")
    if tensor is not None:
        draft.plan["tensor"] = tensor
    tables.ignore_patterns(draft, {"as the stack has it": [f"{prefix}tensor_parallel.*"]})
    ulysses(draft, f"{prefix}sequence_parallel_size")
    experts = tables.count(draft, f"{prefix}expert_parallel.autoep_size", "plan.expert={}")
    if experts is not None and draft.flag(f"{prefix}expert_parallel.enabled", "plan.expert, {}"):
        draft.plan["expert"] = experts
    tables.ignore_patterns(draft, {"plan.expert": [f"{prefix}expert_parallel.*"]})
    stages = tables.count(draft, f"{prefix}pipeline.stages", "plan.pipeline={}")
    if stages is not None:
        draft.plan["pipeline"] = stages
        if stages > 1 and draft.plan.get("zero_stage", 0) > 1:
            raise draft.error(
                f"DeepSpeed's pipelines need ZeRO stage 0 or 1, found {draft.plan['zero_stage']}",
                f"{prefix}zero_optimization.stage",
            )


def ulysses(draft: LaunchDraft, name: str) -> int:
    """Take a degree of DeepSpeed's sequence parallelism, and return it."""
    degree = tables.count(draft, name, "plan.context={}") or 1
    if degree > 1:
        draft.plan["context"] = degree
        draft.plan["cp_comm_type"] = "all-gather"
        draft.note(ULYSSES)
    return degree


def _not_modelled(draft: LaunchDraft, prefix: str) -> None:
    known: Mapping[str, str] = tables.table("deepspeed")["not_modelled"]
    for name, said in list(draft.said.items()):
        if said.became or not name.startswith(prefix):
            continue
        bare = name.removeprefix(prefix)
        note = next((text for key, text in known.items() if _is_at(bare, key)), None)
        if note is None:
            continue
        off = str(draft.value(name)).lower() in {"none", "auto", "false", "0"}
        draft.ignore(name, became="no effect on a step, off" if off else "not modelled")
        if not off:
            draft.note(note)


def _is_at(name: str, key: str) -> bool:
    return name == key or fnmatchcase(name, f"{key}.*")
