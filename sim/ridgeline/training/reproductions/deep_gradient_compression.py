"""Deep gradient compression: bytes of sparse gradients, and 64 nodes by 1 and 10 Gb/s."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources

from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction, printed
from ridgeline.training.compressed_step import compressed_step_s
from ridgeline.training.compression import COMPRESSIONS
from ridgeline.training.run_file import SentGradients
from ridgeline.workload.files import load_network

_MIB = float(2**20)
_SENT = SentGradients(compression="deep-gradient-compression", fill_in="worst")
_NODES, _PER_NODE, _BATCH = 64, 4, 512
_BYTES, _SPEED = 0.01, 0.15
_GBE_BYTES_PER_S = 0.125e9


def reproduce() -> Reproduction:
    """Compute bytes of gradients, and speed-ups over one node."""
    return Reproduction(
        name="deep-gradient-compression",
        title="Bytes of sparse gradients, and AlexNet on 64 nodes of four Titan Xp",
        source=(
            "Y. Lin, S. Han, H. Mao, Y. Wang and W. Dally, Deep gradient compression, ICLR 2018, "
            "arXiv:1712.01887: sizes of gradients before and after; figure 6"
        ),
        rows=(*_bytes(), *_speed_ups()),
        fits=(),
        notes=(
            "One number of a thousand, 32 bits and a run length of 16 bits each, is 667 times "
            "less; what else of a gradient is sent whole is not stated, and is more in ResNet-50.",
            "Figure 6 states no batch: 512 images a GPU are assumed, and the worst fill-in.",
        ),
    )


def _bytes() -> Iterator[ReproducedFigure]:
    table = resources.files(__package__).joinpath("deep_gradient_compression.csv")
    for row in csv.DictReader(table.read_text("utf-8").splitlines()):
        dense = 4.0 * load_network(row["model"]).training(1, "fp32").parameters / _MIB
        sent, ratio = float(row["compressed_mb"]), COMPRESSIONS[_SENT.compression].ratio()
        yield printed("MiB of gradients", row["network"], float(row["dense_mb"]), dense, _BYTES)
        yield printed("MiB that are sent", row["network"], sent, dense / ratio)


def _speed_ups() -> Iterator[ReproducedFigure]:
    for quantity, published, rate, sent in (
        ("1 Gb/s, compressed", 40.0, _GBE_BYTES_PER_S, _SENT),
        ("10 Gb/s, whole gradients", 30.0, 10 * _GBE_BYTES_PER_S, None),
    ):
        alone, many = _step(1, rate), _step(_NODES, rate)
        step_s = many[1].step_time_s if sent is None else compressed_step_s(*many, sent)
        yield printed(
            "speed-up of 64 nodes over one",
            quantity,
            published,
            _NODES * alone[1].step_time_s / step_s,
            _SPEED,
        )


def _step(nodes: int, bytes_per_s: float) -> tuple[Point, Result]:
    devices = nodes * _PER_NODE
    point = Point(
        "alexnet",
        "pcie3-4gpu-10gbe",
        {"data": devices, "global_batch": devices * _BATCH, "precision": "fp32"},
        {
            "cluster.node.device": "titan-xp",
            "cluster.link_types.10gbe.bandwidth": f"{bytes_per_s!r} B/s",
        },
    )
    return point, point.simulate()
