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
from ridgeline.parallel.memory.over_step import model_states
from ridgeline.parallel.plans.mesh import Mesh
from ridgeline.report.result import Result
from ridgeline.simulation import shared_topology
from ridgeline.study.validate import llm_tables
from ridgeline.study.validate.frameworks import framework_of
from ridgeline.study.validate.llm_rows import Configuration, configuration, in_order, number
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated
from ridgeline.workload.model import load_model

COLUMNS = ("model", "accelerator", "n_accel", "mem_GB_per_accel", "source")
SHIPPED = "memory.csv"
_UNITS = {"GB": 1000 * 2.0**20, "GB (1e9)": 1e9, "GiB": 2.0**30, "%": 0.01}
"""Of what programs print in MiB, tables have thousands as GB (nvidia-smi; Megatron-LM's
report_memory): the largest of BigScience's is 80, and an A100 has 79.35 GiB to give."""
_FULL = "OOM"  # instead of a value: the step did not fit; the row says whether we see that
_TOTAL = ("max gpu memory", "peak memory", "gpu memory used")
_ACTIVATIONS = ("activations, first pipeline stage",)
_STATES = ("params+grads+optimizer",)
_SHARE = ("activation memory relative to tp baseline",)
_ZERO = ("model-state memory",)
_ZERO_STAGES = {"p_os": 1, "p_os+g": 2, "p_os+g+p": 3}
_STATE_KINDS = ("weights", "gradients", "optimizer")
_BACKWARD = ("recompute", "input-gradient", "weight-gradient")
_ALL_OF_DEVICE = ("max gpu memory", "gpu memory used")  # as nvidia-smi tells, not the allocator
_CONTEXT_BYTES = 1.3e9
"""Context and kernels of PyTorch before any tensor is there (Hugging Face, "Methods and tools for
efficient training on a single GPU", documentation of transformers)."""
_TRANSFORMER = "gpt3-1.3b"  # of whose kind models are that have a size and no shape
_STEADY = 4  # micro-batches for each stage, where a table has none: more do not add memory


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the memory of every row that states one."""
    return predict_each(in_order(map(_of_techniques, rows)), _one)


def _one(row: Row) -> Outcome | Skipped:
    full = row.text("mem_GB_per_accel").upper() == _FULL
    measured = 0.0 if full else number(row, "mem_GB_per_accel")
    what = "fits" if full else row.values.get("of") or "total"
    unit = row.values.get("unit") or "GiB"
    if measured is None:
        return skip(row, row.values.get("why") or "no measured memory")
    if measured <= 0 and not full:
        return skip(row, "the measured memory is not positive")
    if unit not in _UNITS:
        return skip(row, f"unknown unit {unit} (known: {', '.join(_UNITS)})")
    measured *= _UNITS[unit]
    if what == "model states":
        return _of_zero(row, measured)
    wanted = _short(configuration(row), row)
    result = wanted.simulate()
    predicted = _predicted(result, what)
    if what == "share":
        return _share(row, wanted, predicted, measured)
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('model')} {wanted.device} {what}",
        sweep=f"{row.text('model')} {wanted.device} {wanted.devices} {what}",
        configuration=f"{row.text('model')}, {wanted.devices} x {wanted.device}, {wanted.plan}",
        quantity=f"memory_bytes {what}",
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial={} if full else {"16 bytes a parameter": 16 * _weights(result)},
        points=full,
        verdict=result.fits != full if what in {"fits", "total"} else None,
        **stated("verdict" if full else "memory", predicted),
    )


def _short(wanted: Configuration, row: Row) -> Configuration:
    """Leave out micro-batches that only repeat what those before hold; add what is no tensor."""
    framework = framework_of(row.text("framework"))
    reserved = row.number("reserved") or 0.0
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
    if what == "states":  # what was allocated for them, whatever else is held at that time
        return math.fsum(_most(result, kind) for kind in _STATE_KINDS)
    return _kept(result)


def _share(row: Row, wanted: Configuration, held: float, measured: float) -> Outcome | Skipped:
    """Compare activations with those of the same step without recomputation or shared positions."""
    if (wanted.plan.recompute, wanted.plan.sequence) == ("none", 1):
        return skip(row, "it is what the others are compared with")
    plan = wanted.plan.model_copy(update={"recompute": "none", "sequence": 1})
    whole = _predicted(replace(wanted, plan=plan).simulate(), "activations")
    name = f"{row.text('model')} {wanted.device}"
    return Outcome(
        file=row.file, line=row.line, id=row.id, group=f"{name} share", sweep=f"{name} share",
        configuration=f"{row.text('model')}, {wanted.devices} x {wanted.device}, {wanted.plan}",
        quantity="memory_share activations", predicted=held / whole, measured=measured,
        source=row.text("source"),
    )  # fmt: skip


def _of_zero(row: Row, measured: float) -> Outcome | Skipped:
    """Count the states of a model of so many parameters, as bytes of each of a transformer's."""
    stage = _ZERO_STAGES.get(row.text("technique").lower().removeprefix("zero "))
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?([bt])", row.text("model").lower())
    ranks = _whole(row.text("n_accel"))
    if stage is None or size is None or not ranks:
        return skip(row, "the parameters, the stage of ZeRO or the devices are not given")
    model = load_model(_TRANSFORMER)
    graph = model.training(1, "fp16-mixed")
    parameters = float(size[1]) * {"b": 1e9, "t": 1e12}[size[2]]
    states = math.fsum(model_states(graph, stage, ranks).values())
    return Outcome(
        file=row.file, line=row.line, id=row.id, group=f"{row.text('model')} model states",
        sweep=f"{row.text('model')} ZeRO-{stage}", quantity="memory_bytes model states",
        configuration=f"{row.text('model')}, {ranks} devices, ZeRO-{stage}",
        predicted=states / graph.parameters * parameters, measured=measured,
        source=row.text("source"), trivial={"16 bytes a parameter": 16 * parameters / ranks},
    )  # fmt: skip


def _most(result: Result, kind: str) -> float:
    """Most bytes of one kind that any rank holds, not only at its fullest moment."""
    timeline = result.details.timeline
    column = timeline.program.memory_kinds.index(kind)
    ranks = np.unique(timeline.program.stream_rank)
    return float(max(timeline.memory_profile(int(r))[1][:, column].max() for r in ranks))


def _kept(result: Result) -> float:
    """Most bytes of activations that any rank holds when its first backward pass begins.

    What Korthikanti et al. count: what waits for the backward pass, without what this makes again.
    """
    timeline = result.details.timeline
    program = timeline.program
    column = program.memory_kinds.index("activations")
    backward = np.isin(program.kind, [program.kind_names.index(kind) for kind in _BACKWARD
                                      if kind in program.kind_names])  # fmt: skip
    rank_of = program.stream_rank[program.stream]
    most = 0.0
    for rank in np.unique(program.stream_rank).tolist():
        begin = timeline.start_s[backward & (rank_of == rank)].min(initial=np.inf)
        times, held = timeline.memory_profile(rank)
        most = max(most, float(held[max(np.searchsorted(times, begin) - 1, 0), column]))
    return most


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
    kinds = (
        (_TOTAL, "total"), (_ACTIVATIONS, "activations"), (_STATES, "states"),
        (_SHARE, "share"), (_ZERO, "model states"),
    )  # fmt: skip
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
    selective = "selec" in text or text in {"sel", "seqsel"}
    kind = "full" if "full" in text else "selective" if selective else "none"
    parallel = "sequence parallel" in text or text in {"seq", "seqsel"}
    return f"{kind}, sequence parallel" if parallel else kind


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
