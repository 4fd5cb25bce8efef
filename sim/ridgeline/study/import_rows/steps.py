"""Rows of tables about training steps on one device and on several: samples or tokens a second."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.import_rows.names import device_in, find_name, unknown
from ridgeline.study.import_rows.normalised import NormalisedStep, defaults, loaded
from ridgeline.study.import_rows.ragged_batches import longest, of_two_languages
from ridgeline.study.import_rows.rules import Facts, rule, section
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.numerics import PRECISIONS

READS = (
    "suite", "framework", "model", "variant", "accelerator", "n_accel", "batch_per_accel",
    "precision", "throughput", "unit", "source",
)  # fmt: skip
_SAMPLES = frozenset({"images/s", "sequences/s", "samples/s", "volumes/s", "users/s"})
_NO_UPDATE = "no update"
_PHOTOGRAPHS = "imagenet"  # the data set whose decoding is modelled
_MIXED, _AUTOCAST = "-mixed", "-autocast"
_FINE_TUNING = "adamw"  # J. Devlin et al., BERT, NAACL 2019, Section 4, and its programs
_HALF = "fp16"  # whose gradients are scaled, since they would vanish
_FEW = 8  # micro-batches that are simulated of a step that accumulates more
_NOT_THEIRS = (
    "gradients.main_grads", "gradients.accumulation_fusion", "gradients.sweeps",
    "optimizer.clip_sweeps", "kernels.embedding_tables", "kernels.attention_since",
)  # fmt: skip
"""Settings of stacks for language models that steps of other programs go without."""
_BATCH = re.compile(r";? *batch size *= *\d+ *(\(max\))?", re.IGNORECASE)  # a column has it, too


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step of a row by itself: of one device, or of several that are compared with none.

    Raises
    ------
    RidgelineError
        If something is unknown or missing.
    """
    measured = row.number("throughput")
    if measured is None or measured <= 0:
        raise RidgelineError("no measured throughput")
    step = step_of(row)
    suite, precision = row.text("suite"), step.plan["precision"]
    group, sweep = f"{step.model} {step.device} {suite}", f"{step.device} {precision} {suite}"
    if row.whole("n_accel") != 1:
        program = row.text("framework")
        group, sweep = f"{group} {program}", f"{step.model} {step.device} {precision} {program}"
    return {
        "quantity": quantity_of(row, step),
        **step.columns(),
        "measured": repr(measured),
        "group": group,
        "sweep": sweep,
    }


def facts_of(row: MeasuredRow) -> dict[str, Any]:
    """Return the words of a row that rules ask for."""
    names = ("framework", "model", "source", "variant", "suite")
    facts = {name: row.text(name) for name in names}
    return {**facts, "framework": spelled_out(facts["framework"])}


def spelled_out(name: str) -> str:
    """Return the name of a framework as most tables have it, where its first word is another."""
    first, _, others = name.partition(" ")
    known: Mapping[str, str] = section("framework_words")
    return f"{known[first.lower()]} {others}".strip() if first.lower() in known else name


def network_of(model: str, variant: str, source: str) -> str | None:
    """Return the catalogue's name of a network, which may depend on where a table was read."""
    if found := rule("by_source", {"model": model, "source": source}):
        return str(found["network"])
    variant = _BATCH.sub("", variant)
    return find_name("models", f"{model} {variant}", model, variant)


def quantity_of(row: MeasuredRow, step: NormalisedStep) -> str:
    """Return the quantity of a result in a row's unit.

    Raises
    ------
    RidgelineError
        If it is not one that a simulation answers.
    """
    unit = row.text("unit")
    if unit in _SAMPLES:
        return "samples_per_s"
    if unit == "tokens/s":
        if counted := section("counted_in_tokens").get(step.model):
            return f"samples_per_s*{loaded(step.model).description[counted]}"
        if step.network.training(1, "fp32").tokens_per_sample:
            filled = rule("fed", {**facts_of(row), "variant": "", "network": step.model})
            return f"tokens_per_s*{filled['filled']}" if "filled" in filled else "tokens_per_s"
    raise RidgelineError(f"the unit {unit} is not one of the simulation")


def step_of(row: MeasuredRow) -> NormalisedStep:
    """Read what a row measured.

    Raises
    ------
    RidgelineError
        If something is unknown or missing; the message is the reason to skip the row.
    """
    facts = facts_of(row)
    note = row.text("note").lower()
    if "inference" in note:
        raise RidgelineError("this is the speed of inference")
    if "source anomaly" in note:
        raise RidgelineError("its table contradicts itself, as its note says")
    model = network_of(facts["model"], facts["variant"], facts["source"])
    if model is None:
        raise RidgelineError(unknown("models", row.text("model")))
    if facts["framework"].lower().startswith(tuple(section("own_convolutions"))):
        raise RidgelineError(f"the convolutions of {facts['framework']} are not described")
    device = device_in(row.text("accelerator"))
    if device is None:
        raise RidgelineError(unknown("devices", row.text("accelerator")))
    device = rule("boards", {"device": device, "suite": facts["suite"]}).get("board", device)
    precision = find_name("precisions", row.text("precision"))
    if precision is None:
        raise RidgelineError(unknown("precisions", row.text("precision")))
    facts |= {"network": model, "fine_tuned": note.startswith("fine-tuning")}
    widened = precision.replace(_MIXED, _AUTOCAST)
    if widened in PRECISIONS and rule("autocast", facts):
        precision = widened
    facts["precision"] = precision
    devices, batch = row.whole("n_accel"), row.whole("batch_per_accel")
    if not devices or not batch:
        raise RidgelineError("the number of devices or the batch is not given")
    step = NormalisedStep(model, "", rule("software", facts)["software"])
    _set_fields(step, row, facts)
    if counted := section("counted_in_tokens").get(model):
        batch = max(1, batch // int(loaded(model).description[counted]))
    accumulated = (row.whole("grad_accum") if "grad_accum" in row.values else None) or 1
    _set_plan(step, facts, devices, batch, accumulated)
    nodes = row.whole("nodes") if "nodes" in row.values else None
    step.machine, fields = machine_of(device, devices, nodes, row.text("system"))
    step.device, step.machine_fields = device, dict(fields)
    _set_settings(step, row, facts)
    _set_shared(step, row, facts, batch * accumulated, accumulated, devices)
    if unequal := rule("unequal", facts):
        deviation = float(unequal["deviation"])
        padded = unequal["batches"] == "padded"
        spread = longest(batch, deviation) if padded else of_two_languages(model, deviation)
        step.fields["sequence_length_std"] = float(f"{spread:.12g}")
        step.infer("sequence_length_std", "how its program makes batches")
    if devices > 1:
        _set_input(step, row, facts)
    return step


def _set_fields(step: NormalisedStep, row: MeasuredRow, facts: Facts) -> None:
    """Find sizes of samples, which a row states or its program has, as fields of the network."""
    sizes = rule("fed", facts).get("fields", {})
    if sizes:
        step.infer(", ".join(map(str, sizes)), "what its program feeds the network with")
    step.fields = {**sizes, **_lengths(row, facts)}


def _lengths(row: MeasuredRow, facts: Facts) -> dict[str, int]:
    """Return the lengths of sequences that a row states."""
    network = loaded(facts["network"]).description
    length = row.whole("seq_len") if "seq_len" in row.values else None
    if facts["fine_tuned"]:
        if "masked" in network:
            return {**section("fine_tuning"), **({"sequence": length} if length else {})}
        if "source" in network and not length:
            raise RidgelineError("the lengths of the sequences are not given")
    if not length:
        return {}
    if "source" in network and "target" in network:
        return {"source": length, "target": length}
    if "sequence" not in network:
        return {}
    if binned := rule("binned", {**facts, "sequence": length}):
        filled = round(length * float(binned["filled"]))
        length = min(length, filled + int(binned["bin"]) // 2)
    if "masked" not in network:
        return {"sequence": length}
    masked = max(1, round(length * network["masked"] / network["sequence"]))
    return {"sequence": length, "masked": masked}  # as large a share as of the network's own length


def _set_plan(
    step: NormalisedStep, facts: Facts, devices: int, batch: int, accumulated: int
) -> None:
    """Set the plan; tables give what a device holds at a time."""
    step.plan = {"data": devices} if devices > 1 else {}
    step.plan |= {"global_batch": batch * accumulated * devices, "precision": facts["precision"]}
    if accumulated > 1:
        step.plan["micro_batch"] = batch
    if accumulated > _FEW:
        step.most_micro_batches = str(_FEW)
    if facts["fine_tuned"] and "masked" in loaded(step.model).description:
        step.plan["optimizer"] = _FINE_TUNING
    if divided := rule("divided", facts):
        step.plan["layers"] = f"{divided['layers']}:tensor={devices}"
    usual = step.stack.plan
    step.plan |= {"recompute": "none"} if usual.recompute not in {None, "none"} else {}
    step.plan |= {"zero_stage": 0} if usual.zero_stage else {}


def _set_settings(step: NormalisedStep, row: MeasuredRow, facts: Facts) -> None:
    """Find what the row's program does otherwise than its software by default."""
    stack, settings = step.stack, step.settings
    primitive = bool(rule("primitives", {**facts, "compiled": compiled(row)}))
    settings |= defaults(_NOT_THEIRS)
    channels_last = bool(rule("channels_last", facts))
    settings["kernels.layout"] = "channels-last" if channels_last else "channels-first"
    settings["kernels.norm"] = "shared" if channels_last else "by-channel"
    workspace = rule("workspaces", facts).get("most")
    settings["kernels.conv_workspace"] = units.parse(workspace, "B") if workspace else None
    settings["kernels.fusion"] = "primitive" if primitive else "fused"
    if primitive:
        settings["kernels.attention"] = "eager"
    apart, checks = rule("updates_apart", facts), stack.optimizer.loss_scale_check
    settings["optimizer.impl"] = "per-tensor" if apart else "graph" if primitive else "foreach"
    scaled = facts["precision"].startswith(_HALF) and not rule("fixed_scales", facts)
    settings["optimizer.loss_scale_check"] = checks and scaled


def _set_shared(
    step: NormalisedStep,
    row: MeasuredRow,
    facts: Facts,
    samples: int,
    accumulated: int,
    devices: int,
) -> None:
    """Find which batches share an update, and what the device waits for in the middle of a step."""
    together = int(rule("update_batches", facts).get("batch", 0))
    batches = max(1, together // (samples * devices))
    if _NO_UPDATE in row.text("data"):
        batches = 0
    step.settings["gradients.update_interval"] = batches
    if batches > 1:
        step.infer(f"{batches} batches share an update", "its program")
    between = rule("between", facts)
    counts = {"batch": accumulated, "sample": samples, "of_all": samples * devices}
    waits = [units.parse(between[name], "s") * n for name, n in counts.items() if name in between]
    step.settings["host.step_wait"] = sum(waits, 0.0)
    if waits:
        step.infer("step_wait", "what its program computes on the host")


def compiled(row: MeasuredRow) -> bool | None:
    """Return whether a table says that XLA was used; None if it says nothing of it."""
    if found := re.search(r"\b(with|without) ?xla\b", row.text("variant").lower()):
        return found[1] == "with"
    xla = row.text("xla").lower()
    return {"on": True, "yes": True, "off": False, "no": False}.get(xla)


def _set_input(step: NormalisedStep, row: MeasuredRow, facts: Facts) -> None:
    """Find how the row's program prepares photographs, where its data are real."""
    host = step.cluster.nodes.host
    real = row.text("data").startswith("real")
    if not real or loaded(step.model).description.get("dataset") != _PHOTOGRAPHS:
        return
    loader = rule("loaders", facts)
    preparing, pixels = float(loader["preparing"]), float(loader.get("pixels", 0.0))
    if not (preparing or pixels) or host.cores is None or host.storage is None:
        return
    step.dataset = "own"
    step.settings |= {
        "input.preparing": preparing,
        "input.pixels": pixels,
        "input.workers": int(loader.get("processes", 0)),
    }
    step.infer("how photographs are prepared", "its program")
