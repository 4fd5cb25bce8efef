"""Times of calls on a CUDA device, and the power that its board draws meanwhile.

Calls are repeated in CUDA graphs, so that what the host takes to launch them is not in their times;
each call of a graph has operands of its own, as many as the last cache does not hold, so that they
come from memory. Power is the slope of the board's energy counter (NVML,
nvmlDeviceGetTotalEnergyConsumption: millijoules) between two of its updates, after the board's
clock has settled.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.study.calibrate.clock import Run, undisturbed
from ridgeline.study.calibrate.cuda_calls import CudaCall

_GRAPH_S = 2e-3
"""A replay lasts at least this long: events resolve half a microsecond."""
_LONGEST_GRAPH = 512
_COPIES = 48
_CACHES = 3.0
"""Copies of operands fill the last cache so many times."""
_MEMORY_SHARE = 0.4
_REPLAYS = 7
_PATIENCE_S = 0.15
"""For the replays of one call: a call of 50 ms is timed three times."""
_WARM_S = 0.25
_METERED_S = 0.6


@dataclass(frozen=True)
class PowerReading:
    """What a board read while one call was repeated.

    Attributes
    ----------
    clock_hz
        Of the processors; the median of its readings.
    """

    power_w: float
    clock_hz: float
    temperature_c: float


class CudaClock:
    """Times and metered powers of calls on the first CUDA device."""

    def __init__(self) -> None:
        found = torch.cuda.get_device_properties(0)
        self.name: str = found.name
        self._cache_bytes: int = found.L2_cache_size
        self._memory_bytes: int = found.total_memory
        self._meter = _open_meter()

    @property
    def has_meter(self) -> bool:
        """Whether the driver's counter of energy can be read."""
        return self._meter is not None

    def limit_w(self) -> float | None:
        """Return the power that the board is limited to now."""
        if self._meter is None:
            return None
        library, board = self._meter
        return float(library.nvmlDeviceGetEnforcedPowerLimit(board)) * 1e-3

    def idle_w(self) -> float | None:
        """Return the power that the board draws with a context, and nothing running."""
        torch.cuda.synchronize()
        reading = self._read(lambda: time.sleep(0.01))
        return None if reading is None else reading.power_w

    def time_s(self, call: CudaCall) -> float:
        """Return the time of one call."""
        graph, count = self._graph(call, _GRAPH_S)
        graph.replay()
        samples: list[float] = []
        begin = time.monotonic()
        for _ in range(_REPLAYS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(stop) * 1e-3 / count)
            if time.monotonic() - begin > _PATIENCE_S and len(samples) >= 3:
                break
        return undisturbed(samples).seconds

    def power(self, call: CudaCall) -> PowerReading | None:
        """Return what the board reads while a call is repeated; None without a meter."""
        if self._meter is None:
            return None
        graph, _ = self._graph(call, 10 * _GRAPH_S)

        def run() -> None:
            graph.replay()
            torch.cuda.synchronize()

        begin = time.monotonic()
        while time.monotonic() - begin < _WARM_S:
            run()
        return self._read(run)

    def _read(self, run: Run) -> PowerReading | None:
        if self._meter is None:
            return None
        library, board = self._meter
        updates: list[tuple[float, int]] = []
        clocks, begin = [], time.monotonic()
        while time.monotonic() - begin < _METERED_S:
            run()
            energy = library.nvmlDeviceGetTotalEnergyConsumption(board)
            if not updates or energy != updates[-1][1]:
                updates.append((time.monotonic(), energy))
            clocks.append(library.nvmlDeviceGetClockInfo(board, library.NVML_CLOCK_SM))
        if len(updates) < 3:
            return None
        first, last = updates[1], updates[-1]  # the first may have been read long after it was made
        if last[0] <= first[0]:
            return None
        return PowerReading(
            (last[1] - first[1]) * 1e-3 / (last[0] - first[0]),
            statistics.median(clocks) * 1e6,
            float(library.nvmlDeviceGetTemperature(board, library.NVML_TEMPERATURE_GPU)),
        )

    def _graph(self, call: CudaCall, least_s: float) -> tuple[torch.cuda.CUDAGraph, int]:
        """Capture calls, one after the other, that take so long; with their number."""
        _allow_tf32(call)
        wanted = int(_CACHES * self._cache_bytes / call.bytes) + 1
        room = max(1, int(_MEMORY_SHARE * self._memory_bytes / call.bytes))
        runs = [call.make() for _ in range(min(_COPIES, wanted, room))]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # plans and workspaces are made at the first call
                runs[0]()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            runs[-1]()
            stop.record()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        once_s = max(start.elapsed_time(stop) * 1e-3, 2e-6)
        count = max(len(runs), min(_LONGEST_GRAPH, int(least_s / once_s) + 1))
        if once_s > least_s:
            count = 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                runs[i % len(runs)]()
        return graph, count


def kernel_name(call: CudaCall) -> str:
    """Return the name of the kernel of a call that takes longest, as the profiler has it."""
    from torch.profiler import ProfilerActivity, profile

    _allow_tf32(call)
    run = call.make()
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    longest = max(kernels, key=lambda event: event.device_time, default=None)
    return "" if longest is None else str(longest.name)


def _allow_tf32(call: CudaCall) -> None:
    torch.backends.cuda.matmul.allow_tf32 = call.tf32
    torch.backends.cudnn.allow_tf32 = call.tf32


def _open_meter() -> tuple[Any, Any] | None:
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
        board = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(board)
    except pynvml.NVMLError:  # no driver, or a board without such a counter
        return None
    return pynvml, board
