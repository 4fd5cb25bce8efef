"""Bounds of a plan from below: of its step time, its energy and its memory.

`screen` is the compiled closed form over all plans: of a pipeline it only knows the sums over all
units. `sharpen` knows the stages. Both leave out what can only add to the engine's answer (waiting
for messages, shared links, launches of what is done once a step), so neither is ever above it.

A micro-batch takes x_s on stage s, and M of them pass each stage one after the other; before the
first one the stages before have to be passed forward, after the last one backward. So
``T >= sum(x_r for r < s) + M x_s`` for every s, of which follows for any split of W = sum(x_s) over
K stages: ``T >= W / (1 - (1 - 1/M)**K)``, with equality where each takes 1 - 1/M of the one before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline._jit import kernel
from ridgeline.parallel.schedules import SCHEDULES
from ridgeline.study.planner.groups import (
    ACCUMULATE,
    BACKWARD,
    ENERGY,
    FORWARD,
    WEIGHT_GRADIENT,
    Floats,
    Group,
)
from ridgeline.study.planner.held import (
    BESIDE,
    COMPUTED,
    GATHERED,
    GRADIENT,
    KEPT,
    MASTER,
    OTHER,
    SCATTERED,
    STATE,
)
from ridgeline.study.planner.space import SCHEDULE_NAMES

Ints = npt.NDArray[np.int64]
ROUNDING = 1e-9  # relative: what sums in another order may differ by
TOTALS = (
    *("forward", "backward", "weights", "accumulate", "energy", "path", "longest"),
    *("state", "master", "computed", "gradient", "other", "kept"),
)


class Bound(NamedTuple):
    """Least step time and energy of a plan, and bytes that its fullest rank holds at least."""

    time_s: float
    energy_j: float
    memory_bytes: float


class Wire(NamedTuple):
    """Least seconds a byte of the collectives between data-parallel ranks."""

    all_reduce: float
    reduce_scatter: float
    all_gather: float


def totals(group: Group) -> Floats:
    """Return what `screen` knows of a group: see `TOTALS`."""
    work, held = group.work.sum(axis=0), group.held[:, : KEPT + 1].sum(axis=0)
    longest = (group.seconds(0) + group.seconds(1)).max(initial=0.0)
    return np.array([*work, group.linked_s(), longest, *held])


@kernel
def screen(group, known, micro_batches, stages, data, sharding, drains, spread, wire, out):  # type: ignore[no-untyped-def]
    """Write the bounds of all plans into out [P, 3]: seconds, joules without idle power, bytes.

    Parameters
    ----------
    group, known
        [P] row of `known` [G, 13] (`totals`) of each plan.
    micro_batches, stages, data, sharding
        [P] of each plan.
    drains
        [P] whether a stage's last work of the step is a whole backward pass.
    spread
        [P] sum over stages of one over the micro-batches in flight (`in_flight`).
    wire
        [P, 3] seconds a byte: all-reduce, reduce-scatter, all-gather.
    """
    for i in range(len(group)):
        t = known[group[i]]
        m, k, d, s = micro_batches[i], stages[i], data[i], sharding[i]
        whole = t[0] + t[1] + t[2]
        added = t[3] * (m - 1) if s < 2 else 0.0
        time_s = max((m * whole + added) / k, m * t[6])
        if k > 1 and drains[i]:
            # the path leaves out what does not wait; every stage has at most that much more
            time_s = max(time_s, t[5] / (1.0 - (1.0 - 1.0 / m) ** k))
        gradient, computed = t[10] / k, t[9] / k
        if d > 1:
            if s == 0:
                moved = gradient * wire[i, 0]
            elif s == 1:
                moved = gradient * wire[i, 1] + computed * wire[i, 2]
            elif s == 2:
                moved = m * gradient * wire[i, 1] + computed * wire[i, 2]
            else:
                moved = m * (gradient * wire[i, 1] + 2.0 * computed * wire[i, 2])
            time_s = max(time_s, moved)
        out[i, 0] = time_s
        out[i, 1] = t[4] * m
        held = t[7] / (d if s >= 1 else 1) + t[8] / (d if s >= 1 else 1)
        held += t[9] / (d if s >= 3 else 1) + t[11]
        if m > 1:
            held += t[10] / (d if s >= 2 else 1)
        # the fullest stage has at least the mean; least is kept where stages keep equally much
        out[i, 2] = max((held + t[12]) / k, t[12] / spread[i])


def sharpen(
    group: Group, *, schedule: int, stages: int, chunks: int, micro_batches: int, data: int,
    sharding: int, wire: Wire,
) -> Bound:  # fmt: skip
    """Return the bounds of one plan whose stages are known."""
    work, held = group.by_stage(stages * chunks)
    m, name = micro_batches, SCHEDULE_NAMES[schedule]
    splits = SCHEDULES[name].splits_backward and stages > 1
    whole = work[:, FORWARD] + work[:, BACKWARD] + work[:, WEIGHT_GRADIENT]
    added = work[:, ACCUMULATE] * (m - 1 if sharding < 2 else 0)
    chunked = (chunks, stages)
    busy = (m * whole + added).reshape(chunked).sum(axis=0)
    begin = _begin(group, stages, chunks)
    bound = float((begin + busy).max())
    hurried = m * (work[:, FORWARD] + work[:, BACKWARD]) if splits else busy
    for stage, rest_s in _rest(group, stages, chunks, 2 if splits else 1):
        bound = max(bound, float(begin[stage] + hurried[stage]) + rest_s)
    if data > 1:
        bound = max(bound, _with_wire(work, held, begin, busy, chunked, m, sharding, wire))
    energy = float(work[:, ENERGY].sum()) * m
    none = np.zeros(stages)
    beside = none if splits else _beside(group, stages, chunks, data, sharding)
    memory = _memory(held, beside, name, stages, chunks, m, data, sharding)
    return Bound(bound * (1 - ROUNDING), energy * (1 - ROUNDING), memory)


def _begin(group: Group, stages: int, chunks: int) -> Floats:
    """Return [stages] when a stage can begin, if it then never waits for the one before."""
    seconds = np.add.reduceat(group.seconds(0), group.cut(stages * chunks)[:-1])
    came, begin = np.zeros(stages), np.zeros(stages)
    waits = group.waits(stages * chunks, 0)
    for s in range(stages):
        source, lead_s, trail_s = waits[s]
        if source >= 0:
            # from the moment at which the source got what it waits for to what this one waits for
            inside = seconds[source] - waits[source].lead_s - trail_s
            came[s] = came[source] + max(inside, 0.0)
            begin[s] = max(came[s] - lead_s, 0.0)
    return begin


def _rest(group: Group, stages: int, chunks: int, direction: int) -> list[tuple[int, float]]:
    """Return (stage, seconds): what follows its last backward block, from the end of that on."""
    seconds = np.add.reduceat(group.seconds(direction), group.cut(stages * chunks)[:-1])
    waits = group.waits(stages * chunks, direction)
    found, after = [], np.zeros(stages)
    for r in range(stages):
        # of a stage that waits: from that moment to the end of the step
        after[r] = max(after[r], seconds[r] - waits[r].lead_s)
        source = waits[r].source
        if 0 <= source < stages:
            found.append((source, after[r] - waits[r].trail_s))
            inside = seconds[source] - waits[source].lead_s - waits[r].trail_s
            after[source] = max(after[source], max(inside, 0.0) + after[r])
    return found


def _with_wire(
    work: Floats, held: Floats, fill: Floats, busy: Floats, chunked: tuple[int, int], m: int,
    sharding: int, wire: Wire,
) -> float:  # fmt: skip
    """Return the least time of gradients and weights on the network, beside what can hide them.

    What is sent at the end can only hide behind the backward pass of the last micro-batch, what is
    gathered at the beginning behind the forward pass of the first.
    """
    gradient = held[:, GRADIENT].reshape(chunked).sum(axis=0)
    computed = held[:, COMPUTED].reshape(chunked).sum(axis=0)
    # Without accumulation in front of the last one: it is part of what may hide.
    last = (work[:, BACKWARD] + work[:, WEIGHT_GRADIENT] + work[:, ACCUMULATE]).reshape(chunked)
    first = work[:, FORWARD].reshape(chunked).sum(axis=0)
    later = m * work[:, WEIGHT_GRADIENT].reshape(chunked).sum(axis=0)  # may all be at the end
    inner = np.maximum(busy - last.sum(axis=0) * (m if chunked[0] > 1 else 1) - later, 0.0)
    if sharding == 0:
        return float((fill + inner + gradient * wire.all_reduce).max())
    gathered = computed * wire.all_gather
    if sharding == 1:
        sent = gradient * wire.reduce_scatter
        hidden = first * (m if chunked[0] > 1 else 1)
        beside = gathered + sent + np.maximum(inner - hidden, 0.0)
        return float(np.maximum(beside, fill + inner + sent).max())
    if sharding == 2:
        return float((gathered + m * gradient * wire.reduce_scatter).max())
    return float((m * (2 * gathered + gradient * wire.reduce_scatter)).max())


def _memory(
    held: Floats, beside: Floats, name: str, stages: int, chunks: int, m: int, data: int,
    sharding: int,
) -> float:  # fmt: skip
    """Return the least bytes of the fullest rank."""
    static = _static(held, data, sharding)
    columns = [STATE, MASTER, COMPUTED, OTHER]
    by_stage = static[:, columns].sum(axis=1).reshape(chunks, stages).sum(axis=0)
    gradients = static[:, GRADIENT].reshape(chunks, stages).sum(axis=0)
    kept = held[:, KEPT].reshape(chunks, stages)
    each = in_flight(name, stages, m, chunks)
    fullest = by_stage + (each * kept).sum(axis=0) + beside
    if m > 1:
        fullest = fullest + gradients
    # what the updates read is there when the last backward pass has ended
    return float(np.maximum(fullest, by_stage + gradients).max())


def _static(held: Floats, data: int, sharding: int) -> Floats:
    """Return what a rank holds all the time if `data` ranks share it."""
    parts = np.ones(held.shape[1])
    parts[[STATE, MASTER]] = data if sharding >= 1 else 1
    parts[GRADIENT] = data if sharding >= 2 else 1
    parts[COMPUTED] = data if sharding >= 3 else 1
    shared: Floats = held / parts
    return shared


def _beside(group: Group, stages: int, chunks: int, data: int, sharding: int) -> Floats:
    """Return [stages] what an op of the first backward pass has beside what is kept, at least.

    That of a unit, less what is kept of later units of the stage, whose backward pass is done.
    """
    column = SCATTERED if sharding == 2 else GATHERED if sharding == 3 else BESIDE
    more, kept = group.held[:, column if data > 1 else BESIDE], group.held[:, KEPT]
    until = np.cumsum(kept)
    cut = group.cut(stages * chunks)[-stages - 1 :]  # of the last chunk
    found = [
        (more[a:b] - (until[b - 1] - until[a:b])).max(initial=0.0) for a, b in pairwise(cut.tolist())
    ]
    return np.array(found)


def in_flight(name: str, stages: int, m: int, chunks: int) -> Ints:
    """Return [chunks, stages] micro-batches of which a stage keeps activations, at its fullest."""
    if stages == 1:
        return np.ones((1, 1), np.int64)
    schedule = SCHEDULES[name]
    flights = np.array([schedule.in_flight(s, stages, m, chunks) for s in range(stages)])
    if chunks == 1:
        return flights[None, :]
    # What is in flight came in groups of K micro-batches, chunk after chunk.
    chunk = np.arange(chunks)[:, None]
    rounds, rest = np.divmod(flights, chunks * stages)
    each: Ints = rounds * stages + np.clip(rest - chunk * stages, 0, stages)
    return each


def spread(name: str, stages: int, m: int, chunks: int) -> float:
    """Return the sum over stages of one over the micro-batches in flight of its emptiest chunk."""
    least = np.maximum(in_flight(name, stages, m, chunks).min(axis=0), 1)
    return float((1.0 / least).sum())
