"""``--software``: which program runs a step, who chose it, and what the program costs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.hardware import load_device

STEP = ("run", "resnet18-cifar", "dgx1-v100", "--plan", "data=8", "--batch", "64")
DECODER = ("run", "gpt2", "dgx-h100", "--plan", "data=4,tensor=2", "--batch", "16")
SMALL = (*DECODER, "--set", "model.layers=2")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints that succeeds."""
    assert execute(arguments) == 0
    return capsys.readouterr().out


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(said(capsys, *arguments, "--json"))


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command says that the user is wrong in."""
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_headline_names_the_stack_and_who_chose_it(capsys: pytest.CaptureFixture[str]) -> None:
    usual = said(capsys, *STEP)
    assert "software: pytorch-amp-2021, chosen by the device v100-sxm2-16gb" in usual
    mine = said(capsys, *STEP, "--software", "mxnet")
    assert "software: mxnet, chosen by you" in mine
    bound = said(capsys, *STEP, "--software", "ideal")
    assert "software: ideal, which is a bound and no program; chosen by you" in bound
    nobody = said(capsys, "run", "mlp", "xeon-platinum-8160", "--batch", "64")
    assert "software: ideal, which is a bound and no program; nobody chose another" in nobody


def test_a_usual_stack_that_cannot_run_the_plan_is_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = said(capsys, "run", "mlp", "dgx1-v100", "--plan", "tensor=8", "--batch", "64")
    assert "software: ideal, which is a bound and no program; nobody chose another" in answer


def test_the_plan_as_it_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    answer = " ".join(said(capsys, *DECODER, "--software", "megatron-core-overlap").split())
    assert (
        "plan as run: data=4,tensor=2,sequence=2,zero_stage=1"
        " (sequence=2, zero_stage=1 by megatron-core-overlap)"
    ) in answer
    own = ("run", "gpt2", "dgx-h100", "--plan", "data=4,tensor=2,sequence=off", "--batch", "16")
    answer = " ".join(said(capsys, *own, "--software", "megatron-core-overlap").split())
    assert "(zero_stage=1 by megatron-core-overlap)" in answer


def test_settings_are_replaced_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ("--set", "software.host.launch_time=1ms")
    plain, waiting = (
        found(capsys, *STEP, "--software", "mxnet", *more)["step_time_s"] for more in ((), slow)
    )
    assert waiting > plain
    assert "note: changed: software.host.launch_time=1ms" in said(capsys, *STEP, *slow, "-v")


def test_all_is_a_table_of_every_stack_that_can_run_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = found(capsys, *SMALL, "--software", "all")
    names = [step["software"] for step in table["steps"]]
    assert sorted([*names, *table["refused"]]) == catalog.names("software")
    assert table["refused"]["caffe"].startswith("it runs networks of the kinds cnn, other, not dec")
    times = [step["step_time_s"] for step in table["steps"]]
    assert times == sorted(times)
    by_name = {step["software"]: step for step in table["steps"]}
    for name in ("ideal", "nemo"):
        alone = found(capsys, *SMALL, "--software", name)
        assert by_name[name]["step_time_s"] == alone["step_time_s"]
        assert by_name[name]["manifest_hash"] == alone["manifest"]["hash"]
    assert by_name["ideal"]["of_bound"] == 1
    ratio = by_name["nemo"]["step_time_s"] / by_name["ideal"]["step_time_s"]
    assert by_name["nemo"]["of_bound"] == ratio
    assert by_name["nemo"]["decided"] == {"sequence": 2}
    text = said(capsys, *SMALL, "--software", "all")
    assert re.search(r"nemo +\S+ ms .* sequence=2", text)


def test_a_stack_that_fails_stands_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    step = ("run", "gpt2", "dgx-h100", "--plan", "data=8", "--batch", "16", "--software", "all")
    narrow = ("--set", "software.gradients.reduce_dtype=bf16", "--set", "model.layers=2")
    table = found(capsys, *step, *narrow)
    failed = {step["software"]: step["error"] for step in table["steps"] if step["error"]}
    assert "it needs zero_stage=0, not 1" in failed["megatron-core-overlap"]
    assert [step["software"] for step in table["steps"]][-len(failed) :] == sorted(failed)
    text = said(capsys, *step, *narrow)
    assert re.search(r"megatron-core-overlap +failed", text)
    assert "megatron-core-overlap: software.gradients.reduce_dtype: bf16 is for" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*STEP, "--software", "megatron-cor"), "did you mean 'megatron-core'?"),
        (
            (*STEP, "--software", "megatron-core"),
            "the software megatron-core cannot run this step: it runs networks of the kinds"
            " decoder, transformer, not cnn",
        ),
        ((*STEP, "--set", "software.gradients.bukcet=1 MB"), "did you mean 'gradients.bucket'?"),
        ((*STEP, "--software", "all", "--out", "x"), "--out is of one step"),
        (("memory", "gpt2", "--batch", "8", "--software", "all"), "ridgeline run does"),
        (("memory", "gpt2", "--batch", "8", "--software", "caffe"), "not decoder"),
        (("roofline", "v100-sxm2-16gb", "--software", "ideal"), "the steps of --model"),
        (("trace", "import", "mlp", "--software", "ideal"), "exported with a cluster"),
        (("reproduce", "--software", "ideal"), "name the reproduction"),
        (("reproduce", "eyeriss", "--software", "ideal"), "has no training step"),
        (
            ("collective", "all-to-all", "1MB", "dgx1-v100", "--software", "pytorch"),
            "how gradients are summed",
        ),
        (("show", "megatron-core", "dgx1-v100"), "only things of one kind are compared"),
        (("show", "megatron-cor"), "did you mean 'megatron-core'?"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in mistake(capsys, *arguments)


def test_old_fields_of_plans_are_one_plain_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    step = ("run", "mlp", "dgx1-v100", "--batch", "64", "--plan", "data=8,overlap=false,bucket=1MB")
    assert execute(step) == 0
    assert capsys.readouterr().err.splitlines() == [
        "ridgeline: note: plan.overlap is now software.overlap.gradients",
        "ridgeline: note: plan.bucket is now software.gradients.bucket",
    ]


def test_sweeps_vary_stacks_and_their_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "kind: study\nname: stacks\nmodel: mlp\ncluster: dgx1-v100\n"
        "plan: {data: 8, global_batch: 64}\n"
        "vary:\n  software: [ideal, mxnet]\n  software.host.launch_time: [0 us, 1 ms]\n",
        encoding="utf-8",
    )
    rows = found(capsys, "sweep", str(study))
    assert [row["software"] for row in rows] == ["ideal", "ideal", "mxnet", "mxnet"]
    assert rows[0]["step_time_s"] < rows[1]["step_time_s"] <= rows[3]["step_time_s"]
    step = ("run", "mlp", "dgx1-v100", "--plan", "data=8", "--batch", "64", "--software", "mxnet")
    alone = found(capsys, *step, "--set", "software.host.launch_time=1 ms")
    assert rows[3]["step_time_s"] == alone["step_time_s"]
    text = study.read_text(encoding="utf-8").replace("[ideal, mxnet]", "[ideal, mxnt]")
    study.write_text(text, encoding="utf-8")
    assert "study.yaml:7" in mistake(capsys, "sweep", str(study))


def test_a_study_names_its_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "kind: study\nname: stacks\nmodel: mlp\ncluster: dgx1-v100\nsoftware: mxnet\n"
        "plan: {data: 8}\nvary:\n  plan.global_batch: [64]\n",
        encoding="utf-8",
    )
    assert [row["software"] for row in found(capsys, "sweep", str(study))] == ["mxnet"]


def test_show_says_where_every_value_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", "megatron-core-overlap")
    assert re.search(r"overlap.gradients +yes +megatron-core-overlap ", text)
    assert re.search(r"optimizer.impl +fused +megatron-core +adam", text)
    assert re.search(r"host.async_launch +yes +\(default\)", text)
    assert "[adam] NVIDIA/apex" in text
    whole = found(capsys, "show", "megatron-core-overlap")
    assert whole["settings"]["optimizer.impl"]["stack"] == "megatron-core"


def test_show_tells_two_things_apart(capsys: pytest.CaptureFixture[str]) -> None:
    apart = found(capsys, "show", "megatron-core", "nemo")
    assert apart["gradients.bucket"] == {"megatron-core": "1 PB", "nemo": "160 MB"}
    assert "optimizer.impl" not in apart
    assert "ideal and ideal do not differ" in said(capsys, "show", "ideal", "ideal")
    devices = found(capsys, "show", "a100-sxm4-40gb", "a100-sxm4-80gb")
    assert "memory.hbm.capacity" in devices
    assert "tdp" not in devices
    networks = found(capsys, "show", "gpt2", "gpt2-xl")
    assert networks["layers"] == {"gpt2": "12", "gpt2-xl": "48"}


def test_gradients_of_a_stack_are_summed_in_its_buckets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = found(capsys, "collective", "all-reduce", "100MB", "dgx1-v100")
    parts = found(capsys, "collective", "all-reduce", "100MB", "dgx1-v100", "--software", "pytorch")
    one = found(capsys, "collective", "all-reduce", f"{100e6 / 3!r}B", "dgx1-v100")
    assert parts["buckets"] == 3
    assert parts["time_s"] == pytest.approx(3 * one["time_s"], rel=1e-12)
    assert parts["time_s"] > whole["time_s"]


def test_memory_is_of_a_stack(capsys: pytest.CaptureFixture[str]) -> None:
    step = ("memory", "gpt2", "--batch", "8", "--precision", "bf16-mixed", "--software")
    ideal, old = (found(capsys, *step, name) for name in ("ideal", "megatron-lm-2021"))
    assert ideal["peak_bytes"]["total"] < old["peak_bytes"]["total"]
    assert old["software"] == "megatron-lm-2021"


def test_published_rows_are_predicted_under_their_own_stack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo = ("run", "resnet50", "dgx1-v100", "--plan", "data=8", "--batch", "2048",
            "--precision", "fp16-mixed")  # fmt: skip
    text = said(capsys, *demo, "-v")
    assert "software: pytorch-amp-2021, chosen by the device v100-sxm2-16gb" in text
    for name in ("mxnet", "ngc-mxnet"):
        rate = found(capsys, *demo, "--software", name)["samples_per_s"]
        assert re.search(rf"\) .*{name} .* {rate:,.0f} |{name} +\S+ +{rate:,.0f} ", text)


def test_a_result_is_repeated_under_its_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.errors import RidgelineError
    from ridgeline.study.repeat import repeat

    change = ("--set", "software.gradients.bucket=1 MB")
    saved = found(capsys, *DECODER, "--software", "nemo", *change)
    again = repeat(saved)
    assert again.manifest["hash"] == saved["manifest"]["hash"]
    assert again.step_time_s == saved["step_time_s"]
    saved["manifest"]["software"]["settings"]["optimizer"]["clip_sweeps"] = 7
    with pytest.raises(RidgelineError, match=r"\(optimizer.clip_sweeps differ\)"):
        repeat(saved)


def test_a_sweep_under_another_stack_and_under_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "kind: study\nname: few\nmodel: lenet5\ncluster: dgx1-v100\n"
        "plan: {precision: fp32}\nvary:\n  plan.global_batch: [16, 32]\n",
        encoding="utf-8",
    )

    def rows(*more: str) -> list[dict[str, Any]]:
        assert execute(["sweep", str(study), "--json", *more]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    usual, bound = rows(), rows("--software", "ideal")
    assert [row["software"] for row in bound] == ["ideal"] * 2
    assert all(b["step_time_s"] < u["step_time_s"] for u, b in zip(usual, bound, strict=True))
    every = rows("--software", "all")
    assert [row for row in every if row["software"] == "ideal"] == bound
    assert len({row["software"] for row in every}) == len(every) / 2 > 10
    study.write_text(study.read_text("utf-8") + "  software: [ideal, pytorch]\n", encoding="utf-8")
    assert execute(["sweep", str(study), "--software", "ideal"]) == 2
    assert "varies the software itself" in capsys.readouterr().err
    assert execute(["sweep", "docs/examples/topologies.yaml", "--software", "ideal"]) == 2
    assert "collectives" in capsys.readouterr().err


def test_rows_predicted_under_another_stack(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", "single-device", "--only", "mt-461", "--software", "ideal"]
    assert execute([*words, "--quantity", "predicted"]) == 0
    rate = float(capsys.readouterr().out)
    assert execute([*words, "--commands"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert "--software ideal" in command
    assert "software.kernels" not in command
    _, *again = shlex.split(command)
    assert execute(again) == 0
    assert float(capsys.readouterr().out) == rate
    for wrong, said in (
        (["validate", "gemm", "--software", "ideal"], "leave out --software"),
        (["validate", "--software", "ideal"], "one suite"),
        (["validate", "llm", "--software", "nonsuch"], "nonsuch"),
    ):
        assert execute(wrong) == 2
        assert said in capsys.readouterr().err


def test_memory_knows_what_attention_runs_on_an_older_device() -> None:
    plan = rl.Plan(global_batch=2, precision="fp16-mixed")
    peaks = {
        name: rl.memory(
            "gpt2", plan, software="megatron-core", convolutions=load_device(name)
        ).peak["activations"]
        for name in ("v100-sxm2-16gb", "a100-sxm4-80gb")
    }
    assert peaks["v100-sxm2-16gb"] > 1.5 * peaks["a100-sxm4-80gb"]  # scores are stored
