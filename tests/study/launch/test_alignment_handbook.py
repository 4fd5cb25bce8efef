"""Recipes of the alignment handbook and of TRL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch

FOLDER = Path(__file__).parents[2] / "data" / "launch"
FILE = FOLDER / "alignment_handbook.yaml"


def changed(folder: Path, old: str, new: str, **set_: str) -> LaunchJob:
    text = FILE.read_text("utf-8")
    assert old in text
    path = folder / "job.yaml"
    path.write_text(text.replace(old, new), "utf-8")
    return read_launch(path, set_=set_)


def test_a_recipe_does_not_say_where_it_runs() -> None:
    job = read_launch(FILE)
    assert (job.framework, job.model, job.devices) == ("alignment_handbook", "qwen2.5-7b", None)
    expected = {
        "precision": "bf16-true", "optimizer": "adamw", "recompute": "full", "micro_batch": 2,
    }  # fmt: skip
    assert dict(job.plan) == expected
    assert job.software_settings["kernels.cross_entropy"] == "fused"
    assert any("whole copies (DDP)" in note for note in job.notes)
    assert not job.unread


def test_devices_that_are_given_later_make_the_same_batch() -> None:
    later, given = read_launch(FILE).on(8), read_launch(FILE, set_={"devices": "8"})
    assert later.plan["global_batch"] == given.plan["global_batch"] == 2 * 4 * 8


def test_accelerate_says_where() -> None:
    job = read_launch(FILE, set_={"accelerate": str(FOLDER / "accelerate.yaml")})
    assert (job.software, job.devices) == ("torchtitan", 16)
    assert (job.plan["data"], job.plan["global_batch"]) == (4, 32)


def test_adapters_by_peft(tmp_path: Path) -> None:
    lora = (
        "bf16: true\nuse_peft: true\nlora_r: 8\nlora_target_modules: [q_proj]\nload_in_4bit: true"
    )
    job = changed(tmp_path, "bf16: true", lora)
    assert job.model_fields["adapters"]["layers"] == ["*.attention.query"]
    assert any("nf4" in note for note in job.notes)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("- messages", "- chosen\n        - rejected", "preferences"),
        ("bf16: true", "bf16: true\nbeta: 0.1", "preferences"),
        ("bf16: true", "bf16: true\nfp16: true", "both on"),
        ("bf16: true", "deepspeed: a.json\nfsdp: full_shard", "fsdp and deepspeed"),
        ("Qwen2.5-7B", "Qwen9-7B", "no description"),
        ("bf16: true", "bf16: perhaps", "true or false"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        changed(tmp_path, old, new)
    assert refused.value.line
