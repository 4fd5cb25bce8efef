"""The plan that arguments of Megatron-LM describe."""

from __future__ import annotations

import re

from ridgeline.parallel.checkpointing.modules import JOINED, MODULES
from ridgeline.parallel.checkpointing.offload_modules import OFFLOAD_MODULES
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.megatron.arguments import Arguments
from ridgeline.study.launch.megatron.layout import field_of, has_mixture, layers_of, parts_of

_FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def plan(args: Arguments) -> None:
    """Work out the plan."""
    p = args.draft.plan
    sizes = {
        "tensor": args.first("tensor_model_parallel_size", "model_parallel_size"),
        "pipeline": "pipeline_model_parallel_size",
        "context": args.first("context_parallel_size", "ds_sequence_parallel_size"),
        "expert": args.first("expert_model_parallel_size", "moe_expert_parallel_size"),
    }
    for key, canonical in sizes.items():
        degree = args.integer(canonical, f"plan.{key}={{}}")
        if degree is not None:
            if degree < 1:
                raise args.error(f"expected at least 1, found {degree}", canonical)
            p[key] = degree
    p["global_batch"] = args.integer("global_batch_size", "plan.global_batch={}")
    p["micro_batch"] = args.integer(
        args.first("micro_batch_size", "batch_size"), "plan.micro_batch={}"
    )
    schedule = "step_batch_size_schedule"
    if p["global_batch"] is None and schedule in args:
        last = str(args.text(schedule, "plan.global_batch, its last")).split()[-1]
        size = last.rpartition(":")[2]
        if not size.isdecimal():
            raise args.error(f"expected a batch for each step, found {last!r}", schedule)
        p["global_batch"] = int(size)
        args.draft.note(f"the batch grows; its last size, {p['global_batch']}, is simulated")
    for growing in ("rampup_batch_size", schedule):
        if args.text(growing, "left out: the batch at its full size") is not None:
            args.draft.note("the batch grows at the beginning; its full size is simulated")
    if args.flag("sequence_parallel", "plan.sequence={}") and p.get("tensor", 1) > 1:
        p["sequence"] = True
    _experts(args)
    _stages(args)
    _precision(args)
    _sharding(args)
    _recompute(args)
    _offload(args)
    kind = args.text("cp_comm_type", "plan.cp_comm_type={}")
    if kind is not None:
        known = {"p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather"}
        if kind not in known and p.get("context", 1) > 1:
            raise args.error(f"context parallelism by {kind!r} is not modelled", "cp_comm_type")
        p["cp_comm_type"] = known.get(kind)
    elif p.get("context", 1) > 1:
        p["cp_comm_type"] = "ring"
    optimizer = args.text("optimizer", "plan.optimizer={}")
    if optimizer is not None:
        p["optimizer"] = _optimizer(args, optimizer)
        if optimizer == "dist_muon":  # ranks share whole matrices, whatever the arguments of Adam
            p["zero_stage"] = 1
    _optimizer_state(args)


def _optimizer_offload(args: Arguments) -> None:
    """Read the share of weights that the host updates."""
    there = [
        args.flag(name, "plan.optimizer_offload")
        for name in ("optimizer_cpu_offload", "cpu_optimizer")
    ]
    fraction = args.number("optimizer_offload_fraction", "plan.optimizer_offload={}")
    if any(there):
        args.draft.plan["optimizer_offload"] = 1.0 if fraction is None else fraction


def _optimizer_state(args: Arguments) -> None:
    """Read the format of the moments, which Megatron-Core has for the precision-aware optimizer."""
    aware = args.flag("use_precision_aware_optimizer", "plan.optimizer_state")
    formats = {
        args.text(name, "plan.optimizer_state={}") or "fp32"
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    }
    if not aware:
        return
    known = {"fp32": None, "bf16": "bf16", "fp16": "fp16", "fp8": "fp8-e4m3"}
    words = {word.removeprefix("torch.").replace("float32", "fp32") for word in formats}
    words = {word.replace("bfloat16", "bf16").replace("float16", "fp16") for word in words}
    words = {"fp8" if word in {"uint8", "fp8"} else word for word in words}
    if unknown := sorted(words - known.keys()):
        raise args.error(f"moments in {unknown[0]!r} are not known", "exp_avg_dtype")
    if len(words) > 1:
        args.draft.note(
            f"moments are kept in {' and '.join(sorted(words))}; here both in the wider"
        )
    widest = next(word for word in known if word in words)
    if known[widest] is not None:
        args.draft.plan["optimizer_state"] = known[widest]


def _optimizer(args: Arguments, name: str) -> str:
    from ridgeline.workload.optimizers import OPTIMIZERS

    known = {"adam": "adamw", "fused_adam": "adamw", "distributed_fused_adam": "adamw",
             "mcore_distributed_optim": "adamw", "sgd": "sgd-momentum",
             "dist_muon": "muon"}  # fmt: skip
    word = known.get(name.lower(), name.lower().replace("_", "-"))
    if word not in OPTIMIZERS:
        raise args.error(f"the optimizer {name!r} is not modelled", "optimizer")
    return word


def _experts(args: Arguments) -> None:
    p = args.draft.plan
    mixture = has_mixture(args.draft)
    width = args.integer("expert_tensor_parallel_size", "plan.expert_tensor_parallel={}")
    if not mixture:
        if p.get("expert", 1) > 1:
            raise args.error(
                f"expert parallelism of {p['expert']} in a network without experts",
                args.first("expert_model_parallel_size", "moe_expert_parallel_size"),
            )
        p.pop("expert", None)
        return
    experts = field_of(args.draft, "mixture", "experts")
    if experts and experts % p.get("expert", 1):
        raise args.error(
            f"{experts} experts cannot be divided over {p['expert']} devices",
            args.first("expert_model_parallel_size", "moe_expert_parallel_size"),
        )
    tensor = p.get("tensor", 1)
    if width is not None and width not in {1, tensor}:
        raise args.error(
            f"experts shared by {width} devices with tensor parallelism of {tensor}: 1 or {tensor}"
            " can be simulated", "expert_tensor_parallel_size",
        )  # fmt: skip
    if tensor > 1 or p.get("context", 1) > 1 or width is not None:
        p["expert_tensor_parallel"] = width or tensor


def _stages(args: Arguments) -> None:
    p = args.draft.plan
    stages = p.get("pipeline", 1)
    layers = layers_of(args.draft)
    virtual = args.integer(
        args.first("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"),
        "plan.virtual_stages={}",
    )
    each = args.integer("num_layers_per_virtual_pipeline_stage", "plan.virtual_stages")
    layout = args.text("pipeline_model_parallel_layout", "plan.virtual_stages, plan.stage_balance")
    ends = [
        name
        for name in (
            "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
            "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
            "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
        )
        if name in args and args.text(name, "plan.stage_balance") not in {None, "False", "false"}
    ]  # fmt: skip
    if stages == 1:
        return
    if layers is not None and each:
        if ends:
            virtual = max(1, layers // stages // each)
        elif layers % stages or layers // stages % each:
            raise args.error(
                f"{layers} layers cannot be divided into {stages} stages of parts of {each} layers",
                "num_layers_per_virtual_pipeline_stage",
            )
        else:
            virtual = layers // stages // each
    if layout is not None:
        virtual = parts_of(args, layout, stages, virtual)
        p["stage_balance"] = "even"
    elif ends:
        p["stage_balance"] = "ends"
        args.draft.note(
            "the first and the last stage have fewer layers: as if what is before the first layer"
            " and behind the last counted as a layer each"
        )
    elif layers is not None:
        parts = stages * (virtual or 1)
        method = args.text("pp_partition_method", "plan.stage_balance: {}") or ""
        p["stage_balance"] = "ends" if "embedding" in method else "layers"
        rest = (layers + 2 * (p["stage_balance"] == "ends")) % parts
        if rest and args.uneven_stages:
            p["stage_balance"] = "ends" if (layers + 2) % parts == 0 else "even"
            args.draft.note(
                f"{layers} layers are not a multiple of {parts} parts of the pipeline: "
                + (
                    "what is before and behind them counts as a layer each"
                    if p["stage_balance"] == "ends"
                    else "it is cut where parts come closest to equal times"
                )
            )
        elif rest:
            raise args.error(
                f"{layers} layers cannot be divided into {stages} stages"
                + (f" of {virtual} parts" if (virtual or 1) > 1 else ""),
                "pipeline_model_parallel_size",
            )
    if (virtual or 1) > 1:
        p["virtual_stages"], p["schedule"] = virtual, "interleaved"
    if (kind := args.text("pipeline_schedule", "plan.schedule={}")) is not None:
        p["schedule"] = kind


def _precision(args: Arguments) -> None:
    p = args.draft.plan
    base = "fp32"
    if args.flag("bf16", "plan.precision=bf16-mixed"):
        base = "bf16-mixed"
    if args.flag("fp16", "plan.precision=fp16-mixed"):
        if base == "bf16-mixed":
            raise args.error("both bf16 and fp16 are asked for", "fp16")
        base = "fp16-mixed"
    narrow = args.text(args.first("fp8_format", "fp8"), "plan.precision: fp8")
    recipe = args.text("fp8_recipe", "plan.precision: {}")
    four = args.text(args.first("fp4_format", "fp4"), "plan.precision=nvfp4-mixed")
    if four is not None and four.lower() not in {"false"}:
        base = "nvfp4-mixed"
    elif narrow is not None and narrow.lower() not in {"false"}:
        base = fp8_precision(args.draft, recipe or "delayed")
    if args.flag("first_last_layers_bf16", "left out") and base.startswith(
        ("fp8", "mxfp8", "nvfp4")
    ):
        args.draft.note("layers in bf16 at either end of a network in fp8 are in fp8 here")
        args.ignore("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", became="left out")
    p["precision"] = base


def fp8_precision(draft: LaunchDraft, recipe: str) -> str:
    """Return the precision of products in 8 bits by the way in which they are scaled."""
    match recipe.lower().replace("-", "_"):
        case "delayed":
            return "fp8-mixed"
        case "tensorwise" | "current" | "current_scaling":
            return "fp8-dynamic"
        case "mxfp8":
            return "mxfp8-mixed"
        case "blockwise":
            return "fp8-block-mixed"
        case other:
            draft.note(f"fp8 scaled by {other} is simulated with a scale for each tensor")
            return "fp8-dynamic"


def _sharding(args: Arguments) -> None:
    p = args.draft.plan
    shard = args.flag("use_distributed_optimizer", "plan.zero_stage=1")
    fully = args.flag(
        args.first("use_megatron_fsdp", "use_custom_fsdp"), "plan.zero_stage by the strategy"
    )
    strategy = args.text("data_parallel_sharding_strategy", "plan.zero_stage")
    torch = args.flag("use_torch_fsdp2", "plan.zero_stage=3")
    if fully:
        strategy = strategy or "optim_grads_params"
        if strategy not in _FSDP_STAGES:
            raise args.error(f"unknown sharding {strategy!r}", "data_parallel_sharding_strategy")
        p["zero_stage"] = _FSDP_STAGES[strategy]
    elif torch:
        p["zero_stage"] = 3
    elif shard:
        p["zero_stage"] = 1
    if (stage := args.integer("zero_stage", "plan.zero_stage={}")) is not None:
        p["zero_stage"] = stage
    instances = args.integer("num_distributed_optimizer_instances", "plan.hybrid_shard_size")
    if instances is not None and instances > 1:
        args.instances = instances


def _recompute(args: Arguments) -> None:
    p = args.draft.plan
    granularity = args.text(
        args.first("recompute_granularity", "activations_checkpoint_granularity"),
        "plan.recompute={}",
    )
    method = args.text(
        args.first("recompute_method", "activations_checkpoint_method"), "plan.recompute"
    )
    count = args.integer(
        args.first("recompute_num_layers", "activations_checkpoint_num_layers"), "plan.recompute"
    )
    modules = args.text("recompute_modules", "plan.recompute: {}")
    if args.flag(
        args.first("recompute_activations", "recompute_activations_"), "plan.recompute=selective"
    ):
        granularity = granularity or "selective"
    if args.flag("checkpoint_activations", "plan.recompute=full"):
        granularity = granularity or "full"
    args.ignore("checkpoint_num_layers", became="plan.recompute")
    if granularity is None and method is not None and "recompute_method" not in args:
        granularity = "full"
    if granularity is None or (method == "block" and count == 0):
        return
    if granularity == "full":
        # of a block's default one layer; of uniform's, each by itself
        layers = count if count is not None else 1
        some = method == "block" or (method == "uniform" and layers > 1)
        p["recompute"] = f"{method}:{layers}" if some else "full"
        return
    if granularity != "selective":
        raise args.error(f"unknown granularity {granularity!r}", "recompute_granularity")
    parts = re.findall(r"\w+", modules or "core_attn")
    known = [part for part in parts if part in MODULES]
    if unknown := sorted(set(parts) - set(known)):
        args.draft.note(f"{', '.join(unknown)}: parts of a block that are kept here")
    if known:
        p["recompute"] = "selective" if known == ["core_attn"] else JOINED.join(known)


def _offload(args: Arguments) -> None:
    if args.flag("cpu_offloading", "plan.offload=all"):
        count = args.integer("cpu_offloading_num_layers", "plan.offload=all")
        args.draft.plan["offload"] = "all"
        if count:
            args.draft.note(f"activations of {count} layers wait in the host's memory; here of all")
        args.ignore(
            "cpu_offloading_activations", "cpu_offloading_weights", became="plan.offload=all"
        )
    _optimizer_offload(args)
    args.unmodelled(
        "offload_optimizer_states",
        "optimizer state that waits in the host's memory is not modelled: here it is on the device",
    )
    modules = args.text("offload_modules", "plan.offload: {}")
    if args.flag("fine_grained_activation_offloading", "plan.offload of modules"):
        parts = re.findall(r"\w+", modules or "")
        known = [part for part in parts if part in OFFLOAD_MODULES]
        if unknown := sorted(set(parts) - set(known)):
            args.draft.note(f"{', '.join(unknown)}: activations that are kept on the device here")
        if known:
            args.draft.plan["offload"] = JOINED.join(known)
