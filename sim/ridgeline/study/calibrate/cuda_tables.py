"""Tables of a CUDA device's kernels, measured on this machine with PyTorch.

Columns are those of tables of measured calls, so that every reader of such tables takes them:
``validate SUITE --data``, ``calibrate --from``. Times of all calls are taken first, power of the
longer ones after.
"""

from __future__ import annotations

import csv
import datetime
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ridgeline.errors import RidgelineError
from ridgeline.report import files
from ridgeline.study.import_rows.names import device_in, find_name

FRAMEWORK = "torch-graphs"
"""PyTorch's kernels, called in CUDA graphs with operands that lie in memory."""
_TIMED, _NAMED = 0.45, 0.6
"""Shares of the seconds after which names of kernels are asked for, and then powers."""
_METERED_US = 15.0
"""Shorter calls are not metered: what stands between them is more than they are."""
_BEFORE = ("device", "device_key", "framework", "version")
_AFTER = ("time_us", "power_w", "board_limit_w", "clock_mhz", "temperature_c", "kernel", "source",
          "note")  # fmt: skip


@dataclass(frozen=True)
class CudaTables:
    """What was measured: rows by table, and what the board said of itself.

    Attributes
    ----------
    READ
        Tables that `calibrate_from` takes; those of backward passes are for comparison.
    name
        The device's, as its driver has it.
    notes
        What could not be measured, and why.
    """

    READ: ClassVar = ("gemm", "conv", "streams", "attention")

    name: str
    rows: dict[str, list[dict[str, str]]]
    idle_w: float | None
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> list[Path]:
        """Write one CSV file a table; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for table, rows in self.rows.items():
            stream = io.StringIO()
            columns = dict.fromkeys(name for row in rows for name in row)
            writer = csv.DictWriter(stream, list(columns), restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            path = folder / f"{table}.csv"
            files.write_text(path, stream.getvalue())
            written.append(path)
        return written


def device_name() -> str:
    """Return what the driver calls the first CUDA device.

    Raises
    ------
    RidgelineError
        If PyTorch is not installed, or finds no such device.
    """
    return str(_torch().cuda.get_device_properties(0).name)


def base_of(name: str, base: str | None) -> str:
    """Return the shipped device that a driver's name is of, or the one that is given.

    Raises
    ------
    RidgelineError
        If none is given, and none has this name.
    """
    found = base or find_name("devices", name) or device_in(name)
    if found is None:
        raise RidgelineError(
            f"no shipped device is called {name!r}; say by --base which one to start from"
        )
    return found


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise RidgelineError("--device cuda needs PyTorch with CUDA") from error
    if not torch.cuda.is_available():
        raise RidgelineError(
            "this PyTorch finds no CUDA device (torch.cuda.is_available() is False); say "
            "--device cpu"
        )
    return torch


def measure_tables(key: str, seconds: float, seed: int, said: Callable[[str], None]) -> CudaTables:
    """Measure kernels of the first CUDA device for so many seconds.

    Parameters
    ----------
    key
        What rows call the device.
    said
        Is told what is measured, as it begins.

    Raises
    ------
    RidgelineError
        If PyTorch is not installed, or finds no such device; if no call was measured.
    """
    torch = _torch()
    from ridgeline.study.calibrate.cuda_calls import CudaCall, calls
    from ridgeline.study.calibrate.cuda_clock import CudaClock, kernel_name

    torch.manual_seed(seed)
    clock = CudaClock()
    about = {"device": clock.name, "device_key": key, "framework": FRAMEWORK,
             "version": f"{torch.__version__}, CUDA {torch.version.cuda}"}  # fmt: skip
    source = f"ridgeline calibrate --device cuda --seed {seed}, {datetime.date.today()}"
    limit_w, begin = clock.limit_w(), time.monotonic()
    timed: list[tuple[CudaCall, dict[str, str]]] = []
    refused: dict[str, int] = {}
    idle_w = clock.idle_w()
    said("times of kernels")
    for call in calls(seed):
        if time.monotonic() - begin > _TIMED * seconds:
            break
        try:
            time_s = clock.time_s(call)
        except RuntimeError as error:  # no kernel for it, or no memory
            why = f"{call.table}: {str(error).splitlines()[0][:100]}"
            refused[why] = refused.get(why, 0) + 1
            torch.cuda.empty_cache()
            continue
        row = {**about, **call.fields, "time_us": f"{time_s * 1e6:.6g}", "source": source}
        timed.append((call, row))
    said(f"{len(timed)} calls; names of their kernels")
    for call, row in timed:
        if time.monotonic() - begin > _NAMED * seconds:
            break
        name = kernel_name(call)
        row["note"] = name if "kernel" in row else ""
        row.setdefault("kernel", name)
    if clock.has_meter:
        said("power of kernels")
    for call, row in timed:
        if time.monotonic() - begin > seconds or not clock.has_meter:
            break
        if float(row["time_us"]) < _METERED_US:
            continue
        reading = clock.power(call)
        if reading is not None:
            row["power_w"] = f"{reading.power_w:.5g}"
            row["board_limit_w"] = "" if limit_w is None else f"{limit_w:g}"
            row["clock_mhz"] = f"{reading.clock_hz * 1e-6:g}"
            row["temperature_c"] = f"{reading.temperature_c:g}"
    if not timed:
        raise RidgelineError(f"no call was measured in {seconds:g} s; allow more by --seconds")
    notes = [f"{count} not measured: {why}" for why, count in refused.items()]
    if not clock.has_meter:
        notes.append("power is not measured: nvidia-ml-py is not installed, or has no counter")
    rows: dict[str, list[dict[str, str]]] = {}
    for call, row in timed:
        rows.setdefault(call.table, []).append(
            {name: row[name] for name in (*_BEFORE, *call.fields, *_AFTER) if name in row}
        )
    return CudaTables(clock.name, rows, idle_w, notes)
