"""Contractions on engines with buffers before the farthest memory: priced by a searched mapping.

Imported when a device has such an engine: it brings numba.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import Moved
from ridgeline.kernels.engines import Busy, Job
from ridgeline.kernels.mapping.bounds import compulsory_bytes, lower_bound_bytes
from ridgeline.kernels.mapping.device import machine_of
from ridgeline.kernels.mapping.mapper import (
    Machine,
    Mapped,
    dataflow_of,
    map_contractions,
    mapping_of,
)
from ridgeline.kernels.mapping.nest import nest_of
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
    near_byte_s, far_byte_s = _byte_s(device, machine.near), _byte_s(device, machine.far)
    contractions = [(op.loops, op.priced_as) for op, _ in jobs if op.loops is not None]
    all_found = map_contractions(contractions, machine, *search)
    done = []
    for (_, operands), found in zip(jobs, all_found, strict=True):
        far, near = moved_by(found, machine, float(operands.rest_bytes))
        besides = max(0.0, operands.rest_bytes - found.results * machine.widths[2])
        time_s = found.time_s + besides * machine.byte_s
        stream_s = max(found.compute_s, near.total * near_byte_s, far.total * far_byte_s)
        waiting_s = max(0.0, time_s - stream_s)
        done.append(
            Busy(
                peak_flops=found.compute_s * peak,
                calibrated=True,
                latency_s=waiting_s,
                near=near,
                far=far,
                waiting_s=waiting_s,
                mapped=(found, machine),
            )
        )
    return done


def moved_by(found: Mapped, machine: Machine, rest: float) -> tuple[Moved, Moved]:
    """Bytes behind the buffers, and at them: from and to the engine and the memory behind."""
    a_width, b_width, result_width, partial_width = machine.widths
    partial = (found.loads[2] + found.stores - found.results) * partial_width
    results = found.results * result_width
    far = Moved(found.loads[0] * a_width, found.loads[1] * b_width, rest, partial)
    a, b, c = found.near_bytes
    return far, Moved(far.a + a, far.b + b, rest + results, partial + c - results)


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
    width = dict(zip("abc", (*widths[:2], machine.widths[3]), strict=True))
    ways = dataflow_of(found, machine)
    seconds = {
        "compute": found.compute_s,
        "first load": found.first_load_s,
        "steady stall": found.steady_stall_s,
        "last store": found.last_store_s,
    }
    far, _ = moved_by(found, machine, found.results * widths[2])
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
        "moved_bytes": {
            f"{machine.far} - {machine.near}": {
                "a in": far.a,
                "b in": far.b,
                "c in": found.loads[2] * width["c"],
                "c out": found.results * widths[2]
                + (found.stores - found.results) * machine.widths[3],
            },
            f"{machine.near} - engine": dict(zip("abc", found.near_bytes, strict=True)),
        },
        "compulsory_bytes": compulsory_bytes(nest, widths),
        "lower_bound_bytes": lower_bound_bytes(nest, machine.capacities[3], widths),
        "moved_total_bytes": math.fsum(far),
        "combinations_played": found.played,
    }
