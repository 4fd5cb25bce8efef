"""Configurations of axolotl."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch
from ridgeline.workload.files import load_model

FILE = Path(__file__).parents[2] / "data" / "launch" / "axolotl.yaml"


def changed(folder: Path, old: str, new: str) -> LaunchJob:
    text = FILE.read_text("utf-8")
    assert old in text
    path = folder / "job.yaml"
    path.write_text(text.replace(old, new), "utf-8")
    return read_launch(path)


def test_adapters_on_a_sharded_network() -> None:
    job = read_launch(FILE)
    assert (job.framework, job.model, job.software, job.devices) == (
        "axolotl", "llama3-8b", "fsdp1", 8,
    )  # fmt: skip
    expected = {
        "data": 8, "hybrid_shard_size": 4, "zero_stage": 3, "micro_batch": 2, "global_batch": 64,
        "precision": "bf16-mixed", "optimizer": "adamw-8bit", "recompute": "full",
    }  # fmt: skip
    assert dict(job.plan) == expected
    assert job.software_settings == {"kernels.attention": "flash"}
    assert not job.unread
    assert any("frozen matrices wait in nf4" in note for note in job.notes)
    assert any("state may lie in the host's memory" in note for note in job.notes)
    graph = load_model(job.model, dict(job.model_fields) | {"layers": 2}).forward(1)
    adapted = {name for name in graph.tensors if name.endswith("adapter-up.weight")}
    assert len(adapted) == 2 * 7  # all linear layers of both blocks


def test_targets_may_be_a_list_or_a_pattern(tmp_path: Path) -> None:
    target = "lora_target_linear: true"
    job = changed(tmp_path, target, "lora_target_modules: [q_proj, v_proj, in_proj]")
    assert job.model_fields["adapters"]["layers"] == ["*.attention.query", "*.attention.value"]
    assert any("in_proj" in note for note in job.notes)
    job = changed(
        tmp_path, target, r"lora_target_modules: 'model.layers.[\d]+.self_attn.(q|o)_proj'"
    )
    assert job.model_fields["adapters"]["layers"] == ["*.attention.query", "*.attention.output"]


def test_deepspeed_of_axolotl_is_known_by_its_file(tmp_path: Path) -> None:
    text = FILE.read_text("utf-8")
    start, end = text.index("fsdp_version"), text.index("wandb_project")
    engine = "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n"
    job = changed(tmp_path, text[start:end], engine)
    assert (job.software, job.plan["zero_stage"], job.devices) == ("deepspeed", 3, None)
    assert any("ZeRO-Offload" in note for note in job.notes)
    with pytest.raises(ConfigError, match=r"mine\.json, which does not lie beside"):
        changed(tmp_path, text[start:end], "deepspeed: mine.json\n")
    (tmp_path / "mine.json").write_text('{"zero_optimization": {"stage": 1}}', "utf-8")
    assert changed(tmp_path, text[start:end], "deepspeed: mine.json\n").plan["zero_stage"] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("bf16: auto", "bf16: true\nfp16: true", "both on"),
        ("wandb_project:", "deepspeed: deepspeed_configs/zero1.json", "fsdp and deepspeed"),
        ("wandb_project:", "rl: dpo", "preferences or rewards"),
        ("wandb_project:", "processor_type: AutoProcessor", "images"),
        ("wandb_project:", "unfrozen_parameters: ['model.layers.2[0-9]+.*']", "some weights"),
        ("wandb_project:", "batch_size: 60", "global batch 60"),
        ("optimizer: paged_adamw_8bit", "optimizer: sophia", "sophia is not modelled"),
        ("Meta-Llama-3-8B", "Meta-Llama-3-9B", "no description"),
        ("lora_r: 16", "lora_rank: 16", "rank of the adapters"),
        ("adapter: qlora", "adapter:", "need adapters"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        changed(tmp_path, old, new)
    assert refused.value.line


def test_what_is_kept_may_wait_in_the_hosts_memory(tmp_path: Path) -> None:
    job = changed(tmp_path, "wandb_project:", "activation_offloading: true")
    assert (job.plan["recompute"], job.plan["offload"]) == ("full", "all")
