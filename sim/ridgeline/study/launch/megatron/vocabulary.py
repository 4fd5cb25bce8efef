"""How many tokens a vocabulary has, by the tokenizer that arguments of Megatron-LM name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.study.launch import shape
from ridgeline.study.launch.megatron.arguments import Arguments

_TOKENIZERS: Mapping[str, int] = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
}
"""Tokens that kinds of tokenizers have."""
_FILES = (
    (r"nemotron_2_256k|256k\.model", 256_000),
    (r"multiMixV8", 131_072),
    (r"gpt2-vocab", 50257),
)
"""Tokens of the tokenizers in files of these names."""
_CUSTOM = "--set vocab_size=..."


def vocabulary(args: Arguments) -> int | None:
    """Return the rows of the embedding, as they are padded; None where the file does not say."""
    padded = args.integer(
        args.first("padded_vocab_size", "pad_vocab_size_to"), "model.vocabulary={}"
    )
    tokenizer = ("tokenizer_type", "tokenizer_model", "tokenizer_name_or_path")
    size = args.integer("vocab_size", "model.vocabulary={}")
    kind = args.draft.said.get(args.name("tokenizer_type"))
    unit = args.integer("make_vocab_size_divisible_by", "model.vocabulary") or 128
    args.ignore(*tokenizer, became="model.vocabulary")
    if padded:
        return padded
    guessed = None if size else _of_tokenizer(args)
    size = size or guessed
    if size is None:
        return None
    extra = args.integer("vocab_extra_ids", "model.vocabulary") or 0
    tensor = args.integer("tensor_model_parallel_size", "plan.tensor={}") or 1
    unit *= tensor
    rows = -(-(size + extra) // unit) * unit
    if rows != size and kind is not None:
        args.draft.note(
            f"the vocabulary of {size} tokens is padded to {rows}, a multiple of {unit}"
        )
    return rows


def _of_tokenizer(args: Arguments) -> int | None:
    def said(canonical: str) -> str:
        entry = args.draft.said.get(args.name(canonical))
        return str(entry.value) if entry is not None and canonical in args else ""

    kind = said("tokenizer_type")
    if kind in _TOKENIZERS:
        return _TOKENIZERS[kind]
    if "/" in kind and (name := shape.named(kind)) in shape.shapes():
        return int(shape.shapes()[str(name)]["vocabulary"])
    model = said("tokenizer_model") or said("tokenizer_name_or_path")
    for pattern, size in _FILES:
        if re.search(pattern, model) or re.search(pattern, said("vocab_file")):
            return size
    name = shape.named(model) if model else None
    if name is None:
        return None
    return int(shape.shapes()[name]["vocabulary"]) if name in shape.shapes() else None
