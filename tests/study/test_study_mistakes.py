"""Mistakes in a study file that are said at once, with line and column, before the sweep runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.study.study_file import ValueSpan, _count
from ridgeline.study.sweep import load_study, prepare, run_sweep

HEAD = """kind: study
name: mistakes
model: lenet5
cluster: tpu-v2
plan: {global_batch: 8, precision: bf16-mixed}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vary: {plan.tensr: [1, 2]}", r"6:21: vary\.plan\.tensr\.0: .*did you mean 'tensor'"),
        ("set: {plan.data: 1}\nvary: {plan.data: [1]}", r"7:8: .*both set and varied"),
        (
            "vary: {plan.global_batch: [1, 2]}\nwhere: [globalbatch > 1]",
            r"7:9: where\.0: .*there are: plan\.global_batch, plan\.precision\)",
        ),
        ("vary: {plan.global_batch: [1, 2]}\nwhere: [global_batch > 5]", r"7:1: .*leave no point"),
        ("vary: {plan.global_batch: [1, 2]}\nwhere: [global_batch > 1 / 0]", r"7:1: .*zero"),
        (
            "vary: {plan.global_batch: [1, 2]}\ncolumns: {per: enrgy_j.total / 2}",
            r"7:11: columns\.per: .*did you mean 'energy_j\.total'",
        ),
        (
            "vary: {plan.global_batch: [1, 2]}\ncolumns: {a: b + 1, b: step_time_s}",
            r"7:11: columns\.a: there is no column 'b'",
        ),
        (
            "vary: {plan.global_batch: [1, 2]}\nrequire: [memory_bytes.totl < 3]",
            r"7:11: require\.0: .*did you mean 'memory_bytes\.total'",
        ),
    ],
)
def test_a_mistake_is_said_before_the_sweep(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HEAD + text + "\n")
    with pytest.raises(ConfigError, match=message):
        prepare(path)


@pytest.mark.parametrize(
    "text",
    [
        "columns: {a: step_time_s * 2, b: a + global_batch, c: traffic_bytes.nvlink2 / 2}",
        "columns:\n  a: |\n    step_time_s\n    / (global_batch - 1)\n",
        "where: [global_batch > 1]\nrequire: [memory_bytes.total <= memory_bytes.capacity]",
    ],
)
def test_what_is_right_passes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HEAD + "vary: {plan.global_batch: [1, 2]}\n" + text + "\n")
    prepare(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HEAD.replace("tpu-v2", "absent.yaml") + "vary: {plan.global_batch: [1, 2]}\n")
    with pytest.raises(ConfigError, match=r"4:1: cluster: .*absent\.yaml: cannot be read"):
        prepare(path)


def test_formulas_may_name_what_is_the_same_for_all_points(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        HEAD + "vary: {cluster.device.launch_latency: [1 us, 9 us]}\n"
        "columns: {each: energy_j.total / global_batch}\nrequire: [global_batch == 8]\n"
    )
    rows = run_sweep(load_study(path))
    prepare(path)
    assert [row["each"] for row in rows] == [row["energy_j.total"] / 8 for row in rows]
    assert all(row["feasible"] for row in rows)
    assert "plan.global_batch" not in rows[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vary: {plan.precision: [fp32, fp23]}", r"6:31: .*did you mean 'fp32'.*known: fp32"),
        (
            "vary: {cluster.device.energy_table: [horowitz-45nm, tsmc-7nm]}",
            r"6:53: .*energy_table\.1: no energy table is called 'tsmc-7nm'; did you mean",
        ),
        ("vary: {cluster: [tpu-v2, 3]}", r"6:26: vary\.cluster\.1: expected a name, found 3"),
        ("vary: {model: {from: 1, to: 3, steps: 2}}", r"6:8: .*write a list"),
        ("vary: {cluster.device.: [1]}", r"6:8: .*two dots"),
        ("vary: {plan..data: [1]}", r"6:8: .*two dots"),
        ("zip: [{}]", r"6:7: zip\.0: .*at least 1"),
        (
            "vary: {plan.global_batch: {from: .nan, to: 3, steps: 3}}",
            r"6:28: vary\.plan\.global_batch\.from: .*finite number; found nan",
        ),
        ("vary: {plan.global_batch: {from: 1 GB, to: 3 s, steps: 3}}", "another dimension"),
        ("vary: {plan.global_batch: [1]}\ncolumns: {a: 1 / 0}", r"7:11: columns\.a: .*zero"),
        (
            "vary:\n  plan.data: {from: 1, to: 100000, steps: 100000}\n"
            "  plan.tensor: {from: 1, to: 100000, steps: 100000}",
            r"6:1: vary: 10000000000 points; at most 1000000",
        ),
        (
            f"vary: {{plan.global_batch: {{from: 1, to: 1{'0' * 400}, steps: 3}}}}",
            r"6:\d+: a number of more than 300 digits",
        ),
        (
            "vary: {cluster.device.energy_table.entries.dram.hbm2.value: [-1 pJ/bit]}",
            r"6:62: .*hbm2\.value\.0: .*at least 0",
        ),
        (
            "vary: {cluster.device.engines.mxu.array.dataflows: [[ws], [rs]]}",
            r"6:59: .*dataflows\.1: .*allowed: os, ws, is; found 'rs'",
        ),
        *(
            (f"vary: {{plan.global_batch: [1]}}\ncolumns: {{{column}}}", rf"7:11: columns\.{said}")
            for column, said in (
                ("error: step_time_s", "error: .*every row has"),
                ("'': step_time_s", ": the name '' has no letters"),
                ("step_time_s: mfu * 2", "step_time_s: there is a column 'step_time_s' already"),
                ("a: b + 1, b: a + 1", "a: there is no column 'b' yet: .*before it"),
                ("a: a + 1", "a: there is no column 'a' yet"),
                ("a: step_time_s % (1 - 1)", r"a: 'step_time_s % \(1 - 1\)' divides by zero"),
            )
        ),
    ],
)
def test_another_mistake_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HEAD + text + "\n")
    with pytest.raises(ConfigError, match=message):
        prepare(path)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 60), st.booleans())
def test_values_are_counted_as_they_are_made(a: int, b: int, steps: int, log: bool) -> None:
    a, b = (abs(a) + 1, abs(b) + 1) if log else (a, b)
    scale = "log" if log else "linear"
    span = ValueSpan.model_validate({"from": a, "to": b, "steps": steps, "scale": scale})
    assert _count(span) == len(span.values())


def test_prefixes_of_a_span_may_differ() -> None:
    span = ValueSpan.model_validate({"from": "1 kB", "to": "1 GB", "steps": 3, "scale": "log"})
    assert span.values() == ["1 kB", "1000 kB", "1000000 kB"]


def test_a_row_says_which_formula_could_not_be_computed(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        HEAD + "vary: {plan.global_batch: [8, 16]}\ncolumns: {a: 1 / (global_batch - 16)}\n"
    )
    prepare(path)
    fine, failed = run_sweep(load_study(path))
    assert (fine["error"], fine["a"]) == ("", -0.125)
    assert failed["error"].startswith("columns.a: ")
