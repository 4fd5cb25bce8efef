from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import read_launch

JOB = Path(__file__).parents[2] / "data" / "launch" / "primus.yaml"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = JOB.read_text()
    assert old in text
    path = tmp_path / "job.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_an_experiment() -> None:
    job = read_launch(JOB)
    assert (job.model, job.model_fields, job.software) == ("llama3-8b", {}, "primus")
    assert job.plan == {
        "tensor": 2, "pipeline": 1, "global_batch": 128, "micro_batch": 2, "sequence": True,
        "precision": "bf16-mixed", "zero_stage": 1, "recompute": "full",
    }  # fmt: skip
    assert (job.devices, job.unread) == (None, ())
    assert any(note.startswith("defaults of Primus: bf16, sequence_parallel") for note in job.notes)


def test_settings_replace_those_of_the_network(tmp_path: Path) -> None:
    job = read_launch(changed(tmp_path, "8192}", "4096}\n      num_layers: 16"))
    assert (job.model, job.model_fields["layers"]) == ("llama3-8b", 16)
    assert job.model_fields["sequence"] == 4096


def test_latent_attention_may_be_turned_off(tmp_path: Path) -> None:
    path = changed(tmp_path, "llama3.1_8B}", "deepseek_v3}")
    path.write_text(path.read_text() + "      multi_latent_attention: false\n")
    job = read_launch(path)
    assert job.model_fields["attention"]["head_size"] == 128
    assert any("turns latent attention off" in note for note in job.notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("framework: megatron", "framework: torchtitan", "an experiment of torchtitan"),
        ("llama3.1_8B}", "mamba_370M}", "no network of the catalogue is 'mamba_370M'"),
        ("pre_trainer:", "other:", "no module trains a model"),
        ("micro_batch_size: 2", "micro_batch_size: 3", "cannot be divided by micro-batch 3"),
    ],
)
def test_refusals(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read_launch(changed(tmp_path, old, new))
    assert error.value.line


def test_an_experiment_that_maxtext_runs(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        "modules:\n"
        "  pre_trainer:\n"
        "    framework: ${FRAMEWORK:maxtext}\n"
        "    config: pre_trainer.yaml\n"
        "    model: llama3.1_8B.yaml\n"
        "    overrides:\n"
        "      per_device_batch_size: ${BATCH:4}\n"
        "      max_target_length: 8192\n"
        "      ici_fsdp_parallelism: 8\n"
        "      remat_policy: full\n",
        encoding="utf-8",
    )
    job = read_launch(path, set_={"devices": "8"})
    assert (job.framework, job.model, job.software) == ("primus", "llama3-8b", "maxtext-gpu")
    assert job.model_fields["sequence"] == 8192
    plan = {name: job.plan[name] for name in ("data", "zero_stage", "micro_batch", "recompute")}
    assert plan == {"data": 8, "zero_stage": 3, "micro_batch": 4, "recompute": "full"}
    path.write_text(path.read_text("utf-8").replace("maxtext", "torchtitan"), encoding="utf-8")
    with pytest.raises(ConfigError, match="an experiment of torchtitan"):
        read_launch(path)
