"""How long a contraction keeps a compute engine busy: one model per kind of engine.

A model is a function from contractions to *FLOP at peak rate*: the number of FLOP that the engine
would do at its peak in the time that each contraction takes. It gets all contractions of a network
that there are at once, so that what it searches for can be searched for in one go. Kinds are
registered by name (`contraction_time.ENGINE_MODELS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ridgeline.hardware.device import Device, Engine
from ridgeline.hardware.grid import BroadcastGrid
from ridgeline.kernels.broadcast_grid import Ring, grid_gemm, ring_gemm, unheld_share
from ridgeline.kernels.bsp_gemm import ElementSizes, EqualTiles, best_plan
from ridgeline.kernels.contraction_time import (
    ENGINE_MODELS,
    ContractionProblem,
    EngineTime,
)
from ridgeline.kernels.cost import OperandBytes, price_of_place
from ridgeline.kernels.cpu_cores import besides_s, terms_of
from ridgeline.kernels.efficiency_table import achievable_share, achievable_shares, share_of
from ridgeline.kernels.latency_parts import BUSY_THROUGHOUT, EngineShares, LatencyParts
from ridgeline.kernels.mapping.mapping_file import MappingFile
from ridgeline.kernels.processors import in_waves
from ridgeline.kernels.systolic.device import arrays_of, by_dataflow
from ridgeline.kernels.systolic.partition import best_partition
from ridgeline.kernels.traffic import FAST, Operands, SearchOptions, accumulator_of
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Gemm, Op, Pass

if TYPE_CHECKING:
    from ridgeline.kernels.spatial.nest import ConvolutionNest
    from ridgeline.kernels.spatial.search import LayoutResult

if TYPE_CHECKING:
    from ridgeline.kernels.spatial.machine import LayoutPrices


@ENGINE_MODELS.register("cores")
def on_cores(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
) -> list[EngineTime]:
    """Sum up arithmetic and what a library of a processor takes besides it (see `cores`)."""
    peak = device.engines[engine].rates[format_].value
    done = []
    for op, operands in jobs:
        row, terms = achievable_share(op, device, engine, format_), terms_of(op, operands)
        share, copying_s = 1.0, 0.0
        if row is not None:
            share, copying_s = row.fraction.value, besides_s(row, terms)
        done.append(
            EngineTime(
                peak_flops=terms.flops / share + copying_s * peak,
                calibrated=row is not None and row.fraction.basis in {"measured", "derived"},
                latency_s=0.0,
                near=OperandBytes(terms.a_bytes, terms.b_bytes, terms.c_bytes),
                copying_s=copying_s,
                engine_shares=_copying(terms.flops / share, copying_s * peak),
            )
        )
    return done


def _copying(multiplied: float, copied: float) -> EngineShares:
    return EngineShares(copy=copied / (multiplied + copied)) if copied else BUSY_THROUGHOUT


@ENGINE_MODELS.register("systolic")
def on_arrays(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
) -> list[EngineTime]:
    """Count cycles on the engine's systolic arrays; without a description of them, as `in_waves`.

    At the peak every cell does a multiply-accumulate in every cycle; a format with a lower rate
    takes as many cycles more. The cycles are exact; where programs were measured to reach a share
    of them, since a compiler's code does not feed the arrays in every cycle, that is a row of the
    device's achievable shares.
    """
    if device.engines[engine].array is None:
        return in_waves(jobs, device, engine, format_)
    rows = achievable_shares([op for op, _ in jobs], device, engine, format_)
    shares = [share_of(op, row) for (op, _), row in zip(jobs, rows, strict=True)]
    done = _in_cycles(jobs, device, engine, format_, search, shares)
    for busy, row in zip(done, rows, strict=True):
        if row is not None:
            busy.calibrated = row.fraction.basis in {"measured", "derived"}
    return done


def _in_cycles(
    jobs: Sequence[ContractionProblem], device: Device, engine: str, format_: str,
    search: SearchOptions,
    shares: Sequence[float],
) -> list[EngineTime]:  # fmt: skip
    array = device.engines[engine].array
    assert array is not None
    accumulate = accumulator_of(device.engines[engine], format_)
    # Imported when a device has such an engine: it brings numba.
    from ridgeline.kernels.buffered import in_buffers

    mapped = in_buffers(jobs, device, engine, format_, search, shares=shares)
    if mapped is not None:
        return mapped
    from ridgeline.kernels.array_ends import partition_registers, shares_of

    arrays, sum_bytes = arrays_of(array, accumulate), bytes_of(accumulate)
    widths, derived = (bytes_of(format_), sum_bytes), by_dataflow(device.engines[engine])
    done = []
    for (_, operands), share in zip(jobs, shares, strict=True):
        gemm = operands.gemm
        best = best_partition(gemm.m, gemm.n, gemm.k, gemm.batch, arrays)
        # Partial sums are written and read back.
        partial_sums = 2 * (best.c_passes - 1) * gemm.batch * gemm.m * gemm.n
        near = OperandBytes(
            float(operands.a_bytes * best.a_passes),
            float(operands.b_bytes * best.b_passes),
            float(operands.rest_bytes),
            float(partial_sums * sum_bytes),
        )
        busy = EngineTime(best.cycles * array.flops_per_cycle / share, True, 0.0, near)
        busy.engine_shares = shares_of(best)
        if derived:
            sizes = (gemm.batch, gemm.m, gemm.n, gemm.k)
            busy.registers = partition_registers(best, sizes, arrays, widths)
        done.append(busy)
    return done


def ring_of(grid: BroadcastGrid, format_: str) -> Ring:
    """Return the cores of an engine as the model of cores on a ring knows them."""
    return Ring(
        grid.cores.value, grid.side.value, grid.local_memory.value, word_bytes=bytes_of(format_)
    )


@ENGINE_MODELS.register("broadcast-grid")
def on_grid(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
) -> list[EngineTime]:
    """Count cycles of the broadcast-grid cores, which leave nothing to measure either."""
    done = []
    for job in jobs:
        ring = _on_ring(job, device, engine, format_)
        if ring is None or job.operands.unheld is None:  # of one op alone, the faster
            blocks = _on_grid(job, device, engine, format_, search)
            rate = device.engines[engine].rates[format_].value
            if ring is None or _alone_s(blocks, device, rate) < _alone_s(ring, device, rate):
                ring = blocks
        done.append(ring)
    return done


def _alone_s(busy: EngineTime, device: Device, rate: float) -> float:
    """Time of a contraction on an engine: its arithmetic, or the farthest memory's traffic."""
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    moved = 0.0 if busy.far is None else busy.far.total
    bandwidth = far.bandwidth.value * far.achievable.value
    return busy.latency_s + max(busy.peak_flops / rate, moved / bandwidth)


def _on_ring(
    job: ContractionProblem, device: Device, engine: str, format_: str
) -> EngineTime | None:
    """Count cycles of cores on a ring that keep one operand; None where it does not pay.

    The ring and the sums within columns come beside the arithmetic. What the PEs do not hold comes
    from the memory behind them, under the arithmetic. Blocks of operands that all come from there
    and go back (`_on_grid`) are faster where products are large.
    """
    grid, operands = device.engines[engine].grid, job.operands
    assert grid is not None
    if grid.spill_words_per_cycle is None:
        return None
    gemm, ring, size = operands.gemm, ring_of(grid, format_), bytes_of(format_)
    gathered = job.op.pass_ is Pass.WEIGHT_GRADIENT
    law = ring_gemm(gemm.m, gemm.n, gemm.k, ring, gathered=gathered)
    one_sample = law.moving_words / min(gemm.m, gemm.n, gemm.k) * size
    rest_samples = law.moving_words * size - one_sample
    resident_bytes = law.resident_words * size
    place = "abc".index(law.resident)
    if operands.unheld is None:  # of one op alone, all is there that has room
        spilled = unheld_share(resident_bytes, one_sample, rest_samples, ring)
        shares = [0.0, 0.0, 0.0]
        shares[place] = spilled
    else:
        shares, spilled = list(operands.unheld), operands.unheld[place]
    if spilled == 1.0:
        return None
    cycle_s = grid.flops_per_cycle / device.engines[engine].rates[format_].value
    sizes = operands.a_bytes, operands.b_bytes, operands.rest_bytes
    far = OperandBytes(*(share * moved for share, moved in zip(shares, sizes, strict=True)))
    held = (1 - spilled) * gemm.batch * resident_bytes
    local = OperandBytes(
        gemm.batch * law.local_words * size,
        held if law.resident != "c" else 0.0,
        held if law.resident == "c" else 0.0,
    )
    return EngineTime(
        peak_flops=gemm.batch * law.compute_cycles * grid.flops_per_cycle,
        calibrated=True,
        latency_s=gemm.batch * (law.gather_cycles + law.reduction_cycles) * cycle_s,
        near=local,
        far=far,
        latency_parts=LatencyParts(
            exchange_s=gemm.batch * (law.gather_cycles + law.reduction_cycles) * cycle_s
        ),
        mapping=(
            f"{law.resident} stays in the memories of the processing elements"
            + (f", all but {spilled:.0%}" if spilled else "")
        ),
    )


def _on_grid(
    job: ContractionProblem, device: Device, engine: str, format_: str, search: SearchOptions
) -> EngineTime:
    grid, operands = device.engines[engine].grid, job.operands
    accumulate = accumulator_of(device.engines[engine], format_)
    assert grid is not None
    gemm = operands.gemm
    ring = ring_of(grid, format_)
    best = grid_gemm(gemm.m, gemm.n, gemm.k, ring, grid.fma_latency.value)
    shares = EngineShares(best.fill_cycles / best.cycles, best.drain_cycles / best.cycles)
    from ridgeline.kernels.buffered import in_buffers  # as above

    mac_s = grid_mac_s(gemm, device.engines[engine], format_)
    if (mapped := in_buffers([job], device, engine, format_, search, mac_s)) is not None:
        from ridgeline.kernels.array_ends import mapped_shares

        assert mapped[0].mapped is not None
        assert job.op.loops is not None
        mapped[0].engine_shares = partial(
            mapped_shares, *mapped[0].mapped, job.op.loops, job.op.priced_as, shares
        )
        return mapped[0]
    partial_sums = 2 * (best.c_passes - 1) * gemm.batch * gemm.m * gemm.n  # written and read back
    return EngineTime(
        peak_flops=float(gemm.batch * best.cycles * grid.flops_per_cycle),
        calibrated=True,
        latency_s=0.0,
        near=OperandBytes(
            float(operands.a_bytes),
            float(operands.b_bytes * best.b_passes),
            float(operands.rest_bytes),
            float(partial_sums * bytes_of(accumulate)),
        ),
        engine_shares=shares,
    )


def grid_mac_s(gemm: Gemm, engine: Engine, format_: str) -> float:
    """Return the seconds of a multiply-accumulate of a product on broadcast-grid cores."""
    grid = engine.grid
    assert grid is not None
    best = grid_gemm(gemm.m, gemm.n, gemm.k, ring_of(grid, format_), grid.fma_latency.value)
    cycle_s = grid.flops_per_cycle / engine.rates[format_].value
    return best.cycles * cycle_s / (gemm.m * gemm.n * gemm.k)


def on_elements(
    op: Op,
    operands: Operands,
    device: Device,
    engine: str,
    format_: str,
    given: MappingFile | None = None,
    search: SearchOptions = FAST,
) -> EngineTime:
    """Count cycles of the best layout on the engine's spatial array: what this returns is its rank.

    The forward pass of a convolution is laid out as its eight loops. Its gradients are matrix
    products here: their windows are not shared.

    Parameters
    ----------
    given
        A mapping file, which settles the layout or a part of it.
    search
        What is looked for.
    """
    array, size = device.engines[engine].spatial, bytes_of(format_)
    assert array is not None
    flops_per_cycle = array.flops_per_cycle
    nest, found = layout_on(op, operands.gemm, device, engine, format_, given, search)
    counts, memory = found.counts, found.memory_words
    finished = nest.words("y")
    return EngineTime(
        peak_flops=float(counts.cycles * flops_per_cycle),
        calibrated=True,
        latency_s=0.0,
        near=_bytes(
            (counts.x_words, counts.w_words, counts.in_words, counts.out_words), finished, size
        ),
        far=_bytes(memory, finished, size),
        mapping=found.layout.shown(nest),
        engine_shares=EngineShares(
            fill=counts.fill_cycles / counts.cycles,
            drain=counts.drain_cycles / counts.cycles,
            stall=(array.buffer, counts.wait_cycles / counts.cycles),
        ),
    )


def layout_on(
    op: Op, gemm: Gemm, device: Device, engine: str, format_: str, given: MappingFile | None = None,
    search: SearchOptions = FAST,
) -> tuple[ConvolutionNest, LayoutResult]:  # fmt: skip
    """Return the nest of an op, and the best layout of it on the engine's spatial array."""
    # Imported when a device has such an engine: it brings numba.
    from ridgeline.kernels.spatial.machine import elements_of
    from ridgeline.kernels.spatial.nest import nest_of
    from ridgeline.kernels.spatial.search import best_layout, given_layout

    array, size = device.engines[engine].spatial, bytes_of(format_)
    assert array is not None
    assert op.loops is not None
    nest = nest_of(op.loops if op.pass_ is Pass.FORWARD else gemm)
    cycle_s = array.flops_per_cycle / device.engines[engine].rates[format_].value
    prices, memory_width = _of_words(op, device, engine, format_, cycle_s)
    elements = elements_of(
        array,
        device.memory[array.buffer].capacity.value / size,
        memory_width,
        prices._replace(objective=search.objective),
    )
    if given is None:
        return nest, best_layout(nest, elements)
    levels = [device.far_memory, array.buffer, next(iter(device.memory))]
    return nest, given_layout(nest, elements, given, levels)


def _of_words(
    op: Op, device: Device, engine: str, format_: str, cycle_s: float
) -> tuple[LayoutPrices, float]:
    """Return what the op's report charges for words, and words a cycle of the farthest memory."""
    from ridgeline.kernels.spatial.machine import LayoutPrices

    described, size, far = device.engines[engine], bytes_of(format_), device.far_memory
    shape, accumulate = described.instruction, bytes_of(accumulator_of(described, format_))
    operand_words = (shape.m + shape.n) * shape.k
    instruction = operand_words * size + 2 * shape.m * shape.n * accumulate
    in_registers = op.matrix_flops / (2 * shape.m * shape.n * shape.k) * instruction
    near_cycles = near_j = far_j = memory_width = least_cycles = 0.0
    fixed_j = op.matrix_flops * price_of_place(device, f"{engine}.{format_}").price_j
    for name, level in device.memory.items():
        price_j = price_of_place(device, name).price_j
        byte_cycles = 0.0
        if level.bandwidth is not None:
            byte_cycles = 1 / (level.bandwidth.value * level.achievable.value * cycle_s)
        if name == far:
            far_j, memory_width = size * price_j, 1 / (size * byte_cycles)
        elif level.kind == "registers":
            fixed_j += in_registers * price_j
            least_cycles = max(least_cycles, in_registers * byte_cycles)
        else:  # each level between registers and the farthest passes what the array exchanges
            near_j += size * price_j
            near_cycles = max(near_cycles, size * byte_cycles)
    idle_j = device.idle_power.value * cycle_s
    return LayoutPrices(near_cycles, least_cycles, near_j, far_j, idle_j, fixed_j), memory_width


def _bytes(words: tuple[int, int, int, int], finished: int, size: float) -> OperandBytes:
    """Bytes by operand of x, w, and sums in and out; what is not finished is partial."""
    a, b, sums_in, sums_out = (float(count * size) for count in words)
    result = float(finished * size)
    return OperandBytes(a, b, result, sums_out - result + sums_in)


@ENGINE_MODELS.register("spatial")
def _on_elements(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
) -> list[EngineTime]:
    return [on_elements(*job, device, engine, format_, None, search) for job in jobs]


@ENGINE_MODELS.register("bsp")
def on_tiles(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
) -> list[EngineTime]:
    """Count supersteps of the fastest cut among the engine's tiles; nothing of them overlaps."""
    return [_on_tiles(*job, device, engine, format_) for job in jobs]


def _on_tiles(op: Op, operands: Operands, device: Device, engine: str, format_: str) -> EngineTime:
    described = device.engines[engine]
    accumulate = accumulator_of(described, format_)
    machine, gemm = described.bsp, operands.gemm
    assert machine is not None
    shape, rate = described.instruction, described.rates[format_].value
    row = achievable_share(op, device, engine, format_)
    share = 1.0 if row is None else row.fraction.value
    byte_s = max(
        1.0 / (level.bandwidth.value * level.achievable.value)
        for level in device.memory.values()
        if level.bandwidth is not None and level.kind != "registers"
    )
    tiles = EqualTiles(
        number=machine.tiles.value,
        room_bytes=int(machine.memory.value * (1 - machine.reserved.value)),
        flop_per_s=rate * share / machine.tiles.value,
        granule=(shape.m, shape.n, shape.k),
        byte_s=1 / machine.exchange.value,
        sync_s=machine.sync.value,
        least_s=(operands.a_bytes + operands.b_bytes + operands.rest_bytes) * byte_s,
        memory_byte_s=byte_s,
        rest_s=operands.rest_bytes * byte_s,
    )
    # The words of an image that several windows share are sent once to each tile.
    a, b = gemm.batch * gemm.m * gemm.k, gemm.batch * gemm.k * gemm.n
    sizes = ElementSizes(
        operands.a_bytes / a, operands.b_bytes / b, bytes_of(format_), bytes_of(accumulate)
    )
    plan = best_plan(gemm, sizes, tiles)
    steps = gemm.batch if op.sequential else 1  # products that wait for each other
    barriers_s = plan.sync_s + (steps - 1) * tiles.sync_s
    # A tile's unit reads the blocks that the tile has received; results and sums are written.
    share = plan.received_bytes / (operands.a_bytes + operands.b_bytes)
    read = OperandBytes(
        max(share, 1.0) * operands.a_bytes,
        max(share, 1.0) * operands.b_bytes,
        float(operands.rest_bytes),
    )
    return EngineTime(
        peak_flops=plan.compute_s * rate,
        calibrated=row is not None and row.fraction.basis == "measured",
        latency_s=plan.exchange_s + plan.sync_s + (steps - 1) * tiles.sync_s,
        near=read,
        far=read,
        exchanged_bytes=plan.received_bytes,
        latency_parts=LatencyParts(exchange_s=plan.exchange_s, barrier_s=barriers_s),
    )


ENGINE_MODELS.register("tensor-core")(in_waves)
ENGINE_MODELS.register("vector")(in_waves)
