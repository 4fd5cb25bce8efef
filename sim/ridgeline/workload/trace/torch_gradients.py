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

from ridgeline.workload.trace.torch_capture import BatchNumber, Listener
from ridgeline.workload.trace.torch_lines import code_line

_CUTS = frozenset({torch.Tensor.detach, torch.Tensor.detach_, torch.detach,
                   torch.Tensor.data.__get__})  # fmt: skip

_ASKS = frozenset({torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__})
_WHOLE = frozenset({torch.Tensor.__int__, torch.Tensor.__index__})
_NUMBERS = _WHOLE | {torch.Tensor.item, torch.Tensor.__float__}
_GRADIENT = torch.Tensor.grad.__get__


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Tells what code detaches from what autograd detaches for itself."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ASKS:
            self._asked(args, kwargs or {})
        if func == _GRADIENT:
            self.listener.known.notes[
                f"gradients are read at {code_line()}: what follows from them is not part of the"
                " step (clipping is what the software says: gradients.clip_sweeps)"
            ] = None
        if func in _NUMBERS:
            return self._number(func, args)
        if func not in _CUTS:
            return func(*args, **(kwargs or {}))
        self.listener.stops += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.listener.stops -= 1

    def _number(self, func: Any, args: Any) -> Any:
        """Return a number of a tensor, marked where it stands for one of the mini-batch."""
        listener = self.listener
        listener.asks_for_whole, listener.supposed = func in _WHOLE, False
        try:
            number = func(*args)
        finally:
            listener.asks_for_whole = False
        if listener.supposed and func is torch.Tensor.item:
            return BatchNumber(number)  # float() may return no other kind
        return number

    def _asked(self, args: Any, kwargs: Any) -> None:
        """Follow which parameters want gradients, as a step turns them off and on."""
        name = self.listener.parameters.get(id(args[0]))
        wants = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
        if name is not None:
            (set.discard if wants else set.add)(self.listener.without_gradient, name)


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
