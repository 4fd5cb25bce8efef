"""The best packing of link-disjoint rings, and the best chain, by trying everything."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, permutations

Matrix = tuple[tuple[int, ...], ...]


def best_total(count: Matrix, bandwidth: Matrix) -> int:
    """Largest total bandwidth of link-disjoint directed Hamiltonian cycles."""
    n = len(count)
    rings = []
    for rest in permutations(range(1, n)):
        order = (0, *rest, 0)
        hops = tuple(pairwise(order))
        if all(count[a][b] for a, b in hops):
            rings.append((hops, min(bandwidth[a][b] for a, b in hops)))

    @cache
    def best(left: Matrix, first: int) -> int:
        most = 0
        for i in range(first, len(rings)):
            hops, rate = rings[i]
            if all(left[a][b] for a, b in hops):
                rows = [list(row) for row in left]
                for a, b in hops:
                    rows[a][b] -= 1
                most = max(most, rate + best(tuple(map(tuple, rows)), i))
        return most

    return best(count, 0)


def widest_chain(bandwidth: Matrix, first: int, last: int) -> int | None:
    """Bandwidth of the narrowest link of the widest Hamiltonian path; None if there is no path."""
    n = len(bandwidth)
    if n == 1:
        return None
    inner = [i for i in range(n) if i not in (first, last)]
    widths = [
        min(bandwidth[a][b] for a, b in pairwise((first, *middle, last)))
        for middle in permutations(inner)
    ]
    most = max(widths)
    return most or None
