"""Products, convolutions and number formats on the command line."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import execute


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_cycles_of_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    product = ("gemm", "33", "31", "65", "--array", "32x32")
    serial = json.loads(call(capsys, *product, "--fold", "serial", "--json")[1])
    assert serial["cycles"] == 316
    full = json.loads(call(capsys, *product, "--fold", "serial", "--edge", "full", "--json")[1])
    assert full["cycles"] == 381
    peer = json.loads(call(capsys, *product, "--compat", "scalesim", "--json")[1])
    assert peer["compute_cycles"] == 380  # the index of the last cycle
    assert "cycles" in call(capsys, *product)[1]


def test_zeros_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    product = ("gemm", "512", "512", "512", "--device", "h100-sxm5-80gb")
    dense = json.loads(call(capsys, *product, "--json")[1])
    half = json.loads(call(capsys, *product, "--sparsity", "2:4", "--json")[1])
    assert half["issued_flops"] == half["useful_flops"] == dense["flops"] / 2
    assert half["sparsity"] == "2:4 in B"
    few = (*product, "--density", "0.3", "--break-even")
    answer = json.loads(call(capsys, *few, "--json")[1])
    assert answer["issued_flops"] == dense["flops"]
    assert set(answer["break_even"]) == {"time", "energy", "traffic"}
    assert "no use of unstructured zeros" in call(capsys, *few)[1]
    images = ("conv", "8", "64", "28", "28", "64", "3", "--device", "h100-sxm5-80gb")
    answer = json.loads(call(capsys, *images, "--sparsity", "activation 0.5", "--json")[1])
    assert answer["useful_flops"] == answer["flops"] / 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--sparsity", "2;4"), "cannot read the sparsity '2;4'"),
        (("--density", "2"), "share of non-zeros"),
        (("--density", "0.5", "--sparsity-kind", "blok"), "did you mean 'block'"),
        (("--sparsity", "2:4", "--break-even"), "which N:M has not"),
        (("--format", "fp9"), "unknown number format 'fp9'"),
        (("--format", "flex16+5"), "no matrix work in 'flex16+5'"),
    ],
)
def test_mistakes_about_zeros_and_formats(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    status, _, err = call(capsys, "gemm", "64", "64", "64", "--device", "h100-sxm5-80gb", *more)
    assert status == 2
    assert said in err


def test_fp8_training_of_a_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "bert-base", "h100-sxm5-80gb", "--batch", "16", "--json", "--precision")
    fp8, bf16 = (json.loads(call(capsys, *run, p)[1]) for p in ("fp8-mixed", "bf16-mixed"))
    assert fp8["flops_per_step"] == bf16["flops_per_step"]
    assert fp8["energy_j"]["compute"] < bf16["energy_j"]["compute"]
    status, _, err = call(capsys, "run", "bert-base", "v100-sxm2-16gb", "--batch", "1",
                          "--precision", "fp8-mixed")  # fmt: skip
    assert status == 2
    assert "no engine for matrix work in fp8" in err


def test_formats_and_what_they_lose(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(call(capsys, "formats", "--lognormal=-20,4", "--step", "1e-6", "--json")[1])
    by_name = {row["format"]: row for row in rows}
    assert set(by_name) >= {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8"}
    assert by_name["flex16+5"]["shared_bits"] == 5
    assert by_name["fp16"]["underflow"] > by_name["bf16"]["underflow"]
    out = call(capsys, "formats", "--lognormal=-20,4")[1]
    assert "fp8-e5m2" in out
    bare = [line.split()[0] for line in out.splitlines() if len(line.split()) == 3]
    assert f"{', '.join(bare[:-1])} and {bare[-1]} need --step" in out
    for wrong in ("--normal=a", "--normal=1,2,3", "--lognormal=1"):
        assert call(capsys, "formats", wrong)[0] == 2


def test_an_energy_table_in_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("energy-table", "dark-memory-45nm", "--relative-to")
    rows = json.loads(call(capsys, *ask, "add.int16", "--json")[1])["entries"]
    ratios = {row["entry"]: row["ratio"] for row in rows}
    assert round(ratios["dram.int16"]) == 3556
    shown = call(capsys, *ask, "add.fp64")[1]
    assert "512x" in shown
    assert call(capsys, *ask, "ad.fp64")[0] == 2


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mlp", "fp8-mixed: none is in 8 bits"),  # its layers are 500 wide
        ("gpt2", "% of the matrix FLOPs are in 8 bits"),
    ],
)
def test_a_narrow_precision_says_how_much_is_narrow(
    capsys: pytest.CaptureFixture[str], model: str, words: str
) -> None:
    asked = ("run", model, "h100-sxm5-80gb", "--batch", "16", "--precision")
    assert words in call(capsys, *asked, "fp8-mixed")[1]
    assert "8 bits" not in call(capsys, *asked, "bf16-mixed")[1]
