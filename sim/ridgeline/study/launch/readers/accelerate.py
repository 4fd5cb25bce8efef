"""Configuration files of Hugging Face accelerate (YAML): distribution without a network.

Facts from accelerate/commands/config/config_args.py and accelerate/utils/dataclasses.py.
"""

from __future__ import annotations

import re

from ridgeline.study.launch import accelerate, batch, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource

_NAME = "accelerate"
_WHERE: batch.Where = {
    "devices": ("num_processes",),
    "data": ("parallelism_config.parallelism_config_dp_shard_size", "num_processes"),
    "tensor": (
        "parallelism_config.parallelism_config_tp_size",
        "megatron_lm_config.megatron_lm_tp_degree",
    ),
    "pipeline": ("megatron_lm_config.megatron_lm_pp_degree",),
}  # fmt: skip


def _recognises(text: str, suffix: str) -> float:
    if suffix not in {".yaml", ".yml"}:
        return 0.0
    keys = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    known = {
        "compute_environment", "distributed_type", "machine_rank", "num_machines", "num_processes",
        "main_training_function", "rdzv_backend", "same_network", "use_cpu", "downcast_bf16",
    }  # fmt: skip
    return 0.9 if "distributed_type" in keys and not keys & {"base_model", "model"} else (
        0.6 if len(keys & known) >= 3 else 0.0
    )  # fmt: skip


@reader(_NAME, _recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration file of accelerate."""
    draft = LaunchDraft(source, _NAME)
    tables.say_all(draft, source.yaml)
    micro, accumulation = accelerate.fill(draft)
    batch.settle(draft, micro, accumulation, _WHERE)
    if micro is None:
        draft.note("the file does not say the batch: give it (--batch)")
    draft.note("the file has no network: name one beside it, ridgeline run MODEL --from FILE")
    return draft.job(networkless=True)
