"""DGX-1: links and rings of eight GPUs in a hybrid cube mesh, and an all-reduce over them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.hardware import load_cluster, load_node
from ridgeline.network import from_cluster
from ridgeline.network.collectives import collective
from ridgeline.network.rings import ring_channels
from ridgeline.network.topology import Topology
from ridgeline.study.reproduce.table import (
    ReproducedFigure,
    Reproduction,
    printed,
    published_rows,
)

_GPUS = 8
_MACHINES = ("dgx1-p100", "dgx1-v100")
_MESSAGE_BYTES = 100e6


def reproduce() -> Reproduction:
    """Count links and rings of both generations, and send 100 MB over them."""
    return Reproduction(
        name="dgx-1",
        title="Eight GPUs in a hybrid cube mesh: links, rings and an all-reduce of 100 MB",
        source=(
            "NVIDIA, DGX-1 system architecture, white paper WP-08437-001, 2017; M. Harris, NVIDIA "
            "DGX-1: The Fastest Deep Learning System, 2017; the all-reduce: 2 (n - 1) / n of the "
            "message over the stated rate of a GPU's links, all of which rings use"
        ),
        rows=(*_rows(), *_all_reduces()),
        fits=(),
        notes=(
            "The all-reduce is on links that reach 90 and 93 % of their stated rates, as the files "
            "of the nodes say. Rings are edge-disjoint and in both directions; V100s have two "
            "links between some pairs. What NCCL measured on DGX-1V is in `ridgeline reproduce "
            "nccl-all-reduce`.",
        ),
    )


def _rows() -> Iterator[ReproducedFigure]:
    for row in published_rows("dgx_1"):
        topology = from_cluster(load_cluster(row["machine"]), _GPUS)
        computed = {
            "pairs of GPUs with NVLink": float(_linked(topology).sum() / 2),
            "pairs without": float((~_linked(topology)).sum() - _GPUS) / 2,
            "NVLink of a GPU, both directions, GB/s": _nvlink_bytes_per_s(row["machine"]) / 1e9,
            "rings": float(len(ring_channels(topology, tuple(range(_GPUS))).channels)),
        }
        yield printed(
            row["machine"],
            row["quantity"],
            float(row["published"]),
            computed[row["quantity"]],
            float(row["tolerance"]),
            row["note"],
        )


def _all_reduces() -> Iterator[ReproducedFigure]:
    sent_bytes = 2 * (_GPUS - 1) / _GPUS * _MESSAGE_BYTES
    for machine in _MACHINES:
        topology = from_cluster(load_cluster(machine), _GPUS)
        played = collective("all-reduce", _MESSAGE_BYTES, topology, algorithm="ring")
        yield printed(
            machine,
            "all-reduce of 100 MB, ms",
            sent_bytes / (_nvlink_bytes_per_s(machine) / 2) * 1e3,
            played.time_s * 1e3,
        )


def _between(topology: Topology) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Bandwidth of the direct links from each GPU to each, in bytes/s: (GPUs, GPUs)."""
    place = np.full(topology.n_vertices, -1)
    place[topology.devices] = np.arange(_GPUS)
    source, target = place[topology.source], place[topology.target]
    direct = (source >= 0) & (target >= 0)
    found = np.zeros((_GPUS, _GPUS))
    np.add.at(found, (source[direct], target[direct]), topology.bandwidth_bytes_per_s[direct])
    return found


def _linked(topology: Topology) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    return _between(topology) > 0


def _nvlink_bytes_per_s(machine: str) -> float:
    """Stated bandwidth of all links of the first GPU to others, both directions together."""
    node = load_node(machine)
    gpus = {f"device{i}" for i in range(_GPUS)}
    return 2 * sum(
        node.link_types[link.type].bandwidth.value * link.count
        for link in node.links
        if link.between and set(link.between) <= gpus and "device0" in link.between
    )
