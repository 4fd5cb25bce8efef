"""Configurations of accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch

FILE = Path(__file__).parents[2] / "data" / "launch" / "accelerate.yaml"
ENGINE = """
distributed_type: DEEPSPEED
machine_rank: 0
num_machines: 1
num_processes: 8
mixed_precision: {precision}
deepspeed_config:
  deepspeed_config_file: engine.json
"""


def written(folder: Path, text: str) -> LaunchJob:
    path = folder / "job.yaml"
    path.write_text(text, "utf-8")
    return read_launch(path)


def test_degrees_beside_those_of_fsdp() -> None:
    job = read_launch(FILE)
    assert (job.framework, job.model, job.software, job.devices) == (
        "accelerate", "", "torchtitan", 16,
    )  # fmt: skip
    expected = {
        "data": 4, "tensor": 2, "context": 2, "zero_stage": 3, "hybrid_shard_size": 2,
        "recompute": "full", "precision": "bf16-mixed",
    }  # fmt: skip
    assert expected.items() <= job.plan.items()
    assert any("torchtitan's stands in" in note for note in job.notes)
    assert not job.unread


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("dp_shard_size: 2", "dp_shard_size: 4", "data 8 x"),
        ("num_machines: 2", "num_machines: 3", "16 processes"),
        ("mixed_precision: bf16", "mixed_precision: bf17", "allowed: no"),
        ("use_cpu: false", "use_cpu: true", "processors"),
        ("distributed_type: FSDP", "distributed_type: XLA", "xla is not modelled"),
        ("rdzv_backend: static", "deepspeed_config:\n  zero_stage: 3", "distributed_type is FSDP"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = FILE.read_text("utf-8")
    assert old in text
    with pytest.raises(ConfigError, match=says) as refused:
        written(tmp_path, text.replace(old, new))
    assert refused.value.line


def test_settings_of_deepspeed_lie_in_a_file_beside(tmp_path: Path) -> None:
    text = ENGINE.format(precision="bf16")
    with pytest.raises(ConfigError, match=r"engine\.json, which does not lie beside"):
        written(tmp_path, text)
    engine = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}'
    (tmp_path / "engine.json").write_text(engine, "utf-8")
    job = written(tmp_path, text)
    assert (job.software, job.plan["zero_stage"], job.plan["global_batch"]) == ("deepspeed", 1, 16)
    (tmp_path / "engine.json").write_text('{"fp16": {"enabled": true}}', "utf-8")
    with pytest.raises(ConfigError, match="DeepSpeed's settings say fp16-mixed"):
        written(tmp_path, text)


def test_whole_copies_may_be_compiled(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_GPU\nmachine_rank: 0\nnum_processes: 4\nmixed_precision: fp8\n"
    more = "fp8_config:\n  backend: AO\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
    assert written(tmp_path, text).plan["precision"] == "fp8-mixed"
    job = written(tmp_path, text + more)
    assert (job.software, job.plan["precision"]) == ("pytorch-compile", "fp8-dynamic")
