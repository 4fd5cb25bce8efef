"""Layouts of a pipeline such as ``Et*3|(tt|)*29,m|L``, and fields of a network in the making."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.study.launch import shape
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.megatron.arguments import Arguments


def field_of(draft: LaunchDraft, part: str, name: str) -> Any:
    """Return a field of the network as the draft has it, of its fields or of the catalogue."""
    if isinstance(draft.model_fields.get(part), Mapping):
        return draft.model_fields[part].get(name)
    if part in draft.model_fields:
        return None
    if f"{part}.{name}" in draft.model_fields:
        return draft.model_fields[f"{part}.{name}"]
    return shape.shapes().get(draft.model, {}).get(f"{part}.{name}")


def has_mixture(draft: LaunchDraft) -> bool:
    """Tell whether the network of a draft has experts."""
    return field_of(draft, "mixture", "experts") is not None


def layers_of(draft: LaunchDraft) -> int | None:
    """Return how many layers the network of a draft has."""
    if "layers" in draft.model_fields:
        return int(draft.model_fields["layers"])
    found = shape.shapes().get(draft.model, {}).get("layers")
    return None if found is None else int(found)


def parts_of(args: Arguments, layout: str, stages: int, virtual: int | None) -> int:
    """Return how many parts each stage has by a layout such as ``Et*3|(tt|)*29,m|L``."""
    name = "pipeline_model_parallel_layout"
    text = _written_out(layout)
    if re.fullmatch(r"[EtmLT|]+", text) is None:
        raise args.error(f"the layout {layout!r} cannot be read", name)
    parts = text.count("|") + 1
    layers = layers_of(args.draft)
    if layers is not None and text.count("t") != layers:
        raise args.error(f"the layout has {text.count('t')} layers, the network {layers}", name)
    if parts % stages:
        raise args.error(f"{parts} parts cannot be divided over {stages} stages", name)
    if virtual is not None and parts != virtual * stages:
        raise args.error(f"{parts} parts are not {stages} stages of {virtual}", name)
    args.draft.note("stages are cut where they come closest to equal times, not by the layout")
    return parts // stages


def layers_in(layout: str) -> int | None:
    """Return how many layers a layout of a pipeline has, where it can be read."""
    text = _written_out(layout)
    return text.count("t") if re.fullmatch(r"[EtmLT|]+", text) else None


def _written_out(layout: str) -> str:
    """Return a layout with what it repeats written out, from the inside of brackets."""
    text = re.sub(r"[\s,\"']", "", layout)
    for _ in range(20):
        wider = re.sub(
            r"\(([^()]*)\)(?:\*(\d+))?", lambda m: m[1] * min(int(m[2] or 1), 1000), text
        )
        wider = re.sub(r"([A-Za-z|])\*(\d+)", lambda m: m[1] * min(int(m[2]), 1000), wider)
        if wider == text or len(wider) > 10_000:
            break
        text = wider
    return text
