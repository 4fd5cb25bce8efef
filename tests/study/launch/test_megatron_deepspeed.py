from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import read_launch

JOB = Path(__file__).parents[2] / "data" / "launch" / "megatron_deepspeed.slurm"


def changed(tmp_path: Path, *pairs: tuple[str, str]) -> Path:
    text = JOB.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "job.slurm"
    path.write_text(text)
    return path


def test_a_batch_job() -> None:
    job = read_launch(JOB)
    assert (job.model, job.software, job.devices) == ("gpt3-1.3b", "megatron-deepspeed", 32)
    assert job.plan == {
        "tensor": 2, "pipeline": 4, "data": 4, "global_batch": 128, "micro_batch": 2,
        "precision": "fp16-mixed", "zero_stage": 1, "recompute": "full", "stage_balance": "layers",
    }  # fmt: skip
    assert not job.unread
    assert "the batch grows at the beginning; its full size is simulated" in job.notes


def test_signs_of_bigscience(tmp_path: Path) -> None:
    path = changed(tmp_path, ("    --fp16 \\\n", "    --fp16 --kill-switch-path x \\\n"))
    assert read_launch(path).software == "bigscience"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--zero-stage ${ZERO}", "--zero-stage 2", "ZeRO stage 2 contradicts stage 1"),
        (
            '"train_batch_size": $BATCH',
            '"train_batch_size": 64',
            "128 contradicts train_batch_size",
        ),
        ("--fp16", "--fp16 --num-experts 8", "experts in every other layer"),
        ("--nnodes $NNODES", "--nnodes 5", "20 devices cannot be divided"),
    ],
)
def test_contradictions(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_launch(changed(tmp_path, (old, new)))


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--deepspeed_config ${config}", "--deepspeed_config ours.json"))
    assert (
        "the DeepSpeed configuration is another file, which is not there" in read_launch(path).notes
    )


def test_stages_may_be_uneven(tmp_path: Path) -> None:
    path = changed(tmp_path, ("--num-layers 24", "--num-layers 22"))
    with pytest.raises(ConfigError, match="how many tokens the vocabulary has"):
        read_launch(path)
    job = read_launch(path, set_={"vocab_size": "50257"})
    assert job.plan["stage_balance"] == "ends"
