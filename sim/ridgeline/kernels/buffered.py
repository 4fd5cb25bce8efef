"""Contractions on engines with buffers before the farthest memory: priced by a searched mapping.

Imported when a device has such an engine: it brings numba.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ridgeline.hardware.device import Device
from ridgeline.kernels.array_ends import mapped_registers, mapped_shares
from ridgeline.kernels.breakdown import LatencyParts
from ridgeline.kernels.busy import Busy, Job
from ridgeline.kernels.cost import Moved
from ridgeline.kernels.mapping.bounds import compulsory_bytes, lower_bound_bytes
from ridgeline.kernels.mapping.device import machine_of
from ridgeline.kernels.mapping.machine import Machine
from ridgeline.kernels.mapping.mapped import Mapped, Nearer, dataflow_of, mapping_of
from ridgeline.kernels.mapping.mapper import map_contractions
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.systolic.device import by_dataflow
from ridgeline.kernels.traffic import Search
from ridgeline.workload.graph import Op


def in_buffers(
    jobs: Sequence[Job],
    device: Device,
    engine: str,
    format_: str,
    search: Search,
    mac_s: float = 0.0,
) -> list[Busy] | None:
    """Move operands through the device's buffers as a mapper does; None where there are none.

    What is no operand, a bias or an element of the result that no product reaches, moves besides
    and is waited for.

    Parameters
    ----------
    mac_s
        Seconds of a multiply-accumulate, of engines other than systolic arrays.
    """
    machine = machine_of(device, engine, format_, device.engines[engine].accumulate)
    if machine is None:
        return None
    machine = machine._replace(mac_s=mac_s)
    peak = device.engines[engine].rates[format_].value
    near, far = machine.near, machine.far
    nearer = tuple(level.name for level in machine.nearer)
    byte_s = {name: _byte_s(device, name) for name in (far, near, *nearer)}
    contractions = [(op.loops, op.priced_as) for op, _ in jobs if op.loops is not None]
    all_found = map_contractions(contractions, machine, *search)
    result_width, far_byte_s = machine.widths[2], machine.byte_s
    derived = by_dataflow(device.engines[engine]) and any(
        level.kind == "registers" for level in device.memory.values()
    )
    done = []
    for (op, operands), found in zip(jobs, all_found, strict=True):
        assert op.loops is not None
        rest = float(operands.rest_bytes)
        levels = moved_by(found, machine, rest)
        stream_s = found.compute_s
        for name, moved in levels.items():
            stream_s = max(stream_s, moved.total * byte_s[name])
        besides = max(0.0, rest - found.results * result_width)
        waiting_s = max(0.0, found.time_s + besides * far_byte_s - stream_s)
        done.append(
            Busy(
                found.compute_s * peak, True, waiting_s, levels[near], levels[far],
                {name: levels[name] for name in nearer} if nearer else {},
                waiting_s, (found, machine),
                latency_parts=_parts(found, machine, besides * far_byte_s, stream_s),
                engine_shares=partial(mapped_shares, found, machine, op.loops, op.priced_as),
                registers=mapped_registers(found, machine, operands.gemm) if derived else None,
            )
        )  # fmt: skip
    return done


def _parts(found: Mapped, machine: Machine, besides_s: float, stream_s: float) -> LatencyParts:
    """Name the parts of a mapping's time but the arithmetic.

    Parameters
    ----------
    besides_s, stream_s
        Of what is no operand, at the farthest level; of the slowest of the engine and all levels.
    """
    far_s = found.steady_stall_s + besides_s
    parts_s = found.first_load_s + found.last_store_s + far_s + found.nearer_stall_s
    stalls: tuple[tuple[str, float], ...] = ((machine.far, far_s),)
    if machine.nearer:
        behind = machine.near if len(machine.nearer) == 1 else "nearer levels"
        stalls = (*stalls, (behind, max(found.nearer_stall_s, 0.0)))
    return LatencyParts(
        fill_s=found.first_load_s,
        drain_s=found.last_store_s,
        stall_s=stalls,
        streamed_s=min(stream_s - found.compute_s, parts_s),
    )


def moved_by(found: Mapped, machine: Machine, rest: float) -> dict[str, Moved]:
    """Bytes at every level from far to near: from and to the level behind it, and before it.

    Parameters
    ----------
    rest
        Bytes at the farthest level and the next one that are neither of a and b nor of sums.
    """
    a_width, b_width, result_width, partial_width = machine.widths
    results = found.results * result_width

    def border(
        loads: tuple[float, float, float], stores: float, finished: float, others: float
    ) -> Moved:
        partial = (loads[2] + stores - finished) * partial_width
        return Moved(loads[0] * a_width, loads[1] * b_width, others, partial)

    behind = border(found.loads, found.stores, found.results, rest)
    at, name = {machine.far: behind}, machine.near
    for buffer, level in zip(machine.nearer, found.nearer, strict=True):
        before = border(level.loads, level.stores, level.results, results)
        at[name] = _both(behind, before)
        behind, name = before, buffer.name
    a, b, c = found.near_bytes
    at[name] = _both(behind, Moved(a, b, results, c - results))
    return at


def _both(one: Moved, other: Moved) -> Moved:
    return Moved(
        one.a + other.a, one.b + other.b, one.rest + other.rest, one.partial + other.partial
    )


def _byte_s(device: Device, name: str) -> float:
    level = device.memory[name]
    if level.bandwidth is None:
        return 0.0
    return 1.0 / (level.bandwidth.value * level.achievable.value)


def report(
    op: Op, found: Mapped, machine: Machine, search: Search, cycle_hz: float | None
) -> dict[str, Any]:
    """Everything that a reader wants to know of a mapping, as plain values.

    Parameters
    ----------
    cycle_hz
        Clock in which times are also given; None: in seconds only.
    """
    assert op.loops is not None
    nest = nest_of(op.loops, op.priced_as)
    mapping = mapping_of(found, op.loops, op.priced_as, machine)
    widths = machine.widths[:3]
    ways = dataflow_of(found, machine)
    seconds = {"compute": found.compute_s}
    if machine.nearer:
        seconds["nearer levels"] = found.nearer_stall_s
    seconds |= {
        "first load": found.first_load_s,
        "steady stall": found.steady_stall_s,
        "last store": found.last_store_s,
    }
    names = [machine.far, machine.near, *(level.name for level in machine.nearer)]
    moved: dict[str, dict[str, float]] = {}
    borders: list[Mapped | Nearer] = [found, *found.nearer]
    for (behind, name), border in zip(itertools.pairwise(names), borders, strict=True):
        sums = border.stores - border.results
        moved[f"{behind} - {name}"] = {
            "a in": border.loads[0] * widths[0],
            "b in": border.loads[1] * widths[1],
            "c in": border.loads[2] * machine.widths[3],
            "c out": border.results * widths[2] + sums * machine.widths[3],
        }
    moved_total = math.fsum(moved[f"{machine.far} - {machine.near}"].values())
    moved[f"{names[-1]} - engine"] = dict(zip("abc", found.near_bytes, strict=True))
    return {
        "mapper": search.mapper,
        "objective": search.objective,
        "loops": mapping.to_dict(),
        "text": str(mapping),
        "dataflow": None if ways is None else ways[0],
        "parts": None if ways is None else dict(zip("bmnk", ways[1], strict=True)),
        "time_s": {**seconds, "total": found.time_s},
        "cycles": None
        if cycle_hz is None
        else {
            name: round(value * cycle_hz, 6)
            for name, value in {**seconds, "total": found.time_s}.items()
        },
        "moved_bytes": moved,
        "compulsory_bytes": compulsory_bytes(nest, widths),
        "lower_bound_bytes": lower_bound_bytes(nest, machine.capacities[3], widths),
        "moved_total_bytes": moved_total,
        "combinations_played": found.played,
    }
