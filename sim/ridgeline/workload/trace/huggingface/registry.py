"""The model types that are read: name -> what makes a family's fields of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.workload.trace.huggingface.configuration import Config

Fields = dict[str, Any]
Reader = Callable[[Config], Fields]

MODEL_TYPES: dict[str, Reader] = {}
"""``model_type`` of transformers, or ``_class_name`` of diffusers -> its reader."""


def model_type(*names: str) -> Callable[[Reader], Reader]:
    """Register the reader of some model types."""

    def register(reader: Reader) -> Reader:
        for name in names:
            assert name not in MODEL_TYPES, name
            MODEL_TYPES[name] = reader
        return reader

    return register
