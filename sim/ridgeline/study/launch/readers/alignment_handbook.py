"""Recipes of Hugging Face's alignment handbook and of TRL (YAML).

Facts from transformers' TrainingArguments, TRL's SFTConfig and ModelConfig.
"""

from __future__ import annotations

import re

from ridgeline.study.launch import batch, huggingface, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource

_NAME = "alignment_handbook"
_WHERE: batch.Where = {"global_batch": ("per_device_train_batch_size",)}
_SEQUENCE = ("max_length", "max_seq_length", "max_seq_len", "block_size", "model_max_length")
_TRL = 1024
"""Tokens of a sequence that TRL cuts at unless told otherwise."""


def _recognises(text: str, suffix: str) -> float:
    if suffix not in {".yaml", ".yml"}:
        return 0.0
    if not re.search(r"^model_name_or_path:", text, re.MULTILINE):
        return 0.0
    known = r"^(per_device_train_batch_size|dataset_mix\w+|gradient_checkpointing|learning_rate):"
    return 0.9 if re.search(known, text, re.MULTILINE) else 0.4


@reader(_NAME, _recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a recipe."""
    draft = LaunchDraft(source, _NAME)
    tables.say_all(draft, source.yaml)
    huggingface.refuse_preferences(draft)
    lengths = [tables.count(draft, name, "model sequence={}") for name in _SEQUENCE]
    sequence = next((length for length in lengths if length), None)
    if sequence is None:
        sequence = _TRL
        draft.note(f"max_length is not given: {_TRL}, as TRL has it")
    huggingface.network(draft, "model_name_or_path", sequence)
    micro, accumulation = huggingface.trainer(draft, sequence)
    _of_dtype(draft)
    batch.settle(draft, micro, accumulation, _WHERE)
    huggingface.of_pytorch_2(draft)
    tables.ignore_patterns(draft, tables.table("trainer")["ignored"])
    return draft.job()


def _of_dtype(draft: LaunchDraft) -> None:
    word = tables.word(draft, "torch_dtype", "weights in {}") or tables.word(
        draft, "dtype", "weights in {}"
    )
    copied = draft.software.startswith("pytorch") and "adapters" not in draft.model_fields
    if word in {"bfloat16", "float16"} and copied:
        huggingface.narrow_weights(draft)
