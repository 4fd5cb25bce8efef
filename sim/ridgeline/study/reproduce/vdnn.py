"""vDNN: what VGG networks hold, and what of it can wait in the host's memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources

from ridgeline.hardware.load import load_device
from ridgeline.kernels.cudnn_fp32_conv import Library, workspace_bytes
from ridgeline.parallel.checkpointing.offload import with_offload
from ridgeline.parallel.memory.static_allocation import StaticMemory, at_once
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import Graph
from ridgeline.workload.liveness import peak
from ridgeline.workload.optimizers import find

_GB = 1e9
_DEVICE: str = "titan-x-maxwell"
_LIBRARY: Library = "cudnn4"


def reproduce() -> Reproduction:
    """Compute the memory of the baseline and of the offloaded networks."""
    return Reproduction(
        name="vdnn",
        title="vDNN: training memory of VGG networks, fp32",
        source=(
            "M. Rhu, N. Gimelshein, J. Clemons, A. Zulfiqar, S. Keckler, 'vDNN: Virtualized Deep "
            "Neural Networks for Scalable, Memory-Efficient Neural Network Design', MICRO 2016, "
            "arXiv:1602.08124"
        ),
        rows=(*_vgg16(_published()), *_vgg416(_published())),
        fits=(),
        notes=(
            "At once: every feature map, two gradient maps of the largest size, weights and their "
            "gradients, all allocated for the whole step, as the paper's baseline does. By "
            "liveness: each tensor from the op that makes it to the last one that reads it.",
            "Work space: one buffer for all layers, as large as that of the layer that needs most "
            "with the fastest algorithm of cuDNN 4 that a Titan X has room for (the library finds "
            "it by running it). The paper's share of 96 % is all but weights and their gradients, "
            "1.1 of 28 GB, so that the work space is among the rest.",
            "With batch 128 the Titan X has room for tiled transforms of the largest layer, which "
            "with batch 256 it has not; the paper's 15 GB are less than with them (17), more than "
            "without any (12).",
            "Offloaded are feature maps; PyTorch's indices of max pooling (3.1 GB, which cuDNN "
            "of the time did not need) stay on the device.",
        ),
    )


def _published() -> dict[tuple[str, str], float]:
    text = resources.files(__package__).joinpath("vdnn.csv").read_text("utf-8")
    return {
        (row["network"], row["quantity"]): float(row["published"])
        for row in csv.DictReader(text.splitlines())
    }


def _row(
    group: str, quantity: str, published: float, predicted: float, tolerance: float | None = None,
    *, points: bool = False,
) -> ReproducedFigure:  # fmt: skip
    return ReproducedFigure(
        group=group,
        quantity=quantity,
        unit="" if points else "GB",
        published=(published, published),
        predicted=predicted,
        unfitted=predicted,
        points=points,
        tolerance=tolerance,
    )


def _vgg16(paper: dict[tuple[str, str], float]) -> Iterator[ReproducedFigure]:
    for batch in (256, 128):
        group, needed = f"VGG-16, batch {batch}", paper[f"VGG-16 {batch}", "needed_gb"]
        graph = load_network("vgg16").training(batch, "fp32", find("sgd"))
        baseline = _baseline(graph)
        promised = 0.05 if batch == 256 else None
        yield _row(group, "needed, at once, GB", needed, baseline.total / _GB, promised)
        bare = baseline.total - baseline.workspace
        yield _row(group, "needed, at once, no work space, GB", needed, bare / _GB)
        live = peak(graph)
        yield _row(group, "needed, by liveness, GB", needed, live.total / _GB)
        if batch == 256:
            moving = live.bytes_by_kind["activations"] + live.bytes_by_kind["workspace"]
            shares = {"at once": baseline.map_share, "by liveness": moving / live.total}
            for how, share in shares.items():
                printed = paper["VGG-16 256", "share"]
                quantity = f"share of feature maps, {how}"
                yield _row(group, quantity, printed, share, 0.03, points=True)
            away = baseline.offloadable / _GB
            yield _row(group, "offloaded, GB", paper["VGG-16 256", "offloaded_gb"], away, 0.05)


def _vgg416(paper: dict[tuple[str, str], float]) -> Iterator[ReproducedFigure]:
    group, needed = "VGG-416, batch 32", paper["VGG-416 32", "needed_gb"]
    graph = load_network("vgg416").training(32, "fp32", find("sgd"))
    baseline = _baseline(graph)
    bare = baseline.total - baseline.workspace
    yield _row(group, "needed, by liveness, GB", needed, peak(graph).total / _GB, 0.03)
    yield _row(group, "needed, at once, no work space, GB", needed, bare / _GB)
    yield _row(group, "needed, at once, GB", needed, baseline.total / _GB)
    on_device = peak(with_offload(graph, "all")).total / _GB
    yield _row(
        group, "on the device once offloaded, GB", paper["VGG-416 32", "on_device_gb"], on_device
    )


def _baseline(graph: Graph) -> StaticMemory:
    """Return the paper's baseline: all at once, with one work space for all convolutions."""
    return at_once(graph, workspace_bytes(graph, load_device(_DEVICE), _LIBRARY))
