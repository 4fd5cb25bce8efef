"""Mistakes in a study file that are said at once, with line and column, before the sweep runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
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
        "where: [global_batch > 1]\nrequire: [memory_bytes.total <= memory_bytes.capacity]",
    ],
)
def test_what_is_right_passes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HEAD + "vary: {plan.global_batch: [1, 2]}\n" + text + "\n")
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
