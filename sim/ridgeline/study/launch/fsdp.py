"""What settings of PyTorch's FSDP say of a step, as accelerate, transformers and axolotl name them.

Facts from accelerate's FullyShardedDataParallelPlugin and ParallelismConfig.
"""

from __future__ import annotations

from ridgeline.study.launch import tables
from ridgeline.study.launch.job import LaunchDraft

_STRATEGIES = {
    "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0,
    "hybrid_shard": 3, "4": 3, "hybrid_shard_zero2": 2, "_hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip
_HYBRID = {"hybrid_shard", "4", "hybrid_shard_zero2", "_hybrid_shard_zero2", "5"}
_NO_EFFECT = (
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type",
    "final_state_dict_type", "cpu_ram_efficient_loading", "sync_module_states", "use_orig_params",
    "ignored_modules", "fsdp_version", "version", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt",
    "xla_fsdp_settings",
)  # fmt: skip
_AS_STACK = (
    "backward_prefetch",
    "backward_prefetch_policy",
    "forward_prefetch",
    "limit_all_gathers",
)


def take(draft: LaunchDraft, prefix: str = "fsdp_config.", words: str = "") -> None:
    """Read settings of FSDP into the plan and the software.

    Parameters
    ----------
    prefix
        What their names begin with; each may begin with ``fsdp_`` behind it.
    words
        Name of a setting of words for strategies (``full_shard auto_wrap offload``).

    Raises
    ------
    ConfigError
        If a strategy is unknown.
    """

    def at(name: str) -> str:
        full = f"{prefix}fsdp_{name}"
        return full if full in draft else f"{prefix}{name}"

    draft.software = "fsdp1"
    strategy = tables.word(draft, at("sharding_strategy"), "plan.zero_stage: {}")
    again = tables.word(draft, at("reshard_after_forward"), "plan.zero_stage, gathered again: {}")
    if again in _STRATEGIES:
        strategy, again = strategy or again, None
    offload = draft.flag(at("offload_params"), "not modelled: {}")
    if words in draft:
        said = draft.value(words)
        named = [str(each).lower() for each in said] if isinstance(said, list) else said
        if isinstance(named, str):
            named = named.lower().replace(",", " ").split()
        named = [each for each in named or [] if each not in {"true", "auto_wrap"}]
        offload = offload or "offload" in named
        strategy = strategy or next((each for each in named if each in _STRATEGIES), None)
        draft.ignore(words, became="plan.zero_stage")
    if strategy is not None and strategy not in _STRATEGIES:
        raise draft.error(f"unknown strategy {strategy!r}", at("sharding_strategy"))
    stage = _STRATEGIES[strategy or "full_shard"]
    if again in {"false", "no", "0"} and stage == 3:
        stage = 2
    draft.plan["zero_stage"] = stage
    if strategy in _HYBRID:
        draft.note(
            "weights are shared within a node (hybrid sharding): give plan.hybrid_shard_size"
        )
    if offload:
        draft.note(
            "weights, gradients and optimizer state in the host's memory (FSDP offload) are not"
            " modelled: they count on the device here, memory is an upper bound, and transfers and"
            " the host's update take no time"
        )
    if draft.flag(at("activation_checkpointing"), "plan.recompute=full: {}"):
        draft.plan["recompute"] = "full"
    tables.word(draft, at("mixed_precision"), "plan.precision")
    for name in _NO_EFFECT:
        draft.ignore(at(name))
    for name in _AS_STACK:
        draft.ignore(at(name), became="as the stack has it")


def mesh(draft: LaunchDraft, names: dict[str, str]) -> None:
    """Read degrees of parallelism beside those of FSDP.

    Parameters
    ----------
    names
        Settings for "shard", "replicate", "tensor", "context", "ulysses" and "expert".
    """
    plan = draft.plan

    def degree(part: str, became: str) -> int | None:
        return tables.count(draft, names[part], became) if part in names else None

    tensor = degree("tensor", "plan.tensor={}") or 1
    if tensor > 1:
        plan["tensor"] = tensor
    context = degree("context", "plan.context={}") or 1
    if context > 1:
        plan["context"] = context
        plan["cp_comm_type"] = "all-gather"
    shards, copies = degree("shard", "plan.data, shards={}"), degree("replicate", "copies={}")
    expert = degree("expert", "plan.expert={}") or 1
    if expert > 1:
        plan["expert"] = expert
    if shards is not None:
        plan["data"] = shards * (copies or 1) * expert
    if copies is not None and copies > 1:
        if shards is None:
            draft.note(f"weights are shared by 1/{copies} of the data-parallel ranks")
        elif shards > 1:
            plan["hybrid_shard_size"] = shards
        else:
            plan["zero_stage"] = 0


def stack(draft: LaunchDraft) -> None:
    """Take torchtitan's stack where that of the program cannot run all dimensions of the plan."""
    without = {"deepspeed": ("context",)}.get(draft.software, ("tensor", "context", "expert"))
    more = [part for part in without if draft.plan.get(part, 1) > 1]
    if not more or draft.software not in {"fsdp1", "pytorch-amp-2021", "deepspeed"}:
        return
    draft.note(
        f"the stack {draft.software} has no {' and '.join(more)} parallelism: torchtitan's stands"
        " in"
    )
    draft.software = "torchtitan"
    draft.plan.setdefault("recompute", "none")
    if draft.plan.get("tensor", 1) > 1:
        draft.plan.setdefault("sequence", False)
