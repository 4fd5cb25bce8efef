"""Dispatch and combine of expert parallelism, over the links of the machine that a row names.

Every token goes to the ranks that its experts are on, once to each, or once for every expert by
libraries of low latency; what goes back is summed up in 16 bits. A call is priced by the library's
kernels (`ridgeline.network.expert_exchange`); of a library that is not known, as an all-to-all of
that many bytes, by the algorithm that a library of collectives would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.load import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.collectives import collective
from ridgeline.network.expert_exchange import (
    ExchangeShape,
    all_copies,
    exchange_calls,
    exchange_time_s,
)
from ridgeline.network.topology import Topology
from ridgeline.study.validate import measured
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import bytes_of

SHAPE = ("tokens", "hidden", "topk", "experts")
COLUMNS = (
    "device_key", "library", "phase", "ep", "nodes", "dtype", *SHAPE, "time_us", "source",
)  # fmt: skip
SHIPPED = "measured/expert_all_to_all.csv.gz"
_SCALE = 2.0
_PER_NODE = {"gb200": 4, "gb300": 4}
"""Ranks of a node, where a row gives nodes alone: trays of four; others have eight."""
_FORMATS = {"bfloat16": "bf16", "fp8": "fp8-e4m3", "nvfp4": "nvfp4", "default": "bf16"}
_SCALES_BYTES = 4 / 128  # a number of fp8: one scale in fp32 for 128 of them (DeepEP)
_INDEX_BYTES = 8  # expert and place of one choice, in 32 bits each


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every dispatch and combine."""
    return predict_each(rows, _one)


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    device, library, phase = (row.text(name) for name in ("device_key", "library", "phase"))
    measured.device_named(device)
    tokens, hidden, top_k, experts = measured.sizes(row, *SHAPE)
    nodes = row.whole("nodes")
    ranks = row.whole("ep") or (nodes or 0) * _PER_NODE.get(device, 8)
    if ranks < 2:
        raise RidgelineError("neither ep nor nodes says how many ranks take part")
    low_latency = "low-latency" in library or library.endswith("_ll")
    copies = sent_copies(top_k, experts, ranks, once_each=not low_latency)
    each = _bytes_of_token(row.text("dtype"), phase, hidden, top_k)
    sent = tokens * copies * each
    topology, name = _topology(device, ranks, nodes, row.text("source"))
    if (library, phase) in exchange_calls():
        shape = ExchangeShape(tokens, top_k, experts, each)
        used = row.whole("sms") or 0 if row.text("sms") else 0
        predicted_s = exchange_time_s(
            exchange_calls()[library, phase], shape, topology, ranks, used
        )
    else:
        all_sent = sent * ranks / (ranks - 1)
        predicted_s = collective("all-to-all", all_sent, topology, ranks=ranks).time_s
    time_us = measured.positive(row, "time_us")
    roofline_s = sent / _rate(topology, ranks)
    kind = f"{library} {phase}"
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{device} {kind} {ranks}",
        sweep=f"{device} {kind} {ranks}",
        configuration=f"{kind}, {tokens} x {top_k} of {experts}, {hidden}, {ranks} in {name}",
        quantity="time_s",
        predicted=predicted_s,
        measured=time_us * 1e-6,
        source=row.text("source"),
        trivial={
            "roofline": roofline_s,
            "scaled roofline": _SCALE * roofline_s + measured.SCALED_S,
        },
        command=row.command("expert-all-to-all"),
        device=device,
        format=row.text("dtype") or "not stated",
        kind=kind,
        **stated("expert-all-to-all", predicted_s, device=measured.device_named(device)),
    )


def sent_copies(top_k: int, experts: int, ranks: int, *, once_each: bool) -> float:
    """Count the copies of a token that leave its rank, on average of evenly chosen experts.

    Parameters
    ----------
    once_each
        Whether a rank with several of its experts gets it once.
    """
    # All ranks are alike, so one of them in `ranks` is its own.
    return all_copies(top_k, experts, ranks, once_each=once_each) * (ranks - 1) / ranks


def _bytes_of_token(dtype: str, phase: str, hidden: int, top_k: int) -> float:
    """Bytes of one copy: DeepEP dispatches fp8 with scales and combines bf16 where none is said."""
    if phase == "alltoall_prepare":
        return float(_INDEX_BYTES * top_k)
    if "combine" in phase:
        return hidden * bytes_of("nvfp4" if phase.endswith("low_precision") else "bf16")
    if dtype and dtype not in _FORMATS:
        raise RidgelineError(
            f"there is no dtype {dtype!r}{nearest(dtype, _FORMATS)} (known: {', '.join(_FORMATS)})"
        )
    format_ = _FORMATS[dtype] if dtype else "fp8-e4m3"
    scales = _SCALES_BYTES if bytes_of(format_) <= 1 else 0.0
    return hidden * (bytes_of(format_) + scales)


@lru_cache(maxsize=64)
def _topology(device: str, ranks: int, nodes: int | None, place: str) -> tuple[Topology, str]:
    from ridgeline.study.import_rows.machines import machine_of

    in_rack = device in _PER_NODE  # trays of a rack share one NVLink domain
    name, fields = machine_of(device, ranks, None if in_rack else nodes, "")
    cluster = load_cluster(name, {} if name == device else dict(fields))
    return from_cluster(cluster, max(ranks, min(cluster.max_devices, cluster.nodes.count))), name


@lru_cache(maxsize=64)
def _rate(topology: Topology, ranks: int) -> float:
    """Bytes a second that a rank sends of an all-to-all so large that nothing else counts."""
    result = collective("all-to-all", _LARGE_BYTES, topology, ranks=ranks)
    return _LARGE_BYTES * (ranks - 1) / ranks / result.time_s


_LARGE_BYTES = 2.0**36
