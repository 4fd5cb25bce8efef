"""Adapters of low rank (LoRA) as launch files describe them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.study.launch import shape
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.workload.adapters import PROJECTIONS

_ALIASES = {
    "wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj", "query": "q_proj",
    "key": "k_proj", "value": "v_proj", "dense": "o_proj", "w1": "gate_proj", "w3": "up_proj",
    "w2": "down_proj", "out_proj": "o_proj", "fc1": "up_proj", "fc2": "down_proj",
}  # fmt: skip
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What "all linear layers" means: all but the classifier."""

_LAYERS = {name: PROJECTIONS[name][0] for name in PROJECTIONS if name.endswith(("proj", "mqa"))}
"""Products outside experts, of a network whose products are not fused."""
_LATENT = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_SHARED = {
    "gate_proj": "*.experts.shared.gate*", "up_proj": "*.experts.shared.up",
    "down_proj": "*.experts.shared.down",
}  # fmt: skip


def fill(
    draft: LaunchDraft, rank: int, targets: Iterable[str], dropout: float, where: str
) -> tuple[str, ...]:
    """Give the network adapters, and return the targets that it has no product for.

    Parameters
    ----------
    rank, dropout
        Of the adapters.
    targets
        Products as transformers calls them.
    where
        The setting that an error points at.

    Raises
    ------
    ConfigError
        If the network is none that can have adapters, or has none of the products.
    """
    description = shape.shapes().get(draft.model)
    if description is None:
        raise draft.error(f"adapters of {draft.model} are not modelled", where)
    wanted = list(dict.fromkeys(_ALIASES.get(name, name) for name in targets))
    latent = "latent_attention.heads" in description
    if latent and set(ALL) <= set(wanted):
        wanted = [*(name for name in wanted if name not in {"k_proj", "v_proj"}), *_LATENT]
    names = {**_LAYERS, "q_proj": "*.attention.query-up"} if latent else _LAYERS
    missing = [name for name in wanted if name not in names]
    layers = [names[name] for name in wanted if name in names]
    if not layers:
        raise draft.error(f"no product of {draft.model} is called {', '.join(wanted)}", where)
    inside = set(ALL[4:]) & set(wanted)
    if inside and "mixture.experts" in description:
        draft.note("adapters beside the products of routed experts are not modelled")
        if description["mixture.shared"]:
            layers += [_SHARED[name] for name in wanted if name in inside]
    draft.model_fields["adapters"] = {"rank": rank, "layers": layers, "dropout": dropout}
    if not latent:
        draft.model_fields["attention.fused"] = False
    if "feed_forward.width" in description:
        draft.model_fields["feed_forward.fused"] = False
    return tuple(missing)


def products(pattern: str) -> tuple[str, ...]:
    """Return the products of a transformer's block whose names fit a regular expression's end."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return ()
    parts = {name: "mlp" if name in ALL[4:] else "self_attn" for name in ALL}
    prefixes = ("model.layers.0.", "model.language_model.layers.0.", "")
    return tuple(
        name
        for name, part in parts.items()
        if any(compiled.fullmatch(f"{prefix}{part}.{name}") for prefix in prefixes)
    )


def frozen_bits(draft: LaunchDraft, bits: int) -> None:
    """Keep the frozen matrices of a network in few bits, as bitsandbytes does (QLoRA)."""
    if bits < 16:
        base_format = "nf4" if bits == 4 else "int8"
        draft.model_fields["adapters"] |= {"base_format": base_format}
        draft.note(
            f"frozen matrices wait in {base_format} and are unpacked before each product; the"
            " classifier's, embeddings and norms are as they are computed with"
        )
