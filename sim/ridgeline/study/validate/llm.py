"""Training steps of large language models under hybrid plans.

Three forms of table are read: one with the shape of the network, the plan and the step time or the
tokens a second in columns of those names; vTrain's, whose columns are in words; and such a table
with a name of the catalogue in ``model`` instead of the shape. What a table does not say is what
Megatron-LM did at the time: fp16, full recomputation where the table has no column for it,
sequences of 2,048 tokens, a vocabulary of 51,200.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.study.validate.machines import machine_of
from ridgeline.study.validate.names import find_name
from ridgeline.study.validate.outcome import Outcome, Skipped, skip
from ridgeline.study.validate.rows import Row
from ridgeline.workload.model import Model, load_model

COLUMNS = ()
SHIPPED = "llm.csv"
_VTRAIN = {
    "# GPUs": "n_accel", "global batch": "global_batch_seqs", "micro batch": "micro_batch",
    "hidden size": "hidden", "attention heads": "heads", "# layers": "n_layers",
    "sequence length": "seq_len", "tensor parallelism": "tp", "data parallelism": "dp",
    "pipeline parallelism": "pp",
}  # fmt: skip
_GPT, _LLAMA = "gpt3-1.3b", "llama2-7b"
_PLAIN_VOCABULARY, _PLAIN_SEQUENCE = 51200, 2048
_COUNTED_AS_4_3 = 4 / 3  # hardware over model FLOPs with full recomputation


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the step time of every row."""
    for row in rows:
        yield _one(_translated(row))


def _translated(row: Row) -> Row:
    if "iteration time (ms)" not in row.values:
        return row
    values = {**row.values, **{ours: row.values.get(name, "") for name, ours in _VTRAIN.items()}}
    milliseconds = row.number("iteration time (ms)")
    values |= {
        "step_time_s": repr(milliseconds / 1e3) if milliseconds else "",
        "id": row.id,
        "model": f"GPT {row.text('hidden size')} x {row.text('# layers')}",
        "accelerator": "A100-SXM4-80GB",
        "precision": "fp16",
        "source": "vTrain (MIT licence)",
        "framework": "Megatron-LM",
    }
    return Row(row.file, row.line, values)


def _one(row: Row) -> Outcome | Skipped:
    try:
        model, shape = _model(row)
        devices = _need(row, "n_accel")
        device = find_name("devices", row.text("accelerator").split("(")[0].split(",")[0])
        if device is None:
            raise RidgelineError(f"no description of the device {row.text('accelerator')}")
        plan = _plan(row, devices)
        result = simulate(model, _cluster(device, devices), plan)
    except RidgelineError as error:
        return skip(row, str(error))
    tokens = plan.global_batch * shape["sequence"]
    measured_s = _measured_s(row, devices, tokens, result.flops_per_step)
    if measured_s is None:
        return skip(row, "no measured time, tokens a second or FLOP/s")
    flops = result.flops_per_step
    peak = flops / (result.mfu * result.step_time_s)  # of all devices
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('model')} {device} {row.text('framework')}",
        sweep=f"{row.text('model')} {device} {devices}",
        configuration=f"{row.text('model')}, {devices} x {device}, {plan}",
        quantity="step_time_s",
        predicted=result.step_time_s,
        measured=measured_s,
        source=row.text("source"),
        trivial={"41 % of the peak": flops / (0.41 * peak)},
    )


def _measured_s(row: Row, devices: int, tokens: int, flops: float) -> float | None:
    """Step time from the one metric of a row that is nearest to it."""
    if step_s := _number(row, "step_time_s"):
        return step_s
    if rate := _number(row, "tokens_per_s"):
        return tokens / rate
    if rate := _number(row, "tokens_per_s_per_accel"):
        return tokens / (rate * devices)
    if rate := _number(row, "tflops_per_accel"):
        counted = _COUNTED_AS_4_3 if _recompute(row) == "full" else 1.0
        return flops * counted / (rate * 1e12 * devices)
    return None


def _model(row: Row) -> tuple[Model, dict[str, Any]]:
    """Load the network of a row, by its shape or by its name."""
    layers, hidden, heads = (_whole(row, name) for name in ("n_layers", "hidden", "heads"))
    sequence = _whole(row, "seq_len") or _PLAIN_SEQUENCE
    if not layers or not hidden or not heads:
        name = find_name("models", row.text("model"))
        if name is None:
            raise RidgelineError(f"neither shape nor description of {row.text('model')}")
        return _loaded(name, (("sequence", sequence),)), {"sequence": sequence}
    ffn, kv_heads = _whole(row, "ffn"), _whole(row, "kv_heads")
    llama = "llama" in row.text("model").lower()
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "attention.heads": heads,
        "feed_forward.width": ffn or 4 * hidden,
        "sequence": sequence,
        "vocabulary": _vocabulary(row) or _PLAIN_VOCABULARY,
    }
    if kv_heads:
        shape["attention.kv_heads"] = kv_heads
    return _loaded(_LLAMA if llama else _GPT, tuple(shape.items())), shape


def _plan(row: Row, devices: int) -> Plan:
    tensor, pipeline = _whole(row, "tp") or 1, _whole(row, "pp") or 1
    context, chunks = _whole(row, "cp") or 1, _whole(row, "vpp") or 1
    if devices % (tensor * pipeline * context):
        raise RidgelineError("the degrees of the plan do not divide the number of devices")
    data = devices // (tensor * pipeline * context)
    batch = _whole(row, "global_batch_seqs")
    micro, accumulated = _whole(row, "micro_batch"), _whole(row, "grad_accum")
    if not batch and micro and accumulated:
        batch = micro * accumulated * data
    if not batch:
        raise RidgelineError("the batch is not given")
    precision = row.text("precision").lower()
    fields: dict[str, Any] = {
        "global_batch": batch,
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "expert": _whole(row, "ep") or 1,
        "micro_batch": micro,
        "recompute": _recompute(row),
        "sharding": _sharding(row),
        "sequence": tensor if "sequence parallel" in row.text("recompute").lower() else 1,
        "precision": (
            "fp8-mixed" if "fp8" in precision or "float8" in precision
            else "bf16-mixed" if "bf16" in precision else "fp16-mixed"
        ),
    }  # fmt: skip
    if chunks > 1 and pipeline > 1:
        fields |= {"schedule": "interleaved", "chunks": chunks}
    return Plan(**fields)


def _recompute(row: Row) -> str:
    if "recompute" not in row.values:
        return "full"
    text = row.text("recompute").lower()
    if "selective" in text:
        return "selective"
    return "full" if "full" in text else "none"


def _sharding(row: Row) -> int:
    text = row.text("sharding").lower() if "sharding" in row.values else ""
    if "zero-3" in text or "full_shard" in text:
        return 3
    if "zero-2" in text or "grad_op" in text:
        return 2
    if "zero-1" in text or "dist-opt" in text:
        return 1
    return 3 if "fsdp" in text else 0


def _vocabulary(row: Row) -> int | None:
    text = row.text("vocab") if "vocab" in row.values else ""
    if text.lower().endswith("k"):
        value = float(text[:-1]) * 1000
        return int(value) if math.isfinite(value) else None
    return _whole(row, "vocab")


def _number(row: Row, name: str) -> float | None:
    return row.number(name) if name in row.values else None


def _whole(row: Row, name: str) -> int | None:
    text = row.text(name) if name in row.values else ""
    return int(text.split(".")[0]) if text.split(".")[0].isdecimal() else None


def _need(row: Row, name: str) -> int:
    value = _whole(row, name)
    if not value:
        raise RidgelineError(f"the column {name} is not given")
    return value


@lru_cache(maxsize=1024)
def _loaded(name: str, fields: tuple[tuple[str, Any], ...]) -> Model:
    return load_model(name, dict(fields))


@lru_cache(maxsize=64)
def _cluster(device: str, devices: int) -> Cluster:
    name, overrides = machine_of(device, devices, None)
    return load_cluster(name, dict(overrides))
