"""Final accuracy: what networks reached after fixed epochs at a batch, by recipe, as measured.

Larger batches lose accuracy at equal epochs, and more epochs may bring it back. Between measured
batches of one recipe and number of epochs accuracy is a straight line over the logarithm of the
batch; outside, nothing is said.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from ridgeline.bounded_files import read_text
from ridgeline.errors import RidgelineError, nearest


class FinalAccuracy(NamedTuple):
    """Accuracy after so many epochs, and where it was measured."""

    epochs: int
    top1_pct: float
    source: str


def final_accuracies(network: str, recipe: str, batch: int) -> tuple[FinalAccuracy, ...]:
    """Return the accuracy after each number of epochs that was measured around a batch.

    Raises
    ------
    RidgelineError
        If the network or the recipe is not in the table, or no such batch.
    """
    table = measured_accuracies()
    networks = {name for name, _ in table}
    if network not in networks:
        raise RidgelineError(
            f"no final accuracy is known of {network!r}{nearest(network, networks)} "
            f"(known: {', '.join(sorted(networks))})"
        )
    recipes = sorted(of for name, of in table if name == network)
    if recipe not in recipes:
        raise RidgelineError(
            f"{network} was not trained by {recipe!r}{nearest(recipe, recipes)} "
            f"(known: {', '.join(recipes)})"
        )
    found, spans = [], []
    for epochs, points in sorted(table[network, recipe].items()):
        batches = sorted(points)
        spans.append(f"{batches[0]:,} to {batches[-1]:,} after {epochs} epochs")
        if batches[0] <= batch <= batches[-1]:
            logs = [math.log(b) for b in batches]
            value = np.interp(math.log(batch), logs, [points[b][0] for b in batches])
            found.append(FinalAccuracy(epochs, float(value), points[batches[0]][1]))
    if not found:
        raise RidgelineError(
            f"{network} by {recipe} was measured at batches of {'; '.join(spans)}; "
            f"{batch:,} is outside"
        )
    return tuple(found)


def epochs_to_accuracy(network: str, recipe: str, batch: int, top1_pct: float) -> FinalAccuracy:
    """Return the fewest measured epochs after which a batch reaches an accuracy.

    Raises
    ------
    RidgelineError
        If none of them does, or nothing was measured there.
    """
    known = final_accuracies(network, recipe, batch)
    for of in known:
        if of.top1_pct >= top1_pct:
            return of
    reached = ", ".join(f"{of.top1_pct:.4g} % after {of.epochs} epochs" for of in known)
    raise RidgelineError(
        f"{network} by {recipe} at a batch of {batch:,} does not reach {top1_pct:g} %: it was "
        f"measured to reach {reached}"
    )


Points = Mapping[int, tuple[float, str]]


@cache
def measured_accuracies() -> Mapping[tuple[str, str], Mapping[int, Points]]:
    """Accuracy and source by network and recipe, epochs, and batch."""
    place = resources.files("ridgeline.training").joinpath("data", "final_accuracy.csv")
    table: dict[tuple[str, str], dict[int, dict[int, tuple[float, str]]]] = {}
    for row in csv.DictReader(io.StringIO(read_text(str(place)))):
        of = table.setdefault((row["network"], row["recipe"]), {})
        of.setdefault(int(row["epochs"]), {})[int(row["batch"])] = (
            float(row["top1_pct"]),
            row["source"],
        )
    return table
