"""How commands end that a user, a reader or the place of an answer cuts short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.cli import BROKEN_PIPE_STATUS, INTERRUPTED_STATUS, execute, main
from ridgeline.errors import nearest


@pytest.mark.parametrize("arguments", [["formats"], ["formats", "--json"]])
def test_a_reader_that_stops_is_no_mistake(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ridgeline", *arguments]
    with os.fdopen(writing, "w") as stream:
        done = subprocess.run(
            command, check=False, stdout=stream, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (BROKEN_PIPE_STATUS, "")


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(kind: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "names", interrupted)
    with pytest.raises(SystemExit) as caught:
        main(["list", "models"])
    assert caught.value.code == INTERRUPTED_STATUS
    assert capsys.readouterr().err == "ridgeline: interrupted\n"


@pytest.mark.parametrize("place", ["/proc/x.yaml", "no-such-folder/x.yaml"])
def test_nothing_is_measured_for_a_file_that_cannot_be_written(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it is measured before")

    monkeypatch.setattr("ridgeline.study.calibrate.this_machine.measured", measured)
    assert execute(["calibrate", "--quick", "--out", place]) == 2
    assert capsys.readouterr().err.startswith(f"ridgeline: {place}: cannot be written")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dataset", "imagnet", "no dataset is called 'imagnet'; did you mean 'imagenet'?"),
        ("precision", "fp33", "unknown precision 'fp33'; did you mean 'fp32'?"),
        ("optimizer", "adaam", "did you mean 'adam'?"),
    ],
)
def test_names_in_a_file_are_looked_up_when_it_is_read(
    field: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.yaml"
    head = "kind: model\nname: net\nfamily: mlp\ntitle: t\ncitation: c\ninputs: 10\nwidths: [10]\n"
    path.write_text(f"{head}{field}: {value}\n", encoding="utf-8")
    assert execute(["show", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ridgeline: {path}:8:1: {field}: ")
    assert message in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("conv 1 3 8 8 4 3 --device v100-sxm2-16gb --stride 0", "stride must be at least 1"),
        ("conv 1 3 8 8 4 3 --device v100-sxm2-16gb --padding -1", "padding must be at least 0"),
        ("plan mlp dgx1-v100 --devices 8 --batch 0", "a step has 1 to 2147483648 samples, found 0"),
        ("calibrate --quick --seed -1", "seed must be at least 0, found -1"),
        ("validate --live --backend jax", "there is no backend 'jax'"),
        ("top rows.csv --by time_s", "rows.csv:1: columns are separated by ';'; allowed: a comma"),
        ("plot time rows.json --out x.png", "rows.json:1:2: not JSON"),
        ("roofline v100", "no device is called 'v100'; did you mean 'v100-"),
        ("gemm 8 8 8 --device v100-sxm2-16gb --format fp16-as-", "number format 'fp16-as-'"),
        ("collective all-reduce -1MB dgx1-v100", "'-1MB' begins with '-' and was read as an opt"),
        ("pareto front.csv --min a --max a", "the column 'a' is named twice"),
        (
            "run mlp v100-sxm2-16gb --batch 4 --set cluster.device.memory.hbm.bandwidth=1e-300B/s",
            "'1e-300B/s' is out of range",
        ),
    ],
)
def test_a_mistake_is_one_line(
    command: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("batch;time_s\n1;2\n", encoding="utf-8")
    Path("rows.json").write_text("{", encoding="utf-8")
    Path("front.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert execute(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("ridgeline: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_nearest_name_has_the_word_or_is_a_slip_away() -> None:
    names = [
        "h20",
        "h200-nvl",
        "gtx-1080",
        "v100-sxm2-16gb",
        "fp32",
        "fp16-mixed",
        "resnet50",
        "A100-SXM4-80GB",
    ]
    for word, meant in (
        ("h200", "h200-nvl"), ("v100", "v100-sxm2-16gb"), ("FP16", "fp16-mixed"),
        ("resnet5O", "resnet50"), ("A100-SXM4-60GB", "A100-SXM4-80GB"),
    ):  # fmt: skip
        assert nearest(word, names) == f"; did you mean {meant!r}?"
    assert nearest("x", names) == ""
