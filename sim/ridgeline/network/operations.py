"""Operation names: those of nccl-tests, NCCL and MPI for the operations that are priced here."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.errors import RidgelineError, nearest

_SAME = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "alltoallv": "all-to-all",
    "bcast": "broadcast",
    "sendrecv": "send-recv",
    "sendreceive": "send-recv",
    "sendrecvperf": "send-recv",
    "hypercube": "all-gather",
}
"""By name without hyphens: hypercube gathers by recursive doubling (nccl-tests)."""


def operation_named(name: str, known: Iterable[str]) -> str:
    """Return what an operation is called here; ``all_reduce_perf`` and ``alltoall`` are known, too.

    Raises
    ------
    RidgelineError
        If there is none, with the nearest name.
    """
    known = sorted(set(known))
    plain = name.strip().lower().replace("_", "-").removesuffix("-perf")
    joined = plain.replace("-", "").removeprefix("nccl")
    by_joined = {one.replace("-", ""): one for one in known}
    for found in (plain, _SAME.get(joined), by_joined.get(joined)):
        if found in known:
            return str(found)
    raise RidgelineError(
        f"no collective is called {name!r}{nearest(plain, known)} (known: {', '.join(known)}; and "
        "their names in nccl-tests, such as all_reduce, alltoall, sendrecv)"
    )
