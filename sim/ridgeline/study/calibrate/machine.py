"""What the operating system says about the machine, and its counters of energy."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import RidgelineError

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_POWERCAP = Path("/sys/class/powercap")
_CPUINFO = Path("/proc/cpuinfo")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_POLLS = 0.2  # seconds between two readings of an energy counter, at least
_VECTOR_REGISTERS = {"avx512f": 32 * 64, "avx": 16 * 32}  # bytes of a core's vector registers
_LEAST_VECTOR = 16 * 16  # SSE2; NEON has twice that
_PATIENCE_S = 5.0
# Options of glibc's mallopt (malloc.h): M_MMAP_MAX, no array lies outside the heap;
# M_TRIM_THRESHOLD, the heap does not shrink.
_KEEPING = ((-4, 0), (-1, 2**31 - 1))


@dataclass(frozen=True)
class Cache:
    """One cache level as one core sees it.

    Attributes
    ----------
    size_bytes
        Of one instance.
    cores
        That share an instance.
    """

    level: int
    size_bytes: int
    cores: int


@dataclass(frozen=True)
class MeasuredProcessor:
    """The processor and its memory.

    Attributes
    ----------
    cores
        Logical processors that this process may use.
    register_bytes
        Vector registers of a core.
    """

    model: str
    cores: int
    caches: tuple[Cache, ...]
    memory_bytes: int
    register_bytes: int


def usable_cores() -> int:
    """Return how many logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """Return the mean number of waiting processes of the last minute, where it is known."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def disturbance() -> str | None:
    """Say how busy other programs keep this machine, to be asked before anything is measured.

    Returns None on a machine that is quiet: a tenth of its processors is what a desktop takes.
    """
    load, cores = load_average(), usable_cores()
    if load is None or load <= 0.1 * cores:
        return None
    return (
        f"warning: other programs were running before anything was measured (load average "
        f"{load:.1f}, {cores} processor(s)): measured times may be too long, repeat on a quiet "
        "machine"
    )


def processor() -> MeasuredProcessor:
    """Read the description of this machine's processor."""
    info = _text(_CPUINFO)
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = set((re.search(r"^flags\s*:\s*(.+)$", info, re.MULTILINE) or ["", ""])[1].split())
    registers = [size for flag, size in _VECTOR_REGISTERS.items() if flag in flags]
    return MeasuredProcessor(
        model=model[1].strip() if model else platform.processor() or platform.machine(),
        cores=usable_cores(),
        caches=_caches(_CACHES),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        register_bytes=max(registers, default=_LEAST_VECTOR),
    )


def _caches(folder: Path) -> tuple[Cache, ...]:
    """Read sysfs's data and unified caches; those of one level are one."""
    found: dict[int, Cache] = {}
    for index in sorted(folder.glob("index*")):
        if _text(index / "type") == "Instruction":
            continue
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(index / "size"))
        level = _text(index / "level")
        if size is None or not level.isdigit():
            continue
        size_bytes = int(size[1]) * _UNITS.get(size[2], 1)
        found[int(level)] = Cache(int(level), size_bytes, _listed(_text(index / "shared_cpu_list")))
    return tuple(found[level] for level in sorted(found))


def _listed(ranges: str) -> int:
    """Count the processors of a list such as 0-3,8."""
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    return max(count, 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def keep_freed_memory() -> bool:
    """Let the C library keep what this process gives back; tell whether it does.

    Else arrays of megabytes that every step makes anew may be taken from the operating system and
    given back every time, page by page, depending on what else lies in the heap. Allocators that
    training is usually run with (jemalloc, tcmalloc) keep them by themselves.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(library.mallopt(option, value) == 1 for option, value in _KEEPING)


def set_blas_threads(threads: int) -> None:
    """Let NumPy's BLAS use so many threads.

    Raises
    ------
    RidgelineError
        If it is none that can be told so.
    """
    libraries = set(
        re.findall(r"\S*(?:openblas|libmkl_rt)\S*\.so\S*", _text(Path("/proc/self/maps")))
    )
    for library in libraries:
        loaded = ctypes.CDLL(library)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
                     "scipy_openblas_set_num_threads", "openblas_set_num_threads",
                     "MKL_Set_Num_Threads"):  # fmt: skip
            if hasattr(loaded, name):
                getattr(loaded, name)(ctypes.c_int(threads))
                return
    if threads != usable_cores():
        raise RidgelineError(
            f"NumPy's BLAS cannot be told to use {threads} threads; set its environment variable"
            " (OMP_NUM_THREADS) and say --threads as many"
        )


@dataclass(frozen=True)
class EnergyCounter:
    """A counter of joules.

    Attributes
    ----------
    files
        Of microjoules, each with the value at which it begins again (Linux powercap: RAPL).
    """

    files: Mapping[Path, float]

    def joules(self) -> list[float]:
        """Read the counters."""
        return [float(path.read_text()) * 1e-6 for path in self.files]

    def watts(self, seconds: float) -> float:
        """Return the mean power while this process sleeps."""
        return self.watts_of(lambda: time.sleep(_POLLS), seconds)

    def watts_of(self, run: Callable[[], object], seconds: float) -> float:
        """Return the mean power while something is done again and again."""
        start, before = time.monotonic(), self.joules()
        while time.monotonic() - start < max(seconds, _POLLS):
            run()
        passed, after = time.monotonic() - start, self.joules()
        wraps = self.files.values()
        used = sum(
            (b - a) if b >= a else (b - a + wrap)
            for a, b, wrap in zip(before, after, wraps, strict=True)
        )
        return used / passed


def energy_counter(folder: Path = _POWERCAP) -> EnergyCounter | None:
    """Return the processor's energy counters, if this user may read them."""
    found: dict[Path, float] = {}
    for zone in sorted(folder.glob("*-rapl:*")) if folder.is_dir() else ():
        if zone.name.count(":") > 1:  # a part of a package, which is counted with it
            continue
        with suppress(OSError, ValueError):
            counter = zone / "energy_uj"
            float(counter.read_text())
            found[counter] = float((zone / "max_energy_range_uj").read_text()) * 1e-6
    return EnergyCounter(found) if found else None


def accelerator_watts() -> float | None:
    """Return the power that NVIDIA's driver reports for the first device, if it is there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        answer = subprocess.run(
            [program, "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id=0"],
            capture_output=True, check=True, text=True, timeout=_PATIENCE_S,
        )  # fmt: skip
        return float(answer.stdout.strip())
    return None
