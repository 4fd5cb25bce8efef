"""Predictions beside measurements: reading, statistics, and the promised accuracy on samples."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.import_rows import steps
from ridgeline.study.validate import SUITES, Outcome, Validation, shipped, validate
from ridgeline.study.validate.rows import read_rows
from ridgeline.study.validate.statistics import spearman, summarise, weighted_quantile

HEADER = "id,kind,device,precision,pass_,M,N,K,time_ms,source\n"


def outcome(group: str, predicted: float, measured: float) -> Outcome:
    return Outcome("f", 1, "i", group, group, "c", "time_s", predicted, measured, "s")


def table(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / "rows.csv"
    path.write_text(header + rows, encoding="utf-8")
    return path


def test_a_group_counts_once_however_many_rows_it_has() -> None:
    rows = [outcome("a", 1.1, 1)] * 99 + [outcome("b", 2, 1)]
    summary = summarise(rows, 7)
    assert (summary.n, summary.skipped, summary.groups) == (100, 7, 2)
    assert summary.mean_abs_error == pytest.approx(0.55)
    assert summary.bias == pytest.approx(0.55)
    assert summary.within_25pct == pytest.approx(0.5)
    assert summary.coverage is None


def test_nothing_can_be_said_of_no_rows() -> None:
    assert summarise([], 3).median_abs_error is None


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(0.01, 1))
def test_with_equal_weights_the_quantile_is_an_order_statistic(
    values: list[float], share: float
) -> None:
    found = weighted_quantile(np.array(values), np.ones(len(values)), share)
    assert found == sorted(values)[int(np.ceil(share * len(values) - 1e-9)) - 1]


@given(st.lists(st.integers(0, 9), min_size=3, max_size=30))
def test_ranks_do_not_change_under_monotone_functions(values: list[int]) -> None:
    a = np.array(values, dtype=float)
    if len(set(values)) == 1:
        assert spearman(a, a) is None
        return
    assert spearman(a, np.exp(a)) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)


def test_rows_know_their_lines_and_reasons(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "a,gemm,NV_V100,fp32,fwd,1024,1024,1024,0.2,s\n"
        "b,gemm,Abacus,fp32,fwd,1024,1024,1024,0.2,s\n"
        "c,gemm,NV_V100,fp32,fwd,,1024,1024,0.2,s\n"
        "d,conv,NV_V100,fp32,fwd,,,,0.2,s\n",
    )
    made = validate("gemm", path)
    assert [o.id for o in made.outcomes] == ["a"]
    assert made.outcomes[0].line == 2
    assert [s.id for s in made.skipped] == ["b", "c"]
    assert made.reasons["no description of the device Abacus"] == 1


def test_halves_in_memory_are_what_the_libraries_of_a_device_make_of_them(tmp_path: Path) -> None:
    """By name they are multiplied as fp32, unless a device's file says more of it."""
    pseudo = '"pseudo_fp16(fp16 storage,fp32 math)"'
    rows = "".join(
        f"{i},gemm,{device},{format_},fwd,4096,4096,4096,9,s\n"
        for i, (device, format_) in enumerate(
            [("NV_V100", pseudo), ("NV_V100", "fp32"), ("NV_P100", pseudo), ("NV_TitanX", "fp16")]
        )
    )
    made = validate("gemm", table(tmp_path, rows))
    assert [o.group.split()[1] for o in made.outcomes] == ["fp16-as-fp32", "fp32", "fp16", "fp16"]
    halves, singles = made.outcomes[0].predicted, made.outcomes[1].predicted
    assert halves == pytest.approx(singles, rel=0.02)  # the arithmetic is the same
    peak_s = 2 * 4096**3 / 6.6e12
    assert made.outcomes[3].predicted > peak_s


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,gemm\n", "2 fields, but the header names 10"),
        ('a,"gemm\n', "not a CSV file"),
        ("a,gemm,NV_V100,fp32,fwd,1024,1024,1024,fast,s\n", "expected a number, found 'fast'"),
        ("a,gemm,NV_V100,fp32,fwd,1024,1024,1024,nan,s\n", "expected a number"),
    ],
)
def test_a_broken_row_is_an_error_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate("gemm", table(tmp_path, content))
    assert words in str(caught.value)
    assert "rows.csv:2" in str(caught.value)


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    header = HEADER.replace("time_ms", "time_us")
    with pytest.raises(ConfigError, match="did you mean 'time_us'"):
        validate("gemm", table(tmp_path, "a,gemm,NV_V100,fp32,fwd,8,8,8,1,s\n", header))


@pytest.mark.parametrize("content", ["", "a,a\n1,2\n", ",,\n"])
def test_a_header_must_name_every_column_once(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_rows(path)


def test_a_suite_without_rows_or_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RidgelineError, match="did you mean 'gemm'"):
        validate("gem")
    with pytest.raises(RidgelineError, match="no row belongs"):
        validate("gemm", table(tmp_path, "a,conv,NV_V100,fp32,fwd,8,8,8,1,s\n"))


# Every suite that ships beats its trivial predictors; the limits leave some room.
LIMITS = {"gemm": 0.15, "conv": 0.25, "rnn": 0.25, "single-device": 0.28, "multi-device": 0.11}


def some(suite: str, folder: Path) -> Path:
    """Leave out most steps of several devices, or all of those and most of the others."""
    lines = shipped(suite).read_text("utf-8").splitlines(keepends=True)
    if suite not in {"single-device", "multi-device"}:
        return shipped(suite)
    rows = list(csv.reader(lines))
    alone = rows[0].index("n_accel")
    single = [line for line, row in zip(lines, rows, strict=True) if row[alone] == "1"]
    several = [line for line, row in zip(lines, rows, strict=True) if row[alone] != "1"][1:]
    kept = single[::4] if suite == "single-device" else [*single, *several[::8]]
    return table(folder, "".join(kept), lines[0])


@pytest.mark.parametrize("suite", [name for name in SUITES if name in LIMITS])
def test_the_shipped_measurements_are_predicted_well(suite: str, tmp_path: Path) -> None:
    made = validate(suite, some(suite, tmp_path))
    error = made.summary.median_abs_error
    assert error is not None
    assert error < LIMITS[suite]
    for name, trivial in made.trivial.items():
        assert trivial.median_abs_error is not None
        assert error <= trivial.median_abs_error, name


def test_the_answer_is_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", "gemm", "--json", "--rows"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["suite"] == "gemm"
    keys = {"n", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "within_10pct"}
    assert keys <= set(answer["summary"])
    assert len(answer["rows"]) == answer["summary"]["n"] + answer["summary"]["skipped"]


def test_own_rows_need_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", "--data", "rows.csv"]) == 2
    assert "which suite" in capsys.readouterr().err


def test_accumulated_batches_are_added_up(tmp_path: Path) -> None:
    header = ",".join([*steps.READS, "grad_accum"]) + "\n"
    row = "s,PyTorch,ResNet-50,,V100,2,32,fp32,700,images/s,here,4\n"
    (read,) = read_rows(table(tmp_path, row, header))
    wanted = steps.step_of(read).plan
    assert (wanted["global_batch"], wanted["micro_batch"], wanted["data"]) == (256, 32, 2)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("tp", "two", "tp is not a whole number"),
        ("vocab", "manyk", "vocab is not a whole number"),
        ("sharding", "by hand", "unknown sharding"),
    ],
)
def test_what_a_table_of_language_models_does_not_say_clearly_is_not_guessed(
    tmp_path: Path, column: str, value: str, words: str
) -> None:
    fields = {
        "id": "a", "model": "GPT", "n_layers": "2", "hidden": "128", "heads": "2", "vocab": "512",
        "seq_len": "64", "accelerator": "A100", "n_accel": "2", "tp": "2", "pp": "1",
        "micro_batch": "1", "global_batch_seqs": "2", "precision": "fp16", "recompute": "full",
        "sharding": "none", "framework": "Megatron-LM", "step_time_s": "0.01", "source": "here",
    }  # fmt: skip

    def made(changed: dict[str, str]) -> Validation:
        names, values = (",".join(part) + "\n" for part in zip(*changed.items(), strict=True))
        return validate("llm", table(tmp_path, values, names))

    assert len(made(fields).outcomes) == 1
    (reason,) = made({**fields, column: value}).reasons
    assert words in reason


@pytest.mark.parametrize("suite", ["llm", "memory"])
def test_a_table_of_no_known_form_is_an_error(tmp_path: Path, suite: str) -> None:
    with pytest.raises(ConfigError, match=r"rows.csv:1: the column 'model' is missing"):
        validate(suite, table(tmp_path, "1,2\n", "a,b\n"))


@pytest.mark.parametrize(("rows", "words"), [(1, "gemm: 1 row skipped"), (2, "gemm: 2 rows skip")])
def test_skipped_rows_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: int, words: str
) -> None:
    path = table(tmp_path, "a,gemm,Abacus,fp32,fwd,8,8,8,1,s\n" * rows)
    assert execute(("validate", "gemm", "--data", str(path))) == 0
    assert words in capsys.readouterr().out
