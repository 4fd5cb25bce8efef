"""Libraries of matrix products: against plain Python, and better data sheets are never slower."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.hardware.device import Device
from ridgeline.kernels.kernel_price import price_kernels
from ridgeline.kernels.product_library import product_library
from ridgeline.kernels.wave_quantization import _SPLITS, KernelLaw, WaveMachine, best_blocking
from ridgeline.workload.graph import Gemm
from ridgeline.workload.kernel_graphs import linear_graph, product_formats

TILES = ((128, 128), (128, 64), (32, 128), (16, 64))
RESIDENT = (2, 4, 8, 32)

sizes = st.one_of(st.integers(1, 300), st.integers(1, 20000))
gemms = st.builds(Gemm, sizes, sizes, sizes, st.integers(1, 4))
laws = st.builds(
    KernelLaw,
    st.sampled_from([1, 16, 64]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([4000.0, 16384.0]),
    st.sampled_from([0.0, 0.25, 0.6]),
    st.sampled_from([2.0, 3.5]),
    st.sampled_from([math.inf, 1e10, 1e11]),
    st.sampled_from([0.0, 1e7]),
    st.just(2.0),
    st.sampled_from([math.inf, 3e13]),
)
machines = st.builds(
    WaveMachine,
    st.sampled_from([1, 3, 56, 108]),
    st.floats(1e10, 1e14),
    st.one_of(st.just(math.inf), st.floats(1e10, 1e13)),
    st.sampled_from([0.0, 1e-6]),
    st.sampled_from([0.0, 2e-6]),
    st.just(TILES),
    st.sampled_from([128, 512]),
    st.just(RESIDENT),
    law=laws,
)


def slow(gemm: Gemm, floor_s: float, machine: WaveMachine) -> float:
    """The least time over the menu, in plain Python, tile by tile."""
    law, times = machine.law, []
    assert law is not None
    a, b = 2.0 * gemm.batch * gemm.m * gemm.k, 2.0 * gemm.batch * gemm.k * gemm.n
    for (rows, columns), room in zip(TILES, RESIDENT, strict=True):
        for split in _SPLITS:
            if split > 1 and gemm.k < machine.least_sum * split:
                continue
            down, across = -(-gemm.m // rows), -(-gemm.n // columns)
            waves = -(-gemm.batch * down * across * split // machine.processors)
            length = -(-gemm.k // split)
            padded = -(-length // law.k_slice) * law.k_slice
            one_s = 2 * rows * columns * padded * machine.processors / machine.rate_flop_per_s
            one_s *= 1 + law.panel_loss * (1 / rows + 1 / columns)
            last = (waves - 1) % room + 1
            filled = min(1.0, last * rows * columns / law.full) ** law.exponent
            arithmetic = one_s * (waves - last + last / filled)
            arithmetic = max(arithmetic, 2 * gemm.macs / law.sustained_flop_per_s)
            near, latency = a * across + b * down, -(-waves // room) * machine.round_latency_s
            if split > 1:
                near += 2 * 4 * split * gemm.batch * gemm.m * gemm.n
                latency += machine.launch_s
            reread = 0.0
            if gemm.batch == 1 and gemm.n * gemm.k * 2.0 > law.cache_bytes:
                places = room * machine.processors
                held = min(max(places / across, 1), down) * rows + min(across, places) * columns
                reread = max(down * across * split / places, 1) * held * padded * 2.0
            near_s, reread_s = near / machine.near_bytes_per_s, reread / law.reread_bytes_per_s
            parts = arithmetic, near_s, floor_s, reread_s
            longest = max(parts)
            together = sum((part / longest) ** law.overlap for part in parts)
            times.append(latency + longest * together ** (1 / law.overlap))
    return min(times)


def fast(gemm: Gemm, floor_s: float, machine: WaveMachine) -> float:
    a, b = 2.0 * gemm.batch * gemm.m * gemm.k, 2.0 * gemm.batch * gemm.k * gemm.n
    best = best_blocking(gemm, a, b, floor_s, machine)
    near = a * math.ceil(gemm.n / best.columns) + b * math.ceil(gemm.m / best.rows)
    near_s = (near + best.partial_bytes) / machine.near_bytes_per_s
    return best.latency_s + best.exposed_s + max(best.arithmetic_s, near_s, floor_s)


@settings(max_examples=100, deadline=None)
@given(gemm=gemms, machine=machines, floor_s=st.sampled_from([0.0, 1e-5, 1e-3]))
def test_the_best_of_the_menu_is_found(gemm: Gemm, machine: WaveMachine, floor_s: float) -> None:
    assert fast(gemm, floor_s, machine) == pytest.approx(slow(gemm, floor_s, machine), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(gemm=gemms, machine=machines, factor=st.floats(1, 50))
def test_better_is_never_slower_and_nothing_beats_the_peak(
    gemm: Gemm, machine: WaveMachine, factor: float
) -> None:
    time, law = fast(gemm, 1e-6, machine), machine.law
    assert law is not None
    assert time >= 2 * gemm.macs / machine.rate_flop_per_s * (1 - 1e-9)
    for better in (
        replace(machine, rate_flop_per_s=machine.rate_flop_per_s * factor),
        replace(machine, near_bytes_per_s=machine.near_bytes_per_s * factor),
        replace(machine, law=replace(law, reread_bytes_per_s=law.reread_bytes_per_s * factor)),
        replace(machine, law=replace(law, panel_loss=0.0)),
    ):
        assert fast(gemm, 1e-6, better) <= time * (1 + 1e-9)


SHAPES = (
    (1, 4096, 4096, 1), (96, 1000, 513, 1), (4096, 4096, 4096, 1), (64, 50272, 768, 1),
    (2048, 2048, 64, 12), (300, 70, 20000, 1),
)  # fmt: skip


def times_of(device: Device, format_: str) -> list[float]:
    formats = product_formats(format_)
    graphs = [linear_graph(m, n, k, formats, batch=batch) for m, n, k, batch in SHAPES]
    return [price.time_s for price in price_kernels(graphs, device)]


RATE = {"l4": "tensor-cores.rates.bf16", "h100-pcie-80gb": "tensor-cores.rates.bf16",
        "quadro-rtx-6000": "cuda-cores.rates.fp32", "b300": "tensor-cores.rates.bf16"}  # fmt: skip


@settings(max_examples=5, deadline=None)
@given(name=st.sampled_from(sorted(RATE)), factor=st.floats(1.0, 4.0))
def test_a_better_data_sheet_is_never_slower(name: str, factor: float) -> None:
    """The clock under a power limit is left out: a tile is chosen at full clock (decision 0133)."""
    free = {"tdp": "1000000 W"}
    device, format_ = load_device(name, free), RATE[name].rpartition(".")[2]
    before = times_of(device, format_)
    for path, value in {
        f"engines.{RATE[name]}": device.engines[RATE[name].partition(".")[0]].rates[format_].value,
        **{
            f"memory.{level}.bandwidth": found.bandwidth.value
            for level, found in device.memory.items()
            if found.bandwidth is not None
        },
    }.items():
        unit = "FLOP/s" if "rates" in path else "B/s"
        changed = {**free, path: f"{factor * value} {unit}"}
        after = times_of(load_device(name, changed), format_)
        for old, new in zip(before, after, strict=True):
            assert new <= old * (1 + 1e-9), path


@pytest.mark.parametrize(
    ("name", "format_", "least", "most"),
    [
        ("l4", "fp32", 0.25, 0.6),
        ("l4", "bf16", 0.3, 0.7),
        ("a10g", "fp32", 0.5, 0.9),
        ("quadro-rtx-6000", "fp32", 0.7, 1.0),
        ("gh200-96gb", "bf16", 0.6, 0.9),
        ("h20", "bf16", 0.6, 1.0),
        ("rtx-pro-6000-se", "bf16", 0.4, 0.9),
        ("b300", "bf16", 0.5, 0.85),
        ("b200", "bf16", 0.57, 0.73),  # 8,192 x 6,144 x 16,384 and larger: 1,276 to 1,635 TFLOP/s
    ],
)
def test_large_products_of_boards_that_nobody_measured(
    name: str, format_: str, least: float, most: float
) -> None:
    """Shares of the peak that kernels can have, below the design power."""
    device = load_device(name)
    price = price_kernels([linear_graph(8192, 8192, 8192, product_formats(format_))], device)[0]
    peak = max(e.rates[format_].value for e in device.engines.values() if format_ in e.rates)
    assert least <= 2 * 8192**3 / price.time_s / peak <= most
    assert device.board_limit is not None
    assert price.power_w <= device.board_limit.value * (1 + 1e-9)


def test_an_unknown_library_names_the_nearest() -> None:
    with pytest.raises(RidgelineError, match=r"'hoper'.*hopper"):
        product_library("hoper")
