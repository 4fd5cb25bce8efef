"""Tables of language models in forms of their own, as rows with the columns of `llm`.

vTrain's table has columns in words; SimuMax's has configurations in the name of the ``case``. What
a source has and its table leaves out fills empty columns (``sources.yaml``, ``unstated``).
"""

from __future__ import annotations

import math
import re

from ridgeline.study.import_rows.names import devices_in
from ridgeline.study.import_rows.rules import rule, section
from ridgeline.study.validate.rows import MeasuredRow

_VTRAIN = {
    "# GPUs": "n_accel", "global batch": "global_batch_seqs", "micro batch": "micro_batch",
    "hidden size": "hidden", "attention heads": "heads", "# layers": "n_layers",
    "sequence length": "seq_len", "tensor parallelism": "tp", "data parallelism": "dp",
    "pipeline parallelism": "pp",
}  # fmt: skip
_SIMUMAX = {
    "llama3_70b": "llama3-70b",
    "llama3_405b": "llama3-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}
_PLANS = ("plan", "parallelism", "strategy")
_DEGREES = {
    "tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "dp": "dp",
    "mbs": "micro_batch", "gbs": "global_batch_seqs", "ga": "grad_accum", "gas": "grad_accum",
}  # fmt: skip
_DEGREE = re.compile(rf"(?<![a-z])({'|'.join(_DEGREES)})\s*[=:x-]?\s*(\d+)", re.IGNORECASE)
_SIMUMAX_SEQUENCE = 4096  # where a case does not say


def translated(row: MeasuredRow) -> MeasuredRow:
    """Give a row of vTrain's or SimuMax's tables the columns of the others."""
    if "iteration time (ms)" in row.values:
        return _from_vtrain(row)
    if {"case", "real_ms"} <= set(row.values):
        return _from_simumax(row)
    row = _in_plain_columns(row)
    known = rule("unstated", {name: row.text(name) for name in ("model", "source", "accelerator")})
    columns = {name: text for name, text in known.get("columns", {}).items() if not row.text(name)}
    if "network" in known:
        columns["model"] = known["network"]
    return MeasuredRow(row.file, row.line, {**row.values, **columns}) if columns else row


def _in_plain_columns(row: MeasuredRow) -> MeasuredRow:
    """Read columns of other names, a plan in words, and the number of devices where it stands."""
    values = {name.strip().lower().replace(" ", "_"): text for name, text in row.values.items()}
    values |= row.values
    for name, others in section("columns").items():
        found = next((values[other] for other in others if values.get(other)), "")
        if found and not values.get(name):
            values[name] = found
    for name in _PLANS:
        for degree, number in _DEGREE.findall(values.get(name) or ""):
            values[_DEGREES[degree.lower()]] = values.get(_DEGREES[degree.lower()]) or number
    values.setdefault("source", "")
    if not values.get("n_accel"):
        values["n_accel"] = _devices(MeasuredRow(row.file, row.line, values))
    return MeasuredRow(row.file, row.line, values)


def _devices(row: MeasuredRow) -> str:
    """Return the number of devices that the accelerator's name or all degrees of a plan say."""
    if stated := devices_in(row.text("accelerator")):
        return str(stated)
    degrees = [row.text(name) for name in ("dp", "tp", "pp", "cp")]
    if not all(degrees[:3]) or not all(part.isdecimal() for part in degrees if part):
        return ""
    return str(math.prod(int(part) for part in degrees if part))


def _from_vtrain(row: MeasuredRow) -> MeasuredRow:
    values = {**row.values, **{ours: row.values.get(name, "") for name, ours in _VTRAIN.items()}}
    values |= {
        "step_time_s": _seconds(row, "iteration time (ms)"),
        "id": row.id,
        "model": f"GPT {row.text('hidden size')} x {row.text('# layers')}",
        "accelerator": "A100-SXM4-80GB",
        "precision": "fp16",
        "source": "vTrain (MIT licence)",
        "framework": "Megatron-LM",
    }
    return MeasuredRow(row.file, row.line, values)


def _from_simumax(row: MeasuredRow) -> MeasuredRow:
    """Read a case such as llama3_70b_l12_tp1_pp2_dp4_mbc4: `mbc` micro-batches of one sequence."""
    case = row.text("case")
    name = next((name for name in _SIMUMAX if case.startswith(name)), "")
    parts = {
        part.rstrip("0123456789"): part[len(part.rstrip("0123456789")) :]
        for part in case[len(name) :].split("_")
        if part[-1:].isdecimal()
    }
    degrees = [int(parts.get(part, "1")) for part in ("tp", "pp", "dp", "cp")]
    values = {
        **row.values,
        "id": case,
        "model": _SIMUMAX.get(name, case),
        "layers": parts.get("l", ""),
        "seq_len": parts.get("seq", str(_SIMUMAX_SEQUENCE)),
        "n_accel": str(math.prod(degrees)),
        "tp": parts.get("tp", "1"),
        "pp": parts.get("pp", "1"),
        "cp": parts.get("cp", "1"),
        "ep": parts.get("ep", "1"),
        "micro_batch": "1",
        "grad_accum": parts.get("mbc", ""),
        "precision": "bf16",
        "recompute": "none, sequence parallel",
        "sharding": "zero-1",
        "accelerator": "B200",
        "framework": "Megatron-Core (SimuMax)",
        "step_time_s": _seconds(row, "real_ms"),
        "mem_GB_per_accel": row.text("real_alloc_GiB"),
        "source": "SimuMax (Apache-2.0, Moore Threads)",
    }
    return MeasuredRow(row.file, row.line, values)


def _seconds(row: MeasuredRow, milliseconds: str) -> str:
    value = row.number(milliseconds)
    return repr(value / 1e3) if value else ""
