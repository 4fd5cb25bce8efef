"""The best mapping of a contraction on levels of buffers: two mappers.

``optimal`` looks through many tilings of every axis, ``fast`` through few of them; both with all
loop orders, by the same complete search. What they list depends on the contraction alone, never on
capacities, bandwidths or numbers of arrays, and what fits into a smaller machine fits into a larger
one: so more of anything never makes an op slower, with either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import axes_of
from ridgeline.kernels.mapping.choices import COARSE, FEW, HALVED, MANY
from ridgeline.kernels.mapping.machine import (
    Machine,
    engine_of,
    granule_of,
    level_of,
    levels_of,
    problem,
)
from ridgeline.kernels.mapping.many import Listing, best_of_each, list_each
from ridgeline.kernels.mapping.mapped import Mapped, mapped_from, mapped_of
from ridgeline.kernels.mapping.nested import Search
from ridgeline.kernels.mapping.search import ORDERS
from ridgeline.workload.graph import Conv, Gemm, Pass

Mapper = Literal["fast", "optimal"]
Objective = Literal["time", "energy"]
Contraction = tuple[Gemm | Conv, Pass]
DENSITY: dict[Mapper, int] = {"fast": FEW, "optimal": MANY}
NESTED: dict[Mapper, tuple[int, int]] = {"fast": (COARSE, FEW), "optimal": (FEW, HALVED)}
"""On the farther levels of several, and on the nearest."""


def map_contraction(
    loops: Gemm | Conv,
    pass_: Pass,
    machine: Machine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
) -> Mapped:
    """Find the best mapping of one pass over a contraction.

    Raises
    ------
    RidgelineError
        If the buffers are too small for the smallest tile.
    """
    return map_contractions([(loops, pass_)], machine, mapper, objective)[0]


def map_contractions(
    wanted: Sequence[Contraction],
    machine: Machine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
) -> list[Mapped]:
    """Find the best mapping of each of some contractions; as `map_contraction`."""
    known = _known(machine, mapper, objective)
    found = list(map(known.get, wanted))
    numbers: dict[Contraction, int] = {}  # contractions are slow to hash: once for each purpose
    places = [
        -1 if mapped is not None else numbers.setdefault(job, len(numbers))
        for job, mapped in zip(wanted, found, strict=True)
    ]
    if not numbers:
        return [mapped for mapped in found if mapped is not None]
    search = _nested if machine.nearer else _single
    new = search(tuple(numbers), machine, mapper, objective)
    for job, mapped in zip(numbers, new, strict=True):
        if not math.isfinite(mapped.time_s):
            raise _too_small(job[0], machine)
    known.update(zip(numbers, new, strict=True))
    return [
        new[place] if mapped is None else mapped
        for place, mapped in zip(places, found, strict=True)
    ]


def _single(
    jobs: tuple[Contraction, ...], machine: Machine, mapper: Mapper, objective: Objective
) -> list[Mapped]:
    """Search on one level of buffers, for all of the contractions in one go."""
    extents, orders, found, played = best_of_each(
        _listing(jobs, granule_of(machine), DENSITY[mapper]), np.array(machine.widths),
        level_of(machine), engine_of(machine), objective == "energy", ORDERS,
    )  # fmt: skip
    rows = zip(found.tolist(), extents.tolist(), orders.tolist(), played.tolist(), strict=True)
    return [mapped_from(*row) for row in rows]


def _nested(
    jobs: tuple[Contraction, ...], machine: Machine, mapper: Mapper, objective: Objective
) -> list[Mapped]:
    """Search on several levels of buffers, one contraction after the other."""
    solved = []
    for job in jobs:
        axes, shape, _, engine = problem(*job, machine)
        search = Search(levels_of(machine), engine, NESTED[mapper], objective == "energy")
        solution = search.solve(axes, shape)
        solved.append(mapped_of(solution, search.played))
    return solved


def _too_small(loops: Gemm | Conv, machine: Machine) -> RidgelineError:
    buffers = ", ".join(
        f"{name} {capacities[3]:g} B"
        for name, capacities in (
            (machine.near, machine.capacities), *(level[:2] for level in machine.nearer)
        )
    )  # fmt: skip
    return RidgelineError(
        f"{machine.near} is too small: not even tiles of single elements and whole filters of "
        f"{loops} fit into the buffers ({buffers})"
    )


@lru_cache(maxsize=64)
def _listing(jobs: tuple[Contraction, ...], granule: int, density: int) -> Listing:
    """Describe contractions as `many.best_of_each` wants them."""
    axes, touches, elements = zip(*(axes_of(*job, granule) for job in jobs), strict=True)
    described = np.array(axes)
    return Listing(described, np.array(touches), np.array(elements), *list_each(described, density))


_found: dict[tuple[Machine, Mapper, Objective], dict[Contraction, Mapped]] = {}
_MOST_FOUND = 8192


def _known(machine: Machine, mapper: Mapper, objective: Objective) -> dict[Contraction, Mapped]:
    """Return the mappings on a machine that are remembered; there is room for so many in all."""
    if sum(map(len, list(_found.values()))) > _MOST_FOUND:
        _found.clear()
    return _found.setdefault((machine, mapper, objective), {})


def forget() -> None:
    """Forget all mappings, for those who measure the search."""
    _found.clear()
