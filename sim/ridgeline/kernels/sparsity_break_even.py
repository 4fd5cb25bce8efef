"""Sparsity break-even: the density below which skipping zeros pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ridgeline.errors import ConfigError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.kernels.single_op import OpResult, gemm
from ridgeline.workload.sparsity import Sparsity, parse

_HALVINGS = 40  # to 1e-12 of the density
_LEAST = 1e-9  # what is gained only below this is not gained
_GAIN = 1e-9  # a smaller gain is rounding


class BreakEven(NamedTuple):
    """Largest densities at which an op takes less than the dense one; 0: none is low enough."""

    time: float
    energy: float
    traffic: float


def break_even(
    m: int,
    n: int,
    k: int,
    device: str | Device,
    kind: str = "unstructured",
    *,
    batch: int = 1,
    format: str | None = None,
    block: str | tuple[int, int] | None = None,
) -> BreakEven:
    """Find the densities below which zeros save time, energy, and bytes of the farthest memory.

    Nothing grows with fewer non-zeros (`ridgeline.kernels.sparsity`), so that halving finds them.

    Parameters
    ----------
    kind
        unstructured, block or activation.
    m, n, k, device, batch, format, block
        As in `ridgeline.kernels.single_op.gemm`.

    Raises
    ------
    RidgelineError
        As `gemm` does.
    """
    zeros = parse(None, 1.0, kind, block)
    return break_even_of(m, n, k, device, zeros, batch=batch, format=format)


def break_even_of(
    m: int,
    n: int,
    k: int,
    device: str | Device,
    zeros: Sparsity | None,
    *,
    batch: int = 1,
    format: str | None = None,
) -> BreakEven:
    """Find the break-even densities of a pattern, whatever its own density is."""
    if zeros is None or zeros.kind == "n:m":
        raise ConfigError("a break-even density needs zeros with a density, which N:M has not")
    machine = load_device(device) if isinstance(device, str) else device

    def at(density: float) -> OpResult:
        pattern = replace(zeros, density=density)
        return gemm(m, n, k, machine, batch=batch, format=format, sparsity=pattern)

    dense = at(1.0)

    def largest(measure: Callable[[OpResult], float]) -> float:
        goal = measure(dense) * (1 - _GAIN)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if measure(at(middle)) < goal else (low, middle)
        return low if low > _LEAST else 0.0

    return BreakEven(
        largest(lambda result: result.time_s),
        largest(lambda result: result.energy_j["total"]),
        largest(lambda result: result.traffic_bytes[machine.far_memory]),
    )
