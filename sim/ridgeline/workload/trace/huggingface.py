"""Hugging Face ``config.json`` as a network of one of the families.

Each model type is a function from its configuration to the fields of a family; what a configuration
leaves out has the default of the transformers library. Fields that would change the network in a
way that the family cannot say are errors: a wrong parameter count is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline import config as files
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload.families import FAMILIES
from ridgeline.workload.model import Model
from ridgeline.workload.trace.huggingface_types import MODEL_TYPES, Config
from ridgeline.workload.trace.json_files import read_bytes, read_json

MAX_BYTES = 4 * 2**20
_PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "fp16-mixed"}


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """Read a ``config.json``.

    The sequence is the longest that the configuration allows; ``overrides`` replaces it, or any
    other field of the family, by dotted path.

    Raises
    ------
    ConfigError
        If the model type is not known, or a field is missing or says what is not modelled.
    """
    file = str(path)
    data = read_json(read_bytes(path, MAX_BYTES), file)
    if not isinstance(data, dict):
        raise ConfigError("expected an object of fields", file=file)
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        near = nearest(kind, MODEL_TYPES) if isinstance(kind, str) else ""
        known = ", ".join(MODEL_TYPES)
        raise ConfigError(
            f"model type {kind!r} is not known{near} (known: {known}); trace the module instead",
            file=file,
            field="model_type",
        )
    name = Path(path).stem if Path(path).stem != "config" else Path(path).resolve().parent.name
    fields = {
        **MODEL_TYPES[kind](Config(data, file)),
        "title": str(data.get("_name_or_path") or name),
        "citation": f"Hugging Face configuration of model type {kind!r}",
        "optimizer": "adafactor" if kind in {"t5", "mt5"} else "adamw",
        "precision": _PRECISIONS.get(str(data.get("torch_dtype", data.get("dtype"))), "fp32"),
        "dataset": "imagenet" if kind == "vit" else "tokens",
    }
    document = files.overridden(files.Document(file, fields, {}), overrides or {})
    network = files.validate(document, FAMILIES[fields["family"]])
    model = Model(name, network, dict(overrides or {}))
    try:
        model.forward(1)
    except RidgelineError as error:
        raise ConfigError(str(error), file=file) from error
    return model
