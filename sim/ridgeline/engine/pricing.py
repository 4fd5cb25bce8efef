"""Cost rows priced by the capacities of one machine: what is fixed time and what is fluid work."""

from __future__ import annotations

import math

import numpy as np

from ridgeline._jit import kernel
from ridgeline.engine.bottleneck_pruning import dominant
from ridgeline.engine.program import Flags, Floats, Indices, Ints, Program
from ridgeline.engine.tables import LEG, ROW, USE, Records


def price_rows(program: Program) -> tuple[Records, Records, Records]:
    """Divide all works of a valid program by the capacities of its resources.

    Returns
    -------
    rows, legs, uses
        Tables of ROW (one for each cost row), LEG and USE; without the uses of resources that
        never hold a flow back (`bottleneck_pruning`).
    """
    p = program
    rows = np.zeros(len(p.phase_ptr) - 1, ROW)
    legs = np.zeros(len(p.latency_s), LEG)
    uses = np.zeros(len(p.work_resource), USE)
    size, bound = np.zeros(len(p.latency_s)), np.zeros(len(p.latency_s))
    works = (p.work_ptr, p.work_resource, p.work_amount)
    _measure_phases(*works, p.capacity, p.shared, size, bound)
    n_legs = _list_legs(p.phase_ptr, p.latency_s, p.repeat, p.weight, size, bound, rows, legs)
    n_uses = _list_uses(*works, p.shared, size, legs, uses)
    needed = dominant(legs[:n_legs], uses[:n_uses], p.capacity)
    n_uses = _list_uses(*works, needed, size, legs, uses)
    return rows, legs[:n_legs], uses[:n_uses]


@kernel
def _measure_phases(
    work_ptr: Ints,
    work_resource: Indices,
    work_amount: Floats,
    capacity: Floats,
    shared: Flags,
    size: Floats,
    bound: Floats,
) -> None:
    """Find the largest work on a shared resource and the longest time on a private one."""
    for phase in range(len(size)):
        for work in range(work_ptr[phase], work_ptr[phase + 1]):
            resource, amount = work_resource[work], work_amount[work]
            if shared[resource]:
                size[phase] = max(size[phase], amount)
            else:
                bound[phase] = max(bound[phase], amount / capacity[resource])


@kernel
def _list_legs(
    phase_ptr: Ints,
    latency_s: Floats,
    repeat: Ints,
    weight: Floats,
    size: Floats,
    bound: Floats,
    rows: Records,
    legs: Records,
) -> int:
    """Fill the tables but for the uses; return the number of legs."""
    n_legs = 0
    for row in range(len(rows)):
        rows[row]["first_leg"] = n_legs
        fixed = 0.0
        for phase in range(phase_ptr[row], phase_ptr[row + 1]):
            if size[phase] == 0.0:
                fixed += repeat[phase] * (latency_s[phase] + bound[phase])
                continue
            leg = legs[n_legs]
            leg["lead_s"] = fixed
            leg["latency_s"] = latency_s[phase]
            leg["rounds"] = repeat[phase]
            leg["size"] = size[phase]
            leg["cap"] = size[phase] / bound[phase] if bound[phase] > 0.0 else math.inf
            leg["weight"] = weight[phase]
            fixed = 0.0
            n_legs += 1
        rows[row]["last_leg"] = n_legs
        rows[row]["tail_s"] = fixed
    return n_legs


@kernel
def _list_uses(
    work_ptr: Ints,
    work_resource: Indices,
    work_amount: Floats,
    listed: Flags,
    size: Floats,
    legs: Records,
    uses: Records,
) -> int:
    """List the works on those resources leg by leg; return their number."""
    n_legs = n_uses = 0
    for phase in range(len(size)):
        if size[phase] == 0.0:
            continue
        legs[n_legs]["first_use"] = n_uses
        for work in range(work_ptr[phase], work_ptr[phase + 1]):
            resource, amount = work_resource[work], work_amount[work]
            if listed[resource] and amount > 0.0:
                uses[n_uses]["resource"] = resource
                uses[n_uses]["share"] = amount / size[phase]
                n_uses += 1
        legs[n_legs]["last_use"] = n_uses
        n_legs += 1
    return n_uses
