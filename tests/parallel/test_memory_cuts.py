"""Cuts that fit: memory played by the schedule's slots, against every cut written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_step_cuts import step_of

from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.partition import partition_dp
from ridgeline.parallel.partition.memory_footprint import (
    BESIDE,
    COLUMNS,
    COMPUTED,
    EARLY,
    EXPERT_COMPUTED,
    EXPERT_GRADIENT,
    EXPERT_STATE,
    GATHERED,
    GRADIENT,
    KEPT,
    LATE,
    LATE_GRADIENTS,
    MASTER,
    OTHER,
    SCATTERED,
    STATE,
    UnitMemory,
)
from ridgeline.parallel.partition.overheads import ALONE, Overheads, Replicas
from ridgeline.parallel.partition.part_memory import DeviceRoom
from ridgeline.parallel.partition.partition_dp import Pace, balance_step, memory_shares
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.simulation import simulate

Floats = Any
Case = tuple[Floats, int, Pace, Overheads]
KINDS = ("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-v", "pipedream")


def bytes_of(memory: UnitMemory, holds: Floats, of: Replicas, part: range) -> dict[str, float]:
    """States of a part, gradients, weights, and what an op of its backward pass has beside."""
    units = list(part)
    held = memory.held[units].sum(axis=0)
    for k, holders in enumerate(holds):
        held = held + memory.shared[k] * any(holders[u] for u in units)

    def share(whole: float, experts: float, least: int) -> float:
        if of.zero_stage < least:
            return whole
        return (whole - experts) / of.ranks[0] + experts / of.ranks[1]

    weights = share(held[COMPUTED], held[EXPERT_COMPUTED], 3)
    several = max(of.ranks) > 1
    column = {2: SCATTERED, 3: GATHERED}.get(of.zero_stage if several else 0, BESIDE)
    beside = 0.0
    for u in units:
        gone = memory.held[[v for v in units if v > u], KEPT].sum()
        early = memory.held[[v for v in units if v < u], EARLY].sum()
        beside = max(beside, memory.held[u, column] - gone - early)
    return {
        "states": held[OTHER] + share(held[STATE] + held[MASTER], held[EXPERT_STATE], 1) + weights,
        "gradients": share(held[GRADIENT], held[EXPERT_GRADIENT], 2),
        "weights": weights,
        "beside": beside,
        "kept": memory.held[units, KEPT].sum(),
        "late": memory.held[units, LATE].sum() + memory.held[units, LATE_GRADIENTS].sum(),
    }


def peaks(where: tuple[int, ...], pace: Pace, besides: Overheads) -> list[float]:
    """Play the slots of every device, one after the other, and note the most that it holds."""
    schedule, room, of = SCHEDULES[pace.schedule], pace.room, pace.replicas or ALONE
    assert room is not None
    assert besides.memory is not None
    devices = (len(where) - 1) // pace.chunks
    each = [bytes_of(besides.memory, besides.holds, of, range(i, j)) for i, j in pairwise(where)]
    m = pace.micro_batches if schedule.flushes else max(pace.micro_batches, 2 * devices)
    makes, found = "W" if schedule.splits_backward else "B", []
    for k, order in enumerate(schedule(devices, m, pace.chunks)):
        mine = [schedule.part(c, k, devices) for c in range(pace.chunks)]
        older = schedule.weight_versions(k, devices, m, pace.chunks) - 1
        states = sum(each[p]["states"] + older * each[p]["weights"] for p in mine)
        gradients = sum(each[p]["gradients"] for p in mine)
        most = states + gradients  # when all is done
        kept = late = 0.0
        summed = pace.micro_batches > 1 and room.keeps_sums
        for phase, _, chunk in order:
            part = each[mine[chunk]]
            beside = part["beside"] * (phase == "B")
            most = max(most, states + gradients * summed + kept + late + beside)
            kept += part["kept"] * ((phase == "F") - (phase == "B"))
            if schedule.splits_backward:
                late += part["late"] * ((phase == "B") - (phase == "W"))
            summed = summed or (pace.micro_batches > 1 and phase == makes)
        found.append(most)
    return found


def fits(where: tuple[int, ...], pace: Pace, besides: Overheads) -> bool:
    """Whether no device holds more than it has room for."""
    assert pace.room is not None
    return all(map(float.__le__, peaks(where, pace, besides), pace.room.capacity_bytes))


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    """Draw layers, the number of parts, a pace with room for little, and what units hold."""
    name = draw(st.sampled_from(KINDS))
    chunks = 2 if SCHEDULES[name].interleaves else 1
    devices = draw(st.integers(2, 3))
    parts = devices * chunks
    n = draw(st.integers(parts, parts + 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    held = rng.integers(0, 20, (n, COLUMNS)) * (rng.random((n, COLUMNS)) < 0.7)
    held[:, LATE] = np.minimum(held[:, LATE], held[:, KEPT])
    held[:, EARLY] = np.minimum(held[:, EARLY], held[:, KEPT])
    held[:, EXPERT_STATE] = np.minimum(held[:, EXPERT_STATE], held[:, STATE] + held[:, MASTER])
    held[:, EXPERT_COMPUTED] = np.minimum(held[:, EXPERT_COMPUTED], held[:, COMPUTED])
    held[:, EXPERT_GRADIENT] = np.minimum(held[:, EXPERT_GRADIENT], held[:, GRADIENT])
    n_ties = int(rng.integers(0, 2))
    shared = np.zeros((n_ties, COLUMNS))
    shared[:, [STATE, COMPUTED, GRADIENT]] = rng.integers(0, 30, (n_ties, 3))
    holds = np.array([rng.permutation(n) < 2 for _ in range(n_ties)], np.bool_).reshape(n_ties, n)
    none = np.zeros((n, 16))
    memory = UnitMemory(held.astype(np.float64), shared)
    besides = Overheads(none, holds, none[:n_ties], none[:, :3], none[:, 0], none[:, :2], memory)
    replicas = ALONE._replace(
        zero_stage=int(rng.integers(0, 4)), ranks=tuple(rng.integers(1, 4, 2).tolist())
    )
    m = devices * draw(st.integers(1, 3)) if chunks > 1 else draw(st.integers(1, 6))
    send = tuple(rng.uniform(0, 1, parts - 1).tolist())
    room = DeviceRoom((0.0,) * devices, bool(rng.integers(2)))
    pace = Pace(name, m, send, send, chunks, True, replicas, room)
    one = (0, *sorted((rng.permutation(n - 1)[: parts - 1] + 1).tolist()), n)
    share = rng.uniform(0.9, 1.3, devices)  # of what one cut needs
    capacity = tuple((np.array(peaks(one, pace, besides)) * share + 1.0).tolist())
    pace = pace._replace(room=room._replace(capacity_bytes=capacity))
    return rng.uniform(0, 5, (n, 3)), parts, pace, besides


def check(case: Case) -> None:
    work, parts, pace, besides = case
    n, sizes = len(work), [1.0] * len(work)
    cuts = [(0, *inner, n) for inner in combinations(range(1, n), parts - 1)]
    found = balance_step(work, parts, sizes, pace, besides)
    where = (0, *(stage.stop for stage in found))
    room = [cut for cut in cuts if fits(cut, pace, besides)]
    assert not room or where in room
    assert (max(memory_shares(where, pace, besides)) <= 1.0) == fits(where, pace, besides)
    if pace.schedule == "pipedream":  # is judged by its pace, which is not played here
        return
    plain = replace(besides, memory=None)
    least = min(step_of(work.tolist(), cut, sizes, pace, plain) for cut in room or cuts)
    assert step_of(work.tolist(), where, sizes, pace, plain) == pytest.approx(least, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_of_the_cuts_that_fit_none_written_out_gives_a_shorter_step(case: Case) -> None:
    check(case)


@pytest.mark.thorough
@settings(max_examples=600, deadline=None)
@given(pipelines())
def test_further_cuts_that_fit(case: Case) -> None:
    check(case)


@settings(max_examples=40, deadline=None)
@given(pipelines())
def test_where_not_every_cut_is_played_one_that_fits_is_found(case: Case) -> None:
    """Where devices have one part each; where they have several, it is looked for."""
    work, parts, pace, besides = case
    n, sizes = len(work), [1.0] * len(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_dp, "comb", lambda n, k: 10**9)  # so that no list is short enough
        found = balance_step(work, parts, sizes, pace, besides)
    where = (0, *(stage.stop for stage in found))
    cuts = ((0, *inner, n) for inner in combinations(range(1, n), parts - 1))
    if pace.chunks == 1 and any(fits(cut, pace, besides) for cut in cuts):
        assert fits(where, pace, besides)


def test_a_step_is_cut_to_fit_where_the_fastest_cut_does_not() -> None:
    """GPT-2's first stage holds four micro-batches: fewer layers there, as memory gets less."""
    plan = Plan(precision="bf16-mixed", pipeline=4, global_batch=8, micro_batch=1)

    def played(capacity: str) -> Any:
        name = "node.device.memory.hbm.capacity"
        return simulate(
            "gpt2", load_cluster("selene-a100", {name: capacity}), plan, software=NEUTRAL
        )

    whole, tight, none = played("80 GB"), played("2.2 GB"), played("1 GB")
    assert whole.fits
    assert whole.memory_bytes["total"] > 2.2e9  # so that cut does not fit
    assert tight.fits
    assert tight.step_time_s > whole.step_time_s
    assert not none.fits
    assert none.step_time_s == whole.step_time_s  # the fastest, as there is none that fits
