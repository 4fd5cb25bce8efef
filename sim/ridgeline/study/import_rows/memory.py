"""Rows of tables about memory: the fullest device, states, activations, of training transformers.

Two forms of table are read: those about language models (`llm`) where they have
``mem_GB_per_accel``, and one with ``technique``, ``quantity``, ``value`` and ``unit``, whose plan
is partly in the words of the technique (recompute=full, ZeRO-1, DP=4, GBS=2048, m=24). Frameworks
that state gigabytes count 2**30 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plan.resolved import resolved
from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.study.import_rows import columns, llm
from ridgeline.study.import_rows.normalised import NormalisedStep, number_of
from ridgeline.study.import_rows.rules import rule
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.written_fields import plan_text

READS = ("model", "accelerator", "n_accel", "mem_GB_per_accel", "source")
_UNITS = {"GB": 1000 * 2.0**20, "GB (1e9)": 1e9, "GiB": 2.0**30, "%": 0.01}
"""Of what programs print in MiB, tables have thousands as GB (nvidia-smi; Megatron-LM's
report_memory): the largest of BigScience's is 80, and an A100 has 79.35 GiB to give."""
_FULL = "OOM"  # instead of a value: the step did not fit; the row says whether we see that
_QUANTITIES = {
    "total": "memory_bytes.total",
    "activations": "memory_bytes.activations_kept",
    "states": "memory_bytes.states_allocated",
    "share": "memory_share.activations",
    "model states": "memory_bytes.states_of_a_parameter",
    "fits": "fits",
}
"""What rows state, by the quantity of a result."""
_WORDS = (
    (("max gpu memory", "peak memory", "gpu memory used"), "total"),
    (("activations, first pipeline stage",), "activations"),
    (("params+grads+optimizer",), "states"),
    (("activation memory relative to tp baseline",), "share"),
    (("model-state memory",), "model states"),
)
_ZERO_STAGES = {"p_os": 1, "p_os+g": 2, "p_os+g+p": 3}
_ALL_OF_DEVICE = ("max gpu memory", "gpu memory used")  # as nvidia-smi tells, not the allocator
_CONTEXT = 1.3e9
"""Context and kernels of PyTorch before any tensor is there (Hugging Face, "Methods and tools for
efficient training on a single GPU", documentation of transformers)."""
_TRANSFORMER = "gpt3-1.3b"  # of whose kind models are that have a size and no shape
_OF_ZERO = "V100-SXM3-32GB"
"""Devices that ZeRO was measured on (arXiv:1910.02054, Section 10.1: DGX-2)."""
_STEADY = 4  # micro-batches for each stage, where a table has none: more do not add memory


def translated(row: MeasuredRow) -> MeasuredRow:
    """Give a row of any form of table the usual columns."""
    return columns.translated(_of_techniques(row))


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step of a row with the usual columns, and the memory that was measured.

    Raises
    ------
    RidgelineError
        If something is unknown or missing.
    """
    full = row.text("mem_GB_per_accel").upper() == _FULL
    measured = 0.0 if full else number_of(row, "mem_GB_per_accel")
    unit = row.values.get("unit") or "GiB"
    if measured is None:
        raise RidgelineError(row.values.get("why") or "no measured memory")
    if measured <= 0 and not full:
        raise RidgelineError("the measured memory is not positive")
    if unit not in _UNITS:
        raise RidgelineError(f"unknown unit {unit} (known: {', '.join(_UNITS)})")
    what = "fits" if full else row.values.get("of") or "total"
    si = {
        "quantity": _QUANTITIES[what],
        "measured": repr(measured * _UNITS[unit]),
        "unit": "" if full or unit == "%" else "B",
    }
    if what == "model states":
        step, parameters = _of_zero(row)
        si["quantity"] += f"*{parameters!r}"
        return {**llm.words_of(row, step, what, f"ZeRO-{step.plan['zero_stage']}"), **si}
    step = llm.step_of(row)
    _shorten(step)
    if what == "share" and _is_whole(step):
        raise RidgelineError("it is what the others are compared with")
    if reserved := row.number("reserved"):
        step.settings["memory.runtime"] = reserved
    devices = row.text("n_accel")
    sweep = what if what == "share" else f"{devices} {what}"
    return {**llm.words_of(row, step, what, sweep), **si}


def _is_whole(step: NormalisedStep) -> bool:
    """Tell whether nothing is computed again and no positions are shared."""
    again = step.plan.get("recompute", step.stack.plan.recompute or "none")
    return again == "none" and "sequence" not in step.plan and not step.stack.plan.sequence


def _shorten(step: NormalisedStep) -> None:
    """Leave out micro-batches that only repeat what those before hold."""
    plan = resolved(make_plan(plan_fields(plan_text(step.plan))), step.stack)
    few = min(plan.micro_batches, _STEADY * plan.pipeline)
    batch = plan.data * plan.micro_batch_size * few
    if batch != step.plan["global_batch"]:
        step.infer(f"{few} of {plan.micro_batches} micro-batches, as more hold no more")
        size = {} if "micro_batch" in step.plan else {"micro_batch": plan.micro_batch_size}
        step.plan |= {"global_batch": batch, **size}


def _of_zero(row: MeasuredRow) -> tuple[NormalisedStep, float]:
    """Read a model of so many parameters, as states of each of a transformer's."""
    stage = _ZERO_STAGES.get(row.text("technique").lower().removeprefix("zero "))
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?([bt])", row.text("model").lower())
    ranks = _whole(row.text("n_accel"))
    if stage is None or size is None or not ranks:
        raise RidgelineError("the parameters, the stage of ZeRO or the devices are not given")
    known = {**row.values, "accelerator": row.text("accelerator") or _OF_ZERO}
    device, machine, fields = llm.machine_of_row(MeasuredRow(row.file, row.line, known), ranks)
    software = rule("software", {"framework": row.text("framework")})["software"]
    step = NormalisedStep(_TRANSFORMER, machine, software, machine_fields=fields, device=device)
    step.plan = {"data": ranks, "global_batch": ranks, "zero_stage": stage,
                 "precision": "fp16-mixed"}  # fmt: skip
    step.infer(f"a transformer such as {_TRANSFORMER}")
    return step, float(size[1]) * {"b": 1e9, "t": 1e12}[size[2]]


def _of_techniques(row: MeasuredRow) -> MeasuredRow:
    """Give a row of techniques and quantities the columns of tables about language models."""
    if "technique" not in row.values:
        return row
    quantity, words = row.text("quantity").lower(), row.text("technique")
    of = next((kind for names, kind in _WORDS if quantity.startswith(names)), None)
    if of is None:
        return _without(row, f"{quantity} is not simulated")
    if why := _unknown(words.lower()):
        return _without(row, why)
    found = {
        name: match[1] if (match := re.search(rf"\b{name}[= ]?(\d+)", words)) else ""
        for name in ("DP", "GBS", "m", "ZeRO-")
    }
    size = _whole(row.text("micro_batch")) or 1
    stages = _whole(row.text("pp")) or 1
    ranks = (_whole(row.text("tp")) or 1) * stages
    data = max((_whole(row.text("n_accel")) or ranks) // ranks, 1)
    steady = _STEADY * stages if stages > 1 else 1
    batch = found["GBS"] or str(data * size * int(found["m"] or steady))
    return MeasuredRow(row.file, row.line, {
        **row.values,
        "mem_GB_per_accel": row.text("value"),
        "of": of,
        "global_batch_seqs": batch,
        "precision": _precision(words),
        "recompute": _recompute(words),
        "sharding": _sharding(words.lower(), found["ZeRO-"]),
        "framework": _framework(words),
        "reserved": str(_CONTEXT if quantity.startswith(_ALL_OF_DEVICE) else 0.0),
    })  # fmt: skip


def _without(row: MeasuredRow, why: str) -> MeasuredRow:
    """Leave a row without a measurement that could be compared, and say why."""
    return MeasuredRow(row.file, row.line, {**row.values, "mem_GB_per_accel": "", "why": why})


def _unknown(words: str) -> str | None:
    """Return what the words of a technique mention without saying it, if something."""
    if "+cp" in words and not re.search(r"cp ?=? ?\d", words):
        return "the degree of context parallelism is not given"
    return "recomputation is not given" if "recompute= " in words else None


def _framework(words: str) -> str:
    """Return the words of a technique from the name of a framework on, or all of them."""
    ends = (words[match.start() :] for match in re.finditer(r"\S+", words))
    return next((end for end in ends if _known(end)), words)


def _known(words: str) -> bool:
    """Whether words begin with the name of a framework."""
    found: Mapping[str, list[str]] = rule("software", {"framework": words})
    return found["framework"] != [""]


def _precision(words: str) -> str:
    """Return the format that the words of a technique name, with what they say behind it."""
    at = max(words.find(name) for name in ("bf16", "float8"))
    return words[at:] if at >= 0 else "fp16"


def _sharding(words: str, stage: str) -> str:
    """Return how far the state is shared, of the words of a technique: not, if none says so."""
    if stage:
        return f"zero-{stage}"
    return "fsdp" if re.search(r"\bfsdp|\b2d\b", words) else ""  # 2d: FSDP and tensor parallelism


def _recompute(words: str) -> str:
    text = words.lower()
    selective = "selec" in text or text in {"sel", "seqsel"}
    kind = "full" if "full" in text else "selective" if selective else "none"
    parallel = "sequence parallel" in text or text in {"seq", "seqsel"}
    return f"{kind}, sequence parallel" if parallel else kind


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
