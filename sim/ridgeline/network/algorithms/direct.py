"""Direct algorithms: everyone talks to everyone, all at once or one partner after the other.

"direct" sends all messages in one round: α once, then what the fullest link carries. "pairwise"
takes p - 1 rounds, in the k-th of which everyone sends to the one k positions further: (p-1)α, but
never two messages at a port at once (Thakur, Rabenseifner and Gropp, 2005). Behind a switch both
take (p-1)/p Sβ besides. A message has no cost of its own here besides latency, so that pairwise
(and Bruck's all-to-all) never beat direct, and "auto" does not try them.
"""

from __future__ import annotations

import numpy as np

from ridgeline.network.algorithm import CollectiveGroup, algorithm
from ridgeline.network.message_schedule import (
    Ints,
    MessageRounds,
    MessageSchedule,
    make_script,
    make_step,
)


def _all_pairs(n: int) -> tuple[Ints, Ints]:
    source, target = np.divmod(np.arange(n * n), n)
    different = source != target
    return source[different], target[different]


def _scattering(n: int) -> MessageRounds:
    source, target = _all_pairs(n)
    return make_step(source, target, target, span=n, combine=True)


def _gathering(n: int) -> MessageRounds:
    source, target = _all_pairs(n)
    return make_step(source, target, source, span=n)


@algorithm("all-reduce", "direct")
def all_reduce_direct(group: CollectiveGroup) -> MessageSchedule:
    """Everyone adds up one part and sends it to all: 2α + 2(p-1)/p Sβ behind a switch."""
    return make_script(group.part_bytes, [_scattering(group.n), _gathering(group.n)])


@algorithm("reduce-scatter", "direct")
def reduce_scatter_direct(group: CollectiveGroup) -> MessageSchedule:
    """Everyone sends every part to its owner."""
    return make_script(group.part_bytes, [_scattering(group.n)], owner=np.arange(group.n))


@algorithm("all-gather", "direct")
def all_gather_direct(group: CollectiveGroup) -> MessageSchedule:
    """Everyone sends its part to all."""
    return make_script(group.part_bytes, [_gathering(group.n)], owner=np.arange(group.n))


@algorithm("all-to-all", "direct")
def all_to_all_direct(group: CollectiveGroup) -> MessageSchedule:
    """Everyone sends its parts to all others at once."""
    n = group.n
    source, target = _all_pairs(n)
    origin, owner = np.divmod(np.arange(n * n), n)
    step = make_step(source, target, source * n + target, span=n * n)
    return make_script(group.pair_bytes, [step], owner=owner, origin=origin)


@algorithm("all-to-all", "pairwise", automatic=False)
def all_to_all_pairwise(group: CollectiveGroup) -> MessageSchedule:
    """Take p - 1 rounds: (p-1)α + (p-1)/p Sβ."""
    n = group.n
    position = np.arange(n)
    origin, owner = np.divmod(np.arange(n * n), n)
    steps = [
        make_step(position, target, position * n + target, span=n * n)
        for target in ((position + k) % n for k in range(1, n))
    ]
    return make_script(group.pair_bytes, steps, owner=owner, origin=origin)


@algorithm("reduce-scatter", "pairwise", automatic=False)
def reduce_scatter_pairwise(group: CollectiveGroup) -> MessageSchedule:
    """Take p - 1 rounds: (p-1)α + (p-1)/p Sβ."""
    n = group.n
    position = np.arange(n)
    steps = [
        make_step(position, target, target, span=n, combine=True)
        for target in ((position + k) % n for k in range(1, n))
    ]
    return make_script(group.part_bytes, steps, owner=position)


@algorithm("broadcast", "direct")
def broadcast_direct(group: CollectiveGroup) -> MessageSchedule:
    """Send from the root to all at once: α + (p-1) Sβ."""
    return make_script(np.full(1, group.size_bytes), [_from_root(group.n)])


@algorithm("reduce", "direct")
def reduce_direct(group: CollectiveGroup) -> MessageSchedule:
    """All send to the root at once: α + (p-1) Sβ."""
    return make_script(np.full(1, group.size_bytes), [_to_root(group.n)])


@algorithm("all-reduce", "parameter-server")
def all_reduce_parameter_server(group: CollectiveGroup) -> MessageSchedule:
    """All push to the first rank and pull from it: 2(α + (p-1) Sβ).

    Li et al., OSDI 2014, with one server that is also a worker. With the parameters spread over as
    many servers as workers it is the direct all-reduce.
    """
    return make_script(np.full(1, group.size_bytes), [_to_root(group.n), _from_root(group.n)])


def _from_root(n: int) -> MessageRounds:
    return make_step(0, np.arange(1, n), 0, span=1)


def _to_root(n: int) -> MessageRounds:
    return make_step(np.arange(1, n), 0, 0, span=1, combine=True)


@algorithm("scatter", "direct")
def scatter_direct(group: CollectiveGroup) -> MessageSchedule:
    """Send everyone its part at once: α + (p-1)/p Sβ."""
    others = np.arange(1, group.n)
    step = make_step(0, others, others, span=group.n)
    return make_script(group.part_bytes, [step], owner=np.arange(group.n))


@algorithm("gather", "direct")
def gather_direct(group: CollectiveGroup) -> MessageSchedule:
    """All send their part to the root at once: α + (p-1)/p Sβ."""
    others = np.arange(1, group.n)
    step = make_step(others, 0, others, span=group.n)
    return make_script(group.part_bytes, [step], owner=np.arange(group.n))


@algorithm("send", "direct")
def send_direct(group: CollectiveGroup) -> MessageSchedule:
    """Send from the first rank to the last: α + Sβ."""
    last = group.n - 1
    step = make_step(0, last, 0, span=1)
    ends = (np.full(1, place, np.int64) for place in (last, 0))
    owner, origin = ends
    return make_script(np.full(1, group.size_bytes), [step], owner=owner, origin=origin)


@algorithm("send-recv", "direct")
def send_recv_direct(group: CollectiveGroup) -> MessageSchedule:
    """Everyone sends to the next and receives from the one before, as nccl-tests does: α + Sβ."""
    position = np.arange(group.n)
    after = (position + 1) % group.n
    step = make_step(position, after, position, span=group.n)
    return make_script(np.full(group.n, group.size_bytes), [step], owner=after, origin=position)
