"""DeepSpeed: its configurations (JSON), and scripts that start programs of transformers with it.

Facts from deepspeed.ai/docs/config-json, DeepSpeedExamples (DeepSpeed-Chat's arguments) and
transformers' TrainingArguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.bounded_files import parse_json, read_text
from ridgeline.study.launch import (
    accelerate,
    adapters,
    batch,
    deepspeed,
    fsdp,
    huggingface,
    optimizers,
    tables,
)
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.launching import (
    Launch,
    choices,
    chosen,
    devices,
    launch_options,
    launches,
)
from ridgeline.study.launch.options import canonical
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.shell import ScriptFindings, follow
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, leaves, plain

_NAME = "deepspeed"
_WHERE: batch.Where = {
    "global_batch": ("deepspeed:train_batch_size", "train_batch_size", "batch_size"),
    "devices": ("num_gpus", "num_nodes"),
    "tensor": ("tensor_parallel.autotp_size", "deepspeed:tensor_parallel.autotp_size"),
}
_MODEL = (
    "model_name_or_path", "model_name", "model", "model_path", "base_model", "bert_model", "arch",
    "a",
)  # fmt: skip
_SEQUENCE = (
    "max_seq_len", "max_seq_length", "max_length", "model_max_length", "seq_length", "seq_len",
    "cutoff_len", "block_size", "max_len",
)  # fmt: skip
_BATCH = (
    "per_device_train_batch_size", "per_gpu_train_batch_size", "batch_size", "micro_batch_size",
    "train_micro_batch_size_per_gpu",
)  # fmt: skip
_CONFIG = ("deepspeed_config", "deepspeed", "ds_config", "ds_file", "deepspeed_config_file")
_RECOMPUTE = ("gradient_checkpointing", "activation_checkpointing", "enable_gradient_checkpointing")
_COUNTS = ("num_gpus", "nproc_per_node", "num_nodes", "nnodes", "num_processes", "num_machines")
_LAUNCHER = (
    "master_port", "master_addr", "hostfile", "node_rank", "rdzv_backend", "rdzv_endpoint",
    "main_process_port", "main_process_ip", "machine_rank", "no_local_rank", "bind_cores_to_rank",
    "launcher", "include", "exclude", "i", "m", "standalone", "module", "force_multi",
)  # fmt: skip
_PROGRAM = r"(?!\S*(?:setup|preprocess|convert|prepare|download)\w*\.py)\S*\.py"
"""Programs that may train."""
_SIGNS = re.compile("[\ue000-\ue00f]")
_LAUNCHERS = r"(?m)^[^#\n]*\b(deepspeed|accelerate launch|torchrun|torch\.distributed)\b"
_JSON_KEYS = {
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16",
    "zero_allow_untested_optimizer", "steps_per_print", "wall_clock_breakdown",
    "gradient_accumulation_steps", "bfloat16", "torch_autocast",
}  # fmt: skip


def _recognises(text: str, suffix: str) -> float:
    if suffix == ".json":
        keys = set(re.findall(r'"(\w+)"\s*:', text))
        return 0.95 if len(keys & _JSON_KEYS) >= 2 else 0.3 if keys & _JSON_KEYS else 0.0
    if suffix not in {".sh", ".bash", ".slurm", ".sbatch", ""}:
        return 0.0
    if not re.search(_LAUNCHERS, text) or "deepspeed" not in text:
        return 0.0
    if re.search(r"--(num-layers|tensor-model-parallel-size)\b", text):
        return 0.1  # arguments of Megatron-LM
    return 0.7 if re.search(r"(?m)^[^#\n]*\bdeepspeed\b.*\.py|--deepspeed", text) else 0.4


@reader(_NAME, _recognises, lambda source: choices(source, _PROGRAM))
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration of DeepSpeed, or a script that starts a program with it."""
    return _configuration(source) if source.suffix == ".json" else _script(source)


def _configuration(source: LaunchSource) -> LaunchJob:
    draft = LaunchDraft(source, _NAME)
    _say(draft, _filled(source), "")
    found = deepspeed.take(draft)
    _fill(draft, found)
    fsdp.stack(draft)
    if "precision" not in draft.plan and not _open(draft, ("bf16.enabled", "fp16.enabled")):
        draft.plan["precision"] = "fp32"
    if found.total is None and found.micro is None:
        draft.note("the file does not say the batch: give it (--batch)")
    draft.note("the file has no network: name one beside it, ridgeline run MODEL --from FILE")
    return draft.job(networkless=True)


def _open(draft: LaunchDraft, names: tuple[str, ...]) -> bool:
    """Tell whether a trainer fills in one of the settings ("auto")."""
    return any(str(draft.value(name)).lower() == "auto" for name in names)


def _filled(source: LaunchSource) -> LaunchSource:
    """Return a template with the values that the user gives for its placeholders."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in source.set_:
            line = source.text.count("\n", 0, found.start()) + 1
            raise source.error(
                f"the file is a template: it needs {found[1]}; give it: --set {found[1]}=...", line
            )
        return source.set_[found[1]]

    return replace(source, text=re.sub(r"\$\{?(\w+)\}?", value, source.text))


def _say(draft: LaunchDraft, source: LaunchSource, prefix: str) -> None:
    data = source.json
    if not isinstance(data, dict):
        raise source.error("expected a mapping of settings", 1)
    for location, value in leaves(data):
        name = ".".join(str(part) for part in location)
        within = str(location[-2]) if len(location) > 1 else ""
        draft.say(prefix + name, value, _line(source.text, str(location[-1]), within))


def _line(text: str, key: str, within: str) -> int:
    """Return the line of a key of JSON, behind that of the object which it stands in."""
    start = text.find(f'"{within}"') if within else 0
    found = re.search(rf'"{re.escape(key)}"\s*:', text[max(start, 0) :])
    return text.count("\n", 0, max(start, 0) + found.start()) + 1 if found else 0


def _fill(draft: LaunchDraft, found: deepspeed.Batch) -> None:
    """Fill the batch as DeepSpeed completes it: what is left open follows from the others."""
    draft.plan["global_batch"] = found.total
    accumulation = found.accumulation
    if found.total is None and found.micro is not None:
        accumulation = accumulation or 1
    batch.settle(draft, found.micro, accumulation, _WHERE)
    data = draft.plan.get("data")
    if found.micro is None and found.total is not None and data:
        micro, rest = divmod(found.total, data * (found.accumulation or 1))
        if rest:
            raise draft.error(
                f"global batch {found.total} cannot be divided by {data} data-parallel ranks x"
                f" accumulation {found.accumulation or 1}",
                draft.placed(_WHERE["global_batch"]),
            )
        draft.plan["micro_batch"] = micro


def _script(source: LaunchSource) -> LaunchJob:
    source, given = _without_arguments(source)
    script = follow(source)
    launch = _launch(source, script)
    before, after = launch_options(launch)
    draft = LaunchDraft(source, _NAME)
    if given:
        draft.note(
            f"arguments of the script that are not given ({', '.join(given)}): its own values"
        )
    for option in (*before, *after):
        value: object = True if option.value is None else option.value
        draft.say(canonical(option.name), value, option.line)
    found = devices(script, before)
    draft.devices = found.count
    became = f"devices={found.count}" if found.count else "left to the program"
    draft.ignore(*_COUNTS, became=became)
    draft.ignore(*_LAUNCHER)
    _refuse(draft, launch)
    sequence = _first(draft, _SEQUENCE, "model sequence={}")
    if sequence is None and "max_seq_len" not in draft and "data_split" in draft:
        sequence = 512
        draft.note("max_seq_len is not given: 512, as DeepSpeed-Chat has it")
    name = draft.placed(_MODEL)
    if name is None:
        raise draft.error(
            f"the script does not say which network {Path(launch.program).name} trains"
        )
    huggingface.network(draft, name, sequence)
    engine = _engine(draft, script)
    _precision(draft)
    _chat(draft)
    _of_trainer(draft)
    micro = _first(draft, _BATCH, "plan.micro_batch={}")
    count = _first(draft, ("gradient_accumulation_steps",), "accumulation of {}")
    own = "batch_size" in draft and "per_device_train_batch_size" not in draft
    if own and (engine.total or engine.micro):
        draft.ignore("batch_size", became="as DeepSpeed's settings say")
        micro = None
    _same(draft, micro, engine.micro, _BATCH)
    _same(draft, count, engine.accumulation, ("gradient_accumulation_steps",))
    _fill(
        draft,
        deepspeed.Batch(engine.total, micro or engine.micro, count or engine.accumulation),
    )
    fsdp.stack(draft)
    tables.ignore_patterns(draft, tables.table("trainer")["ignored"])
    tables.ignore_patterns(draft, tables.table(_NAME)["program"])
    return draft.job()


def _without_arguments(source: LaunchSource) -> tuple[LaunchSource, list[str]]:
    """Leave out the arguments of a script that it has values of its own for, if none is given."""
    left: dict[str, str] = {}
    for name, number in re.findall(r"""(?m)^\s*(\w+)=["']?\$\{?(\d)\}?["']?\s*$""", source.text):
        variable = rf"""["']?\$\{{?{name}\}}?["']?"""
        empty = rf"""\[\s(?:-z\s+{variable}|{variable}\s+==?\s+(?:""|''))"""
        if number not in source.set_ and re.search(empty, source.text):
            left[number] = ""
    names = [f"${number}" for number in left]
    return replace(source, set_={**left, **source.set_}), names


def _launch(source: LaunchSource, script: ScriptFindings) -> Launch:
    found = launches(script, _PROGRAM)
    if not found:
        raise source.error("no training program is started here")
    return chosen(source, found)


def _refuse(draft: LaunchDraft, launch: Launch) -> None:
    huggingface.refuse_preferences(draft)
    program = PLACEHOLDER.sub("", launch.program).lower()
    if re.search(r"(inference|generat|eval|serve|chatbot|predict)\w*\.py$", program):
        raise draft.source.error(f"{program} does not train", launch.line)


def _first(draft: LaunchDraft, names: tuple[str, ...], became: str) -> int | None:
    counts = [tables.count(draft, name, became) for name in names]
    return next((count for count in counts if count), None)


def _same(draft: LaunchDraft, mine: int | None, other: int | None, names: tuple[str, ...]) -> None:
    if None not in {mine, other} and mine != other:
        raise draft.error(f"{mine} here, {other} in DeepSpeed's settings", draft.placed(names))


def _engine(draft: LaunchDraft, script: ScriptFindings) -> deepspeed.Batch:
    """Read DeepSpeed's configuration: what the script writes, or a file that lies beside it."""
    draft.software = "deepspeed"
    if (path := draft.text("config_file", "accelerate's configuration {}")) is not None:
        return deepspeed.Batch(None, *accelerate.beside(draft, path, "config_file"))
    for name in _CONFIG:
        value = draft.said[name].value if name in draft else None
        if not isinstance(value, str):
            draft.ignore(name, became="software=deepspeed")
            continue
        draft.ignore(name, became="DeepSpeed's configuration")
        return _engine_at(draft, script, value, name)
    stage = draft.integer("zero_stage", "plan.zero_stage={}")
    if "data_split" in draft or stage is not None:
        if stage not in {None, 0, 1, 2, 3}:
            raise draft.error(f"allowed: 0, 1, 2 or 3; found {stage}", "zero_stage")
        draft.plan["zero_stage"] = stage or 0
        if draft.flag("offload", "not modelled: {}"):
            draft.note(deepspeed.OFFLOAD)
        return deepspeed.Batch(None, None, None)
    raise draft.error(
        "the script names no settings of DeepSpeed (--deepspeed_config, --zero_stage)"
    )


def _engine_at(
    draft: LaunchDraft, script: ScriptFindings, value: str, name: str
) -> deepspeed.Batch:
    wanted = _SIGNS.sub("", plain(value)).rpartition("/")[2]
    for file, text in script.documents.items():
        if _written(script, value, file):
            if (hole := PLACEHOLDER.search(value)) is not None:
                draft.note(
                    f"DeepSpeed's settings depend on {plain(hole['name'])}, which is not given: the"
                    " last that the script writes count"
                )
            _say_json(draft, LaunchSource(draft.source.file, text, draft.source.set_), name)
            return deepspeed.take(draft, "deepspeed:")
    beside = Path(draft.source.file).parent / wanted
    if beside.is_file():
        _say_json(draft, LaunchSource(str(beside), read_text(beside), draft.source.set_), name)
        return deepspeed.take(draft, "deepspeed:")
    raise draft.error(
        f"DeepSpeed's settings are in {wanted}, which the script does not write and which does not"
        " lie beside it",
        name,
    )


def _written(script: ScriptFindings, value: str, file: str) -> bool:
    """Tell whether a setting names a file that the script writes, as far as both are known."""
    name, other = (_SIGNS.sub("", plain(text)) for text in (value, file))
    return name.rpartition("/")[2] == other.rpartition("/")[2]


def _say_json(draft: LaunchDraft, source: LaunchSource, name: str) -> None:
    if (hole := PLACEHOLDER.search(source.text)) is not None:
        raise draft.error(
            f"the settings that the script writes depend on {hole['name']}; give it:"
            f" --set {hole['name'].lstrip('$')}=...",
            name,
        )
    data: Mapping[str, Any] = parse_json(plain(source.text), source.file)
    for location, value in leaves(data):
        draft.say("deepspeed:" + ".".join(str(part) for part in location), value)


def _precision(draft: LaunchDraft) -> None:
    word = tables.word(draft, "dtype", "plan.precision: {}")
    if word in {"bf16", "bfloat16", "fp16", "float16"}:
        draft.plan["precision"] = "bf16-mixed" if word.startswith("b") else "fp16-mixed"
    elif word is not None:
        raise draft.error("allowed: fp16, bf16", "dtype")
    elif "data_split" in draft and "precision" not in draft.plan:
        draft.plan["precision"] = "fp16-mixed"
        draft.note("dtype is not given: fp16, as DeepSpeed-Chat has it")
    else:
        huggingface.precision(draft, "bf16", "fp16")


def _chat(draft: LaunchDraft) -> None:
    """Read adapters as DeepSpeed-Chat's programs take them."""
    rank = tables.count(draft, "lora_dim", "model adapters.rank={}") if _has_rank(draft) else None
    if rank is None:
        draft.ignore("lora_dim", "lora_module_name", became="no effect, there is no adapter")
        return
    where = draft.text("lora_module_name", "model adapters.layers, in {}") or "decoder.layers."
    if "layers" not in where and "h." not in where:
        raise draft.error(
            f"adapters beside products in {where} are not modelled", "lora_module_name"
        )
    adapters.fill(draft, rank, adapters.ALL, 0.0, "lora_dim")
    if not draft.flag("only_optimize_lora", "weights beside adapters are frozen: {}"):
        draft.note("embedding, norms and classifier, which are trained there, too, are frozen here")


def _has_rank(draft: LaunchDraft) -> bool:
    return str(draft.value("lora_dim")) not in {"None", "0"}


def _of_trainer(draft: LaunchDraft) -> None:
    huggingface.lora(draft)
    for name in _RECOMPUTE:
        if draft.flag(name, "plan.recompute=full: {}"):
            draft.plan["recompute"] = "full"
    draft.plan.setdefault("recompute", "none")
    optimizers.take(draft, "optim")
    draft.plan.setdefault("optimizer", "adamw")
    huggingface.attention(draft, "attn_implementation")
    if draft.flag("torch_compile", "not modelled: {}"):
        draft.note("the compiler is not part of the stack deepspeed")
    draft.flag("tf32", "products in TF32 where they are not in 16 bits: {}")
