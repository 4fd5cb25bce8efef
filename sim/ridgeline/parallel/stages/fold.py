"""Which ranks are equivalent, so that one of them can be simulated for all.

Colour refinement: ranks begin with the colour of what they are and do by themselves; then a rank's
colour is refined by the colours that it meets in its groups, until nothing changes. Ranks of one
colour cannot be told apart by anything that a Program says (Cardon and Crochemore, "Partitioning a
graph in O(|A| log2 |V|)", TCS 19(1), 1982, describe the refinement).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def equivalent_ranks(
    roles: Sequence[Hashable], groups: Sequence[tuple[Hashable, Sequence[int]]]
) -> list[list[int]]:
    """Partition ranks into classes of equivalent ones.

    Parameters
    ----------
    roles
        For every rank, what it does by itself: device, stage, workload, place in the topology.
    groups
        For every collective in the order of issue, what it is and its members.

    Returns
    -------
    list of list of int
        Classes of ranks, each ascending, ordered by their first member.
    """
    colours = _numbered(list(roles))
    while True:
        meets: list[list[Hashable]] = [[] for _ in roles]
        for what, members in groups:
            met = tuple(sorted(colours[rank] for rank in members))
            for rank in members:
                meets[rank].append((what, met))
        refined = _numbered([(c, tuple(m)) for c, m in zip(colours, meets, strict=True)])
        if max(refined, default=-1) == max(colours, default=-1):
            break
        colours = refined
    classes: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        classes.setdefault(colour, []).append(rank)
    return list(classes.values())


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Give equal keys equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
