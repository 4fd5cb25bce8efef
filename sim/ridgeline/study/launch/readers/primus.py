"""Primus: YAML experiments that train a model by Megatron-LM, or MaxText, on AMD's devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.study.launch import shape
from ridgeline.study.launch.interpolation import resolved
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.megatron import Arguments, finish, network, plan, software
from ridgeline.study.launch.readers import maxtext
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource, leaves

NAME = "primus"
_MODULES = ("pre_trainer", "sft_trainer", "post_trainer", "trainer")
_DEFAULTS: Mapping[str, Any] = {
    "bf16": True, "sequence_parallel": True, "gradient_accumulation_fusion": True,
    "use_distributed_optimizer": True, "use_flash_attn": True,
}  # fmt: skip
"""What its own defaults add to those of Megatron-LM (primus/configs/modules/megatron)."""


def recognises(text: str, suffix: str) -> float:
    """Tell how sure it is that a file is an experiment of Primus."""
    if suffix not in {".yaml", ".yml"}:
        return 0.0
    modules = re.search(r"^modules:", text, re.M) is not None
    trainer = re.search(r"^\s+(pre|sft|post)_trainer:", text, re.M) is not None
    return 0.95 if modules and (trainer or "framework:" in text) else 0.0


@reader(NAME, recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read an experiment of Primus."""
    draft = LaunchDraft(source, NAME)
    document = source.yaml
    modules = document.data.get("modules") if isinstance(document.data, dict) else None
    if not isinstance(modules, dict):
        raise document.error("expected a mapping of modules")
    module = next((name for name in _MODULES if name in modules), "")
    if not module:
        raise document.error(
            f"no module trains a model (found: {', '.join(map(str, modules))})", ("modules",)
        )
    at = ("modules", module)
    settings = modules[module]
    if not isinstance(settings, dict):
        raise document.error("expected a mapping", at)
    for key in ("framework", "config", "model"):
        value = resolved(document.data, (*at, key), settings.get(key))
        draft.say(key, value, document.where((*at, key))[0])
    framework = draft.text("framework", "software") or ""
    if framework == "maxtext":
        return _by_maxtext(draft, at, settings)
    if framework != "megatron":
        raise draft.error(
            f"an experiment of {framework}: only those of Megatron-LM and MaxText are read",
            "framework",
        )
    args = Arguments(draft, tables=("primus", "megatron"), uneven_stages=True)
    _take(args, source, at, settings)
    draft.ignore("config", became="defaults of Primus")
    like = _model(args)
    args.given()
    added = [name for name, value in _DEFAULTS.items() if _missing(args, name, value)]
    network(args, like)
    plan(args)
    _narrow(args)
    software(args, NAME)
    finish(args)
    for name in added:
        draft.said.pop(f"{name} (default)", None)
    draft.note(f"defaults of Primus: {', '.join(added)}" if added else "")
    draft.notes = [note for note in draft.notes if note]
    return draft.job()


def _by_maxtext(draft: LaunchDraft, at: tuple[str, ...], settings: dict[str, Any]) -> LaunchJob:
    """Read an experiment that MaxText runs, whose settings have their own names."""
    document = draft.source.yaml
    draft.ignore("config", became="defaults of Primus")
    name = (draft.text("model", "model={}") or "").removesuffix(".yaml")
    for location, raw in leaves(settings.get("overrides") or {}):
        where = (*at, "overrides", *location)
        value = resolved(document.data, where, raw)
        draft.say(".".join(map(str, location)), value, document.where(where)[0])
    for key, value in {"model_name": name, "hardware": "gpu"}.items():
        if key not in draft:
            draft.say(key, value, document.where((*at, "model"))[0])
    for key, value in draft.source.set_.items():
        if key != "devices":
            draft.say(key, value)
    return maxtext.fill(draft)


def _take(
    args: Arguments, source: LaunchSource, at: tuple[str, ...], settings: dict[str, Any]
) -> None:
    document = source.yaml
    for location, raw in leaves(settings.get("overrides") or {}):
        path = ".".join(str(part) for part in location)
        value = resolved(document.data, (*at, "overrides", *location), raw)
        if isinstance(value, list):
            value = " ".join(str(each) for each in value)
        line = document.where((*at, "overrides", *location))[0]
        if value is None or value in ("null", "None"):
            args.draft.say(path, "null", line)
            args.draft.ignore(path, became="none")
            if path == "mtp_num_layers":
                args.names["mtp_num_layers"] = path
                args.draft.said[path].value = 0
        else:
            args.say(path, path, value, line)


def _missing(args: Arguments, name: str, value: Any) -> bool:
    if name in args or f"no_{name}" in args or (name == "bf16" and "fp16" in args):
        return False
    args.say(name, f"{name} (default)", value, 0)
    return True


def _model(args: Arguments) -> str:
    draft = args.draft
    text = draft.text("model", "model={}") or ""
    found = shape.named(text)
    if found is None and "num_layers" not in args:
        raise draft.error(
            f"{shape.unknown_name(text.removesuffix('.yaml'))} (its widths are in another file,"
            f" {text})",
            "model",
        )
    return found or ""


def _narrow(args: Arguments) -> None:
    """Tell the formats in 4 bits apart, which Primus names by their recipe."""
    recipe = args.text("fp4_recipe", "plan.precision: {}") or ""
    if "mx" in recipe and args.draft.plan.get("precision") == "nvfp4-mixed":
        args.draft.plan["precision"] = "mxfp4-mixed"
