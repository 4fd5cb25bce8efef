"""Accuracy after a fixed number of epochs: what a table says of a batch that it leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.training.final_accuracy import measured_accuracies

_TOLERANCE = 0.01


def reproduce() -> Reproduction:
    """Leave out each batch between two others, and interpolate over the logarithm of batch."""
    return Reproduction(
        name="large-batches",
        title="Top-1 accuracy of a batch by those below and above it: warm-up and LARS",
        source=(
            "P. Goyal et al., arXiv:1706.02677, table 2 (ResNet-50, 90 epochs); Y. You, I. Gitman "
            "and B. Ginsburg, arXiv:1708.03888 (AlexNet and ResNet-50 with LARS)"
        ),
        rows=tuple(_rows()),
        fits=(),
        notes=(
            "`ridgeline train` interpolates so, and refuses batches outside the measured ones: "
            "beyond the last one accuracy falls faster than any neighbour tells.",
            "Masters and Luschi (arXiv:1804.07612) find the best accuracy at batches of 2 to 32 "
            "on CIFAR and 16 to 64 on ImageNet; their curves are not at hand as numbers.",
        ),
    )


def _rows() -> Iterator[ReproducedFigure]:
    for (network, recipe), by_epochs in measured_accuracies().items():
        for epochs, points in by_epochs.items():
            batches = sorted(points)
            for i in range(1, len(batches) - 1):
                around = (batches[i - 1], batches[i + 1])
                value = np.interp(
                    math.log(batches[i]),
                    [math.log(batch) for batch in around],
                    [points[batch][0] for batch in around],
                )
                top1 = points[batches[i]][0] / 100
                yield ReproducedFigure(
                    group=f"{network}, {recipe}, {epochs} epochs, top-1",
                    quantity=f"batch {batches[i]:,}",
                    unit="",
                    published=(top1, top1),
                    predicted=float(value) / 100,
                    unfitted=float(value) / 100,
                    points=True,
                    tolerance=_TOLERANCE,
                )
