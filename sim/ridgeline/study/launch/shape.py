"""Which network of the catalogue a launch file means: by its name, or by the widths that it gives.

A network that is none of the catalogue is one of these with its fields replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.errors import nearest

_PARTS: Mapping[str, Mapping[str, Any]] = {
    "attention": {
        "kv_heads": None, "head_size": None, "bias": True, "output_bias": True,
        "dropout": 0.0, "head_norm": False,
    },
    "latent_attention": {"query_rank": None},
    "feed_forward": {"bias": True},
    "state_space": {"groups": 1, "state": 128},
    "mixture": {
        "shared": 0, "shared_width": None, "activation": "swiglu", "latent": None,
        "scores": "softmax-of-chosen", "scale": 1.0, "first_dense": 0, "capacity_factor": 1.0,
    },
}  # fmt: skip
"""Parts of a decoder and what their fields are unless given."""
_WHOLE: Mapping[str, Any] = {
    "norm": "layer-norm", "norms": "before", "parallel": "no", "embedding_norm": False,
    "positions": "learned", "tied": True, "dropout": 0.0, "pattern": "", "further_tokens": 0,
    "further_pattern": "",
}  # fmt: skip
_SOFT = {
    "vocabulary", "sequence", "dropout", "attention.dropout", "attention.bias",
    "attention.output_bias", "feed_forward.bias", "mixture.scores", "mixture.scale",
    "mixture.capacity_factor", "further_tokens", "further_pattern", "attention.head_norm",
    "max_positions",
}  # fmt: skip
"""Fields in which a run of a network may differ from its description."""
_MASKS = ("window", "chunk", "full_every", "sinks", "router_bias", "expert_bias")
"""Fields of parts that launch files do not say: those of the network that is found hold."""
_NAMELESS = {
    *(
        "kind",
        "name",
        "aliases",
        "family",
        "title",
        "citation",
        "dataset",
        "published",
        "optimizer",
    ),
    "precision",
}

_ALIASES = (
    (r"llama-?3[.-]?[13]-?(8|70|405)b", r"llama3-\1b"),
    (r"llama-?3-?(8|70)b", r"llama3-\1b"),
    (r"llama-?3[.-]?2-?(1|3)b", r"llama3.2-\1b"),
    (r"llama-?2-?(7|13|70)b", r"llama2-\1b"),
    (r"llama-?1?-(7|13|33|65)b", r"llama-\1b"),
    (r"llama-?30b", "llama-33b"),
    (r"mistral-7b|zephyr-7b", "mistral-7b"),
    (r"mixtral-8x(7|22)b", r"mixtral-8x\1b"),
    (r"deepseek-(v3|r1|v3[.-]1)", "deepseek-v3"),
    (r"deepseek-v2-lite|deepseek-v2-16b", "deepseek-v2-lite"),
    (r"deepseek-v2", "deepseek-v2"),
    (r"kimi-k2", "kimi-k2"),
    (r"gpt-?oss-(20|120)b", r"gpt-oss-\1b"),
    (r"qwen-?3-(\d+(?:\.\d+)?b(?:-a\d+b)?)", r"qwen3-\1"),
    (r"qwen-?2[.-]?5-(\d+(?:\.\d+)?b)", r"qwen2.5-\1"),
    (r"qwen-?2-(0[.-]5b|1[.-]5b|7b|72b)", r"qwen2.5-\1"),
    (r"gemma-?([23])-(\d+b)", r"gemma\1-\2"),
    (r"nemotron-?h-(8|56)b", r"nemotron-h-\1b"),
    (r"nemotron-?4-(15|340)b", r"nemotron-4-\1b"),
    (r"nemotron-(15|340)b", r"nemotron-4-\1b"),
    (r"nemotron-?3[.-]5-(?:nano-)?lightning(?:-30b-a3b)?", "nemotron-3-5-lightning"),
    (r"nemotron-?3-(nano|super|ultra)(?:-\d+b-a\d+b)?", r"nemotron-3-\1"),
    (r"gpt-?3-(\d+(?:\.\d+)?[mb])", r"gpt3-\1"),
    (r"gpt-?neox-20b", "gpt-neox-20b"),
    (r"tiny-?llama-1[.-]1b", "tinyllama-1.1b"),
    (r"bloom(?:z)?(?:-176b)?", "bloom-176b"),
    (r"bloom(?:z)?-(\d+(?:[.-]\d+)?[mb])", r"bloom-\1"),
)
"""Names that others give to networks of the catalogue."""
_SAME = (
    r"(meta|nvidia|hf|it|pt|chat|instruct|base|bf16|fp8|preview|thinking|mode|model|config|sft|"
    r"pretrain|finetune|beta|alpha|v0\.\d|2[45]\d\d|text|tokenizer)"
)
"""Words of a name that say nothing of widths."""


@dataclass(frozen=True)
class Match:
    """A network of the catalogue, what is otherwise, and what must be known of it."""

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    exact: bool = True
    """Whether the catalogue has a network of these widths."""


def named(text: str) -> str | None:
    """Return the catalogue name of a network that others call so; None if there is none."""
    name = text.strip().rstrip("/").rpartition("/")[2].lower().replace("_", "-").replace(" ", "-")
    name = re.sub(r"(?<=\d)p(?=\d)", ".", re.sub(r"\.(ya?ml|json|py)$", "", name))
    listed = catalog.names("models")
    previous = ""
    while name != previous:
        if name in listed:
            return name
        for pattern, model in _ALIASES:
            if (found := re.fullmatch(pattern, name)) is not None:
                known = found.expand(model)
                dotted = re.sub(r"(?<=-\d)-(?=\d)", ".", known)
                return next((each for each in (known, dotted) if each in listed), None)
        previous = name
        name = re.sub(rf"-{_SAME}$|^{_SAME}-", "", name)
    squeezed = re.sub(r"[^a-z0-9]", "", name)
    return next((each for each in listed if re.sub(r"[^a-z0-9]", "", each) == squeezed), None)


def unknown_name(text: str) -> str:
    """Say that no network is called so, with the nearest that is."""
    near = nearest(text.rpartition("/")[2].lower().replace("_", "-"), catalog.names("models"))
    return f"no network of the catalogue is {text!r}{near}"


@cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of every decoder of the catalogue, by dotted path, with defaults."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in catalog.names("models"):
        path = catalog.find("models", name)
        if "family: decoder\n" not in path.read_text("utf-8"):
            continue
        data = read_yaml(path).data
        if data.get("family") == "decoder" and "adapters" not in data:
            found[name] = normal(data)
    return found


def normal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a decoder by dotted path, with defaults for those that are left out."""
    flat: dict[str, Any] = dict(_WHOLE)
    for key, value in data.items():
        if key in _NAMELESS:
            continue
        if key in _PARTS:
            if value is not None:
                part = {**_PARTS[key], **{k: v for k, v in value.items() if k not in _MASKS}}
                flat |= {f"{key}.{name}": each for name, each in part.items()}
        else:
            flat[key] = value
    if "attention.heads" in flat:
        heads = flat["attention.heads"]
        flat["attention.kv_heads"] = flat["attention.kv_heads"] or heads
        flat["attention.head_size"] = flat["attention.head_size"] or flat["hidden"] // heads
    if "mixture.experts" in flat:
        shared = flat.pop("mixture.shared")
        width = flat.pop("mixture.shared_width") or flat["mixture.width"]
        flat["mixture.shared"] = shared * width
        if not flat["mixture.first_dense"] and "-" not in flat["pattern"]:
            flat.pop("feed_forward.width", None)
            flat.pop("feed_forward.activation", None)
    if flat["pattern"]:
        flat["pattern"] = flat["pattern"][: flat["layers"]]
        if "-" not in flat["pattern"]:
            flat.pop("feed_forward.width", None)
            flat.pop("feed_forward.activation", None)
    return flat


def match(description: Mapping[str, Any], like: str = "") -> Match:
    """Find the network of the catalogue with these widths, or one that takes them.

    Parameters
    ----------
    description
        Fields of a decoder as in ``models/*.yaml``; of the fields that tell networks apart, those
        left out are the defaults of the schema. A missing vocabulary is that of the network found.
    like
        Name of the network that is taken among equals.

    Raises
    ------
    LookupError
        If no network of the catalogue has these widths and the vocabulary is missing.
    """
    wanted = normal(description)
    best: tuple[bool, int, str] | None = None
    for name, shape in shapes().items():
        keys = (wanted.keys() | shape.keys()) - _SOFT
        if any(wanted.get(key) != shape.get(key) for key in keys):
            continue
        rank = (name != like, len(_differences(wanted, shape)), name)
        best = rank if best is None else min(best, rank)
    if best is not None:
        name = best[2]
        return Match(name, _differences(wanted, shapes()[name]))
    if "vocabulary" not in description:
        raise LookupError("vocabulary")
    base = _nearest(wanted)
    has = shapes()[base]
    fields = {key: value for key, value in description.items() if key not in _NAMELESS}
    for part in _PARTS:
        if part not in fields and any(key.startswith(f"{part}.") for key in has):
            fields[part] = None
    for key, value in _WHOLE.items():
        if key not in fields and has.get(key, value) != value:
            fields[key] = value
    fields = {key: value for key, value in fields.items() if not _equal(key, wanted, has)}
    fields |= {"title": _title(description), "citation": "read from a launch file", "published": {}}
    note = f"no network of the catalogue has these widths: {base} takes them"
    return Match(base, fields, (note,), False)


def _nearest(wanted: Mapping[str, Any]) -> str:
    """Return the network of the same parts that has most fields alike."""

    def rank(name: str) -> tuple[int, int, str]:
        has = shapes()[name]
        parts = {key.partition(".")[0] for key in has} ^ {key.partition(".")[0] for key in wanted}
        different = sum(wanted.get(key) != has.get(key) for key in wanted.keys() | has.keys())
        return len(parts & _PARTS.keys()), different, name

    return min(shapes(), key=rank)


def _equal(key: str, wanted: Mapping[str, Any], has: Mapping[str, Any]) -> bool:
    """Tell whether a field, or all fields of a part, are those of another network."""
    names = {each for each in wanted.keys() | has.keys() if each.startswith(f"{key}.")} or {key}
    return all(wanted.get(each) == has.get(each) for each in names)


def _differences(wanted: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: wanted[key] for key in sorted(_SOFT) if key in wanted and wanted[key] != shape.get(key)
    }


def _title(description: Mapping[str, Any]) -> str:
    experts = (description.get("mixture") or {}).get("experts")
    more = f", {experts} experts" if experts else ""
    return f"decoder of {description['layers']} layers, {description['hidden']} features{more}"
