"""Tiles of a contraction in waves over equal processors: tensor cores and vector engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ridgeline.hardware.device import Achievable, Device, MemoryLevel
from ridgeline.kernels.contraction_time import ContractionProblem, EngineTime
from ridgeline.kernels.conv_algorithms import ConvolutionVariant, variants
from ridgeline.kernels.cudnn_fp32_conv import UNFOLDING
from ridgeline.kernels.efficiency_table import (
    DIRECT,
    MEASURED,
    TRANSFORMED,
    achievable_shares,
    is_plain_product,
)
from ridgeline.kernels.latency_parts import LatencyParts, TileChoice
from ridgeline.kernels.overlap import PartialOverlap
from ridgeline.kernels.product_library import (
    FULL_TILE,
    cycle_s,
    inner_bandwidth,
    product_library,
    resident,
)
from ridgeline.kernels.traffic import (
    FAST,
    Operands,
    SearchOptions,
    accumulator_of,
    cache_bytes,
    is_private,
    near_levels,
)
from ridgeline.kernels.wave_quantization import (
    EARLY_LEAST_SUM,
    EARLY_TILES,
    LEAST_SUM,
    TILES,
    Blocking,
    KernelLaw,
    TileDemand,
    WaveMachine,
    best_blockings,
    inner_passes,
    kernel_times,
    menu,
    warp_of,
)
from ridgeline.kernels.wave_quantization import TileProblem as Kernel
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Conv, Op

# Tensor-core convolutions work on channels in multiples of 8; cuDNN pads others with zeros (NVIDIA,
# "Convolutional Layers User's Guide").
_CHANNEL_MULTIPLE = 8


class OneKernel(NamedTuple):
    """Way to do a contraction (place in `conv_algorithms.variants`), tile, parts of sums."""

    variant: int
    tile: tuple[int, int]
    parts: int


class _Tried(NamedTuple):
    """A way to do a contraction that kernels are chosen for.

    Attributes
    ----------
    op, operands, variant
        The contraction and the way.
    place
        Of the way, among all of the contraction.
    fill
        Work with padded channels over work.
    said
        Who says which tiles there are.
    described
        The library, where it is described.
    kernel
        What the kernels multiply, and on what.
    """

    op: Op
    operands: Operands
    variant: ConvolutionVariant
    place: int
    fill: float
    said: str
    described: _ByLibrary | None
    kernel: Kernel


def padding(loops: Conv) -> float:
    """Channels of a convolution with padding, over channels: how much more work is done."""
    channels = loops.c_in // loops.groups // loops.taps
    return math.ceil(channels / _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE / channels


def in_waves(
    jobs: Sequence[ContractionProblem],
    device: Device,
    engine: str,
    format_: str,
    search: SearchOptions = FAST,
    only: OneKernel | None = None,
) -> list[EngineTime]:
    """Output tiles in waves over the device's processors (see `wave_quantization`).

    The processors are the instances of the nearest memory level. Full, they run at the share of
    the peak that microbenchmarks of this class of op reach. The products of a recurrence depend on
    each other, so each is a kernel of its own; their weights pass the farthest memory once.

    Parameters
    ----------
    only
        The kernel; None: the fastest.
    """
    levels = _Levels(device)
    tried = _tried(jobs, device, engine, format_, levels)
    if only is not None:
        tried = [_with_kernel(each, only) for each in tried if each.place == only.variant]
    done: dict[int, tuple[float, EngineTime]] = {}
    for each, best in zip(tried, best_blockings([each.kernel for each in tried]), strict=True):
        time_s, busy = _busy(each, best, device, engine, format_, levels)
        of = id(each.operands)
        if of not in done or time_s < done[of][0]:
            done[of] = time_s, busy
    return [done[id(operands)][1] for _, operands in jobs]


def kernels_of(
    job: ContractionProblem, device: Device, engine: str, format_: str
) -> list[tuple[float, OneKernel]]:
    """Return every kernel that can do a contraction, the fastest first, with its time at least."""
    found = [
        (_steps(each.op, each.operands) * time_s, OneKernel(each.place, tile, parts))
        for each in _tried([job], device, engine, format_, _Levels(device))
        for time_s, tile, parts in kernel_times(each.kernel)
    ]
    return sorted(found)


class _Levels:
    """Memory levels of a device as the processors' kernels meet them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        far = device.memory[device.far_memory]
        assert far.bandwidth is not None
        self.far_rate = far.bandwidth.value * far.achievable.value
        self.inner = {
            name: level
            for name, level in near_levels(device).items()
            if not device.achievable and is_private(level, device)
        }
        common = [level for name, level in near_levels(device).items() if name not in self.inner]
        self.near_rate, self.inner_rate = _slowest(common), _slowest(self.inner.values())
        self.round_latency_s = 2 * far.latency.value if far.latency is not None else 0.0
        self.processors = next(iter(device.memory.values())).instances.value
        self._able: dict[tuple[str, str], TileDemand] = {}

    def processor(self, engine: str, format_: str) -> TileDemand:
        """Return what tiles of an engine in a format need of one processor."""
        found = self._able.get((engine, format_))
        if found is None:
            near = near_levels(self.device).values()
            shared = next((level for level in near if is_private(level, self.device)), None)
            registers = next(iter(self.device.memory.values()))
            found = self._able[engine, format_] = TileDemand(
                registers.capacity.value / self.processors,
                math.inf if shared is None else shared.capacity.value / self.processors,
                bytes_of(accumulator_of(self.device.engines[engine], format_)),
            )
        return found


def _tried(
    jobs: Sequence[ContractionProblem], device: Device, engine: str, format_: str, levels: _Levels
) -> list[_Tried]:
    """List the ways to do each contraction, with the kernels that there are for each."""
    peak = device.engines[engine].rates[format_].value
    warp = _warp(device, engine)
    ops = [op for op, _ in jobs]
    rows = achievable_shares(ops, device, engine, format_)
    direct = achievable_shares(ops, device, engine, format_, as_filter=DIRECT)
    products = achievable_shares(ops, device, engine, format_, as_filter=TRANSFORMED)
    tried = []
    for (op, operands), *found in zip(jobs, rows, direct, products, strict=True):
        fill = 1.0
        if device.engines[engine].kind == "tensor-core" and isinstance(op.loops, Conv):
            fill = padding(op.loops)
        described = _by_library(op, operands, device, engine, format_, found[0])
        tiles, least_sum, resident, said = (
            _menu(op, device, engine, levels.processor(engine, format_))
            if described is None
            else described.menu
        )
        steps = _steps(op, operands)
        a, b = operands.a_bytes / steps, operands.b_bytes  # each product reads all of the weights
        for place, known in enumerate(variants(op, operands, *found)):
            variant = known if described is None else known._replace(share=described.share)
            machine = WaveMachine(
                levels.processors, peak * variant.share / fill, levels.near_rate,
                levels.round_latency_s, device.launch_latency.value, known.tiles or tiles,
                least_sum, () if variant.tiles else resident, levels.inner_rate, warp,
            )  # fmt: skip
            if described is not None:
                machine = replace(
                    machine,
                    round_latency_s=described.round_s,
                    launch_s=described.split_s,
                    law=described.law,
                )
            step = variant.gemm
            if steps > 1:
                step = replace(step, batch=step.batch // steps)
            far_bytes = operands.far.total + variant.more_bytes - variant.before_bytes
            rest = operands.rest_bytes / steps
            floor_s = far_bytes / levels.far_rate / steps
            if described is not None:
                rest = float(operands.rest_bytes)
                floor_s += _kept_s(operands, described, levels)
            shared = 1.0 if described is None else described.multicast
            kernel = Kernel(step, a / shared, b / shared, floor_s, machine, rest)
            menu_ = "kernels of these tiles alone" if variant.tiles else said
            tried.append(_Tried(op, operands, variant, place, fill, menu_, described, kernel))
    return tried


def _kept_s(operands: Operands, described: _ByLibrary, levels: _Levels) -> float:
    """Return the time of operands that a level has kept from other ops, in a library's kernels."""
    return operands.kept.total / (described.kept_share * levels.near_rate)


def _with_kernel(tried: _Tried, only: OneKernel) -> _Tried:
    """Leave one kernel of a way; its tile is among those of the way."""
    kernel = tried.kernel
    machine = kernel.machine
    at_once = machine.resident and (machine.resident[machine.tiles.index(only.tile)],)
    machine = replace(machine, tiles=(only.tile,), splits=(only.parts,), resident=at_once)
    return tried._replace(kernel=kernel._replace(machine=machine))


def _warp(device: Device, engine: str) -> tuple[int, int]:
    shape = device.engines[engine].instruction
    return warp_of(shape.m, shape.n)


def _busy(
    tried: _Tried, best: Blocking, device: Device, engine: str, format_: str, levels: _Levels
) -> tuple[float, EngineTime]:
    """Return what a way takes with the chosen kernel, and all that it does meanwhile."""
    op, operands, variant, described = tried.op, tried.operands, tried.variant, tried.described
    peak, launch_s = device.engines[engine].rates[format_].value, device.launch_latency.value
    steps, row, kernel = _steps(op, operands), variant.row, tried.kernel
    more_s = row.step_latency.value if row is not None and row.step_latency is not None else 0.0
    near = replace(operands, gemm=variant.gemm).through(
        best.rows, best.columns, steps * best.partial_bytes
    )
    near = near._replace(b=steps * near.b) if steps > 1 else near
    if described is not None:
        near = near._replace(a=near.a / described.multicast, b=near.b / described.multicast)
    a_times, b_times = inner_passes(best.rows, best.columns, _warp(device, engine))
    own = near._replace(a=near.a * a_times, b=near.b * b_times)
    latency_s = steps * (best.latency_s + more_s) + (steps - 1) * launch_s
    latency_s += variant.before_bytes / levels.far_rate
    arithmetic_s, rounds_s = steps * best.arithmetic_s, steps * best.rounds_s
    busy = EngineTime(
        peak_flops=arithmetic_s * peak,
        calibrated=row is not None and row.fraction.basis in MEASURED,
        latency_s=latency_s,
        near=near,
        nearer=dict.fromkeys(levels.inner, own) if levels.inner else {},
        far=operands.alone._replace(partial=variant.more_bytes) if variant.more_bytes else None,
    )
    near_s = max(near.total / levels.near_rate, own.total / levels.inner_rate)
    time_s = latency_s + max(arithmetic_s, near_s, steps * kernel.floor_s)
    stalls: tuple[tuple[str, float], ...] = ()
    if described is not None:
        busy.start_s = described.start_s
        far_s = operands.far.total / levels.far_rate
        busy.overlap = PartialOverlap(
            described.law.overlap, arithmetic_s, near_s, _kept_s(operands, described, levels),
            far_s, best.reread_s,
        )  # fmt: skip
        busy.waiting_s = busy.overlap.waiting_s()
        busy.latency_s += busy.waiting_s
        time_s = busy.latency_s + max(arithmetic_s, near_s, far_s)
        stalls = ((device.far_memory, busy.waiting_s),)
    busy.latency_parts = LatencyParts(
        launch_s=steps * (best.launch_s + more_s) + (steps - 1) * launch_s,
        fill_s=rounds_s / 2,
        copy_s=variant.before_bytes / levels.far_rate,
        drain_s=rounds_s / 2,
        stall_s=stalls,
    )
    busy.tile = TileChoice(
        kernel.gemm, best.rows, best.columns, best.split, levels.processors, best.filled,
        variant.share, tried.fill, tried.said,
    )  # fmt: skip
    return time_s, busy


def _slowest(levels: Iterable[MemoryLevel]) -> float:
    """B/s of the slowest of some levels; inf where none states a bandwidth."""
    return min(
        (
            level.bandwidth.value * level.achievable.value
            for level in levels
            if level.bandwidth is not None
        ),
        default=math.inf,
    )


_FITTING = "all tiles that the processors have room for (no `tiles` stated)"
_STATED = "the device's `tiles`"


class _ByLibrary(NamedTuple):
    """A product by the kernels of a described library (`product_library`) on one device.

    Attributes
    ----------
    menu
        Its tiles, and how long the parts of a split sum are.
    law
        What its kernels lose.
    share, multicast
        See `ProductLibrary`.
    start_s, round_s, split_s
        Of a kernel, a round of tiles, and the second kernel of a split.
    kept_share
        See `KernelConstants`.
    """

    menu: _Menu
    law: KernelLaw
    share: float
    multicast: float
    start_s: float
    round_s: float
    split_s: float
    kept_share: float


def _by_library(
    op: Op, operands: Operands, device: Device, name: str, format_: str, row: Achievable | None
) -> _ByLibrary | None:
    """Return how the engine's library does an op; None if it has no kernels for it."""
    engine = device.engines[name]
    if engine.library is None or not is_plain_product(op):
        return None
    library, constants = product_library(engine.library)
    known = row is not None and row.fraction.basis in MEASURED
    if format_ not in library.sustained:
        return None
    sustained = row.fraction.value if row is not None and known else library.sustained[format_]
    peak = engine.rates[format_].value
    batched = operands.gemm.batch > 1
    tiles = (batched and library.batched_tiles) or library.tiles
    many = operands.gemm.batch * (operands.gemm.m + operands.gemm.n) * operands.gemm.k
    element_bytes = (operands.a_bytes + operands.b_bytes) / many
    slice_bytes = (batched and library.batched_k_slice) or library.k_slice
    inner, cycle = inner_bandwidth(device), cycle_s(device)
    far = device.memory[device.far_memory]
    assert far.bandwidth is not None
    reread = library.reread_share
    law = KernelLaw(
        k_slice=max(1, round(slice_bytes / element_bytes)),
        panel_loss=constants.panel_loss
        * (peak / inner) ** constants.panel_exponent
        * element_bytes,
        full=constants.full_tiles * FULL_TILE,
        exponent=constants.fill_exponent,
        overlap=constants.overlap,
        reread_bytes_per_s=math.inf if reread is None else reread * far.bandwidth.value,
        cache_bytes=constants.reread_room * cache_bytes(device),
        element_bytes=element_bytes,
        sustained_flop_per_s=sustained * peak,
    )
    at_a_time = resident(tiles, constants)
    return _ByLibrary(
        _Menu(tiles, constants.least_sum, at_a_time, f"library {engine.library!r}"),
        law,
        library.share,
        library.multicast,
        constants.start_cycles * cycle,
        constants.round_cycles * cycle,
        constants.split_cycles * cycle,
        constants.kept_share,
    )


class _Menu(NamedTuple):
    """What a library has kernels for: tiles of the output, and parts of a sum at least so long.

    And how many tiles of each kind a processor has at a time; (): as `wave_quantization` has it.
    """

    tiles: tuple[tuple[int, int], ...] = TILES
    least_sum: int = LEAST_SUM
    resident: tuple[int, ...] = ()
    said: str = "the default menu (no `tiles` stated)"


def _menu(op: Op, device: Device, name: str, processor: TileDemand) -> _Menu:
    """Return the menu of the library that does an op.

    Convolutions and recurrences are kernels of another one than products, of which a device's file
    may tell. What is unfolded was multiplied by the one of its time. A device without measured
    shares of its peak has a library with all tiles that its processors have room for; of a menu
    that its file states, it has those.
    """
    engine = device.engines[name]
    least_sum = LEAST_SUM if engine.least_sum is None else engine.least_sum.value
    if not device.achievable:
        tiles, resident = menu(processor, None if engine.tiles is None else engine.tiles.value)
        return _Menu(tiles, least_sum, resident, _FITTING if engine.tiles is None else _STATED)
    if isinstance(op.loops, Conv):
        return _Menu(processor.able(TILES), said="the default menu of convolutions")
    early = dict(op.attrs).get("library") in UNFOLDING
    tiles, said = TILES, "the default menu (no `tiles` stated)"
    if early:
        tiles, said = EARLY_TILES, "the menu of an early library"
    if engine.tiles is not None:
        tiles, said = engine.tiles.value, _STATED
    if engine.least_sum is None or op.sequential:
        least_sum = EARLY_LEAST_SUM if early else LEAST_SUM
    return _Menu(processor.able(tiles), least_sum, said=said)


def _steps(op: Op, operands: Operands) -> int:
    """Count the products that have to wait for each other."""
    return operands.gemm.batch if op.sequential else 1
