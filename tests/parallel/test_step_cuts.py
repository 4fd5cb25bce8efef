"""Cuts of a pipeline that know their messages, against every cut written out and played anew."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline.parallel.partition import partition_dp
from ridgeline.parallel.partition.overheads import (
    AGAIN,
    ALONE,
    BEGIN,
    BEGIN_LAUNCH,
    COMPUTED,
    COPY,
    END_LAUNCH,
    GRADIENT,
    SWEEP,
    UPDATE,
    Overheads,
    Replicas,
)
from ridgeline.parallel.partition.partition_dp import Pace, balance_step
from ridgeline.parallel.schedule import SCHEDULES
from thoroughly import sample_of

NUMBERS = st.floats(0.01, 4.0)
KINDS = [
    "1f1b", "gpipe", "zero-bubble", "zero-bubble-h2", "zero-bubble-v", "interleaved",
]  # fmt: skip


def seconds(size: float, sizes: tuple[float, ...], known: tuple[float, ...]) -> float:
    """Seconds of a collective of so many bytes: on the line through the sizes around it."""
    k = next((k for k in range(1, len(sizes)) if size <= sizes[k]), len(sizes) - 1)
    rise = (known[k] - known[k - 1]) / (sizes[k] - sizes[k - 1])
    return known[k - 1] + rise * (size - sizes[k - 1])


def buckets(order: list[int], sizes: dict[int, float], least: float) -> list[tuple[float, int]]:
    """Bytes of every bucket of what units have, in an order, and the unit that closes it."""
    found, size = [], 0.0
    for unit in order:
        size += sizes.get(unit, 0.0)
        if size and size >= least:
            found.append((size, unit))
            size = 0.0
    return [*found, (size, order[-1])] if size else found


class PartEnds:
    """What a part of some units does once, written out from what each of them has."""

    def __init__(
        self, besides: Overheads, replicas: Replicas, units: range, late: list[float]
    ) -> None:
        up, down = list(units), list(reversed(units))
        zero, ranks, least = replicas.zero_stage, replicas.ranks, replicas.bucket_bytes
        mine = [k for k in range(len(besides.holds)) if besides.holds[k][up].any()]
        self.ties = mine

        def all_of(column: int) -> float:
            return float(besides.each[up, column].sum() + besides.shared[mine, column].sum())

        def by_unit(column: int, order: list[int]) -> dict[int, float]:
            """Those of a weight that several units share count with the first of them."""
            found = {u: float(besides.each[u, column]) for u in order}
            for k in mine:
                found[next(u for u in order if besides.holds[k, u])] += besides.shared[k, column]
            return found

        def time(known: tuple[tuple[float, ...], ...], kind: int, size: float) -> float:
            return seconds(size, replicas.sizes, known[kind])

        self.begin_s, self.end_s = all_of(BEGIN_LAUNCH), all_of(END_LAUNCH)
        self.sums: list[tuple[float, float]] = []  # seconds, and how long before the pass ends
        self.gather_s = self.lead_s = self.gather_back_s = self.lead_back_s = 0.0
        for kind in (1, 0):  # experts first
            states = 1 / ranks[kind] if zero >= 1 else 1.0
            self.begin_s += all_of(BEGIN + kind) * states
            self.end_s += all_of(UPDATE + kind) * states
            self.end_s += all_of(SWEEP + kind) * (1 / ranks[kind] if zero >= 2 else 1.0)
            if ranks[kind] == 1:
                continue
            self.end_s += all_of(COPY + kind) if zero < 2 else 0.0
            for size, unit in buckets(down, by_unit(GRADIENT + kind, down), least):
                early = sum(late[u] for u in up if u < unit) if replicas.sums_beside else 0.0
                self.sums.append((time(replicas.sum_s, kind, size), early))
            if zero:
                forward = buckets(up, by_unit(COMPUTED + kind, up), least)
                each = [time(replicas.gather_s, kind, size) for size, _ in forward]
                self.gather_s += sum(each)
                self.lead_s += each[0] if each else 0.0
                back = buckets(down, by_unit(AGAIN + kind, down), least)
                each = [time(replicas.gather_s, kind, size) for size, _ in back]
                self.gather_back_s += sum(each)
                self.lead_back_s += each[0] if each else 0.0

    def summed(self, queue: float, end: float) -> float:
        """When the sums end that are made in a pass that ends then, one after the other."""
        for takes, early in self.sums:
            queue = max(queue, end - early) + takes
        return queue


def step_of(
    work: list[list[float]], where: tuple[int, ...], sizes: list[float], pace: Pace,
    besides: Overheads | None = None,
) -> float:  # fmt: skip
    """When a pipeline ends: each slot by the slot before it and what it needs, by recursion."""
    parts = len(where) - 1
    devices = parts // pace.chunks
    schedule = SCHEDULES[pace.schedule]
    orders = schedule(devices, pace.micro_batches, pace.chunks)
    replicas = pace.replicas or ALONE
    if besides is None:
        none = np.zeros((len(work), 16))
        besides = Overheads(
            none,
            np.zeros((0, len(work)), np.bool_),
            none[:0],
            none[:, :3],
            none[:, 0],
            none[:, :2],
        )
    adds = replicas.zero_stage < 2 or replicas.ranks == (1, 1)
    more = adds * (1 - 1 / pace.micro_batches)
    copied = besides.copied_s * (replicas.zero_stage == 3 and max(replicas.ranks) > 1)
    copied[:, 1] *= replicas.again
    work = [
        [f + c[0], b + c[1], w + more * a]
        for (f, b, w), a, c in zip(work, besides.added_s, copied, strict=True)
    ]
    hosts = besides.issued_s.tolist()
    each, host = ([np.sum(of[i:j], axis=0) for i, j in pairwise(where)] for of in (work, hosts))
    late = [w for _, _, w in work]
    if not schedule.splits_backward:
        each, host = ([np.array([f, b + w, 0.0]) for f, b, w in of] for of in (each, host))
        late = [b + w for _, b, w in work]
    once = [PartEnds(besides, replicas, range(i, j), late) for i, j in pairwise(where)]
    makes = "W" if schedule.splits_backward else "B"
    shares = replicas.zero_stage if max(replicas.ranks) > 1 else 0
    sent = [
        late + byte * sizes[cut - 1]
        for late, byte, cut in zip(pace.late_s, pace.byte_s, where[1:-1], strict=True)
    ]
    back = sent if pace.returns else [0.0] * len(sent)
    slots = [
        [(s.phase, schedule.part(s.chunk, k, devices), s.micro_batch) for s in order]
        for k, order in enumerate(orders)
    ]
    place = {key: (k, n) for k, order in enumerate(slots) for n, key in enumerate(order)}
    messages: dict[tuple[int, int], list[int]] = {}
    for order in slots:
        for phase, part, i in order:
            if phase != "W":
                messages.setdefault((phase == "B", part), []).append(i)
    of_device = [sorted({part for _, part, _ in order}) for order in slots]

    @cache
    def begun(part: int) -> tuple[float, float]:
        """When the copies of weights of a part are made, and its weights gathered."""
        mine = of_device[place["F", part, 0][0]]
        at = mine.index(part)
        free, queue = begun(mine[at - 1]) if at else (0.0, 0.0)
        free += once[part].begin_s
        gathered = max(queue, free) + once[part].gather_s
        return free, gathered if shares in {1, 2} else queue

    @cache
    def state(k: int, n: int) -> tuple[float, float]:
        """When a device has done so many slots, and when what it sends to replicas has gone."""
        if n == 0:
            return begun(of_device[k][-1])
        free, queue = state(k, n - 1)
        phase, part, i = slots[k][n - 1]
        start, own = free, once[part]
        if phase == "F" and part:
            start = max(start, came(0, part, i))
        if phase == "B":
            turn = part == parts - 1
            start = max(start, end(("F", part, i)) if turn else came(1, part, i))
        takes = float(each[part]["FBW".index(phase)])
        if shares in {1, 2} and phase == "F":
            there = begun(part)[1]
            start = max(start, there - takes if replicas.gathers_beside else there)
        if shares == 3 and (phase == "F" or (phase == "B" and replicas.again)):
            asked = max(free, queue)
            queue = asked + (own.gather_s if phase == "F" else own.gather_back_s)
            lead = own.lead_s if phase == "F" else own.lead_back_s
            gone = max(asked + lead, queue - takes) if replicas.gathers_beside else queue
            start = max(start, gone)
        free = max(start + takes, free + float(host[part]["FBW".index(phase)]))
        if phase == makes and shares >= 2:
            queue = own.summed(queue, free)
            free = free if replicas.sums_beside else max(free, queue)
        return free, queue

    def end(key: tuple[str, int, int]) -> float:
        k, n = place[key]
        return state(k, n + 1)[0]

    @cache
    def came(direction: int, part: int, i: int) -> float:
        source = part + 1 if direction else part - 1
        order = messages[direction == 1, source]
        at = order.index(i)
        free = came(direction, part, order[at - 1]) if at else 0.0
        takes = back[part] if direction else sent[part - 1]
        return max(free, end(("FB"[direction], source, i))) + takes

    done = []
    for k, order in enumerate(slots):
        free, queue = state(k, len(order))
        for part in reversed(of_device[k]) if shares < 2 else ():
            made = max(end(key) for key in order if key[:2] == (makes, part))
            queue = once[part].summed(queue, made)
        done.append(max(free, queue))
    tied = besides.shared[:, GRADIENT] / (replicas.ranks[0] if replicas.zero_stage else 1)
    for t, size in enumerate(tied.tolist()):
        holders = [k for k, mine in enumerate(of_device) if any(t in once[p].ties for p in mine)]
        if len(holders) > 1:
            last = max(done[k] for k in holders) + seconds(size, replicas.sizes, replicas.tie_s)
            done = [last if k in holders else of for k, of in enumerate(done)]
    return max(
        of + sum(once[part].end_s for part in mine)
        for of, mine in zip(done, of_device, strict=True)
    )


Case = tuple[list[list[float]], list[float], int, Pace, Overheads | None]


@st.composite
def pipelines(draw: st.DrawFn, *, alone: bool = False) -> Case:
    """Draw layers, what they send, the number of parts, a pace, and what there is besides."""
    name = draw(st.sampled_from(KINDS))
    chunks = 2 if SCHEDULES[name].interleaves else 1
    devices = draw(st.integers(2, 3))
    parts = devices * chunks
    n = draw(st.integers(parts, parts + 3))
    work = draw(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=n, max_size=n))
    sizes = draw(st.lists(NUMBERS, min_size=n, max_size=n))
    links = st.lists(NUMBERS, min_size=parts - 1, max_size=parts - 1).map(tuple)
    micro_batches = devices * draw(st.integers(1, 4))
    pace = Pace(name, micro_batches, draw(links), draw(links), chunks, draw(st.booleans()))
    if alone or not draw(st.integers(0, 3)):
        return work, sizes, parts, pace, None
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_ties = int(rng.integers(0, 3))
    of_units, of_ties = (
        rng.uniform(0, 4, (rows, 16)) * (rng.random((rows, 16)) < 0.6) for rows in (n, n_ties)
    )
    of_ties[:, GRADIENT] += 0.1
    holds = np.array([rng.permutation(n) < rng.integers(2, n + 1) for _ in range(n_ties)], np.bool_)
    besides = Overheads(
        of_units, holds.reshape(n_ties, n), of_ties,
        rng.uniform(0, 4, (n, 3)) * rng.integers(0, 2), rng.uniform(-0.01, 1, n),
        rng.uniform(0, 1, (n, 2)),
    )  # fmt: skip
    known = np.cumsum(rng.uniform(0.01, 2, (5, 3)), axis=1).tolist()
    replicas = Replicas(
        int(rng.integers(0, 4)), float(rng.choice([0.5, 4.0, 100.0])),
        tuple(rng.integers(1, 4, 2).tolist()), bool(rng.integers(2)), bool(rng.integers(2)),
        bool(rng.integers(2)), (0.0, 2.0, 8.0), (tuple(known[0]), tuple(known[1])),
        (tuple(known[2]), tuple(known[3])), tuple(known[4]),
    )  # fmt: skip
    return work, sizes, parts, pace._replace(replicas=replicas), besides


@sample_of(15, 60, pipelines())
def test_no_cut_written_out_gives_a_shorter_step(
    case: Case,
) -> None:
    work, sizes, parts, pace, besides = case
    n = len(work)
    found = balance_step(work, parts, sizes, pace, besides)
    where = (0, *(stage.stop for stage in found))
    least = min(
        step_of(work, (0, *inner, n), sizes, pace, besides)
        for inner in combinations(range(1, n), parts - 1)
    )
    assert step_of(work, where, sizes, pace, besides) == pytest.approx(least, rel=1e-8)


@sample_of(10, 40, pipelines())
def test_where_not_every_cut_is_played_moving_one_does_not_help(
    case: Case,
) -> None:
    work, sizes, parts, pace, besides = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_dp, "comb", lambda n, k: 10**9)  # so that no list is short enough
        found = balance_step(work, parts, sizes, pace, besides)
    where = [0, *(stage.stop for stage in found)]
    best = step_of(work, tuple(where), sizes, pace, besides)
    for k in range(1, parts):
        for place in range(where[k - 1] + 1, where[k + 1]):
            moved = (*where[:k], place, *where[k + 1 :])
            assert step_of(work, moved, sizes, pace, besides) >= best * (1 - 1e-8)


@sample_of(4, 15, pipelines(alone=True), st.integers(5, 12))
def test_long_steps_are_told_by_their_pace(case: Case, more: int) -> None:
    """Of a step of more micro-batches than are played, the cut is the best but for a little."""
    work, sizes, parts, pace, besides = case
    pace = pace._replace(micro_batches=pace.micro_batches * more)
    found = balance_step(work, parts, sizes, pace, besides)
    where, n = (0, *(stage.stop for stage in found)), len(work)
    least = min(
        step_of(work, (0, *inner, n), sizes, pace, besides)
        for inner in combinations(range(1, n), parts - 1)
    )
    assert step_of(work, where, sizes, pace, besides) <= least * 1.02
