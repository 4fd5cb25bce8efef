"""Hypervolume: how much of a box lies behind a front.

Exact, by slices along the last objective (E. Zitzler, L. Thiele, "Multiobjective optimization using
evolutionary algorithms", PPSN V, 1998).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def hypervolume(points: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the volume that points dominate up to a reference; every objective is minimised.

    Parameters
    ----------
    points
        (points, objectives); those that are not better than the reference everywhere count nothing.
    reference
        (objectives,).
    """
    worst = np.asarray(reference, np.float64)
    all_points = np.asarray(points, np.float64).reshape(-1, len(worst))
    return _volume(non_dominated(all_points[(all_points < worst).all(axis=1)]), worst)


def non_dominated(points: Floats) -> Floats:
    """Return the points that no other one beats, each once, in the order of the first objective."""
    unique = np.unique(points, axis=0)  # sorted: whatever beats a point comes before it
    kept: list[int] = []
    for i in range(len(unique)):
        if not kept or not (unique[kept] <= unique[i]).all(axis=1).any():
            kept.append(i)
    return unique[kept]


def _volume(front: Floats, reference: Floats) -> float:
    """Return the volume of a front whose points are all better than the reference."""
    if not len(front):
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - front[:, 0].min())
    if len(reference) == 2:
        heights = np.concatenate([[reference[1]], front[:-1, 1]])
        return float(((reference[0] - front[:, 0]) * (heights - front[:, 1])).sum())
    ordered = front[np.argsort(front[:, -1], kind="stable")]
    ends = np.append(ordered[1:, -1], reference[-1])
    total = 0.0
    for i, (begin, end) in enumerate(zip(ordered[:, -1], ends, strict=True)):
        if end > begin:
            total += (end - begin) * _volume(non_dominated(ordered[: i + 1, :-1]), reference[:-1])
    return total
