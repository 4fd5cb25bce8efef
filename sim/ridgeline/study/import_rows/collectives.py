"""Collectives in the form of nccl-tests: machines by the words for a device and a system.

DGX and HGX for boards with NVLink, servers on PCIe 3 for others (``names.yaml``). A row that names
a ring or NVLS is priced by the fastest algorithm of that kind, others by what a library chooses.
vTrain's tables have columns of their own (all-reduces by device, GPUs and bytes).
"""

from __future__ import annotations

from functools import lru_cache

from ridgeline.hardware.load import load_cluster
from ridgeline.network import nccl
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.collectives import bus_bandwidth, collective
from ridgeline.network.operations import operation_named
from ridgeline.network.topology import Topology
from ridgeline.study.import_rows.machines import machine_of
from ridgeline.study.import_rows.names import find_name
from ridgeline.study.validate.rows import MeasuredRow

READS = (
    "op", "system", "accelerator", "n_accel", "size_bytes", "time_us", "busbw_GBps", "source",
)  # fmt: skip
_ASYMPTOTIC_BYTES = 2.0**34  # of a row that gives the bandwidth of large messages and no size
_TIMED = {"device": "accelerator", "gpus": "n_accel", "bytes": "size_bytes"}
_MEASURED = {"device_key": "accelerator", "ranks": "n_accel", "bytes": "size_bytes"}
_LIBRARIES = {"sglang": "sglang", "vllm": "vllm", "trtllm": "trtllm"}
"""Frameworks with an all-reduce of their own, by the beginning of what tables call the library."""
_FORMATS = {"half": "fp16", "float": "fp32", "bfloat16": "bf16", "double": "fp64", "int8": "int8",
            "uint8": "int8"}  # fmt: skip
_PROFILED = "torch.distributed"
"""Framework of rows whose kernels were timed by a profiler while the host launched call by call."""
_STREAMED = "nccl-tests"
"""Framework of rows of calls without graphs; tables that name no framework are of such calls."""
_FAULTY = "misconfigured"
"""What notes say of clusters whose measurements are not those of their machines."""


def translated(row: MeasuredRow) -> MeasuredRow:
    """Give a row of vTrain's tables, or of measured collectives, the columns of others."""
    if "device_key" in row.values and "bytes" in row.values:
        named = {_MEASURED.get(name, name): value for name, value in row.values.items()}
        return MeasuredRow(row.file, row.line, named)
    if "time_ns" not in row.values:
        return row
    time_ns = row.number("time_ns")
    values = {
        "op": "all-reduce",
        "system": "",
        "source": "",
        "time_us": "" if time_ns is None else str(time_ns / 1e3),
        "busbw_GBps": "",
        **{_TIMED.get(name, name): value for name, value in row.values.items()},
    }
    return MeasuredRow(row.file, row.line, values)


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return what a collective is called here."""
    row = translated(row)
    if _FAULTY in row.text("method").lower():
        return {"skip": "its note says that the cluster was misconfigured"}
    device = find_name("devices", row.text("accelerator"))
    if device is None:
        return {"skip": f"no description of the device {row.text('accelerator')}"}
    ranks, size = row.whole("n_accel"), row.number("size_bytes")
    if not ranks or ranks < 2:
        return {"skip": "the number of devices is not given"}
    if not size and row.text("method").startswith("asymptotic"):
        size = _ASYMPTOTIC_BYTES
    if not size:
        return {"skip": "no size: the most of a sweep, or a class of machines"}
    time_us, busbw = row.number("time_us"), row.number("busbw_GBps")
    op = operation_named(row.text("op"), {known for known, _ in ALGORITHMS})
    nodes = row.whole("nodes") if "nodes" in row.values else None
    per_node = _ranks_per_node(row, device, nodes)
    name, _ = machine_of(device, ranks, nodes, row.text("system"))
    algorithm = "auto"
    if not per_node:
        algorithm = _algorithm(op, size, _topology(name, device, ranks), ranks, row)
    measured = bus_bandwidth(op, ranks, size, time_us * 1e-6) if time_us else (busbw or 0) * 1e9
    if not measured:
        return {"skip": "no measured time or bandwidth"}
    return {
        "operation": op,
        "size": f"{size!r} B",
        "machine": name,
        "machine_fields": "" if name == device else f"node.device={device}",
        "ranks": str(ranks),
        "algorithm": algorithm,
        **_called(row, op),
        "ranks_per_node": str(per_node or ""),
        "quantity": "busbw_bytes_per_s",
        "measured": repr(measured),
        "sweep": " ".join(filter(None, (row.text("system"), row.text("library")))),
        "source": row.text("source"),
    }


def _called(row: MeasuredRow, op: str) -> dict[str, str]:
    """Return whose kernels a row measured, how they were launched, and the format of the values."""
    text = row.text("library").lower()
    library = next((of for start, of in _LIBRARIES.items() if text.startswith(start)), "nccl")
    profiled = row.text("framework") == _PROFILED and op == "all-reduce"
    return {
        "library": library,
        "launch": "eager" if profiled or text.endswith("eager") else _queued(row),
        "number_format": _FORMATS.get(row.text("dtype"), ""),
    }


def _queued(row: MeasuredRow) -> str:
    """Return how calls of a benchmark were launched: in graphs, or on streams."""
    framework = row.text("framework") if "framework" in row.values else _STREAMED
    return "stream" if framework == _STREAMED else "queued"


def _ranks_per_node(row: MeasuredRow, device: str, nodes: int | None) -> int | None:
    """Return how many ranks a node has, where they leave some of its devices idle; else None."""
    per_node = row.whole("ranks_per_node") if "ranks_per_node" in row.values else None
    if not per_node or (nodes or 1) == 1:
        return None
    name, _ = machine_of(device, row.whole("n_accel") or 2, nodes, row.text("system"))
    return per_node if per_node < load_cluster(name).nodes.count else None


def _algorithm(op: str, size: float, topology: Topology, ranks: int, row: MeasuredRow) -> str:
    """Return the fastest algorithm of the kind that a row names, else auto."""
    kind = next((kind for kind in ("ring", "nvls") if kind in row.text("algo").lower()), None)
    if row.text("interconnect").lower().endswith(" ring"):
        kind = "ring"
    found = nccl.candidates(op, topology, range(ranks), size) if kind else []
    named = [s.algorithm for s in found if kind is not None and s.algorithm.startswith(kind)]

    def time_s(name: str) -> float:
        return collective(op, size, topology, ranks=ranks, algorithm=name).time_s

    return min(named, key=time_s, default="auto")


@lru_cache(maxsize=64)
def _topology(name: str, device: str, ranks: int) -> Topology:
    cluster = load_cluster(name, {} if name == device else {"node.device": device})
    return from_cluster(cluster, max(ranks, min(cluster.max_devices, cluster.nodes.count)))
