"""Configurations of MaxText and scripts that start it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch

FOLDER = Path(__file__).parents[2] / "data" / "launch"
NETWORK = """
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
head_dim: 128
mlp_activations: ["silu", "linear"]
vocab_size: 128256
decoder_block: "llama2"
logits_via_embedding: false
"""


def written(folder: Path, text: str, name: str = "job.yml", **set_: str) -> LaunchJob:
    path = folder / name
    path.write_text(text, "utf-8")
    return read_launch(path, set_=set_)


def test_a_configuration_becomes_a_job() -> None:
    job = read_launch(FOLDER / "maxtext.yml")
    assert (job.model, job.devices, job.software) == ("llama2-70b", 64, "maxtext-gpu")
    expected = {
        "data": 64, "zero_stage": 3, "hybrid_shard_size": 32, "micro_batch": 2,
        "global_batch": 256, "precision": "fp8-mixed", "recompute": "products",
    }  # fmt: skip
    assert expected.items() <= job.plan.items()
    assert not job.unread


def test_a_script_takes_the_defaults_of_the_base() -> None:
    job = read_launch(FOLDER / "maxtext.sh")
    assert (job.framework, job.model, job.software) == ("maxtext", "maxtext-16b", "maxtext-tpu")
    assert job.devices == 128
    assert job.plan["tensor"] == 4
    assert job.plan["micro_batch"] == 2  # half a sample a device, four devices to a copy
    assert job.plan["global_batch"] == 64
    assert job.plan["precision"] == "bf16-mixed"
    assert not job.unread


def test_widths_alone_name_a_network(tmp_path: Path) -> None:
    job = written(tmp_path, NETWORK)
    assert (job.model, dict(job.plan)) == ("llama3-8b", {})
    assert any("network alone" in note for note in job.notes)


def test_the_axis_that_is_left_open_takes_the_devices_that_are_given(tmp_path: Path) -> None:
    text = (
        (FOLDER / "maxtext.sh")
        .read_text("utf-8")
        .replace("fsdp_parallelism=32", "fsdp_parallelism=-1")
    )
    open_ = written(tmp_path, text, "job.sh")
    assert open_.devices is None
    assert any("--devices N" in note for note in open_.notes)
    assert written(tmp_path, text, "job.sh", devices="64").plan["data"] == 16


def test_settings_can_be_given_as_on_the_command_line(tmp_path: Path) -> None:
    text = "base_config: base.yml\nhardware: gpu\nsteps: 5\nici_fsdp_parallelism: 8\n"
    with pytest.raises(ConfigError, match="--set model_name"):
        written(tmp_path, text)
    assert written(tmp_path, text, model_name="llama3.1-8b").model == "llama3-8b"


def test_a_topology_says_how_many_devices_there_are(tmp_path: Path) -> None:
    text = (FOLDER / "maxtext.sh").read_text("utf-8")
    topology = " compile_topology=v5p-256 compile_topology_num_slices=2"
    job = written(tmp_path, text.replace(" steps=5", topology), "job.sh")
    assert (job.devices, job.device, job.plan["hybrid_shard_size"]) == (256, "tpu-v5p", 32)
    with pytest.raises(ConfigError, match="the axes make 128"):
        written(tmp_path, text.replace(" steps=5", " compile_topology=v5e-256"), "job.sh")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("use_dpo: true", "preferences"),
        ("decoder_block: qwen3_next", "gated delta"),
        ("quantization: int2", "int2 is not modelled"),
        ("ici_expert_parallelism: 7", "expert 7"),
        ("per_device_batch_size: 0.3", "no whole number"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, more: str, says: str) -> None:
    launch = "hardware: gpu\nici_fsdp_parallelism: 8\nnum_experts: 8\n"
    name = more.partition(":")[0]
    kept = [line for line in (NETWORK + launch).splitlines() if line.partition(":")[0] != name]
    text = "\n".join(kept)
    with pytest.raises(ConfigError, match=says):
        written(tmp_path, f"{text}\n{more}\n")


def test_rules_of_sharding_alone_are_no_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a network nor a launch"):
        written(tmp_path, "mesh_axes: ['data']\nlogical_axis_rules: [['batch', ['data']]]\n")
