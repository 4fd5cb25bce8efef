"""Code that runs without gradients: under `torch.no_grad`, or behind `detach`.

A forward pass is recorded in inference mode, where PyTorch cannot tell. So the entries to and exits
from such code are counted while a module is traced.
"""

from __future__ import annotations

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

    torch.no_grad.__enter__, torch.no_grad.__exit__ = entered, left
    try:
        with _Calls(listener):
            yield
    finally:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = enter, leave
