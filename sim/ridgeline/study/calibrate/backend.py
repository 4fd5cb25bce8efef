"""What does the work that is measured: NumPy, or PyTorch on a processor or an accelerator.

A backend gives pieces of work by what they compute; a piece that it cannot do is None, and the
calibration says that it is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from ridgeline.errors import RidgelineError, nearest
from ridgeline.study.calibrate.clock import Run, Stopwatch
from ridgeline.study.calibrate.machine import MeasuredProcessor
from ridgeline.study.calibrate.probes import Shape
from ridgeline.workload.graph import Conv, Gemm

BACKENDS = ("numpy", "torch")
DEVICES = ("cpu", "cuda")


class Backend(Protocol):
    """Pieces of work, and the clock to measure them with.

    Attributes
    ----------
    name, versions
        Of the library, and in words with its version and that of what it is built on.
    threads
        That share the work.
    formats
        Number formats of products.
    watch
        The clock.
    """

    name: str
    device: Literal["cpu", "cuda"]
    versions: str
    threads: int
    formats: tuple[str, ...]
    watch: Stopwatch

    def described(self) -> MeasuredProcessor:
        """Describe what the work runs on."""

    def product(self, gemm: Gemm, pass_: str, format_: str) -> Run | None:
        """Multiply, as one pass over a linear layer does."""

    def convolution(self, conv: Conv, pass_: str, format_: str) -> Run | None:
        """Do one pass over a convolution."""

    def stream(self, name: str, shape: Shape) -> Mapping[str, Run]:
        """Do the passes over a probe; none if it is not known."""

    def recurrence(self, batch: int, hidden: int, steps: int) -> Mapping[str, Run]:
        """Do the forward and the backward pass over an LSTM layer."""

    def update(self, rule: str, tensors: int, elements: int) -> Run | None:
        """Update so many equal weight tensors."""

    def add(self, elements: int) -> Run:
        """Add two arrays into a third: what measures the bandwidth of memory."""

    def backward_chain(self, depth: int) -> Run | None:
        """Go back through so many equal small ops; None where no graph is walked."""


def check_backend(name: str, device: str) -> None:
    """Raise RidgelineError if there is no such backend, or no such kind of device."""
    for what, given, known in (("backend", name, BACKENDS), ("device", device, DEVICES)):
        if given not in known:
            raise RidgelineError(
                f"there is no {what} {given!r}{nearest(given, known)} (allowed: {', '.join(known)})"
            )


def open_backend(name: str, device: str, threads: int, seed: int) -> Backend:
    """Return a backend.

    Raises
    ------
    RidgelineError
        If it is unknown or not installed, or has no such device.
    """
    check_backend(name, device)
    if name == "numpy":
        if device != "cpu":
            raise RidgelineError("NumPy computes on the cpu; for cuda, say --backend torch")
        from ridgeline.study.calibrate.numpy_backend import NumpyBackend

        return NumpyBackend(threads, seed)
    try:
        from ridgeline.study.calibrate.torch_backend import TorchBackend
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise RidgelineError(
            "the backend torch needs PyTorch: pip install 'ridgeline[trace]' (torch 2.13.0, CPU"
            " build, is enough), or say --backend numpy"
        ) from error
    return TorchBackend(device, threads, seed)
