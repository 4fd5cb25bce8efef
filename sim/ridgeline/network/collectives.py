"""Collectives: what one costs on a machine that has nothing else to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.network.algorithms.ring import (
    all_gather_ring,
    all_reduce_ring,
    reduce_scatter_ring,
)
from ridgeline.network.schedule import ALGORITHMS, Phase, Schedule, closed_form_time_s
from ridgeline.network.topology import Topology, from_cluster, from_text, is_inline

__all__ = [
    "ALGORITHMS",
    "CollectiveResult",
    "Phase",
    "Schedule",
    "all_gather_ring",
    "all_reduce_ring",
    "closed_form_time_s",
    "collective",
    "reduce_scatter_ring",
]

_BUS_PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
"""Bus bandwidth is algorithm bandwidth times this times (n-1)/n (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """What a collective costs.

    Attributes
    ----------
    op, algorithm, n_ranks, size_bytes
        What was done.
    time_s
        From the start to the end on all ranks.
    algbw_bytes_per_s
        ``size_bytes / time_s``; None if no time passes.
    busbw_bytes_per_s
        What the links sustain per rank, as nccl-tests defines it: for an all-reduce of n ranks
        ``algbw * 2(n-1)/n``; None if no time passes.
    link_utilisation
        Per link that carries something, the share of the time that its bandwidth is in use.
    energy_j
        Of moving the bytes over the links.
    """

    op: str
    algorithm: str
    n_ranks: int
    size_bytes: float
    time_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    link_utilisation: dict[str, float]
    energy_j: float


def collective(
    op: str,
    size_bytes: float,
    where: str | Cluster | Topology,
    *,
    ranks: int | Sequence[int] | None = None,
    algorithm: str = "auto",
) -> CollectiveResult:
    """Price a collective.

    Parameters
    ----------
    op
        ``all-reduce``, ``reduce-scatter`` or ``all-gather``.
    size_bytes
        As nccl-tests counts it: the whole buffer, also of an all-gather and a reduce-scatter.
    where
        Name or path of a cluster, a cluster, a topology, or inline text such as
        ``"Ring(16, 50 GB/s, 500 ns)"``.
    ranks
        The ranks that take part, or how many from rank 0 on; all of them by default.
    algorithm
        Name of an algorithm; "auto" takes the fastest there is.

    Raises
    ------
    RidgelineError
        If `where`, `ranks`, `op` or `algorithm` is unknown or the size is impossible.
    """
    names = _algorithms(op)
    topology, group = _resolve(where, ranks)
    wanted = names if algorithm == "auto" else [algorithm]
    schedules = [ALGORITHMS[op, name](topology, group, size_bytes) for name in wanted]
    schedule = min(schedules, key=lambda s: (closed_form_time_s(s, topology), s.algorithm))
    return _result(schedule, topology)


def _algorithms(op: str) -> list[str]:
    """Names of the algorithms of an operation."""
    names = sorted(name for known, name in ALGORITHMS if known == op)
    if not names:
        ops = sorted({known for known, _ in ALGORITHMS})
        raise RidgelineError(
            f"no collective is called {op!r}{nearest(op, ops)} (known: {', '.join(ops)})"
        )
    return names


def _resolve(
    where: str | Cluster | Topology, ranks: int | Sequence[int] | None
) -> tuple[Topology, tuple[int, ...]]:
    """Return the topology, just large enough if it can be chosen, and the group of ranks."""
    group = (
        tuple(range(ranks)) if isinstance(ranks, int) else None if ranks is None else tuple(ranks)
    )
    if group is not None and (not group or min(group) < 0):
        raise RidgelineError(f"ranks must be 0 or more and at least one, found {ranks!r}")
    if isinstance(where, str):
        where = from_text(where) if is_inline(where) else load_cluster(where)
    if isinstance(where, Cluster):
        where = from_cluster(where, where.max_devices if group is None else max(group) + 1)
    return where, tuple(range(where.n_devices)) if group is None else group


def _result(schedule: Schedule, topology: Topology) -> CollectiveResult:
    time_s = closed_form_time_s(schedule, topology)
    algbw = busbw = None
    if time_s > 0:
        n = schedule.n_ranks
        algbw = schedule.size_bytes / time_s
        busbw = algbw * _BUS_PASSES[schedule.op] * (n - 1) / n
    wire = schedule.bytes_on_wire()
    return CollectiveResult(
        op=schedule.op,
        algorithm=schedule.algorithm,
        n_ranks=schedule.n_ranks,
        size_bytes=schedule.size_bytes,
        time_s=time_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        link_utilisation={
            topology.link_name(link): size / float(topology.bandwidth_bytes_per_s[link]) / time_s
            for link, size in wire.items()
            if time_s > 0
        },
        energy_j=sum(size * float(topology.energy_j_per_byte[link]) for link, size in wire.items()),
    )
