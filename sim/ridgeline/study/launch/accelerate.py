"""What a configuration of Hugging Face accelerate says of a step, wherever it stands.

Facts from accelerate/commands/config/config_args.py and accelerate/utils/dataclasses.py.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.bounded_files import read_text
from ridgeline.config import read_yaml
from ridgeline.study.launch import deepspeed, fsdp, tables
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.sources import LaunchSource

_NAME = "accelerate"
_ONE_DEVICE = {"no", "multi_gpu", "multi_npu", "multi_xpu", "multi_mlu", "multi_hpu", "multi_cpu"}
_MESH = {
    "shard": "dp_shard_size", "replicate": "dp_replicate_size", "tensor": "tp_size",
    "context": "cp_size",
}  # fmt: skip
_BESIDE = "parallelism_config.parallelism_config_"


def fill(draft: LaunchDraft) -> tuple[int | None, int | None]:
    """Read a configuration file into a draft; return micro-batch and accumulation where given."""
    kind = (draft.text("distributed_type", "software, {}") or "no").lower()
    draft.devices = tables.count(draft, "num_processes", "devices={}")
    if kind == "no" and draft.devices is None:
        draft.devices = 1
    nodes = tables.count(draft, "num_machines", "{} nodes")
    if nodes and draft.devices and draft.devices % nodes:
        raise draft.error(
            f"{draft.devices} processes cannot be divided among {nodes} machines", "num_processes"
        )
    if draft.flag("use_cpu", "devices are processors: {}"):
        raise draft.error("training on processors (use_cpu) is not modelled", "use_cpu")
    _check_one(draft, kind)
    found: tuple[int | None, int | None] = (None, None)
    if kind == "deepspeed":
        found = _deepspeed(draft)
    elif kind == "fsdp":
        fsdp.take(draft)
    elif kind == "megatron_lm":
        _megatron(draft)
    elif kind in _ONE_DEVICE:
        draft.software = "pytorch-amp-2021"
    else:
        raise draft.error(f"distribution by {kind} is not modelled", "distributed_type")
    _precision(draft)
    names = {part: _BESIDE + name for part, name in _MESH.items()}
    if any(name.startswith(_BESIDE) for name in draft.said):
        fsdp.mesh(draft, names)
        deepspeed.ulysses(draft, f"{_BESIDE}sp_size")
    rotated = tables.word(draft, f"{_BESIDE}cp_comm_strategy", "plan.cp_comm_type: {}")
    if rotated == "alltoall":
        draft.plan["cp_comm_type"] = "ring"
    _compiled(draft)
    fsdp.stack(draft)
    tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
    return found


def beside(draft: LaunchDraft, path: str, where: str) -> tuple[int | None, int | None]:
    """Read a configuration of accelerate that another file is launched with.

    Raises
    ------
    ConfigError
        If it does not lie where it should, or beside the file.
    """
    start = Path(draft.source.file).parent
    file = next((each for each in (start / path, start / Path(path).name) if each.is_file()), None)
    if file is None:
        raise draft.error(
            f"accelerate's settings are in {Path(path).name}, which does not lie beside this file",
            where,
        )
    other = LaunchDraft(LaunchSource(str(file), read_text(file), draft.source.set_), _NAME)
    tables.say_all(other, other.source.yaml)
    found = fill(other)
    if "mixed_precision" not in other and other.software != "deepspeed":
        del other.plan["precision"]  # the program says it
    draft.plan.update(other.plan)
    draft.software, draft.devices = other.software, other.devices
    draft.software_settings.update(other.software_settings)
    for note in other.notes:
        draft.note(note)
    draft.said.update({f"accelerate:{name}": said for name, said in other.said.items()})
    return found


def _check_one(draft: LaunchDraft, kind: str) -> None:
    other = {"deepspeed": "fsdp_config", "fsdp": "deepspeed_config"}.get(kind)
    named = next((each for each in draft.said if other and each.startswith(f"{other}.")), None)
    if named is not None:
        raise draft.error(f"distributed_type is {kind.upper()}, but there is a {other}", named)


def _deepspeed(draft: LaunchDraft) -> tuple[int | None, int | None]:
    at = "deepspeed_config."
    draft.software = "deepspeed"
    file = draft.text(f"{at}deepspeed_config_file", "DeepSpeed's configuration {}")
    if file is not None:
        path = Path(draft.source.file).parent / Path(file).name
        if not path.is_file():
            raise draft.error(
                f"DeepSpeed's settings are in {Path(file).name}, which does not lie beside this"
                " file",
                f"{at}deepspeed_config_file",
            )
        tables.say_all(draft, read_yaml(path), "deepspeed:")
        found = deepspeed.take(draft, "deepspeed:")
        if found.total is not None:
            draft.plan["global_batch"] = found.total
        return found.micro, found.accumulation
    stage = draft.integer(f"{at}zero_stage", "plan.zero_stage={}")
    draft.plan["zero_stage"] = 2 if stage is None else stage
    for key in ("optimizer", "param"):
        if tables.word(draft, f"{at}offload_{key}_device", "not modelled: {}") is not None:
            draft.note(deepspeed.OFFLOAD)
    return None, tables.count(draft, f"{at}gradient_accumulation_steps", "accumulation of {}")


def _megatron(draft: LaunchDraft) -> None:
    at = "megatron_lm_config.megatron_lm_"
    draft.software = "megatron-core"
    plan = draft.plan
    plan["tensor"] = tables.count(draft, f"{at}tp_degree", "plan.tensor={}") or 1
    plan["pipeline"] = tables.count(draft, f"{at}pp_degree", "plan.pipeline={}") or 1
    plan["sequence"] = draft.flag(f"{at}sequence_parallelism", "plan.sequence={}")
    if draft.flag(f"{at}recompute_activations", "plan.recompute=selective: {}"):
        plan["recompute"] = "selective"
    if draft.flag(f"{at}use_distributed_optimizer", "plan.zero_stage=1: {}"):
        plan["zero_stage"] = 1


def _precision(draft: LaunchDraft) -> None:
    word = draft.text("mixed_precision", "plan.precision: {}")
    if draft.flag("fp16", "plan.precision=fp16-mixed: {}"):
        word = word or "fp16"
    if word is None:
        if "precision" not in draft.plan and draft.software != "deepspeed":
            draft.plan["precision"] = "fp32"
            draft.note("mixed_precision is not given: fp32, as accelerate has it")
        return
    known = {"no": "fp32", "false": "fp32", "fp16": "fp16-mixed", "bf16": "bf16-mixed"}
    precision = known.get(word.lower())
    if word.lower() == "fp8":
        backend = (draft.text("fp8_config.backend", "plan.precision, {}") or "TE").upper()
        if backend not in {"TE", "AO"}:
            raise draft.error(f"FP8 by {backend} is not modelled", "fp8_config.backend")
        precision = "fp8-mixed" if backend == "TE" else "fp8-dynamic"
    elif precision is None:
        raise draft.error("allowed: no, fp16, bf16, fp8", "mixed_precision")
    stated = draft.plan.get("precision")
    if stated is not None and stated != precision:
        raise draft.error(
            f"mixed_precision is {word}, but DeepSpeed's settings say {stated}", "mixed_precision"
        )
    draft.plan["precision"] = precision


def _compiled(draft: LaunchDraft) -> None:
    backend = tables.word(draft, "dynamo_config.dynamo_backend", "software, compiler {}")
    backend = backend or tables.word(draft, "dynamo_backend", "software, compiler {}")
    if backend in {None, "no", "eager"}:
        return
    if draft.software == "pytorch-amp-2021":
        draft.software = "pytorch-compile"
    else:
        draft.note(f"the compiler ({backend}) is not part of the stack {draft.software}")
