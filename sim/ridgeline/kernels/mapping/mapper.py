"""The best mapping of a contraction on levels of buffers: two mappers.

``optimal`` looks through many tilings of every axis, ``fast`` through few of them; both with all
loop orders, by the same complete search. What they list depends on the contraction alone, never on
capacities, bandwidths or numbers of arrays, and what fits into a smaller machine fits into a larger
one: so more of anything never makes an op slower, with either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.axes import axes_of
from ridgeline.kernels.mapping.batched import Listing, best_of_each, list_each
from ridgeline.kernels.mapping.machine import (
    MappingMachine,
    engine_of,
    granule_of,
    level_of,
    levels_of,
    problem,
)
from ridgeline.kernels.mapping.mapped_contraction import Mapped, mapped_from, mapped_of
from ridgeline.kernels.mapping.mapping import FAR, OPERANDS
from ridgeline.kernels.mapping.multi_level import MultiLevelSearch
from ridgeline.kernels.mapping.pipeline import EDP, ENERGY, HAS, TIME, C, Goal, key_of
from ridgeline.kernels.mapping.search import EXACT, ORDERS
from ridgeline.kernels.mapping.selection import TIED
from ridgeline.kernels.mapping.space import LARGEST, listed, space_of
from ridgeline.kernels.mapping.tilings import COARSE, FEW, HALVED, MANY, TILES
from ridgeline.workload.graph import Conv, Gemm, Pass

Mapper = Literal["fast", "optimal"]
Objective = Literal["time", "energy", "edp"]
Contraction = tuple[Gemm | Conv, Pass]


class Base(NamedTuple):
    """Seconds and joules of an op that no mapping changes."""

    time_s: float
    energy_j: float


NOTHING = Base(0.0, 0.0)


class MappingProblem(NamedTuple):
    """A contraction to be mapped."""

    loops: Gemm | Conv
    pass_: Pass
    base: Base


DENSITY: dict[Mapper, int] = {"fast": FEW, "optimal": MANY}
NESTED: dict[Mapper, tuple[int, int]] = {"fast": (COARSE, FEW), "optimal": (FEW, HALVED)}
"""On the farther levels of several, and on the nearest."""


def map_contraction(
    loops: Gemm | Conv,
    pass_: Pass,
    machine: MappingMachine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
    base: Base = NOTHING,
) -> Mapped:
    """Find the best mapping of one pass over a contraction.

    Raises
    ------
    RidgelineError
        If the buffers are too small for the smallest tile.
    """
    return map_contractions([(loops, pass_)], machine, mapper, objective, [base])[0]


def map_contractions(
    wanted: Sequence[Contraction],
    machine: MappingMachine,
    mapper: Mapper = "fast",
    objective: Objective = "time",
    bases: Sequence[Base] = (),
) -> list[Mapped]:
    """Find the best mapping of each of some contractions; as `map_contraction`.

    Parameters
    ----------
    bases
        Of each, what counts besides its mapping where the objective is a product.
    """
    known = _known(machine, mapper, objective)
    counted = bases if objective == "edp" and bases else itertools.repeat(NOTHING)
    jobs = [MappingProblem(*job, base) for job, base in zip(wanted, counted, strict=False)]
    found = list(map(known.get, jobs))
    numbers: dict[MappingProblem, int] = {}  # contractions are slow to hash: once for each purpose
    places = [
        -1 if mapped is not None else numbers.setdefault(job, len(numbers))
        for job, mapped in zip(jobs, found, strict=True)
    ]
    if not numbers:
        return [mapped for mapped in found if mapped is not None]
    new = _best_ways(tuple(numbers), machine, mapper, objective)
    known.update(zip(numbers, new, strict=True))
    return [
        new[place] if mapped is None else mapped
        for place, mapped in zip(places, found, strict=True)
    ]


def ways_of(machine: MappingMachine) -> tuple[MappingMachine, ...]:
    """Return all ways to use a machine; `Mapped.used` is the number of one."""
    return (machine, *machine.variants, *machine.bypasses)


def _best_ways(
    jobs: tuple[MappingProblem, ...], machine: MappingMachine, mapper: Mapper, objective: Objective
) -> list[Mapped]:
    """Search in all ways to use the machine: operands pass single buffers by only in `optimal`."""
    best: list[Mapped | None] = [None] * len(jobs)
    ways = ways_of(machine) if mapper == "optimal" else (machine, *machine.variants)
    for number, way in enumerate(ways):
        search = _nested if way.nearer else _single
        for i, mapped in enumerate(search(jobs, way, mapper, objective, best)):
            one = best[i]
            if math.isfinite(mapped.time_s) and (
                one is None or precedes(mapped, one, goal_of(objective, jobs[i].base))
            ):
                best[i] = mapped._replace(used=number) if number else mapped
    done = [mapped for mapped in best if mapped is not None]
    if len(done) < len(jobs):
        raise _too_small(jobs[best.index(None)], machine)
    return done


def goal_of(objective: Objective, base: Base = NOTHING) -> Goal:
    """Return what the search minimises."""
    return Goal({"time": TIME, "energy": ENERGY, "edp": EDP}[objective], *base)


def _worth(mapped: Mapped, goal: Goal) -> float:
    return float(key_of(mapped.time_s, mapped.energy_j, goal))


def precedes(one: Mapped, other: Mapped, goal: Goal) -> bool:
    """Tell whether one mapping is better: by the goal, time, energy, traffic, but for rounding."""
    for a, b in (
        (_worth(one, goal), _worth(other, goal)), (one.time_s, other.time_s),
        (one.energy_j, other.energy_j), (one.traffic_bytes, other.traffic_bytes),
    ):  # fmt: skip
        if abs(a - b) > TIED * max(a, b):
            return a < b
    return False


def _cutoff(known: Mapped | None, goal: Goal) -> float:
    """Return what a better mapping is not above, where one is known."""
    return math.inf if known is None else _worth(known, goal) * (1 + EXACT)


def _single(
    jobs: tuple[MappingProblem, ...], machine: MappingMachine, mapper: Mapper, objective: Objective,
    best: Sequence[Mapped | None],
) -> list[Mapped]:  # fmt: skip
    """Search on one level of buffers, for all contractions in one go where their goal is one."""
    together = (
        [range(len(jobs))] if objective != "edp" else [range(i, i + 1) for i in range(len(jobs))]
    )
    done: list[Mapped] = []
    for places in together:
        some = [jobs[i] for i in places]
        goal = goal_of(objective, some[0].base)
        cutoffs = [_cutoff(best[i], goal) for i in places]
        contractions = tuple((job.loops, job.pass_) for job in some)
        extents, orders, found, played = best_of_each(
            _listing(contractions, granule_of(machine), DENSITY[mapper]), np.array(machine.widths),
            level_of(machine), engine_of(machine), goal, ORDERS, np.array(cutoffs),
        )  # fmt: skip
        rows = zip(found.tolist(), extents.tolist(), orders.tolist(), played.tolist(), strict=True)
        done += [mapped_from(*row) for row in rows]
    return done


def _nested(
    jobs: tuple[MappingProblem, ...], machine: MappingMachine, mapper: Mapper, objective: Objective,
    best: Sequence[Mapped | None],
) -> list[Mapped]:  # fmt: skip
    """Search on several levels of buffers, one contraction after the other.

    Parameters
    ----------
    best
        Mappings that are known: no worse one need be found.
    """
    solved = []
    for job, known in zip(jobs, best, strict=True):
        goal = goal_of(objective, job.base)
        axes, shape, _, engine = problem(job.loops, job.pass_, machine)
        search = MultiLevelSearch(levels_of(machine), engine, NESTED[mapper], goal)
        solution = search.solve(axes, shape, cutoff=_cutoff(known, goal))
        solved.append(mapped_of(solution, search.played))
    return solved


def _too_small(job: MappingProblem, machine: MappingMachine) -> RidgelineError:
    """Say which level has no room for the smallest tile, and for which operand of it."""
    why = next(
        filter(None, (_lacking(job, machine, depth) for depth in range(len(machine.levels)))),
        f"{machine.near} is too small for any tile",
    )
    return RidgelineError(
        f"{why} (the smallest tile of {job.loops}: single elements and whole filters)"
    )


def _lacking(job: MappingProblem, machine: MappingMachine, depth: int) -> str:
    """Name a level that the smallest tile does not fit, and the operand that is to blame."""
    axes, shape, _, _ = problem(job.loops, job.pass_, machine)
    level, buffer = levels_of(machine)[depth], machine.levels[depth]
    starts, table, sums = listed(axes, FEW)
    factors = space_of(starts, table, sums, shape)[0].factors
    smallest = [int(starts[axis + 1]) - 1 for axis in range(4)]
    needs: dict[str, float] = {}
    for operand, name in enumerate(OPERANDS):
        port = int(level.ports.of[operand])
        if port == FAR:
            continue
        has = [smallest[axis] for axis in range(4) if HAS[operand, axis]]
        size = float(shape.elements[operand] * shape.width[3 if operand == C else operand])
        size *= math.prod(float(factors[row, LARGEST + operand]) for row in has)
        turns = level.double and any(table[row, TILES] > 1 for row in has)
        needs[name] = size * (2 if turns else 1)
        if needs[name] > level.capacity[operand]:
            twice = ", two of them, since the next one is loaded meanwhile" if turns else ""
            return (
                f"{buffer.name} is too small for {name}: it has {level.capacity[operand]:,.0f} B"
                f" for {name}, whose smallest tile takes {size:,.0f} B{twice}"
            )
    for port in range(FAR):
        mine = {x: needs[x] for i, x in enumerate(OPERANDS) if level.ports.of[i] == port}
        room = float(level.capacity[3 + port])
        if mine and math.fsum(mine.values()) > room:
            each = ", ".join(f"{name} {size:,.0f} B" for name, size in mine.items())
            most = max(mine, key=mine.__getitem__)
            return (
                f"{buffer.name} is too small: of its {room:,.0f} B the smallest tile takes {each}"
                f"{' with double buffers' if level.double else ''}; {most} takes the most"
            )
    return ""


@lru_cache(maxsize=64)
def _listing(jobs: tuple[Contraction, ...], granule: int, density: int) -> Listing:
    """Describe contractions as `batched.best_of_each` wants them."""
    axes, touches, elements = zip(*(axes_of(*job, granule) for job in jobs), strict=True)
    described = np.array(axes)
    return Listing(described, np.array(touches), np.array(elements), *list_each(described, density))


_found: dict[tuple[MappingMachine, Mapper, Objective], dict[MappingProblem, Mapped]] = {}
_MOST_FOUND = 8192


def _known(
    machine: MappingMachine, mapper: Mapper, objective: Objective
) -> dict[MappingProblem, Mapped]:
    """Return the mappings on a machine that are remembered; there is room for so many in all."""
    if sum(map(len, list(_found.values()))) > _MOST_FOUND:
        _found.clear()
    return _found.setdefault((machine, mapper, objective), {})


def forget() -> None:
    """Forget all mappings, for those who measure the search."""
    _found.clear()
