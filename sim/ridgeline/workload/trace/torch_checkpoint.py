"""Regions of `torch.utils.checkpoint`, which the backward pass forms again.

`checkpoint` runs a function and keeps its inputs alone. However a module got the function (its own
import, `checkpoint_sequential`, a wrapper of modules, `gradient_checkpointing_enable` of
transformers), it ends in one of two things of its module, which are replaced while a module is
traced: the class of the reentrant variant, which does all of its region again, and the generator
around the other's call, which stops as soon as it has what the backward pass needs. Regions
within a region are part of the outer one. Code without gradients has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch.utils.checkpoint as checkpointing

from ridgeline.workload.trace.torch_capture import Listener
from ridgeline.workload.trace.torch_lines import code_line

_REENTRANT = "CheckpointFunction"
_GENERATOR = "_checkpoint_without_reentrant_generator"


@contextmanager
def with_regions(listener: Listener) -> Iterator[None]:
    """Let a listener know which operators are in a region."""
    tape = listener.tape

    @contextmanager
    def region(*, whole: bool) -> Iterator[None]:
        own = not listener.stops and not tape.region
        if own:
            tape.regions += 1
            tape.region = -tape.regions if whole else tape.regions
        try:
            yield
        finally:
            if own:
                tape.region = 0

    def reentrant(function: Any, _: Any, *args: Any) -> Any:
        with region(whole=True):
            return function(*args)

    def around(
        _: Any, __: Any = True, context_fn: Any = checkpointing.noop_context_fn, *___: Any,
        **____: Any,
    ) -> Iterator[None]:  # fmt: skip
        if context_fn is not checkpointing.noop_context_fn:
            listener.known.notes[
                f"the policy of a selective checkpoint at {code_line()} is not read: all of it"
                " counts as formed again"
            ] = None
        with region(whole=False):
            yield

    before = {name: getattr(checkpointing, name) for name in (_REENTRANT, _GENERATOR)}
    # no class, which would hold the tape until garbage is collected
    setattr(checkpointing, _REENTRANT, SimpleNamespace(apply=reentrant))
    setattr(checkpointing, _GENERATOR, around)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(checkpointing, name, value)
