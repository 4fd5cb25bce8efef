"""``ridgeline run --from FILE``: a step as a launch file of a training framework describes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli import execute

SCRIPT = """\
#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 \\
  --max-position-embeddings 512 --vocab-size 51200 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 \\
  --micro-batch-size 2 --global-batch-size 32 --bf16 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
  --use-distributed-optimizer --overlap-grad-reduce --lr 1e-4 --frobnicate 3
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    return str(file)


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = execute(words.split())
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_script_is_simulated_in_one_command(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(f"run selene-a100 --from {script} --json", capsys)
    answer = json.loads(out)
    assert status == 0
    assert answer["manifest"]["plan"]["data"] == 2
    assert answer["manifest"]["plan"]["recompute"] == "full"
    assert answer["manifest"]["plan"]["zero_stage"] == 1
    assert answer["manifest"]["software"]["chosen_by"] == "the launch file"
    assert answer["launch"]["framework"] == "megatron"
    assert answer["launch"]["not_understood"] == ["--frobnicate"]
    assert {"lr" in s["name"]: s["became"] for s in answer["launch"]["settings"]}[True]


def test_what_the_user_says_counts_before_the_file(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run selene-a100 --from {script} --plan recompute=none --batch 64 --json"
    answer = json.loads(run(f"{words} --software megatron-lm-2021", capsys)[1])
    plan, software = answer["manifest"]["plan"], answer["manifest"]["software"]
    assert (plan["recompute"], plan["global_batch"], plan["tensor"]) == ("none", 64, 4)
    assert (software["name"], software["chosen_by"]) == ("megatron-lm-2021", "you")
    more = json.loads(run(f"run selene-a100 --from {script} --devices 32 --json", capsys)[1])
    assert more["manifest"]["plan"]["data"] == 4


def test_every_setting_is_explained(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(f"run selene-a100 --from {script} --explain", capsys)
    assert "plan.tensor=4" in out
    assert "NOT UNDERSTOOD" in out
    assert "no effect on a step" in out
    _, out, _ = run(f"run selene-a100 --from {script}", capsys)
    assert "not understood: --frobnicate" in out


def test_a_configuration_without_a_network_wants_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "zero.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,'
        ' "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    )
    status, _, err = run(f"run dgx-a100 --from {file} --devices 8", capsys)
    assert status == 2
    assert "which network is trained" in err
    words = f"run gpt2 dgx-a100 --from {file} --devices 8 --json"
    answer = json.loads(run(words, capsys)[1])
    plan = answer["manifest"]["plan"]
    assert (plan["data"], plan["zero_stage"], plan["global_batch"]) == (8, 2, 64)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run", "run needs a model and a cluster"),
        ("run resnet50 dgx1-v100 --batch 8 --devices 4", "they need --from FILE"),
        ("run dgx-a100 --from nowhere.sh", "nowhere.sh"),
    ],
)
def test_mistakes_are_one_message(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(words, capsys)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
