"""Compressed and sparse collectives: what is sent shrinks, and grows again as parts are added up.

A sparse buffer sends its non-zero values with their places. When the buffers of several ranks are
added, the sum has a value wherever one of them had: it *fills in*. After c contributions of density
d each the density is

    independent   1 - (1 - d)^c     places are chosen independently
    worst         min(1, c d)       no two ranks have a place in common: d doubles in each round of
                                    a recursive doubling (Lin et al., ICLR 2018, "Deep Gradient
                                    Compression", section 4)
    none          d                 all ranks agree on the places

Where places and values together would take more than the dense buffer, the dense one is sent. How
many contributions are in a message follows from the algorithm's own script, by playing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ridgeline._jit import kernel
from ridgeline.errors import RidgelineError, nearest
from ridgeline.network.algorithm import Algorithm
from ridgeline.network.message_schedule import Flags, MessageRounds, MessageSchedule, advanced
from ridgeline.network.paths import Ints
from ridgeline.network.routed import loads_of, round_latency_s, routed
from ridgeline.network.schedule import CollectiveSchedule, SchedulePhase
from ridgeline.network.topology import Floats, Topology

FillIn = Literal["independent", "worst", "none"]
_FILL_INS = ("independent", "worst", "none")


@dataclass(frozen=True, slots=True)
class Compression:
    """How a buffer is written for sending.

    Attributes
    ----------
    density
        Share of values of one rank's buffer that are sent; 1 is dense.
    dense_bits
        Of one value in the buffer whose size is given.
    value_bits, place_bits
        Of one value that is sent, and of its place (a run length or an index); no places are sent
        at density 1.
    fill_in
        See the head of this module.
    """

    density: float = 1.0
    dense_bits: float = 32.0
    value_bits: float = 32.0
    place_bits: float = 16.0
    fill_in: FillIn = "independent"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise RidgelineError(f"the density must be above 0 and at most 1, found {self.density}")
        if not (self.dense_bits > 0 and self.value_bits > 0 and self.place_bits >= 0):
            raise RidgelineError("values must have more than 0 bits, and places at least 0")
        if self.fill_in not in _FILL_INS:
            raise RidgelineError(
                f"no fill-in is called {self.fill_in!r}{nearest(self.fill_in, _FILL_INS)} "
                f"(known: {', '.join(_FILL_INS)})"
            )

    def share(self, contributions: Ints) -> Floats:
        """Return the bytes that are sent over the bytes of the dense buffer."""
        count = np.asarray(contributions, np.float64)
        if self.fill_in == "independent":
            density = 1.0 - (1.0 - self.density) ** count
        elif self.fill_in == "worst":
            density = np.minimum(1.0, count * self.density)
        else:
            density = np.full(count.shape, self.density)
        dense = self.value_bits / self.dense_bits
        if self.density == 1:
            return np.full(count.shape, dense)
        sparse = density * (self.value_bits + self.place_bits) / self.dense_bits
        return np.minimum(sparse, dense)


def compression_of(text: str) -> Compression:
    """Read ``density=0.001 value=32 place=16 dense=32 fill_in=worst``; sizes are bits.

    Raises
    ------
    RidgelineError
        If the text cannot be read.
    """
    names = {"density": "density", "dense": "dense_bits", "value": "value_bits",
             "place": "place_bits"}  # fmt: skip
    numbers: dict[str, float] = {}
    fill_in: str = "independent"
    for field in text.split():
        name, _, value = field.partition("=")
        if name == "fill_in":
            fill_in = value
            continue
        if name not in names:
            known = (*names, "fill_in")
            raise RidgelineError(
                f"a compression has no field {name!r}{nearest(name, known)} "
                f"(there are: {', '.join(known)})"
            )
        try:
            numbers[names[name]] = float(value)
        except ValueError:
            raise RidgelineError(
                f"{name} of a compression is a number, as in 'density=0.001'; found {value!r}"
            ) from None
    return Compression(**numbers, fill_in=fill_in)  # type: ignore[arg-type]


def sparse_schedule(
    algorithm: Algorithm,
    topology: Topology,
    ranks: Sequence[int],
    size_bytes: float,
    compression: Compression,
) -> CollectiveSchedule:
    """Return the schedule of a collective whose messages are compressed.

    Every round is a phase of its own, since messages grow from round to round.

    Raises
    ------
    RidgelineError
        As the algorithm itself.
    """
    group = algorithm.group(topology, ranks, size_bytes, None)
    name = f"{algorithm.name}, compressed"
    if group.n == 1:
        return CollectiveSchedule(algorithm.op, name, 1, float(size_bytes), ())
    script = algorithm.write(group)
    place = np.concatenate((group.vertex, np.array(script.vertices, np.int64)))
    held = _beginnings(script, len(place))
    share = compression.share(np.arange(len(place) + 1, dtype=np.int64))
    phases = []
    if topology.collective_latency_s:
        phases.append(SchedulePhase(topology.collective_latency_s, 1, {}))
    for step, ways in zip(script.steps, routed(topology, place, script.steps), strict=True):
        latency_s = round_latency_s(topology, step, ways)
        for turn in range(step.repeat):
            now = advanced(step, turn, 1)
            size = _sizes(held, now, script.slot_bytes, share)
            phases.append(SchedulePhase(latency_s, 1, loads_of(topology, ways, size)))
    return CollectiveSchedule(algorithm.op, name, group.n, float(size_bytes), tuple(phases))


def _sizes(held: Ints, now: MessageRounds, slot_bytes: Floats, share: Floats) -> Floats:
    """Return the bytes of the messages of one round; `held` becomes what is held after it.

    Waves of a round follow each other through a tree: what a switch sends up holds the
    contributions of all that came to it before.
    """
    size = np.empty(len(now.source))
    for wave in np.unique(now.wave):
        ones = np.flatnonzero(now.wave == wave)
        part = np.empty(len(ones))
        _send(held, *_columns(now, ones), slot_bytes, share, part)
        size[ones] = part
    return size


def _columns(step: MessageRounds, ones: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Flags]:
    """Columns of some messages of a step as arrays of their own."""
    return (
        step.source[ones], step.target[ones], step.first[ones], step.count[ones],
        step.base[ones], step.span[ones], step.combine[ones],
    )  # fmt: skip


def _beginnings(script: MessageSchedule, n: int) -> Ints:
    """Contributions to every slot that each position holds at first."""
    held = np.ones((n, len(script.slot_bytes)), np.int64)
    held[n - len(script.vertices) :] = 0
    return held


@kernel
def _send(
    held: Ints,
    source: Ints,
    target: Ints,
    first: Ints,
    count: Ints,
    base: Ints,
    span: Ints,
    combine: Flags,
    slot_bytes: Floats,
    share: Floats,
    size: Floats,
) -> None:
    """Send one round: sizes by what the sources hold before it, and what the targets hold after."""
    most = len(share) - 1
    parts = np.empty(count.sum(), np.int64)
    filled = 0
    for m in range(len(source)):
        size[m] = 0.0
        for i in range(count[m]):
            slot = base[m] + (first[m] - base[m] + i) % span[m]
            parts[filled] = held[source[m], slot]
            size[m] += slot_bytes[slot] * share[min(parts[filled], most)]
            filled += 1
    filled = 0
    for m in range(len(source)):
        for i in range(count[m]):
            slot = base[m] + (first[m] - base[m] + i) % span[m]
            before = held[target[m], slot] if combine[m] else 0
            held[target[m], slot] = min(before + parts[filled], most)
            filled += 1
