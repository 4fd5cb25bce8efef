"""Collectives over the links of a machine, in the form of nccl-tests.

Rows give a size and a time, or the bandwidth that follows from them. The machine is that of the
device and the system (``names.yaml``): DGX and HGX for boards with NVLink, servers on PCIe 3 for
others. A row that names a ring or NVLS is priced by it, others by what a library would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from ridgeline.hardware.load import load_cluster
from ridgeline.network import nccl
from ridgeline.network.collectives import CollectiveResult, collective
from ridgeline.network.topology import Topology, from_cluster
from ridgeline.study.validate.machines import machine_of
from ridgeline.study.validate.names import find_name
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated

ASYMPTOTIC_BYTES = 2.0**34
"""Size of a row that gives the bus bandwidth of large messages and no size."""
COLUMNS = (
    "op",
    "system",
    "accelerator",
    "n_accel",
    "size_bytes",
    "time_us",
    "busbw_GBps",
    "source",
)
SHIPPED = "collectives.csv"
_TIMED = {"device": "accelerator", "gpus": "n_accel", "bytes": "size_bytes"}
_NANOSECONDS = "time_ns"
_FAULTY = "misconfigured"
"""What notes say of clusters whose measurements are not those of their machines."""


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the bus bandwidth of every collective."""
    return predict_each(rows, lambda row: _one(translated(row)))


def translated(row: Row) -> Row:
    """Give a row of vTrain's tables (all-reduces by device, GPUs and bytes) the suite's columns."""
    if _NANOSECONDS not in row.values:
        return row
    time_ns = row.number(_NANOSECONDS)
    values = {
        "op": "all-reduce",
        "system": "",
        "source": "",
        "time_us": "" if time_ns is None else str(time_ns / 1e3),
        **{_TIMED.get(name, name): value for name, value in row.values.items()},
    }
    return Row(row.file, row.line, values)


def _one(row: Row) -> Outcome | Skipped:
    if _FAULTY in row.text("method").lower():
        return skip(row, "its note says that the cluster was misconfigured")
    device = find_name("devices", row.text("accelerator"))
    if device is None:
        return skip(row, f"no description of the device {row.text('accelerator')}")
    ranks, size = row.whole("n_accel"), row.number("size_bytes")
    if not ranks or ranks < 2:
        return skip(row, "the number of devices is not given")
    if not size and row.text("method").startswith("asymptotic"):
        size = ASYMPTOTIC_BYTES
    if not size:
        return skip(row, "no size: the most of a sweep, or a class of machines")
    op = row.text("op").replace("_", "-")
    nodes = row.whole("nodes") if "nodes" in row.values else None
    name, _ = machine_of(device, ranks, nodes, row.text("system"))
    result = _collective(op, size, _topology(name, device, ranks), ranks, row)
    measured = _measured_busbw(row, result)
    if measured is None or result.busbw_bytes_per_s is None:
        return skip(row, "no measured time or bandwidth")
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('system')} {op} {ranks}",
        sweep=f"{row.text('system')} {op} {ranks}",
        configuration=f"{op} of {size:.3g} B, {ranks} x {device} in {name}, {result.algorithm}",
        quantity="busbw_bytes_per_s",
        predicted=result.busbw_bytes_per_s,
        measured=measured,
        source=row.text("source"),
        **stated("collectives", result.busbw_bytes_per_s),
    )


def _collective(
    op: str, size_bytes: float, topology: Topology, ranks: int, row: Row
) -> CollectiveResult:
    """Price a collective by the algorithm that the row names, or as a library chooses."""
    kind = next((kind for kind in ("ring", "nvls") if kind in row.text("algo").lower()), None)
    if row.text("interconnect").lower().endswith(" ring"):
        kind = "ring"
    known = [
        schedule.algorithm for schedule in nccl.candidates(op, topology, range(ranks), size_bytes)
    ]
    named = [name for name in known if kind is not None and name.startswith(kind)]
    results = [collective(op, size_bytes, topology, ranks=ranks, algorithm=name)
               for name in named or ["auto"]]  # fmt: skip
    return min(results, key=lambda result: result.time_s)


def _measured_busbw(row: Row, result: CollectiveResult) -> float | None:
    """Bus bandwidth as measured, from the time where there is one."""
    time_us, busbw = row.number("time_us"), row.number("busbw_GBps")
    if time_us and result.busbw_bytes_per_s is not None:
        return result.busbw_bytes_per_s * result.time_s / (time_us * 1e-6)
    return busbw * 1e9 if busbw else None


@lru_cache(maxsize=64)
def _topology(name: str, device: str, ranks: int) -> Topology:
    overrides = {} if name == device else {"node.device": device}
    cluster = load_cluster(name, overrides)
    return from_cluster(cluster, max(ranks, min(cluster.max_devices, cluster.nodes.count)))
