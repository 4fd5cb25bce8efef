"""Code that runs without gradients: under `torch.no_grad`, or behind `detach`.

A forward pass is recorded in inference mode, where PyTorch cannot tell. So the entries to and exits
from such code are counted while a module is traced, and code that asks whether gradients are on is
told what it would be told in a training step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ridgeline.workload.trace.torch_capture import Listener

_CUTS = frozenset({torch.Tensor.detach, torch.Tensor.detach_, torch.detach,
                   torch.Tensor.data.__get__})  # fmt: skip


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Tells what code detaches from what autograd detaches for itself."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _CUTS:
            return func(*args, **(kwargs or {}))
        self.listener.stops += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.listener.stops -= 1


@contextmanager
def without_gradients(listener: Listener) -> Iterator[None]:
    """Let a listener know while code runs without gradients."""
    enter, leave = torch.no_grad.__enter__, torch.no_grad.__exit__

    def entered(self: Any) -> None:
        listener.stops += 1
        enter(self)

    def left(self: Any, *error: Any) -> None:
        leave(self, *error)
        listener.stops -= 1

    is_enabled = torch.is_grad_enabled

    def asked() -> bool:
        """Tell a module's code that gradients are on, which they would be in a training step."""
        by_torch = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "torch"
        return is_enabled() if by_torch else not listener.stops

    torch.no_grad.__enter__, torch.no_grad.__exit__ = entered, left
    torch.is_grad_enabled = asked
    try:
        with _Calls(listener):
            yield
    finally:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = enter, leave
        torch.is_grad_enabled = is_enabled
