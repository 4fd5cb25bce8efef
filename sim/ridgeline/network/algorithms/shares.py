"""Shares of a payload that load the fullest link least: exact, for a few lanes on a few links."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ridgeline.network.topology import Floats

_ROUNDING = 1e-12


def least_shares(load: Floats) -> Floats:
    """Return [L] shares, which sum to one, whose fullest link carries least.

    A matrix game: some best answer has as many lanes as links that are full, and follows from
    these alone (L. Shapley and R. Snow, Annals of Mathematics Studies 24, 1950). All are tried.

    Parameters
    ----------
    load
        [R, L] time that each link needs for the whole payload on each lane.
    """
    load = _undominated(load)
    n_links, n_lanes = load.shape
    best, least = np.full(n_lanes, 1 / n_lanes), np.inf
    for size in range(1, min(n_links, n_lanes) + 1):
        lanes = np.array(list(combinations(range(n_lanes), size)))
        for links in combinations(range(n_links), size):
            # shares of some lanes with which some links are equally full, and the time that is
            system = np.zeros((len(lanes), size + 1, size + 1))
            system[:, :size, :size] = load[np.array(links)[:, None], lanes[:, None, :]]
            system[:, :size, size] = -1.0
            system[:, size, :size] = 1.0
            regular = np.abs(np.linalg.det(system)) > _ROUNDING
            right = np.zeros((int(regular.sum()), size + 1, 1))
            right[:, size] = 1.0
            found = np.linalg.solve(system[regular], right)[:, :size, 0]
            shares = np.zeros((len(found), n_lanes))
            np.put_along_axis(shares, lanes[regular], found, axis=1)
            shares = shares[(found >= 0).all(axis=1)]
            if len(shares):
                fullest = (shares @ load.T).max(axis=1)
                at = int(np.argmin(fullest))
                if fullest[at] < least * (1 - _ROUNDING):
                    best, least = shares[at], float(fullest[at])
    return best


def _undominated(load: Floats) -> Floats:
    """Leave out links that no lane loads more than another link."""
    load = np.unique(load / load.max(), axis=0)[::-1]
    kept: list[Floats] = []
    for row in load[np.argsort(-load.sum(axis=1), kind="stable")]:
        if not any((row <= other * (1 + _ROUNDING)).all() for other in kept):
            kept.append(row)
    return np.array(kept)
