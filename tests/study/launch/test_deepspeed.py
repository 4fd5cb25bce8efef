"""Configurations of DeepSpeed, and scripts that start programs with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch

FOLDER = Path(__file__).parents[2] / "data" / "launch"


def written(folder: Path, settings: dict[str, Any], **set_: str) -> LaunchJob:
    path = folder / "settings.json"
    path.write_text(json.dumps(settings, indent=1), "utf-8")
    return read_launch(path, set_=set_)


def test_a_configuration_has_no_network_and_says_so() -> None:
    job = read_launch(FOLDER / "deepspeed.json")
    assert (job.framework, job.model, job.software) == ("deepspeed", "", "deepspeed")
    expected = {
        "zero_stage": 2, "precision": "bf16-mixed", "optimizer": "adamw", "global_batch": 256,
        "micro_batch": 4, "data": 8,
    }  # fmt: skip
    assert dict(job.plan) == expected
    assert job.devices == 8  # what the batch is made of
    assert job.software_settings == {"gradients.bucket": 1e8, "overlap.gradients": True}
    assert not job.unread
    assert any("no network" in note for note in job.notes)


def test_a_trainer_fills_in_what_is_automatic(tmp_path: Path) -> None:
    job = written(
        tmp_path,
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        },
    )
    assert dict(job.plan) == {"zero_stage": 3}
    assert not job.unread


def test_a_batch_alone_is_shared_by_the_devices_that_are_given(tmp_path: Path) -> None:
    settings = {"train_batch_size": 64, "fp16": {"enabled": True}}
    assert written(tmp_path, settings).plan.get("data") is None
    job = written(tmp_path, settings, devices="16")
    assert (job.plan["data"], job.plan["micro_batch"]) == (16, 4)


def test_offloading_is_said_not_to_be_modelled(tmp_path: Path) -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    job = written(tmp_path, {"train_batch_size": 8, "zero_optimization": zero})
    assert any("ZeRO-Offload" in note for note in job.notes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both on"),
        ({"zero_optimization": {"stage": 3}, "pipeline": {"stages": 4}}, "stage 0 or 1"),
        ({"zero_optimization": {"stage": 4}}, "found 4"),
        ({"optimizer": {"type": "Sophia"}}, "not modelled"),
        ({"gradient_accumulation_steps": 3, "train_micro_batch_size_per_gpu": 2}, "global batch 8"),
    ],
)
def test_contradictions_are_refused_with_their_line(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        written(tmp_path, {"train_batch_size": 8, **settings})
    assert refused.value.line


def test_a_template_needs_its_values(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": ${stage}}}', "utf-8")
    with pytest.raises(ConfigError, match="--set stage"):
        read_launch(path)
    assert read_launch(path, set_={"stage": "1"}).plan["zero_stage"] == 1


def test_a_script_is_followed_and_writes_its_own_settings() -> None:
    job = read_launch(FOLDER / "deepspeed.sh")
    assert (job.framework, job.model, job.devices) == ("deepspeed", "llama2-7b", 16)
    expected = {
        "zero_stage": 3, "precision": "bf16-mixed", "recompute": "full", "micro_batch": 2,
        "global_batch": 128, "data": 16, "optimizer": "adamw",
    }  # fmt: skip
    assert dict(job.plan) == expected
    assert job.model_fields["sequence"] == 2048
    assert not job.unread
    assert read_launch(FOLDER / "deepspeed.sh", set_={"1": "1"}).plan["zero_stage"] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("train_batch_size 2", "train_batch_size 3", "3 here, 2 in DeepSpeed's settings"),
        ("--model_name_or_path $MODEL", "--data x", "which network finetune.py trains"),
        ("./settings.json \\\n", "./others.json \\\n", "others.json"),
        ("--bf16 True", "--bf16 True --beta 0.1", "preferences"),
        ("Llama-2-7b-hf", "Llama-9-7b-hf", "no description"),
    ],
)
def test_a_script_that_cannot_be_simulated_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = (FOLDER / "deepspeed.sh").read_text("utf-8")
    assert old in text
    path = tmp_path / "job.sh"
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(ConfigError, match=says):
        read_launch(path)


def test_adapters_of_deepspeed_chat(tmp_path: Path) -> None:
    path = tmp_path / "chat.sh"
    path.write_text(
        "deepspeed --num_gpus 4 main.py --data_split 2,4,4 --model_name_or_path facebook/opt-1.3b"
        " --per_device_train_batch_size 8 --max_seq_len 512 --lora_dim 64"
        " --lora_module_name decoder.layers. --only_optimize_lora --zero_stage 2 --deepspeed\n",
        "utf-8",
    )
    job = read_launch(path)
    assert job.model_fields["adapters"]["rank"] == 64
    assert (job.plan["precision"], job.plan["global_batch"]) == ("fp16-mixed", 32)
