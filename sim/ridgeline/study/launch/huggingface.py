"""What trainers that are built on transformers share: networks of the hub, precision, batch."""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.config import read_yaml
from ridgeline.study.launch import accelerate, adapters, deepspeed, fsdp, optimizers, shape, tables
from ridgeline.study.launch.job import LaunchDraft


def network(draft: LaunchDraft, name: str, sequence: int | None) -> None:
    """Find the network that a setting names.

    Raises
    ------
    ConfigError
        If nothing is known of it.
    """
    path = draft.text(name, "model {}")
    if path is None:
        raise draft.error(f"the file does not say which network is trained ({name})")
    described(draft, path, sequence, name)


def described(draft: LaunchDraft, path: str, sequence: int | None, where: str) -> None:
    """Find a network by its name on the hub, or by that of a folder.

    Raises
    ------
    ConfigError
        If nothing is known of it.
    """
    name = _bare(path)
    known = tables.table("hub")
    if (description := known["descriptions"].get(name)) is not None:
        fields = {key: value for key, value in description.items() if key != "like"}
        match = shape.match({**fields, "sequence": sequence or 2048}, description.get("like", ""))
        draft.model, draft.model_fields = match.model, dict(match.fields)
        like = f"as {match.model}" if match.exact else match.notes[0]
        draft.note(f"{path} by the widths of its published configuration: {like}")
    elif (found := known["names"].get(name) or shape.named(path)) is not None:
        draft.model = found
    else:
        raise draft.error(
            f"there is no description of {path}: it is neither in the catalogue nor among the"
            " published configurations that are known here",
            where,
        )
    if sequence is not None and "sequence" not in draft.model_fields:
        draft.model_fields["sequence"] = sequence
    longest = shape.shapes().get(draft.model, {}).get("max_positions")
    if longest is not None and sequence is not None and sequence > longest:
        raise draft.error(f"{draft.model} has {longest} positions, not {sequence}", where)


def _bare(path: str) -> str:
    """Return a network's name on the hub without its owner and words that say nothing of widths."""
    name, shorter = "", path.strip().rstrip("/").rpartition("/")[2].lower()
    endings = tuple(f"-{word}" for word in tables.table("hub")["suffixes"])
    while name != shorter:
        name = shorter
        for ending in endings:
            shorter = shorter.removesuffix(ending)
    return name


def precision(
    draft: LaunchDraft, bf16: str, fp16: str, tf32: str = "tf32", fp8: str = "fp8"
) -> None:
    """Read the switches of precision; "auto" is what devices of today can do.

    Raises
    ------
    ConfigError
        If two are on.
    """
    auto = str(draft.value(bf16)).lower() == "auto"
    if auto:
        draft.ignore(bf16, became="plan.precision=bf16-mixed, as devices since 2020 have it")
    wide = auto or draft.flag(bf16, "plan.precision=bf16-mixed: {}")
    narrow = draft.flag(fp16, "plan.precision=fp16-mixed: {}")
    if wide and narrow and not auto:
        raise draft.error(f"{bf16} and {fp16} are both on", fp16)
    single = draft.flag(tf32, "products in TF32 where they are not in 16 bits: {}")
    found = "fp16-mixed" if narrow else "bf16-mixed" if wide else "tf32" if single else None
    if draft.flag(fp8, "plan.precision=fp8-dynamic: {}"):
        found = "fp8-dynamic"
    stated = draft.plan.get("precision")
    if stated is not None and found not in {stated, None, "tf32"}:
        named = bf16 if wide else fp16
        raise draft.error(f"the settings of distribution say {stated}, these {found}", named)
    if stated is None:
        draft.plan["precision"] = found or "fp32"


def engine(draft: LaunchDraft, path: str, where: str) -> deepspeed.Batch:
    """Read the DeepSpeed configuration that a setting names.

    Raises
    ------
    ConfigError
        If it lies neither beside the file nor is one of those that axolotl ships.
    """
    draft.software = "deepspeed"
    start = Path(draft.source.file).parent
    for candidate in (start / path, start / Path(path).name):
        if candidate.is_file():
            tables.say_all(draft, read_yaml(candidate), "deepspeed:")
            return deepspeed.take(draft, "deepspeed:")
    shipped = tables.table("axolotl")["deepspeed"].get(Path(path).name)
    if shipped is None or "deepspeed_configs" not in path:
        raise draft.error(
            f"DeepSpeed's settings are in {Path(path).name}, which does not lie beside this file",
            where,
        )
    draft.note(f"{Path(path).name} as axolotl ships it")
    draft.plan["zero_stage"] = shipped["zero_stage"]
    if "precision" in shipped:
        draft.plan["precision"] = shipped["precision"]
    if shipped.get("offload"):
        draft.note(deepspeed.OFFLOAD)
    return deepspeed.Batch(None, None, None)


def narrow_weights(draft: LaunchDraft) -> None:
    """Have weights, gradients and optimizer state in the 16 bits of products, without copies."""
    compute, _, kind = draft.plan["precision"].partition("-")
    if kind == "mixed" and compute in {"bf16", "fp16"}:
        draft.plan["precision"] = f"{compute}-true"
        draft.note("weights, gradients and optimizer state are all in 16 bits")


def refuse_preferences(draft: LaunchDraft) -> None:
    """Refuse a file of a trainer of preferences or rewards.

    Raises
    ------
    ConfigError
        If it is one.
    """
    why = (
        "training by preferences or rewards (DPO, ORPO, GRPO, PPO, ...) is not modelled: a step"
        " there runs several networks"
    )
    for name in tables.table("trainer")["preferences"]:
        if name in draft and str(draft.value(name)).lower() not in {"none", "false"}:
            raise draft.error(why, name)
    column = re.search(r"(?m)^\s*-\s*[\"']?(chosen|rejected)[\"']?\s*$", draft.source.text)
    if column is not None:
        raise draft.source.error(why, draft.source.text.count("\n", 0, column.start(1)) + 1)


def trainer(draft: LaunchDraft, sequence: int | None) -> tuple[int | None, int | None]:
    """Read what transformers' trainer is told of a step; return micro-batch and accumulation.

    Parameters
    ----------
    sequence
        Tokens of a sequence, for the notes; None: not said.

    Raises
    ------
    ConfigError
        If settings contradict each other, or ask for what is not modelled.
    """
    engine_batch = _distribution(draft)
    precision(draft, "bf16", "fp16")
    optimizers.take(draft, "optim")
    draft.plan.setdefault("optimizer", "adamw")
    lora(draft)
    if draft.flag("gradient_checkpointing", "plan.recompute=full: {}"):
        draft.plan["recompute"] = "full"
    draft.plan.setdefault("recompute", "none")
    if draft.flag("activation_offloading", "plan.offload=all: {}"):
        draft.plan["offload"] = "all"
    if draft.flag("torch_compile", "software, compiled: {}"):
        if draft.software == "pytorch-amp-2021":
            draft.software = "pytorch-compile"
        else:
            draft.note(f"the compiler is not part of the stack {draft.software}")
    attention(draft, "attn_implementation")
    if draft.flag("use_liger_kernel", "software.kernels.cross_entropy=fused: {}"):
        draft.software_settings["kernels.cross_entropy"] = "fused"
    if not draft.flag("packing", "sequences are full: {}") and sequence is not None:
        draft.note(f"samples are not packed: all count as sequences of {sequence} tokens here")
    draft.ignore("group_by_length", "auto_find_batch_size")
    micro = tables.count(draft, "per_device_train_batch_size", "plan.micro_batch={}")
    micro = micro or tables.count(draft, "per_gpu_train_batch_size", "plan.micro_batch={}")
    count = tables.count(draft, "gradient_accumulation_steps", "accumulation of {}")
    for mine, other, name in (
        (micro, engine_batch.micro, "per_device_train_batch_size"),
        (count, engine_batch.accumulation, "gradient_accumulation_steps"),
    ):
        if None not in {mine, other} and mine != other:
            raise draft.error(f"{mine} here, {other} in DeepSpeed's settings", name)
    draft.plan["global_batch"] = engine_batch.total
    micro = micro or engine_batch.micro
    if micro is None:
        micro = 8
        draft.note("per_device_train_batch_size is not given: 8, as transformers has it")
    return micro, count or engine_batch.accumulation or 1


def _distribution(draft: LaunchDraft) -> deepspeed.Batch:
    path, wrapped = draft.value("deepspeed"), draft.value("fsdp")
    draft.ignore("deepspeed", "fsdp", became="software")
    if path and wrapped:
        raise draft.error("fsdp and deepspeed are both on", "fsdp")
    if path:
        return engine(draft, str(path), "deepspeed")
    if wrapped:
        fsdp.take(draft, words="fsdp")
        return deepspeed.Batch(None, None, None)
    if (given := draft.source.set_.get("accelerate")) is not None:
        return deepspeed.Batch(None, *accelerate.beside(draft, given, "accelerate"))
    draft.software = "pytorch-amp-2021"
    draft.note(
        "the file does not say how the network is distributed: whole copies (DDP), as transformers"
        " does unless accelerate is told otherwise; its configuration is given by"
        " --set accelerate=FILE"
    )
    return deepspeed.Batch(None, None, None)


def attention(draft: LaunchDraft, name: str) -> None:
    """Read which kernel of attention transformers is told to take."""
    word = tables.word(draft, name, "software.kernels.attention: {}")
    if word is not None:
        draft.software_settings["kernels.attention"] = "eager" if word == "eager" else "flash"


def of_pytorch_2(draft: LaunchDraft) -> None:
    """Bring the stack of whole copies, which is of 2021, to what PyTorch 2 takes by default."""
    if draft.software != "pytorch-amp-2021":
        return
    one = any("fused" in str(draft.value(name)) for name in ("optim", "optimizer"))
    own = {"kernels.attention": "flash", "optimizer.impl": "fused" if one else "foreach"}
    draft.software_settings = {**own, **draft.software_settings}
    draft.note(
        "attention and update are those of PyTorch 2 (scaled_dot_product_attention, foreach)"
    )


def lora(draft: LaunchDraft) -> None:
    """Read adapters as PEFT's arguments in TRL describe them.

    Raises
    ------
    ConfigError
        If the network cannot have them.
    """
    on = draft.flag("use_peft", "adapters: {}")
    bits = 4 if draft.flag("load_in_4bit", "frozen weights of 4 bits: {}") else 16
    bits = 8 if draft.flag("load_in_8bit", "frozen weights of 8 bits: {}") else bits
    rank = tables.count(draft, "lora_r", "model adapters.rank={}")
    dropout = draft.number("lora_dropout", "model adapters.dropout={}") or 0.0
    targets = draft.value("lora_target_modules") or []
    draft.ignore("lora_target_modules", became="model adapters.layers")
    if not on:
        return
    if isinstance(targets, str):
        targets = list(adapters.ALL) if targets == "all-linear" else [targets]
    if targets == ["all-linear"]:
        targets = list(adapters.ALL)
    names = [str(each) for each in targets] or ["q_proj", "v_proj"]
    missing = adapters.fill(draft, rank or 16, names, dropout, "use_peft")
    if missing:
        draft.note(f"adapters beside {', '.join(missing)} are not modelled")
    if draft.value("lora_modules_to_save"):
        draft.ignore("lora_modules_to_save", became="not modelled")
        draft.note("weights that are trained beside the adapters are frozen here")
    if draft.flag("use_dora", "not modelled: {}"):
        raise draft.error("weights that adapters decompose (DoRA) are not modelled", "use_dora")
    if bits < 16:
        adapters.frozen_bits(draft, bits)
