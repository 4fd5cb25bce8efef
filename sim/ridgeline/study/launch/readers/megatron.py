"""Megatron-LM: its arguments on a command line, in a script or in a test's YAML file."""

from __future__ import annotations

import re
from typing import Any

from ridgeline.study.launch import launching
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.megatron import (
    Arguments,
    encoder_network,
    finish,
    network,
    plan,
    software,
)
from ridgeline.study.launch.options import canonical, options
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.shell import ScriptFindings, follow
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, hole, plain

NAME = "megatron"
PROGRAM = r"(?:.*/)?(?:pretrain\w*|train_?\w*|finetune\w*|sft\w*|run_\w+)\.py"
_OTHERS = {
    r"pretrain_(vlm|vision\w*|mimo|ict|retro|realm)|multimodal": "a network of images and text, or"
    " retrieval: no description",
    r"train_rl|grpo|run_grpo|rl/": "reinforcement learning, not a training step of given data",
}
_SIGNS = (
    "--tensor-model-parallel-size", "--num-attention-heads", "--micro-batch-size",
    "pretrain_gpt.py", "--hidden-size", "--num-layers",
)  # fmt: skip
_RL = re.compile(r"--rollout-\w|--grpo-|--advantage-estimator|--langrl|--sglang|train_rl\.py")
_TIMES = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


def recognises(text: str, suffix: str) -> float:
    """Tell how sure it is that a file has arguments of Megatron-LM."""
    if suffix in {".yaml", ".yml"}:
        return 0.9 if "MODEL_ARGS:" in text and re.search(r"^\s+--[\w-]+:", text, re.M) else 0.0
    if suffix in {".py", ".toml", ".json"}:
        return 0.0
    count = sum(sign in text for sign in _SIGNS)
    return min(0.8, 0.25 * count)


@reader(NAME, recognises, lambda source: launching.choices(source, PROGRAM))
def read(source: LaunchSource) -> LaunchJob:
    """Read a file with arguments of Megatron-LM."""
    draft = LaunchDraft(source, NAME)
    args = Arguments(draft)
    if source.suffix in {".yaml", ".yml"}:
        program = _from_yaml(source, args)
    else:
        program = _from_shell(source, args)
    return translated(args, program, "")


def translated(args: Arguments, program: str, stack: str) -> LaunchJob:
    """Return the job that arguments of Megatron-LM describe."""
    draft = args.draft
    _only_training(args)
    args.given()
    if "bert" in program or "bert_no_binary_head" in args or "t5" in program.lower():
        encoder_network(args, "t5" if "t5" in program.lower() else "bert")
    elif "decoder_num_layers" in args and "encoder_num_layers" in args:
        encoder_network(args, "t5")
    else:
        network(args)
    plan(args)
    software(args, stack or _stack(args))
    finish(args, [name for name in draft.said if canonical(name) in _MACHINE])
    return draft.job()


_MACHINE = {"nproc_per_node", "nnodes", "num_gpus", "num_nodes", "nodes", "gpus_per_node"}


def _only_training(args: Arguments) -> None:
    for name in args.names:
        if name.startswith(("rollout_", "grpo_", "sglang_")):
            raise args.error("reinforcement learning, not a training step of given data", name)
    for name in ("vision_model_type", "language_model_type", "img_h", "freeze_ViT"):
        if name in args and name != "img_h":
            raise args.error("a network of images and text: no description", name)
    for name in ("retro_add_retriever", "multimodal"):
        if name in args:
            raise args.error("a network with retrieval: no description", name)
    spec = args.draft.said.get(args.name("spec"))
    if spec is not None and not re.search(r"mamba|hybrid|gpt|None|null", str(spec.value)):
        raise args.error(
            f"layers of a specification of its own ({plain(str(spec.value))}) are not described",
            "spec",
        )


def _stack(args: Arguments) -> str:
    """Return the software stack by what the arguments give away of the version."""
    old = (
        "DDP_impl",
        "checkpoint_activations",
        "model_parallel_size",
        "activations_checkpoint_method",
    )
    if any(name in args for name in old):
        return "megatron-lm-2021" if "model_parallel_size" not in args else "megatron-lm-2019"
    return "megatron-core"


def _from_yaml(source: LaunchSource, args: Arguments) -> str:
    document = source.yaml
    if not isinstance(document.data, dict):
        raise document.error("expected a mapping with MODEL_ARGS")
    given = document.data.get("MODEL_ARGS")
    if not isinstance(given, dict):
        raise document.error("expected a mapping of arguments", ("MODEL_ARGS",))
    for name, value in given.items():
        line = document.where(("MODEL_ARGS", name))[0]
        args.say(canonical(str(name)), str(name), _value(value), line)
    test = str(document.data.get("TEST_TYPE", ""))
    if "generate" in test or "inference" in str(document.data.get("MODE", "")):
        raise document.error("inference, not training", ("MODE",))
    script = str((document.data.get("ENV_VARS") or {}).get("TRAINING_SCRIPT_PATH", ""))
    kind = "pretrain_bert.py" if "bert" in source.file.lower() and _is_bert(args) else script
    return kind or "pretrain_gpt.py"


def _is_bert(args: Arguments) -> bool:
    return not any(name in args for name in ("swiglu", "num_experts", "num_query_groups"))


def _value(value: Any) -> object:
    if isinstance(value, list):
        return " ".join(str(each) for each in value)
    if isinstance(value, str):
        return _TIMES.sub(lambda found: found[2] if found[2] is not None else hole(found[1]), value)
    return value


def _from_shell(source: LaunchSource, args: Arguments) -> str:
    script = follow(source)
    if (found := _RL.search(source.text)) is not None:
        line = source.text[: found.start()].count("\n") + 1
        raise source.error("reinforcement learning, not a training step of given data", line)
    started = launching.launches(script, PROGRAM)
    if not started:
        raise source.error(launching.why_nothing(script, _SIGNS))
    launch = launching.chosen(source, started)
    for pattern, reason in _OTHERS.items():
        if re.search(pattern, launch.program):
            raise source.error(f"{launch.program.rpartition('/')[2]} trains {reason}", launch.line)
    say_launch(script, launch, args)
    return launch.program


def say_launch(script: ScriptFindings, launch: launching.Launch, args: Arguments) -> None:
    """Register the options of a launch, and how many devices it asks for."""
    before, after = launching.launch_options(launch)
    _say_devices(script, before, args.draft)
    for option in after:
        value = True if option.value is None else option.value
        args.say(canonical(option.name), option.name, value, option.line)
    _whole_words(args, launch)


def _say_devices(script: ScriptFindings, before: list[Any], draft: LaunchDraft) -> None:
    machine = launching.devices(script, before)
    for option in before:
        draft.say(option.name, option.value, option.line)
        draft.ignore(option.name, became="how processes are started")
    for option in machine.said:
        draft.say(option.name, option.value, option.line)
        draft.ignore(
            option.name,
            became=f"devices={machine.count}" if machine.count else "devices, not known",
        )
    draft.devices = machine.count


def _whole_words(args: Arguments, launch: launching.Launch) -> None:
    """Note variables that stand for arguments and are not set; refuse what hides the model."""
    empty = []
    for word in launch.after:
        found = PLACEHOLDER.fullmatch(plain(word))
        if found is not None:
            empty.append(found["name"])
    previous = [option.value for option in options(launch.after) if option.value]
    values = {PLACEHOLDER.sub(lambda m: m["name"], value) for value in previous}
    alone = [name for name in dict.fromkeys(empty) if name not in values]
    if alone:
        args.draft.note(f"arguments in {', '.join(alone)} are not known, and taken as none")
    if "num_layers" not in args and "hidden_size" not in args and (alone or script_needs(launch)):
        raise args.draft.source.error(
            f"the arguments of the model are in {', '.join(alone) or 'another file'}, which the"
            " file does not give", launch.line,
        )  # fmt: skip


def script_needs(launch: launching.Launch) -> bool:
    """Tell whether a program is started without arguments."""
    return not launch.after
