"""Configurations of LitGPT."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch
from ridgeline.workload.files import load_model

FILE = Path(__file__).parents[2] / "data" / "launch" / "litgpt.yaml"
FINETUNE = """
checkpoint_dir: checkpoints/google/gemma-7b
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 8
lora_query: true
lora_value: true
lora_mlp: true
lora_head: true
train:
  global_batch_size: 16
  micro_batch_size: 2
  lr_warmup_steps: 10
  max_seq_length: 512
eval:
  interval: 10
optimizer: AdamW
"""


def written(folder: Path, text: str) -> LaunchJob:
    path = folder / "job.yaml"
    path.write_text(text, "utf-8")
    return read_launch(path)


def test_pretraining_of_a_network_that_the_file_describes() -> None:
    job = read_launch(FILE)
    assert (job.framework, job.software, job.devices) == ("litgpt", "fsdp1", 8)
    expected = {
        "data": 8, "zero_stage": 3, "hybrid_shard_size": 4, "global_batch": 128, "micro_batch": 8,
        "recompute": "none", "precision": "bf16-mixed", "optimizer": "adamw",
    }  # fmt: skip
    assert dict(job.plan) == expected
    assert not job.unread
    network = load_model(job.model, dict(job.model_fields)).network.model_dump()
    assert (network["layers"], network["hidden"], network["sequence"]) == (4, 512, 256)
    assert network["tied"]


def test_fine_tuning_with_adapters(tmp_path: Path) -> None:
    job = written(tmp_path, FINETUNE)
    assert job.model_fields["hidden"] == 3072  # by the widths of the published configuration
    layers = job.model_fields["adapters"]["layers"]
    assert "*.attention.query" in layers
    assert "*.attention.key" not in layers
    assert (job.plan["data"], job.plan["global_batch"]) == (1, 16)
    assert any("lm_head" in note for note in job.notes)
    assert any("nf4" in note for note in job.notes)
    assert not job.unread


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("global_batch_size: 16", "global_batch_size: 15", "global batch 15"),
        ("precision: bf16-true", "precision: 64-true", "64-true is not modelled"),
        ("gemma-7b", "gemma-70b", "no description"),
        ("lora_r: 8", "log: {}", "need adapters"),
        ("optimizer: AdamW", "optimizer: torch.optim.Adamax", "adamax is not modelled"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FINETUNE
    with pytest.raises(ConfigError, match=says) as refused:
        written(tmp_path, FINETUNE.replace(old, new))
    assert refused.value.line
