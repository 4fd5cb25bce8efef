"""Algorithms: each writes the script of one operation; registered in `ALGORITHMS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.message_schedule import Ints, MessageSchedule
from ridgeline.network.rings import check_ranks
from ridgeline.network.routed import phases_of
from ridgeline.network.schedule import CollectiveSchedule, check_size
from ridgeline.network.symmetric import exchange_phases, is_symmetric
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.verification import verify_routes, verify_script
from ridgeline.registry import Registry, takes


class DoesNotApplyError(RidgelineError):
    """The algorithm is not made for this topology or this group."""


@dataclass(frozen=True, eq=False)
class CollectiveGroup:
    """Who takes part in a collective, and how much is sent.

    Attributes
    ----------
    ranks
        Distinct ranks of the topology; a rank's place here is its position. The first is the root.
    size_bytes
        As nccl-tests counts it: of an all-gather, a reduce-scatter, a gather and a scatter the
        whole, of an all-to-all what each rank sends (its own part included).
    parts
        Share of the whole that each position contributes or keeps, [p]; in an all-to-all bytes
        from each position (row) to each (column), [p, p]. None: equal parts.
    """

    topology: Topology
    ranks: tuple[int, ...]
    size_bytes: float
    parts: Floats | None = None

    @property
    def n(self) -> int:
        """How many positions there are."""
        return len(self.ranks)

    @cached_property
    def vertex(self) -> Ints:
        """[p] vertex of every position."""
        return self.topology.devices[list(self.ranks)].astype(np.int64)

    @cached_property
    def part_bytes(self) -> Floats:
        """[p] bytes that each position contributes or keeps."""
        if self.parts is None:
            return np.full(self.n, self.size_bytes / self.n)
        return self.parts

    @cached_property
    def pair_bytes(self) -> Floats:
        """[p * p] bytes from each position to each."""
        if self.parts is None:
            return np.full(self.n * self.n, self.size_bytes / self.n)
        return self.parts.ravel()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do one operation; called, it makes the schedule."""

    op: str
    name: str
    write: Callable[[CollectiveGroup], MessageSchedule]
    automatic: bool
    """A candidate when the fastest is looked for; not so if it needs what links alone do not do."""

    def __call__(
        self,
        topology: Topology,
        ranks: Sequence[int],
        size_bytes: float,
        parts: Floats | None = None,
    ) -> CollectiveSchedule:
        """Make the schedule.

        Parameters
        ----------
        ranks
            Distinct ranks of the topology. A single rank has nothing to do.
        size_bytes, parts
            See `CollectiveGroup`.

        Raises
        ------
        RidgelineError
            If the size or a rank is impossible, the algorithm does not apply, or two ranks that
            have to talk have no route.
        """
        group = self.group(topology, ranks, size_bytes, parts)
        if group.n == 1:
            return CollectiveSchedule(self.op, self.name, 1, float(size_bytes), ())
        even = (self.op, self.name) == ("all-to-all", "direct") and parts is None
        if even and group.n > MANY and is_symmetric(topology, group.ranks):
            phases = exchange_phases(topology, size_bytes)
            return CollectiveSchedule(self.op, self.name, group.n, float(size_bytes), phases)
        phases = phases_of(self._written(group), topology, group.vertex)
        return CollectiveSchedule(self.op, self.name, group.n, float(size_bytes), phases)

    def script(
        self,
        topology: Topology,
        ranks: Sequence[int],
        size_bytes: float,
        parts: Floats | None = None,
    ) -> MessageSchedule:
        """Return what is sent from position to position; at least two ranks."""
        return self._written(self.group(topology, ranks, size_bytes, parts))

    def _written(self, group: CollectiveGroup) -> MessageSchedule:
        """Write the script; one of an algorithm that is not this package's own is verified."""
        self._check_memory(group)
        script = self.write(group)
        if not self.write.__module__.startswith(_OWN):
            verify_script(self.name, self.op, script, asked_bytes(self.op, group), group.n)
            verify_routes(self.name, script, group.topology, group.vertex)
        return script

    def group(
        self, topology: Topology, ranks: Sequence[int], size_bytes: float, parts: Floats | None
    ) -> CollectiveGroup:
        """Check who takes part and how much is sent."""
        check_size(size_bytes)
        check_ranks(topology, ranks)
        if parts is not None:
            n = len(ranks)
            if self.op not in PARTED:
                raise RidgelineError(f"{self.op} has no parts of its own; it takes one size")
            shape = (n, n) if self.op == "all-to-all" else (n,)
            parts = np.asarray(parts, dtype=np.float64)
            if parts.shape != shape or not np.isfinite(parts).all() or (parts < 0).any():
                raise RidgelineError(
                    f"the parts of {self.op} must be {' x '.join(map(str, shape))} sizes of at "
                    f"least 0 B; found {' x '.join(map(str, parts.shape))}"
                )
        return CollectiveGroup(topology, tuple(ranks), size_bytes, parts)

    def _check_memory(self, group: CollectiveGroup) -> None:
        """Refuse, before it is taken, memory for one message from each to each that is not there.

        Raises
        ------
        DoesNotApplyError
            So that "auto" takes another algorithm where there is one.
        """
        from ridgeline import units

        needed = group.n * group.n * PAIR_BYTES
        if (self.op == "all-to-all" or self.name in _PAIRWISE) and needed > MOST_BYTES:
            raise DoesNotApplyError(
                f"{self.op} by {self.name} of {group.n} ranks has {group.n * group.n} messages, "
                f"which would take about {units.show(needed, 'B', 2)} of memory; up to "
                f"{units.show(MOST_BYTES, 'B', 2)} are taken (an even all-to-all of all devices "
                "of a network that looks alike from each needs none of it)"
            )


ALGORITHMS: Registry[tuple[str, str], Algorithm] = Registry(
    "collective algorithm", "ridgeline.network.algorithms"
)
"""Makes the schedule of (topology, ranks, size_bytes); by (op, name)."""

MANY = 2048
"""Ranks beyond which an even all-to-all of all devices is told from some of its sources."""
PAIR_BYTES = 200
"""Of memory for a message from one rank to another, while it is routed (measured)."""
MOST_BYTES = 6e9
_PAIRWISE = frozenset({"direct", "pairwise"})
_OWN = "ridgeline.network.algorithms."
"""Modules whose algorithms are tested with real data."""


def asked_bytes(op: str, group: CollectiveGroup) -> Floats:
    """Return the bytes that an operation is asked for: of all, of every part, or of every pair."""
    n, size = group.n, group.size_bytes
    if op == "all-to-all":
        return group.pair_bytes
    if op in {"send", "send-recv"}:
        pairs = np.zeros((n, n))
        source = np.arange(n) if op == "send-recv" else np.zeros(1, np.int64)
        pairs[source, (source + 1) % n if op == "send-recv" else n - 1] = size
        return pairs.ravel()
    return group.part_bytes if op in PARTED else np.array([size])


PARTED = frozenset({"all-gather", "reduce-scatter", "gather", "scatter", "all-to-all"})
"""Operations whose parts may differ in size."""


def algorithm(
    op: str, name: str, *, automatic: bool = True
) -> Callable[[Callable[[CollectiveGroup], MessageSchedule]], Algorithm]:
    """Return a decorator that registers the writer of a message schedule as an algorithm.

    Raises
    ------
    RidgelineError
        If the name is taken, or the function takes other parameters; by the decorator.
    """

    def put(write: Callable[[CollectiveGroup], MessageSchedule]) -> Algorithm:
        takes(write, f"collective algorithm {op} {name!r}", "group")
        return ALGORITHMS.register((op, name))(Algorithm(op, name, write, automatic))

    return put


RING_OPS = ("all-reduce", "reduce-scatter", "all-gather")
"""What rings do: scatter sums, gather parts, or one and then the other."""


def ring_algorithm(
    name: str,
) -> Callable[[Callable[[CollectiveGroup, str], MessageSchedule]], None]:
    """Return a decorator that registers a writer of (group, op) for each of `RING_OPS`."""

    def put(write: Callable[[CollectiveGroup, str], MessageSchedule]) -> None:
        for op in RING_OPS:
            ALGORITHMS.register((op, name))(Algorithm(op, name, _of_op(write, op), automatic=True))

    return put


def _of_op(
    write: Callable[[CollectiveGroup, str], MessageSchedule], op: str
) -> Callable[[CollectiveGroup], MessageSchedule]:
    @wraps(write)
    def of_op(group: CollectiveGroup) -> MessageSchedule:
        return write(group, op)

    return of_op
