"""Lines of the code that is traced, for messages."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

_PACKAGES = tuple(
    f"{path.parent}{os.sep}" for path in (Path(torch.__file__), Path(__file__).parents[1])
)
_OTHERS = ("contextlib.py", "functools.py")


def code_line() -> str:
    """Name the line that runs: the last that is none of PyTorch's or of ridgeline's."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_PACKAGES) and not frame.filename.endswith(_OTHERS):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"
