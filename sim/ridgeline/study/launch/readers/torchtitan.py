"""Job configurations of torchtitan (TOML), of today and of before 2025.

Facts from pytorch/torchtitan: torchtitan/config/job_config.py, torchtitan/parallelisms and
torchtitan/distributed, torchtitan/models/*/__init__.py.
"""

from __future__ import annotations

import re

from ridgeline.study.launch import batch, huggingface, shape, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource, leaves

_NAME = "torchtitan"
_SECTIONS = ("parallelism", "training", "experimental")
"""Sections that options of distribution stood in, from the newest on."""
_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zero-bubble-v",
}
_LOOPED = {"interleaved", "zero-bubble-v"}
_WHERE: batch.Where = {
    "devices": ("parallelism.data_parallel_shard_degree",),
    "data": ("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree"),
    "tensor": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
    "expert": ("parallelism.expert_parallel_degree",),
    "global_batch": ("training.global_batch_size", "training.local_batch_size"),
}


def _recognises(text: str, suffix: str) -> float:
    heads = set(re.findall(r"^\[([a-z_]+)[.\]]", text, re.MULTILINE))
    if suffix != ".toml" or not {"model", "training"} <= heads:
        return 0.0
    known = {"job", "optimizer", "activation_checkpoint", "parallelism", "metrics", "profiling"}
    return 0.95 if len(heads & known) >= 2 else 0.3


@reader(_NAME, _recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a job configuration."""
    draft = LaunchDraft(source, _NAME)
    for location, value in leaves(source.toml):
        *sections, key = (str(part) for part in location)
        section = ".".join(sections)
        draft.say(".".join((*sections, key)), value, source.line_of(key, section))
    _refuse(draft)
    _model(draft)
    _software(draft)
    _precision(draft)
    _recompute(draft)
    micro, accumulation = _distribution(draft)
    batch.settle(draft, micro, accumulation, _WHERE)
    _settle_sharding(draft)
    _of_comment(draft)
    tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
    return draft.job()


def _refuse(draft: LaunchDraft) -> None:
    for switch in ("fault_tolerance.enable", "training.enable_cpu_offload"):
        if draft.flag(switch, "off"):
            what = {"fault_tolerance.enable": "groups of replicas that come and go"}.get(
                switch, "weights and optimizer state in the host's memory"
            )
            raise draft.error(f"{what} are not modelled", switch)
    draft.ignore("fault_tolerance.semi_sync_method")


def _first(draft: LaunchDraft, name: str) -> str:
    """Return the full name under which an option of distribution stands."""
    return next((f"{s}.{name}" for s in _SECTIONS if f"{s}.{name}" in draft), f"parallelism.{name}")


def _model(draft: LaunchDraft) -> None:
    name = draft.text("model.name", "model {}")
    flavor = draft.text("model.flavor", "model {}")
    if name is None or flavor is None:
        raise draft.error("the file does not say model.name and model.flavor")
    sequence = draft.integer("training.seq_len", "model sequence={}")
    known = tables.table(_NAME)
    if name == "transformers_modeling_backend":
        path = draft.text("hf_transformers.model", "model {}")
        found = shape.named(path or "")
        if found is None:
            raise draft.error(shape.unknown_name(path or ""), "hf_transformers.model")
        draft.model = found
        if flavor != "full":
            raise draft.error(
                f"flavor {flavor!r} cuts the network down to sizes that the file does not give",
                "model.flavor",
            )
    elif (found := known["networks"].get(name, {}).get(flavor)) is not None:
        draft.model = found
    elif (description := known["descriptions"].get(name, {}).get(flavor)) is not None:
        match = shape.match({**description, "sequence": sequence or 2048})
        draft.model, draft.model_fields = match.model, dict(match.fields)
        draft.note(f"{name} {flavor} as torchtitan had it in 2026: {match.notes[0]}")
    else:
        raise draft.error(
            f"there is no description of torchtitan's network {name} {flavor}", "model.flavor"
        )
    if name == "flux":
        _images(draft)
    else:
        draft.model_fields["sequence"] = sequence or 2048
    if (norm := draft.text("model.norm_type", "as the network has it")) and "rms" not in norm:
        raise draft.error(
            f"the network of the catalogue has RMS norms, not {norm}", "model.norm_type"
        )


def _images(draft: LaunchDraft) -> None:
    side = draft.integer("training.img_size", "model patches of {} pixels")
    text = draft.integer("encoder.max_t5_encoding_len", "model text={}")
    if side:
        draft.model_fields["patches"] = (side // 16) ** 2
    if text:
        draft.model_fields["text"] = text
    draft.note("the frozen encoders of images and texts, which run in every step, are left out")


def _software(draft: LaunchDraft) -> None:
    components = draft.value("compile.components")
    draft.ignore("compile.components", became="software")
    name = "compile.enable" if "compile.enable" in draft else "training.compile"
    whole = draft.flag(name, "software, compiled={}")
    if whole and components is not None and "model" not in str(components):
        whole = False
        draft.software_settings["kernels.cross_entropy"] = "fused"
    overlapped = _first(draft, "enable_async_tensor_parallel")
    overlapped_products = draft.flag(overlapped, "software, asynchronous tensor parallelism={}")
    draft.software = "torchtitan-compile" if whole else "torchtitan"
    if overlapped_products and whole:
        draft.software = "torchtitan-async-tp"
    elif overlapped_products:
        draft.note("asynchronous tensor parallelism needs the compiler, which is off: no effect")
    implementation = tables.word(draft, "optimizer.implementation", "software.optimizer.impl={}")
    if implementation is not None:
        known = {"fused": "fused", "foreach": "foreach", "for-loop": "per-tensor"}
        draft.software_settings["optimizer.impl"] = known.get(implementation, "fused")
    if draft.flag("optimizer.fused", "software.optimizer.impl, fused={}"):
        draft.software_settings["optimizer.impl"] = "fused"
    if draft.flag("optimizer.early_step_in_backward", "early update={}"):
        draft.note("updates during the backward pass are not modelled: they follow it here")
    optimizer = (tables.word(draft, "optimizer.name", "plan.optimizer={}") or "adamw").lower()
    if optimizer not in {"adamw", "adam"}:
        raise draft.error(f"the optimizer {optimizer} is not modelled", "optimizer.name")
    draft.plan["optimizer"] = optimizer


def _precision(draft: LaunchDraft) -> None:
    said = draft.value("model.converters") or []
    named = said if isinstance(said, list) else str(said).split(",")
    converters = [str(each).strip() for each in named if str(each).strip()]
    draft.ignore("model.converters", became="plan.precision")
    old = draft.flag("float8.enable_float8_linear", "plan.precision, float8={}")
    narrow = old or any("float8" in each or "mx" in each for each in converters)
    if draft.text("training.fp8_linear", "plan.precision, float8={}"):
        narrow = True
    other = [each for each in converters if "float8" not in each and "mx" not in each]
    if other:
        draft.note(f"converters of the network that are not modelled: {', '.join(other)}")
    parameters = tables.word(draft, "training.mixed_precision_param", "plan.precision of {}")
    draft.ignore("training.mixed_precision_reduce", became="software.gradients in float32")
    draft.plan["precision"] = "fp32" if parameters == "float32" else "bf16-mixed"
    if tables.word(draft, "training.dtype", "weights in {}") == "bfloat16":
        huggingface.narrow_weights(draft)
    of_narrow = ("float8.*", "mx.*", "quantize.*")
    if not narrow:
        tables.ignore_patterns(draft, {"no effect, no converter is on": list(of_narrow)})
        return
    draft.plan["precision"] = "fp8-dynamic"
    if any("mx" in each for each in converters):
        draft.note("MXFP8 is counted as FP8 with a scale for each tensor, not for 32 numbers")
    for section in ("float8", "quantize.linear.float8"):
        recipe = tables.word(draft, f"{section}.recipe_name", "plan.precision, scales {}")
        if recipe and recipe.startswith("rowwise"):
            draft.note("FP8 with a scale for each row is counted as with one for each tensor")
        if draft.flag(f"{section}.enable_fsdp_float8_all_gather", "gathers in FP8={}"):
            draft.note("weights are gathered in 16 bits here, there in 8")
        draft.ignore(f"{section}.filter_fqns", became="the classifier stays in bf16")
    tables.ignore_patterns(draft, {"plan.precision": list(of_narrow)})


def _recompute(draft: LaunchDraft) -> None:
    mode = draft.text("activation_checkpoint.mode", "plan.recompute={}") or "selective"
    option = str(draft.value("activation_checkpoint.selective_ac_option") or "2")
    if mode != "selective":
        draft.ignore("activation_checkpoint.selective_ac_option")
    if mode in {"none", "full"}:
        draft.plan["recompute"] = mode
    elif mode == "memory_budget":
        _memory_budget(draft)
    elif mode != "selective":
        raise draft.error(
            f"recomputation by {mode!r} is not modelled", "activation_checkpoint.mode"
        )
    elif option == "op":
        draft.plan["recompute"] = "alternate"
    elif option.isdigit() and int(option):
        draft.plan["recompute"] = "full" if option == "1" else f"full:{option}"
    else:
        raise draft.error(
            f"expected 'op' or a whole number, found {option!r}",
            "activation_checkpoint.selective_ac_option",
        )
    became = f"plan.recompute={draft.plan['recompute']}"
    draft.ignore("activation_checkpoint.selective_ac_option", became=became)
    draft.ignore("activation_checkpoint.memory_budget", became=became)


def _memory_budget(draft: LaunchDraft) -> None:
    """Read the share of activations that the compiler's partitioner may keep (0.5: torchtitan's).

    0 keeps what a block's end needs alone, as recomputing every block does.
    """
    field = "activation_checkpoint.memory_budget"
    text = draft.text(field, "plan.recompute=budget:{}") or "0.5"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise draft.error(f"expected a share from 0 to 1, found {text!r}", field)
    draft.plan["recompute"] = f"budget:{share:g}" if share else "full"


def _distribution(draft: LaunchDraft) -> tuple[int, int | None]:
    plan = draft.plan

    def degree(name: str, became: str) -> int:
        return tables.count(draft, _first(draft, name), f"plan.{became}={{}}") or 1

    plan["tensor"] = degree("tensor_parallel_degree", "tensor")
    if plan["tensor"] > 1:
        plan["sequence"] = True
    plan["context"] = degree("context_parallel_degree", "context")
    method = tables.word(draft, _first(draft, "context_parallel_rotate_method"), "context by {}")
    if plan["context"] > 1:
        plan["cp_comm_type"] = "ring" if method == "alltoall" else "all-gather"
    plan["pipeline"] = degree("pipeline_parallel_degree", "pipeline")
    plan["expert"] = degree("expert_parallel_degree", "expert")
    features = tables.count(
        draft, _first(draft, "expert_tensor_parallel_degree"), "plan.expert_tensor_parallel={}"
    )
    if plan["tensor"] > 1 and plan["expert"] > 1:
        plan["expert_tensor_parallel"] = features or 1
    replicas = degree("data_parallel_replicate_degree", "data, copies")
    name = _first(draft, "data_parallel_shard_degree")
    if name not in draft:
        name = _first(draft, "data_parallel_degree")
    shards = tables.count(draft, name, "plan.data, shards={}")
    if shards is not None:
        plan["data"] = shards * replicas
    plan["_replicas"] = replicas
    plan["_shards"] = shards
    local = tables.count(draft, "training.local_batch_size", "plan.micro_batch={}")
    local = local or tables.count(draft, "training.batch_size", "plan.micro_batch={}")
    if local is None:
        raise draft.error("the file does not say training.local_batch_size")
    stated = tables.count(draft, "training.global_batch_size", "plan.global_batch={}")
    plan["global_batch"] = stated
    micro = _pipeline(draft, local) if plan["pipeline"] > 1 else local
    _reshard(draft)
    if plan["pipeline"] == 1:
        unused = ["parallelism.pipeline_*", "experimental.pipeline_*"]
        tables.ignore_patterns(draft, {"no effect without a pipeline": unused})
    return micro, None if stated else local // micro


def _pipeline(draft: LaunchDraft, local: int) -> int:
    """Read the schedule, and return the samples of a micro-batch."""
    name = _first(draft, "pipeline_parallel_schedule")
    schedule = tables.word(draft, name, "plan.schedule={}") or "1f1b"
    if schedule not in _SCHEDULES:
        raise draft.error(f"the schedule {schedule} is not modelled", name)
    draft.plan["schedule"] = _SCHEDULES[schedule]
    if draft.plan["schedule"] in _LOOPED:
        draft.plan["virtual_stages"] = 2
    if draft.plan["schedule"] == "interleaved":
        draft.note(
            "two parts of the network on each stage, as torchtitan has unless told otherwise"
        )
    for cut in ("pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage",
                "module_fqns_per_model_part"):  # fmt: skip
        named = _first(draft, cut)
        if draft.value(named):
            draft.ignore(named, became="")
            draft.note(f"{named} is not modelled: stages are cut evenly")
    size = tables.count(
        draft, _first(draft, "pipeline_parallel_microbatch_size"), "plan.micro_batch={}"
    )
    parts = tables.count(draft, _first(draft, "pipeline_parallel_microbatches"), "{} micro-batches")
    if parts is None and size is None and "experimental.pipeline_parallel_degree" in draft:
        parts = draft.plan["pipeline"]
    micro = size or max(local // (parts or local), 1)
    if micro * (parts or 1) > local or local % micro:
        raise draft.error(
            f"a batch of {local} cannot be divided into micro-batches of {micro}",
            "training.local_batch_size",
        )
    return micro


def _reshard(draft: LaunchDraft) -> None:
    name = "parallelism.fsdp_reshard_after_forward"
    again = tables.word(draft, name, "plan.zero_stage, gathered again: {}") or "default"
    kept = again == "never" or (again == "default" and draft.plan["pipeline"] > 1)
    draft.plan["zero_stage"] = 2 if kept else 3
    if kept:
        draft.note("weights stay gathered for the backward pass: that is ZeRO stage 2 here")


def _settle_sharding(draft: LaunchDraft) -> None:
    plan = draft.plan
    replicas, shards = plan.pop("_replicas"), plan.pop("_shards")
    if shards == 1 and plan["context"] == 1:
        plan["zero_stage"] = 0
    elif replicas > 1:
        size = shards
        if size is None and plan.get("data"):
            size, rest = divmod(plan["data"], replicas)
            if rest:
                raise draft.error(
                    f"{plan['data']} data-parallel ranks cannot be divided into {replicas} copies",
                    _first(draft, "data_parallel_replicate_degree"),
                )
        if size is None:
            draft.note(f"weights are shared by 1/{replicas} of the data-parallel ranks")
        elif size > 1:
            plan["hybrid_shard_size"] = size
        else:
            plan["zero_stage"] = 0


def _of_comment(draft: LaunchDraft) -> None:
    found = re.search(r"#.*?(preset for (\d+) \S+ GPUs)", draft.source.text)
    if found and draft.devices is None:
        draft.note(f"a comment of the file says: {found[1]}")
