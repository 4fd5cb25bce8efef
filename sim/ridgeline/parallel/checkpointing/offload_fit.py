"""Recomputation and offload together: the fastest step that fits into a device's memory.

vDNN's dynamic policy tries its policies in order and takes the first that trains (section III.C);
here every combination with a way to recompute is tried, and as few tensors as it takes, and the
fastest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline.parallel.checkpointing.chain import DoesNotFit
from ridgeline.parallel.checkpointing.offload import (
    COPIES,
    OffloadLink,
    OffloadOverlap,
    offloadable,
    overlapped,
    with_offload,
)
from ridgeline.parallel.checkpointing.recompute import Mode, with_recompute
from ridgeline.units import show
from ridgeline.workload.graph import Graph
from ridgeline.workload.liveness import peak

_NO_HOST = OffloadLink(math.inf, 0.0)  # nothing is copied
Timer = Callable[[Graph], Sequence[float]]
"""Seconds of each op of a graph without copies, in graph order, without waiting."""


@dataclass(frozen=True)
class OffloadFit:
    """A step that fits: its graph, what was done to it, what it holds and takes."""

    graph: Graph
    recompute: str
    offload: str
    peak_bytes: int
    time: OffloadOverlap


def fastest_fit(
    graph: Graph, budget_bytes: float, timer: Timer, link: OffloadLink | None
) -> OffloadFit:
    """Return the fastest of all combinations of recomputation and offload that fits.

    Parameters
    ----------
    graph
        A training graph without either.
    budget_bytes
        Of the device, for everything.
    timer
        Prices the ops of a graph, with what stays on chip between them (`OpPricer.costs`).
    link
        Where copies go (`host_link`); None: nothing can be offloaded.

    Raises
    ------
    DoesNotFit
        If none fits.
    """
    fits: list[OffloadFit] = []
    least = float("inf")
    for recompute, offload, changed in _combinations(graph, budget_bytes, timer):
        if link is None and offload != "none":
            continue
        held = peak(changed).total
        least = min(least, held)
        if held <= budget_bytes:
            computing = tuple(op for op in changed.ops if op.kind not in COPIES)
            times_s = timer(replace(changed, ops=computing))
            prices = dict(zip((op.name for op in computing), times_s, strict=True))
            time = overlapped(changed, prices, link or _NO_HOST)
            fits.append(OffloadFit(changed, recompute, offload, held, time))
    if not fits:
        raise DoesNotFit(
            f"{graph.name}: no recomputation and offload fits into "
            f"{show(float(budget_bytes), 'B', 4)}; the least found is {show(float(least), 'B', 4)}"
        )
    return min(fits, key=lambda fit: fit.time.step_s)


def _combinations(
    graph: Graph, budget_bytes: float, timer: Timer
) -> Iterator[tuple[str, str, Graph]]:
    modes: tuple[Mode, ...] = ("none", "selective", "full", "sqrt")
    for recompute in modes:
        changed = with_recompute(graph, recompute)
        if recompute == "selective" and len(changed.ops) == len(graph.ops):
            continue  # no attention in it
        yield recompute, "none", changed
        yield recompute, "conv", with_offload(changed, "conv")
        yield recompute, "all", with_offload(changed, "all")
        few = _few(changed, budget_bytes)
        if few is not None:
            yield recompute, "few", few
    try:
        again = with_recompute(
            graph, "budget", budget_bytes=budget_bytes, time_s=list(timer(graph))
        )
        yield "budget", "none", again
    except DoesNotFit:
        pass


def _few(graph: Graph, budget_bytes: float) -> Graph | None:
    """Offload as few of the tensors that wait longest as it takes to fit, if it can."""
    names = offloadable(graph, "all")
    low, high = 0, len(names)
    if peak(with_offload(graph, tensors=names)).total > budget_bytes:
        return None
    while low < high:
        middle = (low + high) // 2
        if peak(with_offload(graph, tensors=names[:middle])).total <= budget_bytes:
            high = middle
        else:
            low = middle + 1
    return with_offload(graph, tensors=names[:high])
