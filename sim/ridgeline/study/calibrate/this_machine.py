"""Calibrate the machine that this runs on, with the options of ``ridgeline calibrate``."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.study.calibrate import Calibration, Options, document
from ridgeline.study.calibrate import calibrate as measured

_SECONDS, _QUICK_SECONDS = 30.0, 3.0


def calibrate(
    *,
    backend: str = "numpy",
    device: str = "cpu",
    seconds: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    quick: bool = False,
    name: str = "this-machine",
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure the machine that this runs on; `Calibration.write` writes the device file.

    Products, convolutions, recurrences, other ops, updates and memory are measured; a device file
    of what they take is what steps on this machine are simulated with.

    Parameters
    ----------
    backend
        Library that computes: "numpy" or "torch".
    device
        "cpu", or "cuda" with PyTorch.
    seconds
        Time to spend, roughly; None: 30 s, or 3 s with `quick`.
    threads
        Threads that share an op; None: one for each core.
    seed
        Of the drawn shapes and numbers.
    quick
        Measure few shapes, each once.
    name
        Of the device.
    progress
        Is told what is measured, as it begins.

    Raises
    ------
    RidgelineError
        If the backend is not there, or what was asked for cannot be measured.
    """
    usual = _QUICK_SECONDS if quick else _SECONDS
    asked = Options(
        backend=backend, device=device, seconds=usual if seconds is None else seconds,
        threads=threads, seed=seed, quick=quick, name=document.slug(name),
    )  # fmt: skip
    return measured(asked, progress)
