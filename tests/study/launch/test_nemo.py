from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import read_launch

JOB = Path(__file__).parents[2] / "data" / "launch" / "nemo.yaml"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = JOB.read_text()
    assert old in text
    path = tmp_path / "job.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_a_configuration() -> None:
    job = read_launch(JOB)
    assert (job.model, job.model_fields, job.software) == ("llama2-7b", {}, "nemo")
    assert job.plan == {
        "tensor": 2, "pipeline": 2, "data": 8, "global_batch": 64, "micro_batch": 1,
        "sequence": True, "precision": "bf16-mixed", "zero_stage": 1, "recompute": "selective",
        "stage_balance": "layers", "optimizer": "adamw",
    }  # fmt: skip
    assert job.software_settings == {"overlap.gradients": True}
    assert (job.devices, job.unread) == (32, ())
    assert {s.name: s.line for s in job.settings}["model.hidden_size"] == 19


def test_fp8_counts_where_it_is_on(tmp_path: Path) -> None:
    job = read_launch(changed(tmp_path, "  fp8: false", "  fp8: true"))
    assert job.plan["precision"] == "fp8-mixed"


def test_adapters_of_a_network_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "peft.yaml"
    path.write_text(
        "run: {model_train_name: llama2_7b}\ntrainer: {devices: 8, num_nodes: 1, precision: bf16}\n"
        "exp_manager: {}\nmodel:\n  mcore_gpt: true\n  global_batch_size: 128\n"
        "  micro_batch_size: 4\n  peft:\n    peft_scheme: lora\n    lora_tuning: {adapter_dim: 8}\n"
        "  data:\n    train_ds: {max_seq_length: 2048}\n"
    )
    job = read_launch(path)
    assert (job.model, job.model_fields) == (
        "llama2-7b", {"sequence": 2048, "adapters": {"rank": 8}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("global_batch_size: 64", "global_batch_size: 60", "global batch 60 cannot be divided"),
        ("  mcore_gpt: true", "  mm_cfg: {}", "images and text"),
        ("precision: bf16", "precision: int3", "unknown precision 'int3'"),
        ("num_layers: 32", "num_layers: 31", "31 layers cannot be divided into 2 stages"),
        ("hidden_size: 4096", "hidden_size: ${gone}", "needs gone"),
    ],
)
def test_refusals(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read_launch(changed(tmp_path, old, new))
    assert error.value.line
