"""Megatron-DeepSpeed: arguments of Megatron-LM beside a DeepSpeed configuration."""

from __future__ import annotations

import json
import re
from typing import Any

from ridgeline.study.launch import launching
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.megatron import Arguments
from ridgeline.study.launch.readers.megatron import PROGRAM, say_launch, translated
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.shell import ScriptFindings, follow
from ridgeline.study.launch.sources import LaunchSource

NAME = "megatron_deepspeed"
_BIGSCIENCE = (
    "--kill-switch-path", "--pad-vocab-size-to", "six_ALL_CCFR", "--embed-layernorm",
    "--abort-on-unmet-fused-kernel-constraints", "--sync-tp-duplicated-parameters",
)  # fmt: skip


def recognises(text: str, suffix: str) -> float:
    """Tell how sure it is that a file starts Megatron-DeepSpeed."""
    if suffix in {".yaml", ".yml", ".py", ".toml", ".json"}:
        return 0.0
    megatron = sum(name in text for name in ("--num-layers", "--hidden-size", "pretrain_"))
    deepspeed = bool(re.search(r"--deepspeed(?:_config)?\b|--zero-stage|deepspeed_config", text))
    return 0.9 if megatron >= 2 and deepspeed else 0.0


@reader(NAME, recognises, lambda source: launching.choices(source, PROGRAM))
def read(source: LaunchSource) -> LaunchJob:
    """Read a script that starts Megatron-DeepSpeed."""
    draft = LaunchDraft(source, NAME)
    args = Arguments(draft, tables=("megatron_deepspeed", "megatron"), uneven_stages=True)
    script = follow(source)
    found = launching.launches(script, PROGRAM)
    if not found:
        raise source.error(launching.why_nothing(script, ("--num-layers", "--hidden-size")))
    launch = launching.chosen(source, found)
    say_launch(script, launch, args)
    _configuration(source, script, args)
    _ways(args)
    stack = "bigscience" if any(sign in source.text for sign in _BIGSCIENCE) else NAME
    return translated(args, launch.program, stack.replace("_", "-"))


def _ways(args: Arguments) -> None:
    """Read what only Megatron-DeepSpeed has."""
    if "num_experts" in args and args.text("num_experts", "") not in {None, "1", "[1]"}:
        args.names.setdefault("expert_interval", "expert-interval")
        if "expert-interval" not in args.draft.said and "--expert-interval" not in args.draft.said:
            args.draft.say("expert-interval", "2", 0)
        args.names.setdefault("moe_router_topk", args.names.get("topk", "topk"))
        if args.name("topk") not in args.draft.said:
            args.draft.say("topk", "1", 0)
    if "memory_centric_tiled_linear" in args:
        args.draft.note("linear layers in tiles (memory-centric) are whole here")


def _configuration(source: LaunchSource, script: ScriptFindings, args: Arguments) -> None:
    """Read the DeepSpeed configuration that the script writes; else what its arguments say."""
    name = args.name("deepspeed_config")
    said = args.draft.said.get(name)
    if said is None:
        return
    text = script.documents.get(str(said.value))
    if text is None:
        stage = re.search(r"s/(?:CONFIG_)?ZERO_STAGE/([^/]*)/", source.text)
        if stage is not None and stage[1].isdigit():
            args.say("zero_stage", args.name("zero_stage"), stage[1], said.line)
        elif "zero_stage" not in args:
            args.draft.note("what ZeRO shards is not known: nothing here")
        said.became = "another file, which is not there"
        args.draft.note("the DeepSpeed configuration is another file, which is not there")
        return
    said.became = "what the script writes to it"
    try:
        config = json.loads(re.sub(r"[\ue000][0-9]+[\ue001]", "", text))
    except json.JSONDecodeError:
        args.draft.note("the DeepSpeed configuration that the script writes cannot be read")
        return
    if isinstance(config, dict):
        _from_configuration(args, config)


def _from_configuration(args: Arguments, config: dict[str, Any]) -> None:
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage")
    given = args.integer("zero_stage", "plan.zero_stage={}")
    if stage is not None and given is not None and int(stage) != given:
        raise args.error(
            f"ZeRO stage {given} contradicts stage {stage} of the DeepSpeed configuration",
            "zero_stage",
        )
    if stage is not None and given is None:
        args.say("zero_stage", "zero_optimization.stage", str(stage), 0)
    for key in ("offload_optimizer", "offload_param"):
        device = str((zero.get(key) or {}).get("device", "none"))
        if device != "none":
            args.draft.note(
                f"{key.replace('_', ' ')} to {device} is not modelled: all is on the device here"
            )
    for key, canonical in (
        ("train_batch_size", "global_batch_size"),
        ("train_micro_batch_size_per_gpu", "micro_batch_size"),
    ):
        value = config.get(key)
        said = args.integer(canonical, "") if canonical in args else None
        if isinstance(value, int) and said is not None and value != said:
            raise args.error(
                f"{said} contradicts {key} {value} of the DeepSpeed configuration", canonical
            )
        if isinstance(value, int) and said is None:
            args.say(canonical, key, value, 0)
