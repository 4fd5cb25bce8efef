"""Hugging Face ``config.json`` as a network of one of the families.

Each model type is a function from its configuration to the fields of a family, registered in
`registry`; those of one kind share a module. What a configuration leaves out has the default of the
transformers library (``defaults.json``). Fields that would change the network in a way that the
family cannot say are errors: a wrong parameter count is worse than none. What changes neither
parameters nor products (the base and scaling of rotary positions, caps and factors of logits,
features that are not rotated) is read over.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline import config as files
from ridgeline.bounded_files import read_json
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload.families import FAMILIES
from ridgeline.workload.model import Model
from ridgeline.workload.trace.huggingface import (  # noqa: F401  (they register model types)
    attention_decoders,
    diffusion,
    encoders,
    hybrids,
    mixtures,
    multimodal,
)
from ridgeline.workload.trace.huggingface.configuration import Config
from ridgeline.workload.trace.huggingface.registry import MODEL_TYPES
from ridgeline.workload.trace.network import TraceWarning

MAX_BYTES = 4 * 2**20
_PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "fp16-mixed"}
_ADAFACTOR = frozenset({"t5", "mt5"})


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """Read a ``config.json`` of transformers, or one of a transformer of diffusers.

    The sequence is the longest that the configuration allows; ``overrides`` replaces it, or any
    other field of the family, by dotted path.

    Raises
    ------
    ConfigError
        If the model type is not known, or a field is missing or says what is not modelled.
    """
    file = str(path)
    data = read_json(path, MAX_BYTES)
    if not isinstance(data, dict):
        raise ConfigError("expected an object of fields", file=file)
    field = "_class_name" if "_class_name" in data else "model_type"
    kind = data.get(field)
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        near = nearest(kind, MODEL_TYPES) if isinstance(kind, str) else ""
        raise ConfigError(
            f"model type {kind!r} is not known{near} ({len(MODEL_TYPES)} are; see"
            " docs/executions.md); trace the module instead: build it with transformers or"
            " diffusers from this file, and give it to rl.trace",
            file=file,
            field=field,
        )
    name = Path(path).stem if Path(path).stem != "config" else Path(path).resolve().parent.name
    c = Config(data, file, kind)
    said = MODEL_TYPES[kind](c)
    fields = {
        "optimizer": "adafactor" if kind in _ADAFACTOR else "adamw",
        "dataset": "tokens",
        **said,
        "title": str(data.get("_name_or_path") or name),
        "citation": f"Hugging Face configuration of model type {kind!r}",
        "precision": _PRECISIONS.get(str(c.found("torch_dtype") or c.found("dtype")), "fp32"),
    }
    document = files.overridden(files.Document(file, fields, {}), overrides or {})
    network = files.validate(document, FAMILIES[fields["family"]])
    model = Model(name, network, dict(overrides or {}))
    try:
        model.forward(1)
    except RidgelineError as error:
        raise ConfigError(str(error), file=file) from error
    for note in c.notes:
        warnings.warn(f"{name}: {note}", TraceWarning, stacklevel=3)
    return model
