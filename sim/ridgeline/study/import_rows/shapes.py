"""What the shape of a language model is where a table leaves part of it out."""

from __future__ import annotations

import re

_GATED = ("llama", "palm")


def is_gated(model: str, hidden: int, ffn: int | None) -> bool:
    """Whether feed-forward networks multiply by a gate, as LLaMA's do.

    A plain one is four times as wide as the network since the first transformer (Vaswani et al.,
    2017, Table 3); one with a gate has another width (N. Shazeer, GLU variants improve transformer,
    2020, arXiv:2002.05202, Section 3.1: two thirds of it), but for PaLM (arXiv:2204.02311).
    """
    named = any(name in model.lower() for name in _GATED)
    return named or (ffn is not None and ffn != 4 * hidden)


def layers_of(model: str, hidden: int, vocabulary: int, stages: int) -> int | None:
    """Layers of a GPT with the billions of parameters of its name, evenly over its stages.

    A layer has 12 hidden**2 weights, the embedding one row for each word.
    """
    size = re.search(r"\b(\d+(?:\.\d+)?) ?[Bb]\b", model)
    if size is None:
        return None
    layers = (float(size[1]) * 1e9 - vocabulary * hidden) / (12 * hidden**2)
    return max(round(layers / stages), 1) * stages
