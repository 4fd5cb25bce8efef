"""Contractions on engines with buffers before the farthest memory: priced by a searched mapping.

Imported when a device has such an engine: it brings numba.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.kernels.array_ends import mapped_registers, mapped_shares
from ridgeline.kernels.contraction_time import ContractionProblem, EngineTime
from ridgeline.kernels.cost import NOTHING, OperandBytes, price_of_place
from ridgeline.kernels.latency_parts import LatencyParts
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.device import machine_of
from ridgeline.kernels.mapping.machine import MappingMachine
from ridgeline.kernels.mapping.mapped_contraction import Mapped, Nearer, dataflow_of, mapping_of
from ridgeline.kernels.mapping.mapper import Base, map_contractions, ways_of
from ridgeline.kernels.mapping.mapping import FAR, Mapping, TileLoop
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.traffic_bounds import compulsory_bytes, lower_bound_bytes
from ridgeline.kernels.systolic.closed_form import folds
from ridgeline.kernels.systolic.device import by_dataflow
from ridgeline.kernels.traffic import Operands, SearchOptions
from ridgeline.workload.graph import Op


def in_buffers(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions,
    mac_s: float = 0.0,
    shares: Sequence[float] = (),
) -> list[EngineTime] | None:
    """Move operands through the device's buffers as a mapper does; None where there are none.

    What is no operand, a bias or an element of the result that no product reaches, moves besides
    and is waited for.

    Parameters
    ----------
    mac_s
        Seconds of a multiply-accumulate, of engines other than systolic arrays.
    shares
        Of each job, the share of its cycles that arrays are fed in; all of them by default.
    """
    machine = machine_of(device, engine, format_, device.engines[engine].accumulate)
    if machine is None:
        return None
    facts = _Facts.of(device, engine, format_)
    done: list[EngineTime | None] = [None] * len(jobs)
    kinds = [
        (shares[i] if shares else 1.0, _held(operands), padding_of(operands, device, engine))
        for i, (_, operands) in enumerate(jobs)
    ]
    for kind in sorted(set(kinds)):
        share, held, padding = kind
        places = [i for i in range(len(jobs)) if kinds[i] == kind]
        some = [jobs[i] for i in places]
        fed = at_rate(machine, mac_s, share, held, padding)
        contractions = [(op.loops, op.priced_as) for op, _ in some if op.loops is not None]
        bases = _bases(some, device, engine, format_) if search.objective == "edp" else []
        all_found = map_contractions(contractions, fed, *search, bases)
        ways = ways_of(fed)
        for i, found in zip(places, all_found, strict=True):
            done[i] = _busy(found, ways[found.used], facts, jobs[i])
    return [busy for busy in done if busy is not None]


class _Facts(NamedTuple):
    """What mappings on an engine have in common: peak, seconds a byte, whether registers follow."""

    peak: float
    byte_s: dict[str, float]
    derived: bool

    @classmethod
    def of(cls, device: Device, engine: str, format_: str) -> _Facts:
        levels = device.memory.items()
        return cls(
            device.engines[engine].rates[format_].value,
            {name: _byte_s(device, name) for name, _ in levels},
            by_dataflow(device.engines[engine])
            and any(level.kind == "registers" for _, level in levels),
        )


def busy_of(
    found: Mapped,
    machine: MappingMachine,
    device: Device,
    engine: str,
    format_: str,
    job: ContractionProblem,
) -> EngineTime:
    """Return what a mapping keeps busy, for how long."""
    return _busy(found, machine, _Facts.of(device, engine, format_), job)


def _busy(
    found: Mapped, machine: MappingMachine, facts: _Facts, job: ContractionProblem
) -> EngineTime:
    op, operands = job
    assert op.loops is not None
    rest = float(operands.rest_bytes)
    levels = moved_by(found, machine, rest)
    stream_s = found.compute_s
    for name, moved in levels.items():
        stream_s = max(stream_s, moved.total * facts.byte_s[name])
    besides = max(0.0, rest - found.results * machine.widths[2])
    waiting_s = max(0.0, found.time_s + besides * machine.byte_s - stream_s)
    far = levels.pop(machine.far)
    return EngineTime(
        found.compute_s * facts.peak, True, waiting_s, NOTHING, far, levels, waiting_s,
        (found, machine),
        latency_parts=_parts(found, machine, besides * machine.byte_s, stream_s),
        engine_shares=partial(mapped_shares, found, machine, op.loops, op.priced_as),
        registers=mapped_registers(found, machine, operands.gemm) if facts.derived else None,
    )  # fmt: skip


def _held(operands: Operands) -> tuple[int, int, int]:
    """Tell which of a, b and the result a buffer keeps from one op to the next, as a whole."""
    kept = operands.kept
    if kept is NOTHING:
        return 0, 0, 0
    a, b, c = (
        int(0.0 < size <= part * (1 + 1e-9))
        for size, part in zip(
            (operands.a_bytes, operands.b_bytes, operands.rest_bytes),
            (kept.a, kept.b, kept.rest),
            strict=True,
        )
    )
    return a, b, c


def padding_of(operands: Operands, device: Device, engine: str) -> float:
    """Return the bytes of weights fetched, zeros of whole tiles included, over their own."""
    array = device.engines[engine].array
    return 1.0 if array is None else array.tile_padding(operands.gemm.k, operands.gemm.n)


@lru_cache(maxsize=256)
def at_rate(
    machine: MappingMachine,
    mac_s: float,
    share: float,
    held: tuple[int, int, int] = (0, 0, 0),
    padding: float = 1.0,
) -> MappingMachine:
    """Return the machine, in all ways to use it, at another rate of its engine.

    Parameters
    ----------
    mac_s
        Seconds of a multiply-accumulate, of engines without arrays.
    share
        Of the cycles, those in which arrays are fed.
    held
        As in `MappingMachine`.
    padding
        Bytes of b that are moved for each of its own: counted evenly over its elements.
    """

    def at(way: MappingMachine) -> MappingMachine:
        a, b, c, sums = way.widths
        return way._replace(
            mac_s=mac_s / share,
            cycle_s=way.cycle_s / share,
            widths=(a, b * padding, c, sums),
            held=held,
        )

    return at(machine)._replace(
        variants=tuple(map(at, machine.variants)), bypasses=tuple(map(at, machine.bypasses))
    )


def _bases(
    jobs: Sequence[ContractionProblem], device: Device, engine: str, format_: str
) -> list[Base]:
    """Seconds and joules of ops that are the same with any mapping: launches and arithmetic."""
    launch_s = device.launch_latency.value
    flop_j = price_of_place(device, f"{engine}.{format_}").price_j
    return [
        Base(launch_s, op.matrix_flops * flop_j + device.idle_power.value * launch_s)
        for op, _ in jobs
    ]


def _parts(
    found: Mapped, machine: MappingMachine, besides_s: float, stream_s: float
) -> LatencyParts:
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


def moved_by(found: Mapped, machine: MappingMachine, rest: float) -> dict[str, OperandBytes]:
    """Bytes at every level from far to near: from and to the level behind it, and before it.

    Parameters
    ----------
    rest
        Bytes at the farthest level and the next one that are neither of a and b nor of sums.
    """
    a_width, b_width, result_width, partial_width = machine.widths
    results = found.results * result_width
    buffers = machine.levels

    def border(
        loads: tuple[float, float, float], stores: float, finished: float, others: float
    ) -> Sizes:
        partial = (loads[2] + stores - finished) * partial_width
        return loads[0] * a_width, loads[1] * b_width, others, partial

    passes_by = buffers[0].split is not None and buffers[0].split.of[2] == FAR
    if passes_by or machine.held[2]:  # the arrays write results themselves
        # Of results that are pooled on their way out fewer bytes arrive than the product has.
        behind = border(found.loads, 0.0, 0.0, max(rest - results, 0.0))
    else:
        behind = border(found.loads, found.stores, found.results, rest)
    at: dict[str, list[float]] = {}
    _spread(at, behind, (machine.far,) * 3)
    for number, buffer in enumerate(buffers):
        names = (buffer.name,) * 3 if buffer.split is None else buffer.split.names
        _spread(at, behind, names, machine.far)
        if number < len(found.nearer):
            level = found.nearer[number]
            behind = border(level.loads, level.stores, level.results, results)
        else:
            a, b, c = found.near_bytes
            behind = a, b, results, c - results
        _spread(at, behind, names)
    return {name: OperandBytes(*sizes) for name, sizes in at.items()}


Sizes = tuple[float, float, float, float]
"""Bytes as in `OperandBytes`."""


def _spread(
    at: dict[str, list[float]], moved: Sizes, names: tuple[str, str, str], apart: str = ""
) -> None:
    """Add bytes to the levels of a, b and c; not to the level `apart`, which has them already."""
    for operand, name in enumerate(names):
        if name != apart:
            sizes = at.get(name)
            if sizes is None:
                sizes = at[name] = [0.0, 0.0, 0.0, 0.0]
            sizes[operand] += moved[operand]
            if operand == 2:
                sizes[3] += moved[3]


def as_file(mapping: Mapping) -> str:
    """Write a mapping as a file for ``--mapping``, which costs what the mapping does."""
    lines = ["kind: mapping", "levels:"]
    for level in mapping.levels:
        loops = ", ".join(f"{dim}={factor}" for dim, factor in level.temporal)
        lines += [f"  - level: {level.name}", f"    loops: [{loops}]"]
        lines.append(f"    keeps: [{', '.join(level.keeps)}]")
    for axis, loops_ in (("rows", mapping.rows), ("columns", mapping.columns)):
        if loops_:
            lines.append(f"{axis}: [{', '.join(f'{dim}={factor}' for dim, factor in loops_)}]")
    return "\n".join(lines) + "\n"


def over_borders(found: Mapped, machine: MappingMachine) -> dict[str, dict[str, float]]:
    """Bytes of each operand over every border between memory levels, and to the engine."""
    a_width, b_width, result_width, partial_width = machine.widths
    moved: dict[str, dict[str, float]] = {}
    behind: Sequence[str] = (machine.far,) * 3
    borders: list[Mapped | Nearer] = [found, *found.nearer]
    for buffer, border in zip(machine.levels, borders, strict=True):
        names = (buffer.name,) * 3 if buffer.split is None else buffer.split.names
        finished = border.results if border.stores else 0.0
        each = (
            {"a in": border.loads[0] * a_width},
            {"b in": border.loads[1] * b_width},
            {
                "c in": border.loads[2] * partial_width,
                "c out": finished * result_width + (border.stores - finished) * partial_width,
            },
        )
        for source, name, bytes_ in zip(behind, names, each, strict=True):
            if source != name:  # the operand does not pass this level by
                moved.setdefault(f"{source} - {name}", {}).update(bytes_)
        behind = names
    for source, operand, size in zip(behind, "abc", found.near_bytes, strict=True):
        moved.setdefault(f"{source} - engine", {})[operand] = size
    return moved


def far_bytes(found: Mapped, machine: MappingMachine) -> float:
    """Bytes of all operands that come from the farthest memory or go there."""
    return math.fsum(
        size
        for border, by_operand in over_borders(found, machine).items()
        if border.startswith(f"{machine.far} - ")
        for size in by_operand.values()
    )


def _room(machine: MappingMachine) -> float:
    """Bytes of all buffers next to the farthest memory."""
    split = machine.split
    if split is None:
        return machine.capacities[3]
    return math.fsum(room for room in split.capacities if math.isfinite(room))


def _byte_s(device: Device, name: str) -> float:
    level = device.memory[name]
    if level.bandwidth is None:
        return 0.0
    return 1.0 / (level.bandwidth.value * level.achievable.value)


def report(
    op: Op, found: Mapped, machine: MappingMachine, search: SearchOptions, cycle_hz: float | None
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
    ways = dataflow_of(found, machine)
    nearest = mapping.tile(len(mapping.levels) - 1, nest)
    groups = dims_of(op.loops, op.priced_as)
    sizes = tuple(math.prod(nearest.get(dim, 1) for dim in group) for group in groups)
    depth = math.prod(nest.size.get(dim, 1) for dim in groups[3])
    # A division into more parts than there are to have leaves the other arrays idle.
    parts = () if ways is None else tuple(
        folds(size, folds(size, into)) for size, into in zip(sizes, ways[1], strict=True)
    )  # fmt: skip
    # Where arrays have several dataflows each tile takes its fastest: no axis is settled for all.
    settled = mapping
    if machine.arrays is not None and len({how.dataflow for how in machine.arrays.schedules}) > 1:
        *farther, last = mapping.levels
        loops = tuple(TileLoop(dim, nearest[dim]) for dim in nest.dims if nearest[dim] > 1)
        levels = (*farther, replace(last, temporal=loops))
        settled = replace(mapping, levels=levels, rows=(), columns=())
    seconds = {"compute": found.cycles_s, "near port": found.compute_s - found.cycles_s}
    if machine.nearer:
        seconds["nearer levels"] = found.nearer_stall_s
    seconds |= {
        "first load": found.first_load_s,
        "steady stall": found.steady_stall_s,
        "last store": found.last_store_s,
    }
    return {
        "mapper": search.mapper,
        "objective": search.objective,
        "loops": settled.to_dict(),
        "first_tile": {axis: mapping.to_dict()[axis] for axis in ("rows", "columns")},
        "file": as_file(settled),
        "text": str(mapping),
        "dataflow": None if ways is None else ways[0],
        "parts": None if ways is None else dict(zip("bmnk", parts, strict=True)),
        "idle_arrays": _idle_arrays(parts, depth, machine),
        "time_s": {**seconds, "total": found.time_s},
        "cycles": None
        if cycle_hz is None
        else {
            name: round(value * cycle_hz, 6)
            for name, value in {**seconds, "total": found.time_s}.items()
        },
        "moved_bytes": over_borders(found, machine),
        "compulsory_bytes": compulsory_bytes(nest, machine.widths[:3]),
        "lower_bound_bytes": lower_bound_bytes(nest, _room(machine), machine.widths[:3]),
        "moved_total_bytes": far_bytes(found, machine),
        "combinations_played": found.played,
    }


def _idle_arrays(
    parts: Sequence[int], depth: int, machine: MappingMachine
) -> dict[str, int] | None:
    """Say how many arrays work and how many there are, where one more axis could be cut.

    Without a network between arrays k, `depth` long, is not cut: partial sums would have to meet.
    """
    arrays = machine.arrays
    if arrays is None or not parts or arrays.network is not None:
        return None
    used = math.prod(parts)
    if used == arrays.number or depth <= arrays.rows:
        return None
    return {"working": used, "of": arrays.number}
