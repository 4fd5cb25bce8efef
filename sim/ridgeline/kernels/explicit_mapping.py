"""Given mappings: contractions whose loop nest comes from a file (``--mapping FILE``).

A spatial array counts the layout itself. For systolic arrays and broadcast-grid cores a file says
which tiles the memory levels hold and, of systolic arrays, which dimensions lie along rows and
columns; tiles go through the engine one after the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping as Mapping_
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.hardware.array import Dataflow
from ridgeline.hardware.device import Device
from ridgeline.kernels.broadcast_grid import grid_gemm
from ridgeline.kernels.contraction_time import ContractionProblem, EngineTime
from ridgeline.kernels.cost import OperandBytes
from ridgeline.kernels.efficiency_table import achievable_share, share_of
from ridgeline.kernels.engines import grid_mac_s, on_elements, ring_of
from ridgeline.kernels.latency_parts import ARRAY, EngineShares
from ridgeline.kernels.mapping.completion import kind_of, mappings
from ridgeline.kernels.mapping.mapping import FAR, Mapping
from ridgeline.kernels.mapping.mapping_file import MappingFile
from ridgeline.kernels.mapping.nest import ContractionNest, nest_of
from ridgeline.kernels.systolic.closed_form import layout
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.kernels.systolic.partition import Arrays, best_partition
from ridgeline.kernels.traffic import Operands, SearchOptions, accumulator_of
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Op

if TYPE_CHECKING:
    from ridgeline.kernels.mapping.explicit_evaluation import EvaluatedMapping, Misfit
    from ridgeline.kernels.mapping.machine import MappingMachine
    from ridgeline.kernels.mapping.mapped_contraction import Mapped

MappedModel = Callable[[Op, Operands, Device, str, str, MappingFile], EngineTime]
Sizes = tuple[int, int, int, int]
"""Products of a tile, and its m, n and k."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Cycles of equal tiles one after the other, and how often their words enter or leave."""

    cycles: int
    a_passes: int
    b_passes: int
    c_passes: int
    idle: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Cycles of fill, drain, reductions, and waits of an array for its own operands."""


def in_tiles(
    op: Op, operands: Operands, device: Device, engine: str, format_: str, given: MappingFile
) -> EngineTime:
    """Take the best of the mappings that a file allows: least time, then fewest far bytes.

    The time is that of the arithmetic or of the memory that is busiest, whichever is longer.
    """
    assert op.loops is not None
    from ridgeline.kernels.mapping.device import machine_of  # brings numba

    machine = machine_of(device, engine, format_, device.engines[engine].accumulate)
    if machine is not None:
        return _in_buffers(op, operands, device, engine, format_, given, machine)
    nest = nest_of(op.loops, op.pass_)
    levels = [name for name in reversed(device.memory) if device.memory[name].kind != "registers"]
    given.check(nest.dims, levels, None)
    runs, flops_per_cycle = _runs(device, engine, format_, given, nest)
    widths = bytes_of(format_), bytes_of(accumulator_of(device.engines[engine], format_))
    best: tuple[int, EngineTime] | None = None
    for mapping in mappings(given, nest, levels):
        tiles = _tiles(nest, mapping)
        cycles = sum(runs(sizes, count).cycles for sizes, count in tiles.items())
        if best is None or cycles < best[0]:
            best = cycles, _busy(mapping, tiles, runs, flops_per_cycle, widths)
    assert best is not None
    return best[1]


def _in_buffers(
    op: Op, operands: Operands, device: Device, engine: str, format_: str, given: MappingFile,
    machine: MappingMachine,
) -> EngineTime:  # fmt: skip
    """Take the best of the mappings that a file allows, by the evaluator of the search.

    A file that settles nothing is the whole search.

    Raises
    ------
    ConfigError
        If none fits: which level and operand of the one that is nearest to it.
    """
    from ridgeline.kernels.buffered import at_rate, busy_of, in_buffers, padding_of  # bring numba
    from ridgeline.kernels.mapping.explicit_evaluation import Misfit
    from ridgeline.kernels.mapping.mapped_contraction import mapped_of_given
    from ridgeline.kernels.mapping.mapper import precedes

    assert op.loops is not None
    nest, described = nest_of(op.loops, op.priced_as), device.engines[engine]
    named = [name for name in reversed(device.memory) if device.memory[name].kind != "registers"]
    given.check(nest.dims, named, None)
    row = achievable_share(op, device, engine, format_)
    mac_s = 0.0
    if described.grid is not None:
        _refuse_space(given)
        mac_s = grid_mac_s(operands.gemm, described, format_)
    share = share_of(op, row)
    if given.is_open:
        job, whole = ContractionProblem(op, operands), SearchOptions("optimal")
        found_all = in_buffers([job], device, engine, format_, whole, mac_s, [share])
        assert found_all is not None
        return found_all[0]
    best: tuple[Mapped, MappingMachine] | None = None
    least: Misfit | None = None
    fed = at_rate(machine, mac_s, share, padding=padding_of(operands, device, engine))
    for bound_s, played in _bounded(op, nest, given, fed):
        if best is not None and bound_s > best[0].time_s:
            break
        try:
            found = played.found()
        except Misfit as misfit:
            if least is None or misfit.excess < least.excess:
                least = misfit
            continue
        mapped = mapped_of_given(found, played.mapping, len(played.machine.nearer))
        if best is None or precedes(mapped, best[0], played.goal):
            best = mapped, played.machine
    if best is None:
        why = f": {least}" if least is not None else ""
        raise given.document.error(
            f"no mapping that this allows fits the memories of {device.name}{why}"
        )
    return busy_of(*best, device, engine, format_, ContractionProblem(op, operands))


def _bounded(
    op: Op, nest: ContractionNest, given: MappingFile, machine: MappingMachine
) -> list[tuple[float, EvaluatedMapping]]:
    """List what a file allows on a machine, by the seconds that it takes at least."""
    from ridgeline.kernels.mapping.axes import dims_of  # bring numba
    from ridgeline.kernels.mapping.explicit_evaluation import EvaluatedMapping
    from ridgeline.kernels.mapping.mapper import goal_of, ways_of

    assert op.loops is not None
    groups, found = dims_of(op.loops, op.priced_as), []
    for way in ways_of(machine):
        levels = [way.far, *(buffer.name for buffer in way.levels)]
        if not _may_use(given, machine, way, levels):
            continue
        for mapping in mappings(given, nest, levels):
            used = way
            if way.arrays is not None:
                tile = mapping.tile(len(levels) - 1, nest)
                used = way._replace(arrays=_arrays(given, nest, way.arrays, tile))
            played = EvaluatedMapping(nest, mapping, used, groups, goal_of("time"))
            found.append((played.bound_s(), played))
    return sorted(found, key=lambda one: one[0])


def _may_use(
    given: MappingFile, machine: MappingMachine, way: MappingMachine, levels: list[str]
) -> bool:
    """Tell whether a way to use a machine has the levels, and keeps there what a file says.

    A file that does not say what a level keeps means all that it can hold.
    """
    if any(name not in levels for name in given.levels):
        return False
    if way in machine.bypasses and not given.keeps:
        return False
    for buffer in way.levels:
        of = (0, 0, 0) if buffer.split is None else buffer.split.of
        kept = {operand for operand, port in zip("abc", of, strict=True) if port != FAR}
        stated = given.keeps.get(buffer.name)
        if stated is not None and set(stated) != kept:
            return False
    return True


def _refuse_space(given: MappingFile) -> None:
    if given.rows is not None or given.columns is not None:
        raise given.document.error(
            "cores on row and column buses lay a block of A out by themselves",
            ("rows" if given.rows is not None else "columns",),
        )


def _tiles(nest: ContractionNest, mapping: Mapping) -> Counter[Sizes]:
    """Count the tiles that the nearest level hands on, by their sizes as matrix products."""
    kinds = [kind_of(nest, dim) for dim in nest.dims]
    found: Counter[Sizes] = Counter()
    for tile, count in mapping.nearest_tiles(nest):
        size = dict.fromkeys("bmnk", 1)
        for kind, extent in zip(kinds, tile, strict=True):
            size[kind] *= extent
        found[size["b"], size["m"], size["n"], size["k"]] += count
    return found


def _busy(
    mapping: Mapping, tiles: Counter[Sizes], runs: Callable[[Sizes, int], TileRun],
    flops_per_cycle: int, widths: tuple[float, float],
) -> EngineTime:  # fmt: skip
    """Add up tiles of a machine whose engine reads from the farthest memory itself."""
    cycles, a, b, c, partial = 0, 0, 0, 0, 0
    idle = [0, 0, 0, 0]
    for (batch, m, n, k), count in tiles.items():
        run = runs((batch, m, n, k), count)
        cycles += run.cycles
        idle = [so_far + more for so_far, more in zip(idle, run.idle, strict=True)]
        a += count * batch * m * k * run.a_passes
        b += count * batch * k * n * run.b_passes
        c += count * batch * m * n
        partial += 2 * (run.c_passes - 1) * count * batch * m * n
    size, sums = widths  # bytes of operands and results, and of sums that are not done
    return EngineTime(
        peak_flops=float(cycles * flops_per_cycle),
        calibrated=True,
        latency_s=0.0,
        near=OperandBytes(a * size, b * size, c * size, partial * sums),
        mapping=str(mapping),
        engine_shares=EngineShares(
            fill=idle[0] / cycles,
            drain=idle[1] / cycles,
            exchange=idle[2] / cycles,
            stall=(ARRAY, idle[3] / cycles),
        ),
    )


def _runs(
    device: Device, engine: str, format_: str, given: MappingFile, nest: ContractionNest
) -> tuple[Callable[[Sizes, int], TileRun], int]:
    """Return what counts equal tiles on an engine, and the FLOP that it does in a cycle."""
    described = device.engines[engine]
    if described.array is not None:
        arrays = _arrays(
            given, nest, arrays_of(described.array, accumulator_of(described, format_)), nest.size
        )

        def on_arrays(sizes: Sizes, count: int) -> TileRun:
            batch, m, n, k = sizes
            best = best_partition(m, n, k, batch * count, arrays)
            spent = best.spent
            idle = spent.preload, spent.drain, best.reduction_cycles, spent.wait
            return TileRun(best.cycles, best.a_passes, best.b_passes, best.c_passes, idle)

        return on_arrays, described.array.flops_per_cycle
    grid = described.grid
    assert grid is not None
    _refuse_space(given)
    ring = ring_of(grid, format_)

    def on_cores(sizes: Sizes, count: int) -> TileRun:
        batch, m, n, k = sizes
        best = grid_gemm(m, n, k, ring, grid.fma_latency.value)
        times = count * batch
        idle = times * best.fill_cycles, times * best.drain_cycles, 0, 0
        return TileRun(times * best.cycles, 1, best.b_passes, best.c_passes, idle)

    return on_cores, grid.flops_per_cycle


def _arrays(
    given: MappingFile, nest: ContractionNest, arrays: Arrays, tile: Mapping_[str, int]
) -> Arrays:
    """Keep the dataflows and the cells that the file's rows and columns name, for such tiles."""
    wanted: list[str | None] = []
    cells = [arrays.rows, arrays.columns]
    for place, (axis, loops) in enumerate((("rows", given.rows), ("columns", given.columns))):
        kinds = {kind_of(nest, dim) for dim, _ in loops or ()}
        if "b" in kinds or len(kinds) > 1:
            raise given.document.error(
                f"the {axis} of a systolic array hold one of m, n and k; these loops are "
                f"{', '.join(sorted(kinds))} of a product",
                (axis,),
            )
        wanted.append(next(iter(kinds), None))
        numbers = [factor for _, factor in loops or ()]
        if loops and None not in numbers:
            used = math.prod(n for n in numbers if n is not None)
            if used > cells[place]:
                raise given.document.error(
                    f"the array has {cells[place]} {axis}, and these loops need {used}", (axis,)
                )
            if used < math.prod(tile[dim] for dim, _ in loops):  # fewer than could be used
                cells[place] = used
    schedules = tuple(
        how
        for how in arrays.schedules
        if all(
            kind is None or kind == laid
            for kind, laid in zip(wanted, _laid(how.dataflow), strict=True)
        )
    )
    if not schedules:
        known = ", ".join(
            f"{how.dataflow} (rows {_laid(how.dataflow)[0]}, columns {_laid(how.dataflow)[1]})"
            for how in arrays.schedules
        )
        raise given.document.error(
            f"the array has no dataflow with {wanted[0] or 'anything'} along rows and "
            f"{wanted[1] or 'anything'} along columns; it has: {known}",
            ("rows" if given.rows is not None else "columns",),
        )
    return arrays._replace(rows=cells[0], columns=cells[1], schedules=schedules)


def _laid(dataflow: Dataflow) -> tuple[str, str]:
    """Return what lies along rows and along columns."""
    axes = layout(dataflow, 0, 1, 2)
    return "mnk"[axes[0]], "mnk"[axes[1]]


MAPPED_MODELS: dict[str, MappedModel] = {
    "spatial": on_elements,
    "systolic": in_tiles,
    "broadcast-grid": in_tiles,
}


def mappable(device: Device, engines: list[str], given: MappingFile) -> list[str]:
    """Return those of some engines that take a mapping.

    Raises
    ------
    ConfigError
        If there are none.
    """
    able = [name for name in engines if _takes_one(device, name)]
    if not able:
        kinds = ", ".join(device.engines[name].kind for name in engines)
        raise given.document.error(
            f"{device.name} has no engine that takes a mapping (its engines: {kinds}; a mapping "
            f"is for: {', '.join(MAPPED_MODELS)})"
        )
    return able


def _takes_one(device: Device, name: str) -> bool:
    engine = device.engines[name]
    return engine.kind in MAPPED_MODELS and (engine.kind != "systolic" or engine.array is not None)
