"""Memory of training steps of transformers: the fullest device at its fullest moment.

Two forms of table are read: those of the suite ``llm`` where they have ``mem_GB_per_accel``, and
one with ``technique``, ``quantity``, ``value`` and ``unit``, whose plan is partly in the words of
the technique (recompute=full, ZeRO-1, DP=4, GBS=2048, m=24). Frameworks that state gigabytes count
2**30 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ridgeline.network.communicators import communicator_bytes
from ridgeline.parallel.mesh import Mesh
from ridgeline.report.result import Result
from ridgeline.simulation import shared_topology
from ridgeline.study.validate import llm_tables
from ridgeline.study.validate.frameworks import framework_of
from ridgeline.study.validate.llm_rows import Configuration, configuration, in_order, number
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated

COLUMNS = ("model", "accelerator", "n_accel", "mem_GB_per_accel", "source")
SHIPPED = "memory.csv"
_GIB = 2.0**30
_UNITS = {"GB": 1000 * 2.0**20, "GiB": _GIB}
"""Of what programs print in MiB, tables have thousands as GB (nvidia-smi; Megatron-LM's
report_memory): the largest of BigScience's is 80, and an A100 has 79.35 GiB to give."""
_FULL = "OOM"  # instead of a value: the step did not fit; the row says whether we see that
_TOTAL = ("max gpu memory", "peak memory", "gpu memory used")
_ACTIVATIONS = ("activations, first pipeline stage",)
_STATES = ("params+grads+optimizer",)
_KINDS = {"activations": ("activations",), "states": ("weights", "gradients", "optimizer")}
_ALL_OF_DEVICE = ("max gpu memory", "gpu memory used")  # as nvidia-smi tells, not the allocator
_CONTEXT_BYTES = 1.3e9
"""Context and kernels of PyTorch before any tensor is there (Hugging Face, "Methods and tools for
efficient training on a single GPU", documentation of transformers)."""
_STEADY = 4  # micro-batches for each stage, where a table has none: more do not add memory


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the memory of every row that states one."""
    return predict_each(in_order(map(_of_techniques, rows)), _one)


def _one(row: Row) -> Outcome | Skipped:
    full = row.text("mem_GB_per_accel").upper() == _FULL
    measured = 0.0 if full else number(row, "mem_GB_per_accel")
    what = "fits" if full else row.values.get("of") or "total"
    if measured is None:
        return skip(row, row.values.get("why") or "no measured memory")
    if measured <= 0 and not full:
        return skip(row, "the measured memory is not positive")
    wanted = _short(configuration(row), row)
    result = wanted.simulate()
    predicted = _predicted(result, what)
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('model')} {wanted.device} {what}",
        sweep=f"{row.text('model')} {wanted.device} {wanted.devices} {what}",
        configuration=f"{row.text('model')}, {wanted.devices} x {wanted.device}, {wanted.plan}",
        quantity=f"memory_bytes {what}",
        predicted=predicted,
        measured=measured * _UNITS[row.values.get("unit") or "GiB"],
        source=row.text("source"),
        trivial={} if full else {"16 bytes a parameter": 16 * _weights(result)},
        points=full,
        verdict=result.fits != full if what in {"fits", "total"} else None,
        **stated("verdict" if full else "memory", predicted),
    )


def _short(wanted: Configuration, row: Row) -> Configuration:
    """Leave out micro-batches that only repeat what those before hold; add what is no tensor."""
    framework = framework_of(row.text("framework"))
    reserved = float(row.values.get("reserved") or 0.0)
    if reserved:
        reserved += _communicators(wanted, framework.communicators)
    besides = {"reserved": reserved, "allocator": framework.allocator}
    plan = wanted.plan.model_copy(update=besides)
    few = min(plan.micro_batches, _STEADY * plan.pipeline)
    batch = plan.data * plan.micro_batch_size * few
    return replace(wanted, plan=plan.model_copy(update={"global_batch": batch}))


def _communicators(wanted: Configuration, names: tuple[str, ...]) -> int:
    """Return the bytes of the communicators of a device that a framework makes."""
    plan, mesh = wanted.plan, Mesh.of(wanted.plan)
    members = {
        "world": tuple(range(plan.devices)),
        "tensor": tuple(mesh.groups(0, "tensor")[0].tolist()),
        "data": tuple(mesh.groups(0, "data")[0].tolist()),
        "model": tuple(
            int(rank) for stage in range(plan.pipeline) for rank in mesh.groups(stage, "tensor")[0]
        ),
    }
    topology = shared_topology(wanted.cluster, plan.devices)
    groups = {members[name] for name in names}
    return sum(communicator_bytes(topology, group) for group in groups)


def _predicted(result: Result, what: str) -> float:
    if what == "fits":
        return float(result.fits)
    if what == "total":
        return float(result.memory_bytes["total"])
    # what was allocated for it, whatever else is held at that time
    return math.fsum(_most(result, kind) for kind in _KINDS[what])


def _most(result: Result, kind: str) -> float:
    """Most bytes of one kind that any rank holds, not only at its fullest moment."""
    timeline = result.details.timeline
    column = timeline.program.memory_kinds.index(kind)
    ranks = np.unique(timeline.program.stream_rank)
    return float(max(timeline.memory_profile(int(r))[1][:, column].max() for r in ranks))


def _weights(result: Result) -> float:
    """Parameters of one device, were all of them shared evenly."""
    plan = result.details.plan
    model = result.details.model.training(1, plan.precision or "fp32")
    return model.parameters / (plan.tensor * plan.pipeline)


def translated(row: Row) -> Row:
    """Give a row of any form of table the columns of the suite."""
    return llm_tables.translated(_of_techniques(row))


def _of_techniques(row: Row) -> Row:
    """Give a row of techniques and quantities the columns of the suite ``llm``."""
    if "technique" not in row.values:
        return row
    quantity, words = row.text("quantity").lower(), row.text("technique")
    kinds = ((_TOTAL, "total"), (_ACTIVATIONS, "activations"), (_STATES, "states"))
    of = next((kind for names, kind in kinds if quantity.startswith(names)), None)
    if of is None:
        return _without(row, f"{quantity} is not simulated")
    if why := _unknown(words.lower()):
        return _without(row, why)
    found = {
        name: match[1] if (match := re.search(rf"\b{name}[= ]?(\d+)", words)) else ""
        for name in ("DP", "GBS", "m", "ZeRO-")
    }
    size = _whole(row.text("micro_batch")) or 1
    ranks = (_whole(row.text("tp")) or 1) * (_whole(row.text("pp")) or 1)
    data = max((_whole(row.text("n_accel")) or ranks) // ranks, 1)
    stages = _whole(row.text("pp")) or 1
    steady = _STEADY * stages if stages > 1 else 1
    batch = found["GBS"] or str(data * size * int(found["m"] or steady))
    values = {
        **row.values,
        "mem_GB_per_accel": row.text("value"),
        "of": of,
        "global_batch_seqs": batch,
        "precision": _precision(words),
        "recompute": _recompute(words),
        "sharding": _sharding(words.lower(), found["ZeRO-"]),
        "framework": _framework(words),
        "reserved": str(_CONTEXT_BYTES if quantity.startswith(_ALL_OF_DEVICE) else 0.0),
    }
    return Row(row.file, row.line, values)


def _without(row: Row, why: str) -> Row:
    """Leave a row without a measurement that could be compared, and say why."""
    return Row(row.file, row.line, {**row.values, "mem_GB_per_accel": "", "why": why})


def _unknown(words: str) -> str | None:
    """Return what the words of a technique mention without saying it, if something."""
    if "+cp" in words and not re.search(r"cp ?=? ?\d", words):
        return "the degree of context parallelism is not given"
    return "recomputation is not given" if "recompute= " in words else None


def _framework(words: str) -> str:
    """Return the words of a technique from the name of a framework on, or all of them."""
    ends = (words[match.start() :] for match in re.finditer(r"\S+", words))
    return next((end for end in ends if framework_of(end).begins), words)


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
    kind = "full" if "full" in text else "selective" if "selec" in text else "none"
    parallel = "sequence parallel" in text or "seqsel" in text
    return f"{kind}, sequence parallel" if parallel else kind


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
