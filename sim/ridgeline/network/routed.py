"""From scripts to schedules: messages are routed over a topology and added up on its links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.network.message_schedule import MessageRounds, MessageSchedule, advanced
from ridgeline.network.paths import Ints, Routes, take
from ridgeline.network.routing import ADAPTIVE, ROUTINGS, routes
from ridgeline.network.schedule import LinkLoads, SchedulePhase
from ridgeline.network.topology import Floats, Topology

BATCH = 1 << 20
"""Messages that are routed at once."""


def phases_of(
    script: MessageSchedule, topology: Topology, vertex: Ints
) -> tuple[SchedulePhase, ...]:
    """Return the phases of a script: one per round, equal ones that follow each other as one.

    The latency of a round is that of its slowest message; the load of a link is all that passes it
    in the round.

    Parameters
    ----------
    vertex
        [p] vertices of the positions of the group.
    """
    phases: list[SchedulePhase] = []
    if topology.collective_latency_s:
        phases.append(SchedulePhase(topology.collective_latency_s, 1, {}))
    place = np.concatenate((vertex, np.array(script.vertices, np.int64)))
    sizes = RunSizes(script.slot_bytes)
    for batch in _batches(script.steps):
        for step, ways in zip(batch, routed(topology, place, batch), strict=True):
            latency_s = round_latency_s(topology, step, ways)
            for part in sizes.rounds(step):
                loads = loads_of(topology, ways, sizes.of(part))
                _append(phases, SchedulePhase(latency_s, part.repeat, loads))
    return tuple(phases)


def round_cost(
    script: MessageSchedule, step: MessageRounds, topology: Topology, vertex: Ints
) -> tuple[float, float]:
    """Return the latency of one round of a step, and the time that its bytes take."""
    place = np.concatenate((vertex, np.array(script.vertices, np.int64)))
    (ways,) = routed(topology, place, [step])
    loads = loads_of(topology, ways, RunSizes(script.slot_bytes).of(step))
    busy = loads.bytes / topology.bandwidth_bytes_per_s[loads.links]
    return round_latency_s(topology, step, ways), float(busy.max(initial=0.0))


class RunSizes:
    """Sizes of runs of slots."""

    def __init__(self, slot_bytes: Floats) -> None:
        self.slot_bytes = slot_bytes
        self.until = np.concatenate((np.zeros(1), np.cumsum(slot_bytes)))
        changes = slot_bytes[1:] != slot_bytes[:-1]
        self.changes = np.concatenate((np.zeros(1, np.int64), np.cumsum(changes)))

    def even(self, step: MessageRounds) -> bool:
        """Tell whether all slots that each message may carry are of equal size."""
        return bool((self.changes[step.base + step.span - 1] == self.changes[step.base]).all())

    def rounds(self, step: MessageRounds) -> Iterator[MessageRounds]:
        """Yield the rounds of a step, as one if they are equal."""
        if step.repeat == 1 or not step.shift.any() or self.even(step):
            yield step
        else:
            for turn in range(step.repeat):
                yield advanced(step, turn, 1)

    def of(self, step: MessageRounds) -> Floats:
        """[M] bytes of every message."""
        if self.even(step):
            return step.count * self.slot_bytes[step.base]  # exact, unlike differences of sums
        end = step.first + step.count
        limit = step.base + step.span
        straight = self.until[np.minimum(end, limit)] - self.until[step.first]
        wrapped = self.until[np.maximum(end - step.span, step.base)] - self.until[step.base]
        sizes: Floats = straight + wrapped
        return sizes


def _batches(steps: Sequence[MessageRounds]) -> Iterator[list[MessageRounds]]:
    batch: list[MessageRounds] = []
    n = 0
    for step in steps:
        if batch and n + len(step.source) > BATCH:
            yield batch
            batch, n = [], 0
        batch.append(step)
        n += len(step.source)
    if batch:
        yield batch


def routed(topology: Topology, place: Ints, steps: Sequence[MessageRounds]) -> list[Routes]:
    """Route the messages of some steps together; each pair of vertices is searched for once."""
    found: list[Routes | None] = [step.routes for step in steps]
    open_ = [i for i, ways in enumerate(found) if ways is None]
    if ROUTINGS[topology.routing] in ADAPTIVE:
        for i in open_:
            found[i] = routes(topology, place[steps[i].source], place[steps[i].target])
    elif open_:
        source = np.concatenate([place[steps[i].source] for i in open_])
        target = np.concatenate([place[steps[i].target] for i in open_])
        key, pair = np.unique(source * topology.n_vertices + target, return_inverse=True)
        ways = routes(topology, *np.divmod(key, topology.n_vertices))
        if len(open_) == 1 and len(key) == len(pair) and (pair[1:] > pair[:-1]).all():
            found[open_[0]] = ways
            return [part for part in found if part is not None]
        ends = np.cumsum([len(steps[i].source) for i in open_])
        for i, part in zip(open_, np.split(pair, ends[:-1]), strict=True):
            found[i] = take(ways, part)
    return [ways for ways in found if ways is not None]


def round_latency_s(topology: Topology, step: MessageRounds, ways: Routes) -> float:
    """Latency of the slowest message; of several waves, the sum of their slowest."""
    link_s = np.concatenate((topology.latency_s[ways.links], np.zeros(1)))
    message_s = np.add.reduceat(link_s, ways.ptr[:-1]) * (np.diff(ways.ptr) > 0)
    if not step.wave.any():
        return float(message_s.max())
    slowest = np.zeros(int(step.wave.max()) + 1)
    np.maximum.at(slowest, step.wave, message_s)
    return float(slowest.sum())


def loads_of(topology: Topology, ways: Routes, size: Floats) -> LinkLoads:
    """Add up the bytes of messages on the links that they pass."""
    on_link: Floats = np.zeros(topology.n_links)
    on_link += np.bincount(ways.links, np.repeat(size, np.diff(ways.ptr)), topology.n_links)
    links = np.flatnonzero(on_link)
    return LinkLoads(links.astype(np.int32), on_link[links])


def _append(phases: list[SchedulePhase], phase: SchedulePhase) -> None:
    if phases and phases[-1].latency_s == phase.latency_s:
        before, after = phases[-1].bytes_on_link, phase.bytes_on_link
        assert isinstance(after, LinkLoads)
        if isinstance(before, LinkLoads) and before.same(after):
            phases[-1] = phases[-1]._replace(repeat=phases[-1].repeat + phase.repeat)
            return
    phases.append(phase)
