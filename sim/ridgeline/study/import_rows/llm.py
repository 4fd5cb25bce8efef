"""Rows of tables about large language models: network, machine and plan that each measured.

Two forms of table are read: one with the shape of the network, the plan and the step time or the
tokens a second in columns of those names, and such a table with a name of the catalogue in
``model`` instead of the shape; `columns` gives others these columns. What a table does not say
is what Megatron-LM did at the time: fp16, full recomputation where the table has no column for it,
sequences of 2,048 tokens, a vocabulary of 51,200.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.study.import_rows.columns import translated
from ridgeline.study.import_rows.machines import in_slices, machine_of
from ridgeline.study.import_rows.names import device_in, near, network_in, unknown
from ridgeline.study.import_rows.normalised import NormalisedStep, loaded, number_of, whole_of
from ridgeline.study.import_rows.rules import rule
from ridgeline.study.import_rows.shapes import is_gated, layers_of
from ridgeline.study.validate.rows import MeasuredRow

__all__ = ["READS", "normal", "translated"]

READS = ("model", "accelerator", "n_accel", "precision", "source")
"""What every form of table has, or is given; shape, plan and measured times are in others."""
_ZERO_BUBBLE = {"1p": "", "H1": "", "V": "-v", "2p": "-h2", "2p*": "-h2", "H2": "-h2"}
_SHARDING = {  # ZeRO stages; FSDP by itself shares everything
    2: ("zero-2", "grad_op"),
    1: ("zero-1", "dist-opt"),
    3: ("zero-3", "full_shard", "fsdp"),
}
_GPT, _LLAMA = "gpt3-1.3b", "llama2-7b"
_PRECISIONS = {  # what a table's words have in them, the first that fits
    "nvfp4": "nvfp4-mixed", "mxfp4": "mxfp4-mixed", "fp8-cs": "fp8-mixed", "mxfp8": "mxfp8-mixed",
    "fp8-mx": "mxfp8-mixed", "fp8": "fp8-mixed", "float8": "fp8-dynamic", "bf16": "bf16-mixed",
    "bfloat16": "bf16-mixed", "fp16": "fp16-mixed", "float16": "fp16-mixed", "amp": "fp16-mixed",
    "mixed": "fp16-mixed",
}  # fmt: skip
_AGAIN = {  # what the words of tables and of MaxText's remat_policy mean, the first that fits
    "selective": "selective", "full": "full", "minimal_flash": "products",
    "minimal": "projections",
}  # fmt: skip
_BOTH = "bf16optimizer"  # DeepSpeed's: sums of gradients in fp32, beside those in bf16
_BY_ROW = "rowwise"  # kernels of their own, unlike those with one scale a tensor
_COMPILED = "compile"  # in the name of a framework
_LORA = re.compile(r"[ _-]*\b(Q?LoRA)\b", re.IGNORECASE)
_SLICES = re.compile(r"\b(\d+) x v\d\w*-\d+")
_RANK = 16
"""Of adapters: Megatron-Bridge's for its tables (recipes/llama/llama3.py, peft.dim of the 70B)."""
_PLAIN_VOCABULARY, _PLAIN_SEQUENCE = 51200, 2048
_CONTRADICTION = 2.0  # more than FLOPs that are counted in another way can explain
_COUNTED_AS_4_3 = 4 / 3  # hardware over model FLOPs with full recomputation
_MEASURED = ("step_time_s", "tokens_per_s", "tokens_per_s_per_accel", "tflops_per_accel")


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step of a row with the usual columns, and the time that was measured.

    Raises
    ------
    RidgelineError
        If something is unknown, missing, or contradicts the rest.
    """
    step = step_of(row)
    given = [value for name in _MEASURED if (value := number_of(row, name)) is not None]
    if any(value < 0 for value in given):
        raise RidgelineError("a measured time or rate is negative")
    if not any(given):
        raise RidgelineError("no measured time, tokens a second or FLOP/s")
    tokens = step.plan["global_batch"] * step.fields["sequence"]
    devices = _need(row, "n_accel")
    measured_s, basis = _measured_s(row, step, devices, tokens)
    if rate := number_of(row, "tflops_per_accel"):
        stated_s = _of_rate_s(step, rate, devices)
        factor = max(measured_s / stated_s, stated_s / measured_s)
        if factor > _CONTRADICTION:
            raise RidgelineError("the row's step time and its FLOP/s are of different batches")
    if basis != _MEASURED[0]:
        step.infer(f"measured: from {basis}")
    return {
        **words_of(row, step, row.text("framework"), str(devices)),
        "quantity": "step_time_s",
        "measured": repr(measured_s),
        "unit": "s",
    }


def words_of(row: MeasuredRow, step: NormalisedStep, group: str, sweep: str) -> dict[str, str]:
    """Return the columns of a step, its row's words and the groups that its error counts in."""
    model = row.text("model")
    own = {name: row.text(name) for name in ("id", "framework", "accelerator", "source")}
    return {
        **{name: text for name, text in own.items() if text},
        "source_model": model,
        **step.columns(),
        "group": f"{model} {step.device} {group}",
        "sweep": f"{model} {step.device} {sweep}",
    }


def _measured_s(
    row: MeasuredRow, step: NormalisedStep, devices: int, tokens: int
) -> tuple[float, str]:
    """Return the step time from the one metric of a row that is nearest to it, and its name."""
    name = next(name for name in _MEASURED if number_of(row, name))
    rate = number_of(row, name) or 0.0
    if name == "step_time_s":
        return rate, name
    if name == "tokens_per_s":
        return tokens / rate, name
    if name == "tokens_per_s_per_accel":
        return tokens / (rate * devices), name
    return _of_rate_s(step, rate, devices), name


def _of_rate_s(step: NormalisedStep, teraflops: float, devices: int) -> float:
    """Step time from FLOP/s a device, which may count what is done again.

    MaxText counts six for every parameter and token, those of embeddings, too, and half of those of
    causal attention (`calculate_tflops_training_per_device`, 2023).
    """
    says = step.stack.reporting
    again = step.plan.get("recompute", step.stack.plan.recompute) == "full"
    batch = step.plan["global_batch"]
    if says.counts_parameters:
        graph = step.network.training(1, "bf16-mixed")
        unmasked = graph.flops() - graph.flops(causal_flops="half")
        flops = (6 * graph.parameters * step.fields["sequence"] + unmasked) * batch
    else:
        flops = step.network.training(1, step.plan["precision"]).useful_flops * batch
    counted = _COUNTED_AS_4_3 if again and says.counts_recompute else 1.0
    return float(flops * counted / (teraflops * 1e12 * devices))


def step_of(row: MeasuredRow) -> NormalisedStep:
    """Read what a row with the usual columns measured.

    Raises
    ------
    RidgelineError
        If something is unknown or missing; the message is the reason to skip the row.
    """
    facts = {name: row.text(name) for name in ("framework", "model", "source", "accelerator")}
    known = rule("unstated", {**facts, "cells": row.values, "other": row.values.get("other") or ""})
    step = NormalisedStep("", "", rule("software", facts)["software"])
    of_table = rule("unstated", {**facts, "accelerator": ""})
    _set_model(step, row, known, of_table)
    devices = _need(row, "n_accel")
    step.device, step.machine, step.machine_fields = machine_of_row(row, devices)
    if step.stack.plan.hybrid_shard_size:
        slices = _slices(row)
        tensor = _degree(row, "tp")
        step.machine_fields |= in_slices(step.machine, slices, devices // slices, tensor)
    _set_plan(step, row, devices, known, of_table)
    _set_settings(step, row, known)
    return step


def machine_of_row(row: MeasuredRow, devices: int) -> tuple[str, str, dict[str, Any]]:
    """Return the device of a row, its machine, and what is replaced in that."""
    device = device_in(row.text("accelerator"))
    if device is None:
        raise RidgelineError(unknown("devices", row.text("accelerator")))
    place = f"{row.text('accelerator')}; {row.text('interconnect')}"
    name, fields = machine_of(device, devices, None, place)
    return device, name, dict(fields)


def _slices(row: MeasuredRow) -> int:
    """Return the slices of a pod that a row was measured on: "2 x v5p-128"."""
    found = _SLICES.search(row.text("other")) if "other" in row.values else None
    return int(found[1]) if found else 1


def _set_model(
    step: NormalisedStep, row: MeasuredRow, known: Mapping[str, Any], of_table: Mapping[str, Any]
) -> None:
    """Find the network of a row: by its name, if its shape is that one's, or by its shape."""
    hidden, heads = (whole_of(row, name) for name in ("hidden", "heads"))
    layers = whole_of(row, "n_layers")
    sequence = whole_of(row, "seq_len")
    if not sequence:
        sequence = _PLAIN_SEQUENCE
        step.infer(f"sequences of {sequence} tokens", "Megatron-LM's")
    adapted = any(_LORA.search(row.text(column)) for column in ("model", "other", "framework"))
    adapters = {"adapters": _RANK} if adapted else {}
    name = network_in(_LORA.sub("", row.text("model")))
    if name is not None and hidden in {None, loaded(name).description.get("hidden")}:
        fields: dict[str, Any] = {"sequence": sequence}
        if some := whole_of(row, "layers") or layers:
            fields["layers"] = some
        for name_there, ours in (
            ("first_dense", "mixture.first_dense"),
            ("further_tokens", "further_tokens"),
        ):
            if name_there in of_table:
                fields[ours] = int(of_table[name_there])
                step.infer(f"{ours}={fields[ours]}", "its source")
        step.model, step.fields = name, {**fields, **adapters}
        if step.stack.kernels.embedding_tables == "computed":
            step.settings["kernels.embedding_tables"] = None
        return
    stated = _vocabulary(row)
    vocabulary = stated or int(of_table.get("vocabulary", _PLAIN_VOCABULARY))
    if not stated:
        step.infer(f"a vocabulary of {vocabulary}", "its source or Megatron-LM's")
    if hidden and not layers:
        layers = layers_of(row.text("model"), hidden, vocabulary, whole_of(row, "pp") or 1)
        step.infer(f"{layers} layers", "the parameters in its name")
    if not layers or not hidden or not heads:
        text = row.text("model")
        raise RidgelineError(f"neither shape nor description of {text}{near('models', text)}")
    ffn, kv_heads = whole_of(row, "ffn"), whole_of(row, "kv_heads")
    gated = is_gated(row.text("model"), hidden, ffn)
    if gated and not ffn:
        raise RidgelineError("the width of the gated feed-forward network is not given")
    step.model = _LLAMA if gated else _GPT
    step.fields = {
        "layers": layers,
        "hidden": hidden,
        "attention.heads": heads,
        "feed_forward.width": ffn or 4 * hidden,
        "sequence": sequence,
        "vocabulary": vocabulary,
        **adapters,
        **rule("networks_of_software", {"software": step.software}).get("fields", {}),
        **({"attention.kv_heads": kv_heads} if kv_heads else {}),
    }


def _set_plan(
    step: NormalisedStep,
    row: MeasuredRow,
    devices: int,
    known: Mapping[str, Any],
    of_table: Mapping[str, Any],
) -> None:
    """Read the plan, of which a row's software has defaults where the row does not say it."""
    degrees = [name for name in ("tp", "pp", "cp", "ep", "dp", "sharding") if name in row.values]
    if devices > 1 and degrees and not any(map(row.text, degrees)):
        raise RidgelineError("the plan is not given")
    tensor, pipeline, context, expert = (_degree(row, name) for name in ("tp", "pp", "cp", "ep"))
    if devices % (tensor * pipeline * context):
        raise RidgelineError("the degrees of the plan do not divide the number of devices")
    data = devices // (tensor * pipeline * context)
    dimensions = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context,
                  "expert": expert}  # fmt: skip
    step.plan = {name: degree for name, degree in dimensions.items() if degree > 1}
    if data % expert and (degree := step.stack.plan.expert_tensor_parallel):
        step.plan["expert_tensor_parallel"] = degree  # else they could not share experts so
        if tensor > 1 and step.stack.plan.sequence:
            step.plan["sequence"] = "on"
    micro = whole_of(row, "micro_batch")
    step.plan["global_batch"] = _batch(step, row, data, micro)
    step.plan |= {"micro_batch": micro} if micro else {}
    step.plan["precision"] = _precision(row)
    positions = "sequence parallel" in row.text("recompute").lower()
    if positions and tensor > 1 and not step.stack.plan.sequence:
        step.plan["sequence"] = "on"
    step.plan |= _recompute(step, row)
    stage = _sharding(row)
    if stage is not None and (stage or step.stack.plan.zero_stage):
        step.plan["zero_stage"] = stage
    if pipeline > 1:
        most = row.text("vpp").startswith("max") if "vpp" in row.values else False
        stated = of_table.get("chunks")
        chunks = 0 if most else whole_of(row, "vpp") or int(stated or 1)
        step.plan |= _schedule(step, row, chunks, pipeline)


def _batch(step: NormalisedStep, row: MeasuredRow, data: int, micro: int | None) -> int:
    batch, accumulated = whole_of(row, "global_batch_seqs"), whole_of(row, "grad_accum")
    pipeline = _degree(row, "pp")
    if not batch and micro and (accumulated or pipeline == 1):
        batch = micro * (accumulated or 1) * data
    if not batch and (tokens := number_of(row, "global_batch_tokens")):
        each = (whole_of(row, "seq_len") or _PLAIN_SEQUENCE) * data
        batch = max(round(tokens / each), 1) * data  # tables round: "2M tokens"
    if not batch:
        raise RidgelineError("the batch is not given")
    return batch


def _precision(row: MeasuredRow) -> str:
    precision = row.text("precision").lower()
    multiplied = next((ours for name, ours in _PRECISIONS.items() if name in precision), None)
    if multiplied is None:
        text = row.text("precision") or "(not given)"
        raise RidgelineError(f"unknown precision {text}{nearest(text, _PRECISIONS)}")
    if _BY_ROW in precision:
        raise RidgelineError(f"{precision}: of products with a scale a row nothing is measured")
    return multiplied


def _recompute(step: NormalisedStep, row: MeasuredRow) -> dict[str, str]:
    """Read what the backward pass computes again; "selective" is what the software does by that."""
    usual = step.stack.plan.recompute
    if "recompute" not in row.values:
        step.infer("recompute=full", "Megatron-LM's")
        return {"recompute": "full"}
    if not (text := row.text("recompute").lower()):
        return {}
    mode = next((mode for word, mode in _AGAIN.items() if word in text), "none")
    mode = (usual or mode) if mode == "selective" else mode
    return {} if mode == (usual or "none") else {"recompute": mode}


def _schedule(step: NormalisedStep, row: MeasuredRow, chunks: int, pipeline: int) -> dict[str, Any]:
    """Read the schedule of a pipeline, which some tables have in the name of the framework.

    Stages are cut between layers, equally many each, as Megatron-LM does; or embedding and
    classifier are counted as a layer each, where only then the numbers are equal.
    """
    plan: dict[str, Any] = {}
    layers = step.network.description["layers"]
    words, usual = row.text("framework").split(), step.stack.plan
    interleaved = usual.schedule == "interleaved"
    if named := [word[3:] for word in words if word.startswith("ZB-")]:
        if named[0] not in _ZERO_BUBBLE:
            raise RidgelineError("no schedule of this name")
        plan["schedule"] = f"zero-bubble{_ZERO_BUBBLE[named[0]]}"
    elif chunks != 1 or "1F1B-I" in words or (interleaved and not row.text("vpp")):
        if chunks < 2:  # as many as can be; embedding and classifier count as layers
            chunks = max((layers + 2) // pipeline, 2)
        plan |= {"schedule": "interleaved", "virtual_stages": chunks}
    elif interleaved:
        plan["schedule"] = "1f1b"
    parts = pipeline * plan.get("virtual_stages", 1)
    cut = "ends" if layers % parts and (layers + 2) % parts == 0 else "layers"
    return plan if usual.stage_balance == cut else {**plan, "stage_balance": cut}


def _sharding(row: MeasuredRow) -> int | None:
    """Read how far the state is shared; what is not known is a reason to skip the row."""
    text = row.text("sharding").lower() if "sharding" in row.values else ""
    if text in {"", "none", "ddp"}:
        return 0 if text else None
    for stage, words in _SHARDING.items():
        if any(word in text for word in words):
            return stage
    raise RidgelineError(f"unknown sharding {row.text('sharding')}")


def _set_settings(step: NormalisedStep, row: MeasuredRow, known: Mapping[str, Any]) -> None:
    """Find what the row's program did otherwise than its software by default."""
    settings = step.settings
    # What is behind a condition, or looked for by a coordinator, is not of these programs' steps.
    settings |= {"optimizer.loss_scale_check": False, "gradients.fusion_cycle_time": 0.0}
    if (step.cluster.device.year or 0) < step.stack.kernels.attention_since:
        settings["kernels.attention_since"] = 0
        step.infer("its attention kernel on an older device", "its framework's")
    for name, path in _KNOWN.items():
        if name in known:
            settings[path] = known[name]
    if known.get("dispatch"):
        settings["moe.dispatch"] = "per-expert"
    if known.get("recorded"):
        settings["host.launch_time"] = 0.0
    if _BOTH in row.text("precision").lower().replace("_", ""):
        settings["gradients.main_grads"] = "both"
    if _COMPILED in row.text("framework"):
        settings["kernels.fusion"] = "fused"
    said = {name: v for name, v in known.items() if name in {*_KNOWN, "dispatch", "recorded"}}
    if said:
        step.infer("; ".join(f"{name}: {v}" for name, v in said.items()), "its source")


_KNOWN = {
    "attention": "kernels.attention",
    "issue_ahead": "host.async_launch",
    "overlap_expert": "overlap.moe_a2a",
    "pieces": "pipeline.p2p_scatter_gather",
}


def _vocabulary(row: MeasuredRow) -> int | None:
    text = row.text("vocab").lower() if "vocab" in row.values else ""
    thousands = text.removesuffix("k")
    if thousands != text and thousands.isdecimal():
        return int(thousands) * 1000
    return whole_of(row, "vocab")


def _degree(row: MeasuredRow, name: str) -> int:
    """Return a degree of parallelism; 1 where none is given."""
    value = whole_of(row, name)
    if value == 0:
        raise RidgelineError(f"{name} is 0; a degree is at least 1")
    return value or 1


def _need(row: MeasuredRow, name: str) -> int:
    value = whole_of(row, name)
    if not value:
        raise RidgelineError(f"the column {name} is not given")
    return value
